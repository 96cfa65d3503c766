"""A queue whose rows are replicated: operations on the buffer's log and the lake together."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from catchment.errors import BufferOutdatedError
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake import Lake
from catchment.lake.types import Column
from catchment.queue import incoming
from catchment.queue.buffer import Ack, Buffer, Flusher
from catchment.queue.flush_locks import FLUSH_WAIT_S_MAX, FlushLocks
from catchment.queue.queue_writer import DIRECT, QueueWriter
from catchment.queue.replication import LogRows, Replication
from catchment.queue.table_schemas import TableSchemas


class ReplicatedQueue:
    """The queue of a primary or a replica. `log` is the buffer's log itself."""

    def __init__(
        self,
        log: Replication,
        *,
        buffer: Buffer,
        lake: Lake,
        flusher: Flusher,
        writer: QueueWriter,
        schemas: TableSchemas,
        locks: FlushLocks,
        wake: Callable[[TableId], None],
    ) -> None:
        self.log = log
        self._buffer = buffer
        self._lake = lake
        self._flusher = flusher
        self._writer = writer
        self._schemas = schemas
        self._locks = locks
        self._wake = wake
        # Producers whose starting position is in the ledger already.
        self._watermarked: set[ProducerId] = set()

    def enqueue(
        self, table: TableId, rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch], *, session: str = "default"
    ) -> tuple[Ack, LogRows | None]:
        """Accept rows, and return them also in the form that a replica can append.

        The second value is None if the rows were not stored as they arrived, so that they have to
        be read from the log, or if they went directly to the lake.
        """
        accepted = self._writer.enqueue(table, rows, session)
        ack = accepted.ack
        if ack.source == DIRECT or not incoming.needs_no_cast(accepted.rows, accepted.columns):
            return ack, None
        return ack, LogRows(table=table, columns=accepted.columns, seq_first=ack.seq_first, rows=accepted.rows)

    def retain_log(self, schema: str) -> None:
        """Retain the log of the schema's tables, and let none of their rows bypass the buffer."""
        self.log.retain_log(schema)
        self._writer.wait_for_bypasses(schema)

    def append_replicated(self, batches: Sequence[LogRows]) -> None:
        """Store rows under the numbers that they have, all or none; create missing tables."""
        batches = [replace(each, columns=self._bound_here(each)) for each in batches]
        with self._writer.storing(
            {each.table for each in batches},
            rows=sum(each.rows.num_rows for each in batches),
            size=sum(each.rows.nbytes for each in batches),
        ):
            self.log.append_replicated(batches)

    def start_after(self, table: TableId, seq: int) -> None:
        """Start the table's sequence after `seq`; rows up to `seq` are already in the lake.

        The buffer is changed first, the ledger second. Until both are, no row of the table can be
        delivered; each flush repeats the change of the ledger. May be repeated.
        """
        columns = self._schemas.known(table, None, ask=True)
        if self._buffer.state(table) is not None:
            refused = self._flusher.catch_up([table])
            if table in refused:
                raise BufferOutdatedError(refused[table])
        self.log.start_after(table, columns, seq)
        self._watermarked.discard(self._buffer.producer(table))
        self.set_watermark(table)

    def drop(self, schema: str) -> None:
        """Forget the schema's tables and their buffered rows, after waiting for flushes of them."""
        tables = self._locks.lock_all(self.log.positions(schema), timeout_s=FLUSH_WAIT_S_MAX)
        try:
            self.log.drop(schema)
            self._schemas.forget(schema)
            for table in tables:
                self._locks.succeeded(table)
                self._wake(table)
        finally:
            self._locks.release(tables)

    def set_watermark(self, table: TableId) -> None:
        """Record in the ledger where the table's sequence starts, if not at 1."""
        started = self.log.start_seq(table)
        producer = self._buffer.producer(table)
        if started and producer not in self._watermarked:
            self._lake.open()
            self._lake.set_watermark(producer, table, started)
            self._watermarked.add(producer)

    def _bound_here(self, batch: LogRows) -> tuple[Column, ...]:
        """Return a batch's columns as columns of this lake's table, not of the primary's."""
        kept = self._buffer.columns(batch.table, "")
        unbound = tuple(column.unbound for column in batch.columns)
        if kept is not None and tuple(column.unbound for column in kept) == unbound:
            return kept
        self._schemas.ensure(batch.table, unbound)
        own = self._schemas.known(batch.table, None, ask=False)
        # If the table here has other columns by now, the flush matches the rows by name.
        return own if tuple(column.unbound for column in own) == unbound else unbound
