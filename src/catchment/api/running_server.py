"""Beside a running server: what it has open is asked of it, with the same answer as without it."""

from catchment.app import App
from catchment.errors import BufferHeldError
from catchment.foundation import server_file
from catchment.queue import FlushReport, QueueStatus
from catchment.queue.stranded import Stranded
from catchment.server import queue_results
from catchment.server.local_client import LocalClient


def status(app: App, held: BufferHeldError) -> QueueStatus:
    """The queue as the server of this home has it; `held` where there is none."""
    with _server(app, held) as server:
        found = server.query("CALL duckling_queue_status()")
    return queue_results.as_status(found, app.settings, app.clock.now())


def flush(app: App, held: BufferHeldError) -> FlushReport:
    """Have the server of this home flush everything; `held` where there is none."""
    started_s = app.clock.monotonic_s()
    with _server(app, held) as server:
        found = server.query("CALL duckling_queue_flush()")
    return queue_results.as_report(found, app.clock.monotonic_s() - started_s)


def rescue(app: App, held: BufferHeldError, call: str) -> Stranded:
    """Have the server of this home do something with stranded rows; `held` where there is none."""
    with _server(app, held) as server:
        return queue_results.as_stranded(server.query(f"CALL duckling_queue_{call}"))


def _server(app: App, held: BufferHeldError) -> LocalClient:
    found = server_file.find(app.settings)
    if found is None:
        raise held
    return LocalClient(found, app.settings)
