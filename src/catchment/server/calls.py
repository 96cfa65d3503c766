"""What surrounds every call: its end, a bound on how many run statements, and errors as statuses."""

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import grpc
import pyarrow as pa

from catchment import events
from catchment.clock import Clock, SystemClock
from catchment.errors import CancelledError, CatchmentError, LimitError
from catchment.server import status
from catchment.server.model import Call
from catchment.server.requests import REQUEST_HEADER, request_id
from catchment.server.watchdog import Watchdog

# A burst of short statements passes within this; what lasts longer is a server that has enough to do.
_WAIT_S = 1.0
Code = grpc.StatusCode
# What is the server's trouble, or may be; all else is between the client and its statement.
_TROUBLES = (Code.INTERNAL, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED, Code.UNKNOWN)
# How DuckDB begins when files, the network or memory fail it.
_TROUBLE_TEXT = re.compile(r"(?:IO|HTTP|Connection|Out of Memory) Error: ")
# What it asked of a catalog, with values in it; a piece of the client's statement stands in lines of its own.
_STATEMENT = re.compile(r"\b((?:query|COPY) \")(?:.*(?=\": )|.*(?=\")|.*)", re.DOTALL)
# Calls that a statement goes through.
_STATEMENTS = ("GetFlightInfo", "GetSchema", "DoGet", "DoPut", "CreatePreparedStatement", "EndTransaction")


class Calls:
    """Lets calls run, within limits. Any thread may ask."""

    def __init__(
        self, *, statements_max: int, seconds_max: float, clock: Clock | None = None, log_sql: bool = False
    ) -> None:
        """`log_sql` is whether the log may hold what clients write, as it stands in statements and errors."""
        self._log_sql = log_sql
        self._statements_max = statements_max
        self._seconds_max = seconds_max
        self._clock = clock or SystemClock()
        self._slots = threading.BoundedSemaphore(statements_max)
        self._watchdog = Watchdog(self._clock)

    @contextmanager
    def answering(self, context: grpc.ServicerContext, name: str) -> Iterator[Call]:
        """A call while the block runs: it ends when its client goes or its time is up, and an error is its status."""
        started_s = self._clock.monotonic_s()
        call = Call(deadline_s=started_s + min(self._seconds_max, context.time_remaining()))
        call.name = name
        request = request_id(context.invocation_metadata())
        with events.context(request=request):
            try:
                if not context.add_callback(call.cancel):
                    raise CancelledError
                with self._watchdog.watching(call, context.cancel):
                    yield call
            except Exception as error:
                reason = _reason(error, call)
                code, text = status.of(reason)
                if code is Code.INTERNAL and not isinstance(reason, CatchmentError):
                    text = f"{text} (request {request})"
                self._say_failed(call, reason, code, self._clock.monotonic_s() - started_s)
                headers = ((status.ERROR_HEADER, type(reason).__name__), (REQUEST_HEADER, request))
                context.set_trailing_metadata(headers)
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

    def _say_failed(self, call: Call, reason: Exception, code: grpc.StatusCode, seconds: float) -> None:
        is_trouble = code in _TROUBLES
        facts = {
            "call": call.name,
            "error": type(reason).__name__,
            "code": code.name.lower(),
            "seconds": round(seconds, 4),
        }
        # Errors about a statement repeat pieces of it; those about the server do not.
        said = str(reason) if self._log_sql else _without_statement(reason) if is_trouble else None
        if said is not None:
            facts["reason"] = said
        if self._log_sql and call.text is not None:
            facts["sql"] = call.text
        level = logging.WARNING if is_trouble else logging.INFO
        if call.name in _STATEMENTS:
            events.emit("statement_failed", level=level, **facts)
        else:
            events.emit("call_failed", level=level, **facts)


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


def _without_statement(reason: Exception) -> str | None:
    """What an error says of the server's trouble; None where it may be about what the client wrote."""
    if isinstance(reason, CatchmentError):
        return str(reason)
    # DuckDB's own, or what Arrow has made of it while rows were read: then only the text tells.
    if not isinstance(reason, duckdb.Error | pa.ArrowException | OSError) or not _TROUBLE_TEXT.match(str(reason)):
        return None
    return _STATEMENT.sub(r"\1…", str(reason)).partition("\n")[0]


def _reason(error: Exception, call: Call) -> Exception:
    """Why a call failed: where it was told to stop, that is why, whatever DuckDB or Arrow say of it."""
    if not isinstance(error, CatchmentError):
        try:
            call.refuse_stopped()
        except CancelledError as stopped:
            return stopped
    return error
