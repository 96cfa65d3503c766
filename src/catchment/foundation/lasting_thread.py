"""Background threads that a server cannot work without."""

import threading
from collections.abc import Callable
from types import TracebackType

_PAUSE_S = 1.0


class LastingThread:
    """Runs a function in a daemon thread until it returns.

    If a defect ends the function, the error is reported as one that ends a thread, and the function
    is called again after a second.
    """

    def __init__(self, target: Callable[[], object], *, name: str) -> None:
        self._target = target
        self._has_returned = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, seconds_max: float | None = None) -> None:
        """Wait until the function returns; not if it was never started."""
        if self._thread.is_alive():
            self._thread.join(seconds_max)

    def _run(self) -> None:
        while not self._has_returned:
            with _Reported():
                self._target()
                self._has_returned = True


class _Reported:
    """Reports an error of the block as one that ends a thread, and pauses."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is None or not isinstance(error, Exception):
            return False
        threading.excepthook(threading.ExceptHookArgs((kind, error, trace, threading.current_thread())))
        threading.Event().wait(_PAUSE_S)
        return True
