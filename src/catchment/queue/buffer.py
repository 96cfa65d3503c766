"""The contracts of the queue: buffers store acknowledged rows, flushers deliver them to the lake.

    append ──▶ acknowledged ──▶ (seal) ──▶ payloads ──▶ stage ──▶ … delivered … ──▶ retire
                    │                                                  │
                    └── killed: still buffered                         └── killed: in the ledger; only retire

A payload is delivered as one unit: a slice of the shared buffer, or one table of a sealed segment.
Callers rely on these contracts alone: none of them checks which layout is in use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from catchment.foundation.ids import ProducerId, TableId
from catchment.lake.types import Column
from catchment.queue.replication import Replication

KIND = "queue"
SEQ = "dq_seq"
AT = "dq_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Rows that are durable on this disk: `seq_first` to `seq_last` of their table in `source`."""

    table: TableId
    source: str
    seq_first: int
    seq_last: int

    @property
    def rows(self) -> int:
        return self.seq_last - self.seq_first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """Buffered rows of one table. `oldest_at` is the time when the oldest of them was acknowledged.

    `ready_rows` of them can be delivered now; the others can after `seal`. `sealed_rows` are in
    complete files and due at once; None if the layout has no such files. If `has_watermark`, the
    rows are one sequence in the ledger, flushed up to `seq_flushed`; otherwise the ledger
    identifies payloads by id, and the numbers are only a count. `uuids` identify the lake's tables
    that the rows are bound to: one, unless another table has taken the name since.
    """

    table: TableId
    rows: int
    bytes: int
    oldest_at: datetime | None
    seq_last: int
    seq_flushed: int
    ready_rows: int
    sealed_rows: int | None = None
    has_watermark: bool = True
    uuids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPayload:
    """Rows that are delivered as one unit.

    `table` is the name under which the rows were acknowledged. `columns` are the columns that they
    are bound to, which identify the table even if it was renamed since. `seq_first` to `seq_last`
    are the rows' numbers in `source`. `seqs` is the range of the producer's sequence that the
    payload covers, and such payloads are delivered in order; None if the ledger identifies the
    payload by its id. `path` and `relation` show an operator where the rows are.
    """

    id: str
    table: TableId
    producer: ProducerId
    source: str
    seq_first: int
    seq_last: int
    rows: int
    bytes: int
    seqs: tuple[int, int] | None
    path: str
    relation: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A payload as a file that a Spark task can read: an Arrow file, or a table in a DuckDB file."""

    path: Path
    relation: str | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedRows:
    """Buffered rows of one table, with their numbers in column `dq_seq`."""

    payload: FlushPayload
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedFile:
    """A file of the buffer that could not be opened and was moved into quarantine."""

    path: Path
    reason: str


class Buffer(Protocol):
    """Acknowledged rows on their way to the lake.

    Every acknowledged row is in exactly one payload until that payload is retired, through any
    crash. Payloads of one table never share a row. If the table's columns changed, its payloads are
    split at the change, oldest first.

    Several threads may call at once. A buffer on disk raises BufferHeldError if another process has
    it and the layout allows one only, StorageFailedError if the disk refuses a write, and reaches
    the crash points `queue.before_ack` and `queue.after_ack` around the sync of an append.
    """

    @property
    def generation(self) -> str:
        """Id of this buffer; a buffer that is deleted and created again has another one."""
        ...

    @property
    def replication(self) -> Replication | None:
        """The log for other buffers to follow, or None if the layout does not support it."""
        ...

    @property
    def separates_sessions(self) -> bool:
        """Whether `tables` and `buffered_rows` can return the rows of one session alone."""
        ...

    def producer(self, table: TableId) -> ProducerId:
        """Return the producer under which the ledger records the table's rows."""
        ...

    def columns(self, table: TableId, session: str) -> tuple[Column, ...] | None:
        """Return the columns that the table's rows are stored with now, or None if there are none."""
        ...

    def append(self, table: TableId, columns: tuple[Column, ...], rows: pa.Table, *, session: str) -> Ack:
        """Store rows, which must fit the columns; they are durable when this returns.

        If the columns differ from the last ones, a new version of the table starts. Rows buffered
        under the old columns stay as they are.
        """
        ...

    def tables(self, session: str | None = None) -> tuple[TableState, ...]:
        """Return buffered tables, of one session if given and if the layout separates sessions."""
        ...

    def state(self, table: TableId) -> TableState | None:
        """Return one table's state, cheaply; None if the buffer has no such table."""
        ...

    def seal(self) -> None:
        """Make everything acknowledged so far available as payloads."""
        ...

    def payloads(self, tables: Sequence[TableId] | None = None) -> list[FlushPayload]:
        """Return the payloads that can be delivered now, oldest first within each table.

        They are leased to the caller, which retires or releases each. Payloads that are leased
        elsewhere are left out.
        """
        ...

    def release(self, payload: FlushPayload) -> None:
        """Return a payload that was not delivered."""
        ...

    def stage(self, payload: FlushPayload, folder: Path) -> Staged:
        """Provide the payload as a file, written into `folder` if necessary."""
        ...

    def read(self, payload: FlushPayload) -> pa.Table:
        """Return the payload's rows, in order, without their numbers."""
        ...

    def retire(self, payload: FlushPayload) -> None:
        """Remove a delivered payload; may be repeated.

        Retiring a payload that has `seqs` retires all earlier ones of its producer.
        """
        ...

    def flushed_through(self, table: TableId, seq: int) -> None:
        """Apply the ledger's watermark: the lake has all rows up to `seq`."""
        ...

    def check_watermark(self, table: TableId, seq: int) -> int:
        """Return `seq`, the ledger's watermark, if it can refer to rows of this buffer.

        Raises BufferOutdatedError otherwise: the buffer is then an older copy.
        """
        ...

    def buffered_rows(self, table: TableId, session: str | None = None) -> list[BufferedRows]:
        """Return all rows of the table that are not retired, as of one moment.

        With `session`, only its rows if the layout separates sessions.
        """
        ...

    def complete_through(self, table: TableId) -> dict[str, int]:
        """Return, by source, the number up to which all acknowledged rows are visible here."""
        ...

    def leasable_sources(self, table: TableId) -> frozenset[str]:
        """Return sources of the table whose payloads another process may have leased, if any."""
        ...

    def notes(self) -> tuple[str, ...]:
        """Return remarks for an operator on rows that the buffer cannot count."""
        ...

    def size_bytes(self) -> int:
        """Return the size of the stored rows and their files, cheaply."""
        ...

    def used_bytes(self) -> int:
        """Return the space that buffered rows occupy, without free space inside the files."""
        ...

    def quarantined(self) -> tuple[QuarantinedFile, ...]:
        """Return the files that could not be opened, now or earlier."""
        ...

    def end_session(self, session: str) -> None:
        """End a session, so that its rows can be delivered."""
        ...

    def sweep(self) -> None:
        """Do maintenance that is due: rotation, orphans, retention."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFlush:
    """Result of a flush for one table. `errors` are the reasons why rows stay buffered.

    `parcels` is the number of payloads delivered. `stranded` is the number of rows that stay
    buffered because the table that they were acknowledged for was dropped.
    """

    table: TableId
    rows: int = 0
    buried: int = 0
    files: int = 0
    bytes: int = 0
    parcels: int = 0
    stranded: int = 0
    errors: tuple[str, ...] = ()

    def plus(self, other: "TableFlush") -> "TableFlush":
        """Return the sum of both."""
        return TableFlush(
            table=self.table,
            rows=self.rows + other.rows,
            buried=self.buried + other.buried,
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            parcels=self.parcels + other.parcels,
            stranded=self.stranded + other.stranded,
            errors=tuple(dict.fromkeys((*self.errors, *other.errors))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushReport:
    """Result of a flush."""

    tables: tuple[TableFlush, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.tables)

    @property
    def files(self) -> int:
        return sum(each.files for each in self.tables)

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(f"{each.table}: {error}" for each in self.tables for error in each.errors)


def merged(parts: Sequence[TableFlush]) -> tuple[TableFlush, ...]:
    """Merge the results into one for each table."""
    found: dict[TableId, TableFlush] = {}
    for part in parts:
        found[part.table] = found[part.table].plus(part) if part.table in found else part
    return tuple(found[table] for table in sorted(found))


Progress = Callable[[TableFlush], None]


class Flusher(Protocol):
    """Delivers payloads to the lake exactly once, retires delivered ones and releases the others."""

    def flush(
        self, payloads: Sequence[FlushPayload], progress: Progress | None = None, *, into: TableId | None = None
    ) -> tuple[TableFlush, ...]:
        """Deliver all payloads; a table that fails has errors and does not block the others.

        A payload is delivered to the table that its rows are bound to, even if it was renamed; with
        `into`, to that table, with columns matched by name.
        """
        ...

    def catch_up(self, tables: Sequence[TableId]) -> dict[TableId, str]:
        """Apply the ledger's watermarks to the buffer, so that delivered rows are not offered.

        Returns the tables that must not be flushed, with the reason.
        """
        ...
