"""The running calls of a session, so that they can be cancelled one by one or together."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from catchment.server.values import Call


class RunningCalls:
    """Calls of one session, by the result that they read or by a number. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._numbers = count()
        self._calls: dict[bytes | int, Call] = {}

    @contextmanager
    def running(self, call: Call, handle: bytes | None = None) -> Iterator[None]:
        """Register a call while the block runs a statement, or reads the result of the handle."""
        key = next(self._numbers) if handle is None else handle
        with self._mutex:
            self._calls[key] = call
        try:
            yield
        finally:
            with self._mutex:
                self._calls.pop(key, None)

    def cancel(self, handle: bytes) -> bool:
        """Cancel the call that reads the result of the handle; False if there is none."""
        return self._cancel([call for key, call in self._listed() if key == handle])

    def cancel_request(self, request: str) -> bool:
        """Cancel the calls that run for a request; False if there are none."""
        return self._cancel([call for _, call in self._listed() if call.request == request])

    def cancel_all(self) -> bool:
        """Cancel all running calls; False if there are none."""
        return self._cancel([call for _, call in self._listed()])

    def _listed(self) -> list[tuple[bytes | int, Call]]:
        with self._mutex:
            return list(self._calls.items())

    @staticmethod
    def _cancel(calls: list[Call]) -> bool:
        # Outside of the lock: a cancelled call removes itself from the list.
        for call in calls:
            call.cancel()
        return bool(calls)
