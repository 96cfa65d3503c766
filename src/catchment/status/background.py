"""Background reading of a status part that is expensive to compute: read by its own thread and
cached for a while.

A caller waits briefly at most. A source that hangs blocks no caller: its last answer is returned,
with its age.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

from catchment.errors import CatchmentError, StateError
from catchment.foundation import events
from catchment.foundation.clock import Clock
from catchment.status.model import StatusPart

T = TypeVar("T")
WAIT_S_MAX = 2.0
# Age at which a cached part is read again: metrics are seldom scraped more often.
AGE_SECONDS_MAX = 15.0
SLOW = "reading it takes too long"


class BackgroundReader:
    """Threads that read sources, one per request. Shutdown never waits for a thread that hangs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._mutex = threading.Lock()
        self._is_closed = False
        self._asking: set[Future[Any]] = set()

    def submit(self, ask: Callable[[], T]) -> "Future[T]":
        """Start a thread that reads a source; StateError after `close`."""
        answer: Future[T] = Future()
        with self._mutex:
            if self._is_closed:
                raise StateError("The process is shutting down, and reads nothing more.")
            self._asking.add(answer)
        answer.add_done_callback(self._forget)
        # An executor's threads would be joined at the end of the process, however long they hang.
        threading.Thread(target=_ask, args=(ask, answer), name=self._name, daemon=True).start()
        return answer

    def close(self) -> None:
        """Accept no more requests; running ones get a moment and are then abandoned."""
        with self._mutex:
            asking = () if self._is_closed else tuple(self._asking)
            self._is_closed = True
        wait(asking, timeout=WAIT_S_MAX)

    def _forget(self, answer: "Future[Any]") -> None:
        with self._mutex:
            self._asking.discard(answer)


class BackgroundPart(Generic[T]):
    """One cached part. Safe for concurrent use; one thread at a time reads the source."""

    def __init__(
        self, name: str, ask: Callable[[], T], *, seconds_max: float, reader: BackgroundReader, clock: Clock
    ) -> None:
        self._name = name
        self._ask = ask
        self._seconds_max = seconds_max
        self._reader = reader
        self._clock = clock
        self._mutex = threading.Lock()
        self._asking: Future[StatusPart[T]] | None = None
        self._is_slow = False
        self._known: StatusPart[T] | None = None
        self._known_s = 0.0

    def ask(self) -> None:
        """Start a read of the source if it is due, without waiting for it."""
        with self._mutex:
            self._due()

    def read(self, *, until_s: float | None = None) -> StatusPart[T]:
        """Return the part, no older than its maximum age unless the source takes longer than the
        caller waits.

        `until_s` is the monotonic time to wait until; by default a moment. A request that a caller
        has already waited for in vain is not waited for again.
        """
        with self._mutex:
            asking = self._due()
            if asking is None and self._known is not None:
                return self._known
            is_slow = self._is_slow
        wait_s = WAIT_S_MAX if until_s is None else max(0.0, until_s - self._clock.monotonic_s())
        wait([asking] if asking is not None else (), timeout=0.0 if is_slow else wait_s)
        with self._mutex:
            if asking is not None and self._asking is asking:
                self._is_slow = not asking.done()
                if asking.done():
                    self._asking = None
                    self._known, self._known_s = self._kept(asking), self._clock.monotonic_s()
            return self._known or StatusPart(self._clock.now(), unavailable=SLOW)

    def _due(self) -> "Future[StatusPart[T]] | None":
        """Return the running or newly started read; None if the cached value is recent enough."""
        if self._known is not None and self._clock.monotonic_s() - self._known_s < self._seconds_max:
            return None
        if self._asking is None:
            self._asking = self._reader.submit(self._answer)
        return self._asking

    def _answer(self) -> StatusPart[T]:
        try:
            return StatusPart(self._clock.now(), value=self._ask())
        except CatchmentError as error:
            return StatusPart(self._clock.now(), unavailable=error.message)

    def _kept(self, asked: "Future[StatusPart[T]]") -> StatusPart[T]:
        error = asked.exception()
        if error is None:
            return asked.result()
        # A bug in one part must not fail the other parts.
        events.emit("status_failed", level=logging.ERROR, part=self._name, reason=f"{type(error).__name__}: {error}")
        return StatusPart(self._clock.now(), unavailable="it failed; see the log for the reason")


def _ask(ask: Callable[[], T], answer: "Future[T]") -> None:
    try:
        answer.set_result(ask())
    except BaseException as error:
        # The caller that reads the answer gets the error, and Python shows its traceback.
        answer.set_exception(error)
        raise
