"""Accepts rows: binds them to columns of the lake, waits for room, stores them in the buffer.

While the buffer's size limit is reached, a write waits for flushes; then it is refused, or goes
directly to the lake.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from catchment.errors import (
    BackpressureError,
    BufferDamagedError,
    CatchmentError,
    CommitUnknownError,
    InputError,
    StorageFailedError,
    TableMissingError,
    TypeConflictError,
)
from catchment.foundation import events, sql
from catchment.foundation.clock import Clock
from catchment.foundation.ids import TableId
from catchment.foundation.meters import Meters
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.types import Column
from catchment.queue import incoming
from catchment.queue.buffer import Ack, Buffer
from catchment.queue.store import file_failures
from catchment.queue.table_schemas import TableSchemas

DIRECT = "lake"


@dataclass(frozen=True, slots=True)
class AcceptedRows:
    """Rows as they were stored, with the columns that they are bound to."""

    ack: Ack
    rows: pa.Table
    columns: tuple[Column, ...]


class QueueWriter:
    """Accepts rows for one buffer.

    `make_room` flushes until a number of bytes fits, or returns False. `wake` is called with each
    table that got rows.
    """

    def __init__(
        self,
        *,
        buffer: Buffer,
        lake: Lake,
        schemas: TableSchemas,
        settings: Settings,
        clock: Clock,
        meters: Meters,
        make_room: Callable[[int], bool],
        wake: Callable[[TableId], None],
    ) -> None:
        self._buffer = buffer
        self._lake = lake
        self._schemas = schemas
        self._root = settings.queue_path
        self._bytes_max = settings.queue_max_db_bytes
        self._may_bypass = settings.queue_bypass
        self._clock = clock
        self._meters = meters
        self._make_room = make_room
        self._wake = wake
        # Number of writes that bypass the buffer now, by schema.
        self._bypassing: Counter[str] = Counter()
        self._bypass_changed = threading.Condition()
        # Why the last write failed, if the buffer's disk was the reason.
        self._refusal: StorageFailedError | None = None

    def enqueue(
        self, table: TableId, rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch], session: str
    ) -> AcceptedRows:
        """Accept rows, all or none; they are durable when this returns."""
        started_s = self._clock.monotonic_s()
        arrived, columns = self.bind(table, incoming.as_table(rows), session)
        # Computed once: adding it up takes Arrow longer than the rest of this method's accounting.
        size = incoming.size_of(arrived)
        if not self.has_room(size) and not self._make_room(size):
            return AcceptedRows(self._bypass(table, arrived), arrived, columns)
        with self._writing():
            ack = self._buffer.append(table, columns, arrived, session=session)
        self._meters.acked(rows=arrived.num_rows, size=size, seconds=self._clock.monotonic_s() - started_s)
        self._wake(table)
        return AcceptedRows(ack, arrived, columns)

    @contextmanager
    def storing(self, tables: Iterable[TableId], *, rows: int, size: int) -> Iterator[None]:
        """Wait for room, then run the block, which stores rows; BackpressureError if full."""
        if not self.has_room(size) and not self._make_room(size):
            raise self._full(rows)
        with self._writing():
            yield
        for table in tables:
            self._wake(table)

    def has_room(self, size: int) -> bool:
        """Return whether that many bytes fit under the buffer's size limit."""
        cap = self._bytes_max
        # The file keeps its size when rows are deleted, so if it looks full, used blocks are
        # counted.
        return not cap or self._buffer.size_bytes() + size <= cap or self._buffer.used_bytes() + size <= cap

    def columns(self, table: TableId, session: str, *, ask: bool = False) -> tuple[Column, ...]:
        """Return the columns that rows are accepted with; with `ask`, as the lake has them now."""
        return self._schemas.known(table, None if ask else self._buffer.columns(table, session), ask=ask)

    def bind(self, table: TableId, rows: pa.Table, session: str) -> tuple[pa.Table, tuple[Column, ...]]:
        """Return the rows and the columns that they are bound to; refuse rows that do not fit."""
        try:
            return rows, self._columns_for(table, rows, session)
        except TypeConflictError as error:
            # Plain Arrow carries values of some types as text only, and INSERT accepts those.
            try:
                restored = incoming.restored(rows, self.columns(table, session))
            except TableMissingError:
                raise error from None
            if restored is rows:
                raise
            return restored, self._columns_for(table, restored, session)

    def require_writable(self) -> None:
        """Raise if the disk failed the last write, and no write or flush succeeded since."""
        refusal = self._refusal
        if refusal is not None:
            raise refusal.rebuild(f"The queue cannot take writes: {refusal.message}", refusal.hint, refusal.facts)

    def note_success(self) -> None:
        """Record that the buffer's disk works."""
        if self._refusal is not None:
            self._refusal = None
            events.emit("writes_accepted")

    def wait_for_bypasses(self, schema: str) -> None:
        """Wait until no write to the schema bypasses the buffer."""
        with self._bypass_changed:
            self._bypass_changed.wait_for(lambda: not self._bypassing[sql.fold(schema)])

    def _columns_for(self, table: TableId, rows: pa.Table, session: str) -> tuple[Column, ...]:
        """Return the columns to store the rows with; refuse rows that do not fit the table."""
        columns = self._schemas.columns(table, rows.schema, self._buffer.columns(table, session))
        try:
            incoming.require_values(rows, columns)
        except InputError:
            # NULL may be allowed by now.
            current = self.columns(table, session, ask=True)
            if current == columns:
                raise
            columns = self._schemas.columns(table, rows.schema, None)
            incoming.require_values(rows, columns)
        return columns

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Translate disk failures for the caller, and remember the last one."""
        try:
            yield
        except StorageFailedError as error:
            self._note_refusal(error)
            raise file_failures.refusal(self._root, error) from error
        except CommitUnknownError as error:
            self._note_refusal(error)
            hint = "Check that the disk has space. Then check whether the rows are there before you write them again."
            raise CommitUnknownError(f"{error.message.rstrip('.')}.", hint=hint) from error
        except BufferDamagedError as error:
            self._note_refusal(error)
            raise
        self.note_success()

    def _note_refusal(self, error: CatchmentError) -> None:
        before, self._refusal = self._refusal, file_failures.refusal(self._root, error)
        if before is None:
            events.emit("writes_refused", level=logging.ERROR, reason=error.message)

    def _bypass(self, table: TableId, rows: pa.Table) -> Ack:
        schema, replication = sql.fold(table.schema), self._buffer.replication
        with self._bypass_changed:
            self._bypassing[schema] += 1
        try:
            # Checked after the counter was increased: `retain_log` waits for the counter to become
            # 0. Rows that bypass the buffer would be in no log.
            is_retained = replication is not None and schema in replication.retained_schemas()
            if is_retained or not self._may_bypass:
                raise self._full(rows.num_rows)
            events.emit("bypassed", level=logging.WARNING, table=str(table), rows=rows.num_rows)
            self._lake.insert(table, rows)
        finally:
            with self._bypass_changed:
                self._bypassing[schema] -= 1
                self._bypass_changed.notify_all()
        return Ack(table=table, source=DIRECT, seq_first=1, seq_last=rows.num_rows)

    def _full(self, rows: int) -> BackpressureError:
        return BackpressureError(
            f"The queue's buffer has reached {self._bytes_max:,} bytes; these {rows:,} rows were not accepted."
        )
