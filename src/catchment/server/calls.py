"""What surrounds every call: its end, a bound on how many run statements, and errors as statuses."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from catchment.clock import Clock, SystemClock
from catchment.errors import CancelledError, CatchmentError, LimitError
from catchment.server import status
from catchment.server.model import Call
from catchment.server.watchdog import Watchdog

# A burst of short statements passes within this; what lasts longer is a server that has enough to do.
_WAIT_S = 1.0


class Calls:
    """Lets calls run, within limits. Any thread may ask."""

    def __init__(self, *, statements_max: int, seconds_max: float, clock: Clock | None = None) -> None:
        self._statements_max = statements_max
        self._seconds_max = seconds_max
        self._clock = clock or SystemClock()
        self._slots = threading.BoundedSemaphore(statements_max)
        self._watchdog = Watchdog(self._clock)

    @contextmanager
    def answering(self, context: grpc.ServicerContext) -> Iterator[Call]:
        """A call while the block runs: it ends when its client goes or its time is up, and an error is its status."""
        call = Call(deadline_s=self._clock.monotonic_s() + min(self._seconds_max, context.time_remaining()))
        try:
            if not context.add_callback(call.cancel):
                raise CancelledError
            with self._watchdog.watching(call, context.cancel):
                yield call
        except Exception as error:
            reason = _reason(error, call)
            code, text = status.of(reason)
            context.set_trailing_metadata(((status.ERROR_HEADER, type(reason).__name__),))
            raise context.abort(code, text) from error

    @contextmanager
    def slot(self) -> Iterator[None]:
        """The right to run a statement, or to read what one gives, while the block runs."""
        if not self._slots.acquire(timeout=_WAIT_S):
            raise LimitError(f"{self._statements_max} statements are running.", hint="Try again in a moment.")
        try:
            yield
        finally:
            self._slots.release()

    def close(self) -> None:
        """No call runs any more."""
        self._watchdog.close()


def arriving(requests: Iterator[bytes], context: grpc.ServicerContext, call: Call) -> Iterator[bytes]:
    """The messages of a client; CancelledError where they end because it is gone, and not because it has sent all.

    A stream that broke looks at first like one that ended, and that it broke is told right behind. Asking once more
    waits for whatever was told before: half of an upload is never taken for a whole one.
    """
    try:
        yield from requests
        for _ in requests:
            raise CancelledError
        if not context.is_active():
            raise CancelledError
    except grpc.RpcError:
        call.refuse_stopped()
        raise CancelledError from None


def _reason(error: Exception, call: Call) -> Exception:
    """Why a call failed: where it was told to stop, that is why, whatever DuckDB or Arrow say of it."""
    if not isinstance(error, CatchmentError):
        try:
            call.refuse_stopped()
        except CancelledError as stopped:
            return stopped
    return error
