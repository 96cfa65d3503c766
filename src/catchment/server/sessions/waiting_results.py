"""Results of a session that wait until its client reads them."""

import threading

from catchment.errors import StateError
from catchment.server.values import StatementOutcome


class WaitingResults:
    """The newest unread results, by handle. Thread-safe."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._mutex = threading.Lock()
        self._waiting: dict[bytes, StatementOutcome] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, handle: bytes, outcome: StatementOutcome) -> None:
        """Keep a result until it is read, or until too many newer ones are kept."""
        with self._mutex:
            oldest = list(self._waiting)[: max(0, len(self._waiting) + 1 - self._count_max)]
            forgotten = [self._waiting.pop(each) for each in oldest]
            self._waiting[handle] = outcome
        # Outside the mutex: closing one waits for its connection.
        for each in forgotten:
            each.result.close()

    def take(self, handle: bytes) -> StatementOutcome:
        """Return the result that waits under the handle, once."""
        with self._mutex:
            found = self._waiting.pop(handle, None)
        if found is None:
            raise StateError("The result does not exist, or has already been read.", hint="Run the statement again.")
        return found

    def discard(self, handle: bytes) -> bool:
        """Close the result that waits under the handle; False if there is none."""
        with self._mutex:
            found = self._waiting.pop(handle, None)
        if found is not None:
            found.result.close()
        return found is not None

    def take_all(self) -> list[StatementOutcome]:
        """Return all results; the caller closes them."""
        with self._mutex:
            waiting, self._waiting = self._waiting, {}
        return list(waiting.values())
