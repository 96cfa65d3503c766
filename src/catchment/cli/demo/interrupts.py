"""Signals of the demo: Ctrl-C stops it anywhere, except while a server is started or stopped."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# A closed terminal and `kill` mean the same as Ctrl-C.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Raises KeyboardInterrupt on signals, later or never while they are deferred."""

    def __init__(self) -> None:
        # Libraries may turn KeyboardInterrupt into their own error.
        self.was_raised = False
        self._depth = 0
        self._is_pending = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals until the block ends."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self, *, discard: bool = False) -> Iterator[None]:
        """Raise a signal's KeyboardInterrupt at the end of the block; with `discard`, not at all."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            is_due = self._is_pending and not discard and not self._depth
            self._is_pending &= not discard and not is_due
        if is_due:
            self._raise()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._depth:
            self._is_pending = True
        else:
            self._raise()

    def _raise(self) -> None:
        self.was_raised = True
        raise KeyboardInterrupt
