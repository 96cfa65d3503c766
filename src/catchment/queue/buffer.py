"""The buffer: where acknowledged rows wait until the lake has them. The contract that every layout keeps.

    append ──▶ acknowledged ──▶ (seal) ──▶ parcels ──▶ stage ──▶ … delivered … ──▶ retire
                    │                                                 │
                    └── killed: still here                            └── killed: the ledger says so; only retire

A parcel is what goes into the lake as one unit: a slice of the shared buffer, or one table of a sealed segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from catchment.foundation.ids import ProducerId, TableId
from catchment.lake.types import Column

KIND = "queue"
SEQ = "dq_seq"
AT = "dq_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Rows that are durable on this machine's disk: numbers `seq_first` to `seq_last` of their table in `source`."""

    table: TableId
    source: str
    seq_first: int
    seq_last: int

    @property
    def rows(self) -> int:
        return self.seq_last - self.seq_first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """What is buffered for one table. `oldest_at` is when its oldest buffered row was acknowledged.

    `sealed_rows` are those that lie in sealed files, in a layout that seals; None in one that does not. `uuids` are
    those of the tables that the rows are bound to: one, unless the name was given to another table meanwhile.
    """

    table: TableId
    rows: int
    bytes: int
    oldest_at: datetime | None
    seq_last: int
    seq_flushed: int
    sealed_rows: int | None = None
    uuids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPayload:
    """Rows that are delivered as one unit.

    `table` is the name that the rows were acknowledged under, `columns` are those that they are bound to: these tell
    which table they belong to, whatever it is called by now. With `positioned`, the parcel covers these numbers of its
    producer's sequence, and parcels are delivered in their order. Without, the ledger knows it by its id alone, and the
    numbers count within the parcel's source.
    """

    id: str
    table: TableId
    producer: ProducerId
    source: str
    seq_first: int
    seq_last: int
    rows: int
    bytes: int
    positioned: bool
    path: str
    relation: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A parcel as a file that a Spark task can read: an Arrow file, or a table in a DuckDB file."""

    path: Path
    relation: str | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedRows:
    """Rows of one table as they lie in the buffer, with their numbers in column `dq_seq`."""

    parcel: FlushPayload
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedFile:
    """A file of the buffer that could not be opened, and was kept under another name."""

    path: Path
    reason: str


class Buffer(Protocol):
    """Acknowledged rows on their way to the lake.

    Every row that was acknowledged is in exactly one parcel until that parcel is retired, through any crash. Parcels
    of one table never share a row; those of a table whose columns changed come apart at the change, oldest first.
    """

    @property
    def incarnation(self) -> str:
        """Which life of this buffer it is; one that is wiped and made again has another."""
        ...

    def producer(self, table: TableId) -> ProducerId:
        """Under whose name the ledger records the table's rows."""
        ...

    def columns(self, table: TableId, session: str) -> tuple[Column, ...] | None:
        """The columns that rows of this table are kept with now, or None while the buffer has none."""
        ...

    def append(self, table: TableId, columns: tuple[Column, ...], rows: pa.Table, *, session: str) -> Ack:
        """Keep rows, which must fit the columns; they are durable when this returns.

        Other columns than before start a new version; what is buffered under the old ones stays as it is.
        """
        ...

    def tables(self, session: str | None = None) -> tuple[TableState, ...]:
        """What is buffered, by table; with `session`, what that session wrote, if the layout tells sessions apart."""
        ...

    def state(self, table: TableId) -> TableState | None:
        """The same for one table, quickly."""
        ...

    def seal(self) -> None:
        """Make everything acknowledged so far available as parcels."""
        ...

    def parcels(self, tables: Sequence[TableId] | None = None) -> list[FlushPayload]:
        """What can be delivered now, in the order of acknowledgement within each table.

        They are leased to the caller, who retires or releases each; what somebody else holds is left out.
        """
        ...

    def release(self, parcel: FlushPayload) -> None:
        """Give a parcel back that was not delivered."""
        ...

    def stage(self, parcel: FlushPayload, folder: Path) -> Staged:
        """Give the parcel a file; `folder` is there to put one in."""
        ...

    def read(self, parcel: FlushPayload) -> pa.Table:
        """The parcel's rows, in order, without their numbers."""
        ...

    def retire(self, parcel: FlushPayload) -> None:
        """Let go of the parcel, which the lake has; may be repeated."""
        ...

    def flushed_through(self, table: TableId, seq: int) -> None:
        """Learn from the ledger that the lake has all rows up to `seq`: parcels start after it."""
        ...

    def covered(self, table: TableId, seq: int) -> int:
        """Up to which of its rows the lake has the table, where the ledger says `seq`.

        BufferOutdatedError where those cannot be the rows that are here.
        """
        ...

    def held(self, table: TableId, session: str | None = None) -> list[BufferedRows]:
        """All rows of the table that are not retired, as of one moment.

        With `session`, those that it wrote, if the layout tells sessions apart.
        """
        ...

    def complete_through(self, table: TableId) -> dict[str, int]:
        """By source, the number up to which all acknowledged rows of the table are known to this buffer."""
        ...

    def size_bytes(self) -> int:
        """Size of the files on the disk, at little cost."""
        ...

    def used_bytes(self) -> int:
        """Room that the buffered rows take, without what the files could give back."""
        ...

    def set_aside(self) -> tuple[QuarantinedFile, ...]:
        """Files that could not be opened, now or earlier."""
        ...

    def end_session(self, session: str) -> None:
        """A session is over: what it wrote can be delivered."""
        ...

    def sweep(self) -> None:
        """Housekeeping that is due: rotation, orphans, retention."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...
