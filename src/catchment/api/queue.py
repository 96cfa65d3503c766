"""The queue as calls: by this process, or through the server that has the buffer open."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime

import pyarrow as pa

from catchment.app import App
from catchment.errors import BufferHeldError, InputError
from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import DeadLetter
from catchment.queue import (
    DqCoordinator,
    FlushReport,
    QueueStatus,
    TableFlush,
    buffer_factory,
    dead_letter_actions,
    queue_audit,
)
from catchment.queue.buffer import Ack, QuarantinedFile
from catchment.queue.dead_letter_actions import Retried
from catchment.queue.fresh_reads import Fresh
from catchment.queue.queue_audit import QueueAudit
from catchment.queue.stranded import Stranded, StrandedRows


class QueueApi:
    """Durable small writes, their flushes, and rows that could not be delivered.

    A table is given as `table`, which is in the schema `main`, as `schema.table`, or as a TableId.
    If a server has the buffer open, `read`, `status`, `flush` and the calls about stranded rows ask
    the server; `enqueue` and `fresh` raise BufferHeldError.
    """

    def __init__(self, find_app: Callable[[], App]) -> None:
        self._find_app = find_app

    @property
    def _app(self) -> App:
        return self._find_app()

    def enqueue(
        self,
        table: str | TableId,
        rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch],
        *,
        session: str = "default",
    ) -> Ack:
        """Write rows; they are durable on this machine's disk when this returns.

        Columns are matched by name, and missing ones get the table's defaults. Types may be widened
        and are not narrowed: int32 goes into BIGINT, int64 not into INTEGER. Rows that the table
        cannot store are refused as a whole, with InputError or its subclass TypeConflictError. If
        there is no such table, TableMissingError is raised, unless `queue_auto_create_tables` is
        set. Writes of one `session` stay in order.
        """
        return self._app.queue.enqueue(TableId.of(table), rows, session=session)

    def read(self, table: str | TableId) -> pa.Table:
        """Return all rows of the table, in the lake or still buffered, each once."""
        try:
            with self.fresh(table) as fresh:
                return fresh.rows()
        except BufferHeldError as error:
            from catchment.api import running_server

            return running_server.read(self._app, error, TableId.of(table))

    def fresh(self, *tables: str | TableId) -> AbstractContextManager[Fresh]:
        """Open a read of tables with their buffered rows, as of one moment.

        In the block, `rows()` of the read returns the rows; of several tables, `rows("events")`.
        Raises LakeMissingError if there is no lake.
        """
        # Not created: a mistyped home must not become a lake.
        _ = self._app.existing_lake
        return self._app.queue.fresh(*(TableId.of(table) for table in tables))

    def start(self) -> None:
        """Flush due tables in the background until the Catchment is closed."""
        self._app.runtime.start()

    def flush(self, on_table: Callable[[TableFlush], None] = lambda _: None) -> FlushReport:
        """Flush everything acknowledged before this call into the lake. Starts Spark if needed.

        `on_table` is called after each table. Raises FlushFailedError if something is left.
        """
        try:
            queue = self._app.find_queue()
        except BufferHeldError as error:
            # Imported here because it imports gRPC.
            from catchment.api import running_server

            report = running_server.flush(self._app, error)
            for done in report.tables:
                on_table(done)
            return report
        if queue is None:
            return FlushReport(tables=(), seconds=0.0)
        # Not created: with the wrong catalog, an empty lake would refuse every table.
        _ = self._app.existing_lake
        return queue.force_flush_all(on_table)

    def status(self) -> QueueStatus:
        """Return the buffered rows by table, due flushes, failures and quarantined files."""
        return self.find_status() or _without_buffer(self._app.settings, self._app.clock.now())

    def find_status(self) -> QueueStatus | None:
        """Return the status, or None if there is no buffer yet."""
        try:
            queue = self._app.find_queue()
        except BufferHeldError as error:
            from catchment.api import running_server

            return running_server.status(self._app, error)
        return None if queue is None else queue.status()

    def notes(self) -> tuple[str, ...]:
        """Return remarks about files in the buffer's folder that the status does not count."""
        own = self._app.queue.buffer.notes() if self._app.has_open_queue else ()
        return (*own, *buffer_factory.leftovers(self._app.settings))

    def quarantined(self) -> tuple[QuarantinedFile, ...]:
        """Return buffer files that could not be opened; they may have the only copy of some rows."""
        return buffer_factory.quarantined(self._app.settings)

    def audit(self) -> QueueAudit:
        """Prove that every flushed row is in the lake once, and that no row left the buffer early.

        If a server has the buffer open, the second part is left out, and `report.notes` says so.
        """
        return queue_audit.audit(self._app.existing_lake, self._app.find_queue, self._app.settings)

    def stranded(self, table: str | TableId) -> Stranded:
        """Return how many rows are buffered under that name for a table that was dropped."""
        return self._rescue("stranded", table, lambda rows, _: rows.facts)

    def export(self, table: str | TableId) -> Stranded:
        """Write rows whose table was dropped to Parquet files; they stay buffered.

        The result's `files` are the paths, in the buffer's folder.
        """
        return self._rescue("export", table, lambda rows, _: rows.export())

    def redirect(self, table: str | TableId, into: str | TableId) -> Stranded:
        """Deliver rows whose table was dropped to another table, exactly once."""
        target = TableId.of(into)
        return self._rescue("redirect", table, lambda rows, queue: rows.redirect(queue.flusher, target), target)

    def discard(self, table: str | TableId) -> Stranded:
        """Delete rows whose table was dropped. They cannot be recovered."""
        return self._rescue("discard", table, lambda rows, _: rows.discard())

    def _rescue(
        self,
        action: str,
        table: str | TableId,
        act: Callable[[StrandedRows, DqCoordinator], Stranded],
        into: TableId | None = None,
    ) -> Stranded:
        """Act on stranded rows, in this process or in the server that has the buffer open."""
        name = TableId.of(table)
        try:
            queue = self._app.find_queue()
        except BufferHeldError as error:
            from catchment.api import running_server

            given = ", ".join(sql.literal(str(each)) for each in (name, into) if each is not None)
            return running_server.rescue(self._app, error, f"{action}({given})")
        if queue is None:
            raise InputError("Nothing is buffered.")
        with queue.stranded(name) as rows:
            return act(rows, queue)

    def dead_letters(self, ids: Sequence[str] | None = None, *, table: str | TableId | None = None) -> list[DeadLetter]:
        """Return the rows that their tables refused, oldest first; those of `ids` or of a table."""
        return self._app.existing_lake.dead_letters(ids, table=None if table is None else TableId.of(table))

    def retry_dead_letters(self, ids: Sequence[str] | None = None) -> Retried:
        """Insert refused rows into their tables; all of them if no ids are given."""
        return dead_letter_actions.retry(self._app.existing_lake, ids)

    def drop_dead_letters(self, ids: Sequence[str]) -> int:
        """Delete refused rows and return how many. They cannot be recovered."""
        return dead_letter_actions.drop(self._app.existing_lake, ids)


def _without_buffer(settings: Settings, now: datetime) -> QueueStatus:
    """Return the status of a queue that has no buffer yet."""
    return QueueStatus(
        layout=settings.queue_layout,
        root=str(settings.queue_path),
        generation="",
        bytes=0,
        bytes_max=settings.queue_max_db_bytes,
        tables=(),
        quarantined=buffer_factory.quarantined(settings),
        at=now,
    )
