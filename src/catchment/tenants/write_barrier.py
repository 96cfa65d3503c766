"""The gate of a tenant on its home: writes pass together, and whoever changes the home waits until they are through.

Closing it is a pause that every writer feels: what is done behind a closed gate must be short.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from catchment.errors import NotReadyError
from catchment.foundation.clock import Clock


class WriteBarrier:
    """Open until it is closed; any thread may ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._inside = 0
        self._is_closed = False
        self._closed_s = 0.0
        # How long writers were kept out the last time.
        self.pause_ms = 0.0

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @contextmanager
    def enter(self, *, wait_s: float) -> Iterator[None]:
        """Be inside while the block runs; NotReadyError where the gate stays closed for that long."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_closed, wait_s):
                raise NotReadyError("The tenant is being moved, and this takes longer than it should.")
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if not self._inside:
                    self._changed.notify_all()

    def close(self, *, wait_s: float) -> None:
        """Let nobody in, and wait for those inside; NotReadyError, and open again, where one does not come out."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._closed_s = self._clock.monotonic_s()
            if not self._changed.wait_for(lambda: not self._inside, wait_s):
                self._open()
                raise NotReadyError("A write is under way for longer than the gate waits.")

    def open(self) -> None:
        """Let those in who wait."""
        with self._changed:
            if self._is_closed:
                self._open()

    def _open(self) -> None:
        self._is_closed = False
        self.pause_ms = (self._clock.monotonic_s() - self._closed_s) * 1000
        self._changed.notify_all()

    @contextmanager
    def closed(self, *, wait_s: float) -> Iterator[None]:
        """Closed while the block runs, and as it was afterwards."""
        was_closed = self._is_closed
        self.close(wait_s=wait_s)
        try:
            yield
        finally:
            if not was_closed:
                self.open()
