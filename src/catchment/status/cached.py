"""A part of the status that is dear to ask for: asked for by a thread of its own, and kept for a while.

Whoever asks waits for a moment at most. A source that hangs holds up nobody: its last answer is given, with its age.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from catchment import events
from catchment.clock import Clock
from catchment.errors import CatchmentError
from catchment.status.model import Part

T = TypeVar("T")
WAIT_S_MAX = 2.0
SLOW = "its answer takes longer than anybody waits"


class Cached(Generic[T]):
    """One part. Any thread may ask; the source is asked by one at a time."""

    def __init__(
        self, name: str, ask: Callable[[], T], *, seconds_max: float, pool: ThreadPoolExecutor, clock: Clock
    ) -> None:
        self._name = name
        self._ask = ask
        self._seconds_max = seconds_max
        self._pool = pool
        self._clock = clock
        self._mutex = threading.Lock()
        self._asking: Future[Part[T]] | None = None
        self._known: Part[T] | None = None
        self._known_s = 0.0

    def ask(self) -> None:
        """Have the source asked where that is due, without waiting for it."""
        with self._mutex:
            self._due()

    def read(self, *, until_s: float | None = None) -> Part[T]:
        """The part, not older than it may be, unless its source takes longer than anybody waits.

        `until_s` is how long that is, on the monotonic clock; else it is a moment.
        """
        wait_s = WAIT_S_MAX if until_s is None else max(0.0, until_s - self._clock.monotonic_s())
        with self._mutex:
            asking = self._due()
            if asking is None and self._known is not None:
                return self._known
        wait([asking] if asking is not None else (), timeout=wait_s)
        with self._mutex:
            if asking is not None and asking.done() and self._asking is asking:
                self._asking = None
                self._known, self._known_s = self._kept(asking), self._clock.monotonic_s()
            return self._known or Part(self._clock.now(), unavailable=SLOW)

    def _due(self) -> "Future[Part[T]] | None":
        """Who asks the source, now or already; None where what is known is young enough."""
        if self._known is not None and self._clock.monotonic_s() - self._known_s < self._seconds_max:
            return None
        if self._asking is None:
            self._asking = self._pool.submit(self._answer)
        return self._asking

    def _answer(self) -> Part[T]:
        try:
            return Part(self._clock.now(), value=self._ask())
        except CatchmentError as error:
            return Part(self._clock.now(), unavailable=error.message)

    def _kept(self, asked: "Future[Part[T]]") -> Part[T]:
        error = asked.exception()
        if error is None:
            return asked.result()
        # A bug of ours must not take the other parts along.
        events.emit("status_failed", level=logging.ERROR, part=self._name, reason=f"{type(error).__name__}: {error}")
        return Part(self._clock.now(), unavailable="it failed; the log says why")
