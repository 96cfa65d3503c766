"""A part of the status that is dear to ask for: asked for by a thread of its own, and kept for a while.

Whoever asks waits for a moment at most. A source that hangs holds up nobody: its last answer is given, with its age.
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
SLOW = "its answer takes longer than anybody waits"


class BackgroundReader:
    """Threads that ask sources, one for each question. No end waits for one that hangs, not even the process's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._mutex = threading.Lock()
        self._is_closed = False
        self._asking: set[Future[Any]] = set()

    def submit(self, ask: Callable[[], T]) -> "Future[T]":
        """Have a thread ask; StateError after the end."""
        answer: Future[T] = Future()
        with self._mutex:
            if self._is_closed:
                raise StateError("Nothing is asked any more: this process ends.")
            self._asking.add(answer)
        answer.add_done_callback(self._forget)
        # The threads of an executor are waited for at the end of the process, however long they hang.
        threading.Thread(target=_ask, args=(ask, answer), name=self._name, daemon=True).start()
        return answer

    def close(self) -> None:
        """Ask no more; who is being asked gets a moment, and is left alone then."""
        with self._mutex:
            asking = () if self._is_closed else tuple(self._asking)
            self._is_closed = True
        wait(asking, timeout=WAIT_S_MAX)

    def _forget(self, answer: "Future[Any]") -> None:
        with self._mutex:
            self._asking.discard(answer)


class BackgroundPart(Generic[T]):
    """One part. Any thread may ask; the source is asked by one at a time."""

    def __init__(
        self, name: str, ask: Callable[[], T], *, seconds_max: float, askers: BackgroundReader, clock: Clock
    ) -> None:
        self._name = name
        self._ask = ask
        self._seconds_max = seconds_max
        self._askers = askers
        self._clock = clock
        self._mutex = threading.Lock()
        self._asking: Future[StatusPart[T]] | None = None
        self._is_slow = False
        self._known: StatusPart[T] | None = None
        self._known_s = 0.0

    def ask(self) -> None:
        """Have the source asked where that is due, without waiting for it."""
        with self._mutex:
            self._due()

    def read(self, *, until_s: float | None = None) -> StatusPart[T]:
        """The part, not older than it may be, unless its source takes longer than anybody waits.

        `until_s` is how long that is, on the monotonic clock; else it is a moment. A question that somebody has waited
        for in vain is not waited for again.
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
        """Who asks the source, now or already; None where what is known is young enough."""
        if self._known is not None and self._clock.monotonic_s() - self._known_s < self._seconds_max:
            return None
        if self._asking is None:
            self._asking = self._askers.submit(self._answer)
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
        # A bug of ours must not take the other parts along.
        events.emit("status_failed", level=logging.ERROR, part=self._name, reason=f"{type(error).__name__}: {error}")
        return StatusPart(self._clock.now(), unavailable="it failed; the log says why")


def _ask(ask: Callable[[], T], answer: "Future[T]") -> None:
    try:
        answer.set_result(ask())
    except BaseException as error:
        # Whoever reads the answer is told, and Python shows where it was.
        answer.set_exception(error)
        raise
