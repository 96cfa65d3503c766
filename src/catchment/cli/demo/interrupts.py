"""Ctrl-C at any moment: it ends the story where it is, but never between a process's start and its being known."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# A closed terminal and a polite kill mean the same.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """What turns signals into KeyboardInterrupt, except while they are held back."""

    def __init__(self) -> None:
        # Libraries may turn the interrupt into an error of their own; this tells.
        self.was_heard = False
        self._holds = 0
        self._is_pending = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear signals, for a while."""
        before = {number: signal.signal(number, self._hear) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back; one that came meanwhile interrupts at the end."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self._is_pending and not self._holds:
            self._is_pending = False
            self._interrupt()

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Cleaning up is not interrupted: all of it has a bound."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._is_pending = False

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        if self._holds:
            self._is_pending = True
        else:
            self._interrupt()

    def _interrupt(self) -> None:
        self.was_heard = True
        raise KeyboardInterrupt
