"""Write barrier of a tenant on its primary: writes enter together, and a change of the primary
waits until they have left.

All writers wait while it is closed, so work under a closed barrier must be short.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from catchment.errors import NotReadyError
from catchment.foundation.clock import Clock


class WriteBarrier:
    """A barrier that is open until it is closed. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._inside = 0
        self._is_closed = False
        self._closed_s = 0.0
        # Duration of the last closure.
        self.pause_ms = 0.0

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @contextmanager
    def enter(self, *, wait_s: float) -> Iterator[None]:
        """Enter for the block. Raises NotReadyError if the barrier stays closed for `wait_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_closed, wait_s):
                raise NotReadyError("The tenant is being moved, and its write barrier stayed closed for too long.")
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if not self._inside:
                    self._changed.notify_all()

    def close(self, *, wait_s: float) -> None:
        """Close, and wait for the writes inside. Raises NotReadyError, and opens again, if one does
        not leave within `wait_s`.
        """
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._closed_s = self._clock.monotonic_s()
            if not self._changed.wait_for(lambda: not self._inside, wait_s):
                self._open()
                raise NotReadyError("A write took longer than the write barrier waits.")

    def open(self) -> None:
        """Open, and admit waiting writers."""
        with self._changed:
            if self._is_closed:
                self._open()

    def _open(self) -> None:
        self._is_closed = False
        self.pause_ms = (self._clock.monotonic_s() - self._closed_s) * 1000
        self._changed.notify_all()

    @contextmanager
    def closed(self, *, wait_s: float) -> Iterator[None]:
        """Close for the duration of the block, then restore the previous state."""
        was_closed = self._is_closed
        self.close(wait_s=wait_s)
        try:
            yield
        finally:
            if not was_closed:
                self.open()
