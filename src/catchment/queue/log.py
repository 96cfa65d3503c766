"""What a table has in one file of the buffer: its versions, and how far it is written and flushed. Pure values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from catchment.ids import TableId
from catchment.lake.types import Column

_MARK_EVERY = timedelta(seconds=1)
_MARKS_MAX = 600
_MARK_EVERY_THEN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A table's rows under one set of columns: numbers `seq_first` and up, until the next version starts."""

    table: TableId
    number: int
    staging: str
    columns: tuple[Column, ...]
    seq_first: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Rows up to `seq_last` were acknowledged by `at`, the earliest time of those since the mark before."""

    seq_last: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a table has in this file: its versions oldest first, and how far it is written and flushed."""

    versions: tuple[Version, ...]
    seq_last: int = 0
    seq_flushed: int = 0
    bytes_written: int = 0
    rows_written: int = 0
    marks: tuple[Mark, ...] = ()

    @property
    def rows(self) -> int:
        return self.seq_last - self.seq_flushed

    @property
    def bytes(self) -> int:
        return self.rows * self.bytes_written // max(1, self.rows_written)

    @property
    def oldest_at(self) -> datetime | None:
        return self.marks[0].at if self.marks and self.rows else None

    def written(self, rows: int, size: int, at: datetime) -> "Log":
        """The log after that many rows more."""
        seq_last = self.seq_last + rows
        marks = self.marks
        # One mark a second is enough to know the age; fewer once there are many, so that an outage costs no memory.
        every = _MARK_EVERY if len(marks) < _MARKS_MAX else _MARK_EVERY_THEN
        if marks and at - marks[-1].at < every:
            marks = (*marks[:-1], Mark(seq_last, marks[-1].at))
        else:
            marks = (*marks, Mark(seq_last, at))
        return replace(
            self,
            seq_last=seq_last,
            rows_written=self.rows_written + rows,
            bytes_written=self.bytes_written + size,
            marks=marks,
        )

    def flushed(self, seq: int) -> "Log":
        """The log once the lake has everything up to `seq`."""
        through = max(self.seq_flushed, min(seq, self.seq_last))
        return replace(self, seq_flushed=through, marks=tuple(mark for mark in self.marks if mark.seq_last > through))

    def emptied(self) -> tuple[Version, ...]:
        """Versions that are flushed and take no more rows."""
        ends = [version.seq_first - 1 for version in self.versions[1:]]
        return tuple(version for version, end in zip(self.versions, ends, strict=False) if end <= self.seq_flushed)

    def without(self, versions: Sequence[Version]) -> "Log":
        """The log once these versions are gone."""
        return replace(self, versions=tuple(version for version in self.versions if version not in versions))

    def ranges(self) -> Iterator[tuple[Version, int, int]]:
        """The unflushed rows, version by version."""
        for at, version in enumerate(self.versions):
            last = self.versions[at + 1].seq_first - 1 if at + 1 < len(self.versions) else self.seq_last
            first = max(version.seq_first, self.seq_flushed + 1)
            if first <= last:
                yield version, first, last
