"""The status of a home: from the server that runs on it, or read by this process."""

from collections.abc import Callable
from typing import Any

from catchment.api.queue import QueueApi
from catchment.app import App
from catchment.errors import StateError
from catchment.foundation import server_file
from catchment.queue import QueueStatus
from catchment.status import StatusReader


def status(app: App, queue: QueueApi, on_remark: Callable[[str], None]) -> dict[str, Any]:
    """Return the status as JSON values; `on_remark` gets the reason if a server does not answer."""
    server = server_file.find(app.settings)
    if server is not None:
        # Imported here because it imports gRPC.
        from catchment.server.status_client import fetch_status

        try:
            return fetch_status(server)
        except StateError as error:
            on_remark(error.message)

    def read_queue() -> QueueStatus:
        found = queue.find_status() if app.settings.queue_enable else None
        if found is None:
            raise StateError("There is no buffer yet.")
        return found

    with StatusReader(app, queue=read_queue) as reader:
        return reader.status().to_json()
