"""Stops calls at their deadline, with one thread for all of them."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.lasting_thread import LastingThread
from catchment.server.values import Call

# The time that a stopped call has to report its error, before it is cut off.
GRACE_S = 2.0


class _Watch:
    """A watched call, and the next action on it."""

    __slots__ = ("act", "cut_off", "due_s")

    def __init__(self, due_s: float, act: Callable[[], object], cut_off: Callable[[], object]) -> None:
        self.due_s = due_s
        self.act = act
        self.cut_off = cut_off


class Pace:
    """A call that waits for its client now and then, each time for a limited time."""

    __slots__ = ("_seconds_max", "_watch", "_watchdog")

    def __init__(self, watchdog: "Watchdog", watch: _Watch, seconds_max: float) -> None:
        self._watchdog = watchdog
        self._watch = watch
        self._seconds_max = seconds_max

    def begin(self) -> None:
        """Mark the beginning of a wait."""
        self._watchdog.arm(self._watch, self._seconds_max)

    def end(self) -> None:
        """Mark the end of a wait."""
        self._watch.due_s = math.inf


class Watchdog:
    """Stops calls at their deadline; cuts off those that wait for their client and do not react."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        # Contains only running calls, which are few; most end long before the thread wakes up for
        # them.
        self._watches: set[_Watch] = set()
        self._wakes_s = math.inf
        self._is_closed = False
        self._thread = LastingThread(self._run, name="catchment-watchdog")
        self._thread.start()

    @contextmanager
    def watching(self, call: Call, cut_off: Callable[[], object]) -> Iterator[None]:
        """Watch the call while the block runs; `cut_off` ends it from outside, with no response."""
        if call.deadline_s is None:
            yield
            return
        watch = _Watch(call.deadline_s, call.time_out, cut_off)
        with self._changed:
            self._watches.add(watch)
            if watch.due_s < self._wakes_s:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._watches.discard(watch)

    @contextmanager
    def pacing(self, call: Call, cut_off: Callable[[], object], seconds_max: float) -> Iterator[Pace]:
        """Stop the call as stalled if one wait for its client takes longer than `seconds_max`."""
        watch = _Watch(math.inf, call.stall, cut_off)
        with self._changed:
            self._watches.add(watch)
        try:
            yield Pace(self, watch, seconds_max)
        finally:
            with self._changed:
                self._watches.discard(watch)

    def arm(self, watch: _Watch, seconds: float) -> None:
        """Make a watch due so many seconds from now."""
        watch.due_s = self._clock.monotonic_s() + seconds
        if watch.due_s < self._wakes_s:
            with self._changed:
                self._changed.notify()

    def close(self) -> None:
        """Stop watching."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                due = self._due()
            # Outside of the lock: stopping a call may block.
            for act in due:
                act()

    def _due(self) -> list[Callable[[], object]]:
        """Return the actions that are due; waits if there are none."""
        now_s = self._clock.monotonic_s()
        late = [watch for watch in self._watches if watch.due_s <= now_s]
        due = [watch.act for watch in late]
        for watch in late:
            if watch.act is watch.cut_off:
                self._watches.discard(watch)
            watch.act = watch.cut_off
            watch.due_s += GRACE_S
        if not due:
            self._wakes_s = min((watch.due_s for watch in self._watches), default=math.inf)
            self._changed.wait(None if self._wakes_s == math.inf else self._wakes_s - now_s)
        return due
