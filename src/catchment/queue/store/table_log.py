"""A table in one file of the buffer: its versions and positions, and how writes get their numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pyarrow as pa

from catchment.errors import SeqGapError
from catchment.foundation.ids import TableId
from catchment.lake.types import Column

_MARK_EVERY = timedelta(seconds=1)
_MARKS_MAX = 600
_MARK_EVERY_THEN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A table's rows under one set of columns: from `seq_first` until the next version."""

    table: TableId
    number: int
    staging: str
    columns: tuple[Column, ...]
    seq_first: int


@dataclass(frozen=True, slots=True)
class AckMark:
    """Rows up to `seq_last` were acknowledged by `at`, the earliest time since the previous mark."""

    seq_last: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLog:
    """A table in this file: versions, oldest first, and positions written and flushed.

    Rows up to `seq_gone` are deleted from the file: flushed ones, or, if the log is retained, those
    that are flushed and truncated.
    """

    versions: tuple[Version, ...]
    seq_last: int = 0
    seq_flushed: int = 0
    seq_gone: int = 0
    seq_truncated: int = 0
    is_retained: bool = False
    bytes_written: int = 0
    rows_written: int = 0
    marks: tuple[AckMark, ...] = ()

    @property
    def rows(self) -> int:
        return self.seq_last - self.seq_flushed

    @property
    def bytes(self) -> int:
        return self.rows * self.bytes_written // max(1, self.rows_written)

    @property
    def oldest_at(self) -> datetime | None:
        return self.marks[0].at if self.marks and self.rows else None

    def written(self, rows: int, size: int, at: datetime) -> "TableLog":
        """Return the log with that many more rows."""
        seq_last = self.seq_last + rows
        marks = self.marks
        # One mark per second is enough to know the age; fewer once there are many, so that memory
        # stays bounded during an outage.
        every = _MARK_EVERY if len(marks) < _MARKS_MAX else _MARK_EVERY_THEN
        if marks and at - marks[-1].at < every:
            marks = (*marks[:-1], AckMark(seq_last, marks[-1].at))
        else:
            marks = (*marks, AckMark(seq_last, at))
        return replace(
            self,
            seq_last=seq_last,
            rows_written=self.rows_written + rows,
            bytes_written=self.bytes_written + size,
            marks=marks,
        )

    def flushed(self, seq: int) -> "TableLog":
        """Return the log after everything up to `seq` reached the lake."""
        through = max(self.seq_flushed, min(seq, self.seq_last))
        marks = tuple(mark for mark in self.marks if mark.seq_last > through)
        return replace(self, seq_flushed=through, marks=marks)._trimmed()

    def truncate_log(self, seq: int) -> "TableLog":
        """Return the log after it was truncated up to `seq`."""
        return replace(self, seq_truncated=max(self.seq_truncated, min(seq, self.seq_last)))._trimmed()

    def retained(self) -> "TableLog":
        """Return the log, retained until it is truncated."""
        return self if self.is_retained else replace(self, is_retained=True, seq_truncated=self.seq_gone)

    def released(self) -> "TableLog":
        """Return the log, no longer retained."""
        return replace(self, is_retained=False)._trimmed()

    def under(self, table: TableId) -> "TableLog":
        """Return the log under another name."""
        return replace(self, versions=tuple(replace(version, table=table) for version in self.versions))

    def starting_after(self, seq: int) -> "TableLog":
        """Return the log of a table whose rows up to `seq` went to the lake without being here."""
        return replace(self, seq_last=seq, seq_flushed=seq, seq_gone=seq, seq_truncated=seq, marks=())

    def with_progress_of(self, other: "TableLog") -> "TableLog":
        """Return this log with the other's flushed, truncated and deleted positions."""
        if (self.seq_flushed, self.seq_gone, self.seq_truncated) == (
            other.seq_flushed,
            other.seq_gone,
            other.seq_truncated,
        ):
            return self
        return replace(
            self,
            seq_flushed=other.seq_flushed,
            seq_gone=other.seq_gone,
            seq_truncated=other.seq_truncated,
            marks=tuple(mark for mark in self.marks if mark.seq_last > other.seq_flushed),
            versions=tuple(version for version in self.versions if version.number >= other.versions[0].number),
        )

    def without(self, versions: Sequence[Version]) -> "TableLog":
        """Return the log without these versions."""
        return replace(self, versions=tuple(version for version in self.versions if version not in versions))

    def ranges(self, after: int | None = None) -> Iterator[tuple[Version, int, int]]:
        """Yield the ranges of rows after a number, by version; by default, the unflushed ones."""
        start = (self.seq_flushed if after is None else after) + 1
        for at, version in enumerate(self.versions):
            last = self.versions[at + 1].seq_first - 1 if at + 1 < len(self.versions) else self.seq_last
            first = max(version.seq_first, start)
            if first <= last:
                yield version, first, last

    def _trimmed(self) -> "TableLog":
        """Return the log without rows that neither the lake nor a reader of the retained log needs.

        Versions are removed if all their rows are deleted and they take no more.
        """
        unwanted = min(self.seq_flushed, self.seq_truncated) if self.is_retained else self.seq_flushed
        gone = max(self.seq_gone, unwanted)
        ends = [version.seq_first - 1 for version in self.versions[1:]]
        old = [version for version, end in zip(self.versions, ends, strict=False) if end <= gone]
        return replace(self, seq_gone=gone, versions=tuple(each for each in self.versions if each not in old))


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Rows to store, which fit the columns; `seq_first` is set if they have numbers already."""

    table: TableId
    columns: tuple[Column, ...]
    rows: pa.Table
    seq_first: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedRows:
    """Rows with their first number and the version that they belong to."""

    version: Version
    seq_first: int
    at: datetime
    rows: pa.Table


def insert_groups(writes: Sequence[Write]) -> list[list[int]]:
    """Group the writes' positions by statement; writes that have numbers are inserted one by one."""
    if len(writes) == 1:
        return [[0]]
    found: dict[tuple[TableId, tuple[Column, ...], pa.Schema, int | None], list[int]] = {}
    for position, write in enumerate(writes):
        alone = None if write.seq_first is None else position
        found.setdefault((write.table, write.columns, write.rows.schema, alone), []).append(position)
    return list(found.values())


def new_rows(write: Write, log: TableLog) -> pa.Table:
    """Return the rows that the log lacks; SeqGapError if they do not follow it."""
    if write.seq_first is None:
        return write.rows
    if write.seq_first > log.seq_last + 1:
        raise SeqGapError(
            f"Rows of {write.table} start at seq {write.seq_first}, but it is here only up to {log.seq_last}.",
            seq_last=log.seq_last,
            table=str(write.table),
        )
    return write.rows.slice(log.seq_last + 1 - write.seq_first)


def seq_range(write: Write, seq_last: int) -> tuple[int, int]:
    """Return the numbers of a write's rows; the last one is `seq_last` unless they had numbers."""
    if write.seq_first is not None:
        return write.seq_first, write.seq_first + write.rows.num_rows - 1
    return seq_last - write.rows.num_rows + 1, seq_last
