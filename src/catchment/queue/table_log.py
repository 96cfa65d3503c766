"""What a table has in one file of the buffer: its versions, and how far it is written and flushed. Pure values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from catchment.foundation.ids import TableId
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
class AckMark:
    """Rows up to `seq_last` were acknowledged by `at`, the earliest time of those since the mark before."""

    seq_last: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLog:
    """What a table has in this file: its versions oldest first, and how far it is written and flushed.

    Rows up to `seq_gone` are gone from the file: those that are flushed, or of a held table those that were let go of
    as well.
    """

    versions: tuple[Version, ...]
    seq_last: int = 0
    seq_flushed: int = 0
    seq_gone: int = 0
    seq_let_go: int = 0
    is_held: bool = False
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
        """The log after that many rows more."""
        seq_last = self.seq_last + rows
        marks = self.marks
        # One mark a second is enough to know the age; fewer once there are many, so that an outage costs no memory.
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
        """The log once the lake has everything up to `seq`."""
        through = max(self.seq_flushed, min(seq, self.seq_last))
        marks = tuple(mark for mark in self.marks if mark.seq_last > through)
        return replace(self, seq_flushed=through, marks=marks)._trimmed()

    def truncate_log(self, seq: int) -> "TableLog":
        """The log once nobody wants the rows up to `seq` of it any more."""
        return replace(self, seq_let_go=max(self.seq_let_go, min(seq, self.seq_last)))._trimmed()

    def held(self) -> "TableLog":
        """The log, which is kept from now on until it is let go of."""
        return self if self.is_held else replace(self, is_held=True, seq_let_go=self.seq_gone)

    def unheld(self) -> "TableLog":
        """The log, of which nobody wants more than what is not flushed."""
        return replace(self, is_held=False)._trimmed()

    def under(self, table: TableId) -> "TableLog":
        """The log under another name."""
        return replace(self, versions=tuple(replace(version, table=table) for version in self.versions))

    def start_seq(self, seq: int) -> "TableLog":
        """The log of a table of which the lake has everything up to `seq`, although it was never here."""
        return replace(self, seq_last=seq, seq_flushed=seq, seq_gone=seq, seq_let_go=seq, marks=())

    def kept_like(self, other: "TableLog") -> "TableLog":
        """This log, of which as much is flushed, let go of and gone as of the other, which may be shorter."""
        if (self.seq_flushed, self.seq_gone, self.seq_let_go) == (other.seq_flushed, other.seq_gone, other.seq_let_go):
            return self
        return replace(
            self,
            seq_flushed=other.seq_flushed,
            seq_gone=other.seq_gone,
            seq_let_go=other.seq_let_go,
            marks=tuple(mark for mark in self.marks if mark.seq_last > other.seq_flushed),
            versions=tuple(version for version in self.versions if version.number >= other.versions[0].number),
        )

    def without(self, versions: Sequence[Version]) -> "TableLog":
        """The log once these versions are gone."""
        return replace(self, versions=tuple(version for version in self.versions if version not in versions))

    def ranges(self, after: int | None = None) -> Iterator[tuple[Version, int, int]]:
        """The rows behind a number, version by version; without one, those that are not flushed."""
        start = (self.seq_flushed if after is None else after) + 1
        for at, version in enumerate(self.versions):
            last = self.versions[at + 1].seq_first - 1 if at + 1 < len(self.versions) else self.seq_last
            first = max(version.seq_first, start)
            if first <= last:
                yield version, first, last

    def _trimmed(self) -> "TableLog":
        """The log without what nobody wants: neither the lake nor, of a held table, whoever follows it.

        Versions go whose rows are all gone, and which take no more.
        """
        unwanted = min(self.seq_flushed, self.seq_let_go) if self.is_held else self.seq_flushed
        gone = max(self.seq_gone, unwanted)
        ends = [version.seq_first - 1 for version in self.versions[1:]]
        old = [version for version, end in zip(self.versions, ends, strict=False) if end <= gone]
        return replace(self, seq_gone=gone, versions=tuple(each for each in self.versions if each not in old))
