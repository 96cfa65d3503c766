"""Wraps every RPC: deadline and cancellation, the limit on concurrent statements, exceptions to
gRPC status codes.
"""

import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass

import duckdb
import grpc
import pyarrow as pa

from catchment.errors import CancelledError, CatchmentError, EngineFailedError, LimitError
from catchment.flight_protocol.headers import ERROR_HEADER
from catchment.flight_protocol.request_ids import REQUEST_HEADER, request_id
from catchment.foundation import events
from catchment.foundation.clock import Clock, SystemClock
from catchment.server.flight import grpc_status
from catchment.server.flight.watchdog import Watchdog
from catchment.server.values import Call

# A burst of short statements passes within this time; if not, the server is overloaded.
_WAIT_S = 1.0
# How often a call that waits for a slot checks whether it was cancelled.
_POLL_S = 0.2
STREAMS_PER_SESSION_MAX = 8
# How long a call waits for its client to read or send the next message: long enough for a client
# that processes each batch before it asks for the next one, and a client that has stopped frees its
# place within it. The hint of StalledError states the number.
STALL_SECONDS_MAX = 60
Code = grpc.StatusCode
# Codes that are, or may be, the server's fault; all others concern the client's statement.
_SERVER_FAULTS = (Code.INTERNAL, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED, Code.UNKNOWN)
# How DuckDB's messages about files, the network or memory begin.
_SERVER_FAULT_TEXT = re.compile(r"(?:IO|HTTP|Connection|Out of Memory) Error: ")
# The text of a query that DuckDB sent to a catalog; it contains values. Parts of the client's
# statement follow on separate lines.
_STATEMENT = re.compile(r"\b((?:query|COPY) \")(?:.*(?=\": )|.*(?=\")|.*)", re.DOTALL)
# Calls that run statements.
_STATEMENTS = ("GetFlightInfo", "GetSchema", "DoGet", "DoPut", "CreatePreparedStatement", "EndTransaction")


# Results of fewer messages are short: the schema, and batches.
_SHORT_MESSAGES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Limits on calls. `streams_max` is the number of results that are read concurrently."""

    statements_max: int
    seconds_max: float
    streams_max: int = 100


class Calls:
    """Runs calls within limits. Thread-safe."""

    def __init__(self, limits: CallLimits, *, clock: Clock | None = None, log_sql: bool = False) -> None:
        """`log_sql` is whether the log may contain the text of statements and errors."""
        self._log_sql = log_sql
        self._limits = limits
        self._clock = clock or SystemClock()
        # Separate limits: readers, however many and slow, do not block writers.
        self._reads = threading.BoundedSemaphore(limits.statements_max)
        self._writes = threading.BoundedSemaphore(limits.statements_max)
        # The number of results that are being read, by session.
        self._streams: Counter[str] = Counter()
        self._streams_mutex = threading.Lock()
        self._watchdog = Watchdog(self._clock)
        self._builders = ThreadPoolExecutor(limits.streams_max, thread_name_prefix="catchment-builder")

    @contextmanager
    def answering(self, context: grpc.ServicerContext, name: str) -> Iterator[Call]:
        """Wrap a call: stop it on disconnect or at its deadline; report errors as its status."""
        started_s = self._clock.monotonic_s()
        call = Call(deadline_s=started_s + min(self._limits.seconds_max, context.time_remaining()))
        call.name = name
        request = call.request = request_id(context.invocation_metadata())
        with events.context(request=request):
            try:
                if not context.add_callback(call.cancel):
                    raise CancelledError
                with self._watchdog.watching(call, context.cancel):
                    yield call
            except Exception as error:
                reason = _reason(error, call)
                code, text = grpc_status.of(reason)
                if code is Code.INTERNAL and not isinstance(reason, CatchmentError):
                    text = f"{text} (request {request})"
                self._log_failure(call, reason, code, self._clock.monotonic_s() - started_s)
                headers = ((ERROR_HEADER, type(reason).__name__), (REQUEST_HEADER, request))
                context.set_trailing_metadata(headers)
                raise context.abort(code, text) from error

    @contextmanager
    def slot(self, *, writes: bool = False) -> Iterator[None]:
        """Hold a slot to run a statement while the block runs; LimitError if none becomes free."""
        slots = self._writes if writes else self._reads
        if not slots.acquire(timeout=_WAIT_S):
            raise LimitError(f"{self._limits.statements_max} statements are running.", hint="Try again in a moment.")
        try:
            yield
        finally:
            slots.release()

    def streamed(self, messages: Iterator[bytes], call: Call, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield the messages of a result to the client.

        A slot is held while a message is built, not while the client reads it; reading has a
        separate time limit. While the client reads one message of a long result, the next is built
        in another thread, within the same call.
        """

        def build() -> bytes | None:
            with self._read_slot(call):
                return next(messages, None)

        with self._watchdog.pacing(call, context.cancel, STALL_SECONDS_MAX) as pace, ExitStack() as ahead:
            message, count = build(), 0
            while message is not None:
                count += 1
                built = self._builders.submit(copy_context().run, build) if count >= _SHORT_MESSAGES else None
                if built is not None:
                    ahead.callback(_abandon, built, call)
                pace.begin()
                yield message
                pace.end()
                ahead.pop_all()
                message = build() if built is None else built.result()

    def arriving(self, requests: Iterator[bytes], context: grpc.ServicerContext, call: Call) -> Iterator[bytes]:
        """Yield the client's messages, with a time limit for each.

        CancelledError if they end because the client disconnected, rather than because it has sent
        all. A broken stream looks at first like one that ended; the break is reported immediately
        after. Reading once more waits for that report, so that a partial upload is never mistaken
        for a complete one.
        """
        with self._watchdog.pacing(call, context.cancel, STALL_SECONDS_MAX) as pace:
            try:
                while True:
                    pace.begin()
                    message = next(requests, None)
                    if message is None:
                        break
                    pace.end()
                    yield message
                for _ in requests:
                    raise CancelledError
                if not context.is_active():
                    raise CancelledError
            except grpc.RpcError:
                call.refuse_stopped()
                raise CancelledError from None

    @contextmanager
    def stream(self, session_id: str) -> Iterator[None]:
        """Count a result as being read while the block runs; LimitError if there are too many."""
        with self._streams_mutex:
            if self._streams[session_id] >= STREAMS_PER_SESSION_MAX:
                raise LimitError(
                    f"The session is already reading {STREAMS_PER_SESSION_MAX} results.",
                    hint="Read one to its end.",
                )
            if self._streams.total() >= self._limits.streams_max:
                raise LimitError(f"{self._limits.streams_max} results are being read.", hint="Try again in a moment.")
            self._streams[session_id] += 1
        try:
            yield
        finally:
            with self._streams_mutex:
                self._streams[session_id] -= 1
                if not self._streams[session_id]:
                    del self._streams[session_id]

    @contextmanager
    def _read_slot(self, call: Call) -> Iterator[None]:
        """Hold a slot for a result that is being read; wait as long as the call may run."""
        while not self._reads.acquire(timeout=_POLL_S):
            call.refuse_stopped()
        try:
            call.refuse_stopped()
            yield
        finally:
            self._reads.release()

    def close(self) -> None:
        """Stop the watchdog; no call may be running."""
        self._watchdog.close()
        self._builders.shutdown()

    def _log_failure(self, call: Call, reason: Exception, code: grpc.StatusCode, seconds: float) -> None:
        is_server_fault = code in _SERVER_FAULTS or isinstance(reason, EngineFailedError)
        facts = {
            "call": call.name,
            "error": type(reason).__name__,
            "code": code.name.lower(),
            "seconds": round(seconds, 4),
        }
        # Errors about a statement repeat parts of it; those about the server do not.
        shown = str(reason) if self._log_sql else _without_statement(reason) if is_server_fault else None
        if shown is not None:
            facts["reason"] = shown
        if self._log_sql and call.text is not None:
            facts["sql"] = call.text
        level = logging.WARNING if is_server_fault else logging.INFO
        if call.name in _STATEMENTS:
            events.emit("statement_failed", level=level, **facts)
        else:
            events.emit("call_failed", level=level, **facts)


def _abandon(built: "Future[bytes | None]", call: Call) -> None:
    """Stop a call whose client is gone, and wait until nothing is built for it any more."""
    if not built.cancel():
        call.cancel()
        wait([built])


def _without_statement(reason: Exception) -> str | None:
    """Return the text of an error without the client's SQL; None if it may be about that SQL."""
    if isinstance(reason, CatchmentError):
        return str(reason)
    # A DuckDB error, or one that Arrow wrapped while rows were read: only its text identifies it.
    if not isinstance(reason, duckdb.Error | pa.ArrowException | OSError) or not _SERVER_FAULT_TEXT.match(str(reason)):
        return None
    return _STATEMENT.sub(r"\1…", str(reason)).partition("\n")[0]


def _reason(error: Exception, call: Call) -> Exception:
    """Return the cause of a failure: CancelledError for a stopped call, otherwise the error."""
    if not isinstance(error, CatchmentError):
        try:
            call.refuse_stopped()
        except CancelledError as stopped:
            return stopped
    return error
