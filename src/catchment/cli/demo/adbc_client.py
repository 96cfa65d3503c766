"""A client of the demo's servers, for single questions over ADBC."""

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import adbc_driver_flightsql.dbapi as flight

from catchment.errors import ShardUnreachableError

_MOMENT_S = 1.0


class Client:
    """Asks from a thread of its own: in the main one the driver would take a Ctrl-C for itself."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="demo-ask")
        # Started now: a start that is interrupted would leave a thread that nobody waits for.
        self._thread.submit(int).result()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()

    def ask(self, uri: str, statement: str) -> list[dict[str, Any]]:
        """The rows that a statement gives. Nobody logs in: on this machine one need not, and may do everything."""
        opened: SimpleQueue[flight.Cursor] = SimpleQueue()
        answer = self._thread.submit(_ask, uri, statement, opened)
        try:
            return answer.result()
        except KeyboardInterrupt:
            # So that it is closed while the server is still there. Only a flush takes longer than a moment.
            _, asking = wait([answer], timeout=_MOMENT_S)
            if asking:
                with suppress(Empty):
                    opened.get_nowait().adbc_cancel()
            raise
        except flight.Error as error:
            raise ShardUnreachableError(f"The server at {uri} does not answer: {error}") from error


def _ask(uri: str, statement: str, opened: "SimpleQueue[flight.Cursor]") -> list[dict[str, Any]]:
    with flight.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        opened.put(cursor)
        cursor.execute(statement)
        rows: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist()
        return rows
