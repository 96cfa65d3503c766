"""Queue calls while a server has the buffer open: the server answers them."""

import pyarrow as pa

from catchment.app import App
from catchment.errors import BufferHeldError
from catchment.foundation import server_file, sql
from catchment.foundation.ids import TableId
from catchment.queue import FlushReport, QueueStatus
from catchment.queue.stranded import Stranded
from catchment.server.local_client import LocalClient
from catchment.server.sessions import queue_results


def status(app: App, held: BufferHeldError) -> QueueStatus:
    """Return the status from the server of this home; raise `held` if there is none."""
    with _server(app, held) as server:
        found = server.query("CALL duckling_queue_status()")
    return queue_results.as_status(found, app.settings, app.clock.now())


def read(app: App, held: BufferHeldError, table: TableId) -> pa.Table:
    """Return all rows of a table from the server of this home; raise `held` if there is none."""
    with _server(app, held) as server:
        return server.query(f"SELECT * FROM {sql.qualified('catchment_fresh', table.schema, table.name)}")


def flush(app: App, held: BufferHeldError) -> FlushReport:
    """Flush everything in the server of this home; raise `held` if there is none."""
    started_s = app.clock.monotonic_s()
    with _server(app, held) as server:
        found = server.query("CALL duckling_queue_flush()")
    return queue_results.as_report(found, app.clock.monotonic_s() - started_s)


def rescue(app: App, held: BufferHeldError, call: str) -> Stranded:
    """Act on stranded rows in the server of this home; raise `held` if there is none."""
    with _server(app, held) as server:
        return queue_results.as_stranded(server.query(f"CALL duckling_queue_{call}"))


def _server(app: App, held: BufferHeldError) -> LocalClient:
    found = server_file.find(app.settings)
    if found is None:
        raise held
    return LocalClient(found)
