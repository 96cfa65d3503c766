"""Background threads that a server cannot work without."""

import threading
from collections.abc import Callable

_PAUSE_S = 1.0


class LastingThread:
    """Runs a function in a daemon thread until it returns.

    If a defect ends the thread, which reports the error like any other, the function is called
    again after a second, in a new thread.
    """

    def __init__(self, target: Callable[[], object], *, name: str) -> None:
        self._target = target
        self._name = name
        self._is_started = False
        self._has_returned = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._is_started = True
        self._begin(threading.Thread(target=self._run))

    def join(self, seconds_max: float | None = None) -> None:
        """Wait until the function returns; not if it was never started."""
        if self._is_started:
            self._has_returned.wait(seconds_max)

    def _begin(self, thread: threading.Thread) -> None:
        thread.name, thread.daemon = self._name, True
        thread.start()

    def _run(self) -> None:
        try:
            self._target()
            self._has_returned.set()
        finally:
            if not self._has_returned.is_set():
                self._begin(threading.Timer(_PAUSE_S, self._run))
