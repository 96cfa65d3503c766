"""Sessions on other shards' servers: forward a tenant's statements, return the outcome unchanged.

Nothing is collected on the way: rows pass batch by batch, in both directions. An error keeps the
class that it had on the other server. If no answer arrived, there are three cases: the statement
was not sent, it cannot have changed anything, or its outcome is unknown. The last one raises
CommitUnknownError.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import grpc
import pyarrow as pa
from google.protobuf.message import Message

from catchment.errors import (
    CancelledError,
    CatchmentError,
    CommitUnknownError,
    NotLoggedInError,
    ShardUnreachableError,
    StaleRouteError,
    StateError,
    TimedOutError,
)
from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.flight_protocol import message_sizes
from catchment.flight_protocol.headers import AUTHORIZATION, ON_BEHALF
from catchment.flight_protocol.request_ids import request_id_headers
from catchment.foundation.clock import Clock
from catchment.foundation.settings import Settings
from catchment.server.encoding import messages, wire
from catchment.server.values import (
    Call,
    IfExists,
    IngestTarget,
    Principal,
    StatementFacts,
    StatementOutcome,
    TableResult,
)
from catchment.tenants.model import ShardInfo
from catchment.tenants.transport.channels import open_channel, shard_login, was_never_sent
from catchment.tenants.transport.reported_errors import reported_failure

_SERVICE = "/arrow.flight.protocol.FlightService/"
_HANDLES_MAX = 16
# Timeout of notifications to the other server, for which no answer is awaited.
_NOTICE_S = 5.0
_NO_SCHEMA = pa.schema([])

T = TypeVar("T")


class Peers:
    """Connections to other servers, one per server. Thread-safe."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._mutex = threading.Lock()
        self._known: dict[str, _Server] = {}

    def session(self, shard: ShardInfo, principal: Principal) -> "PeerSession":
        """Return a session of that user on the shard's server."""
        with self._mutex:
            server = self._known.get(shard.location)
            if server is None:
                server = self._known[shard.location] = _Server(shard.location, self._settings)
        return PeerSession(server, shard, principal, self._settings, self._clock)

    def close(self) -> None:
        """Close all connections."""
        with self._mutex:
            for server in self._known.values():
                server.channel.close()
            self._known.clear()


class _Server:
    """The RPC methods of one server."""

    def __init__(self, location: str, settings: Settings) -> None:
        self.channel = channel = open_channel(location, settings)
        self.act: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{_SERVICE}DoAction")
        self.ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{_SERVICE}GetFlightInfo")
        self.get: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"{_SERVICE}DoGet")
        self.put: grpc.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(f"{_SERVICE}DoPut")
        self._unanswered: set[Any] = set()

    def keep(self, future: Any) -> None:
        """Keep a reference to a call whose answer is not awaited: gRPC cancels unreferenced calls."""
        self._unanswered.add(future)
        future.add_done_callback(self._unanswered.discard)


class PeerSession:
    """Session of a tenant's user on another server, from its first statement on. Thread-safe."""

    def __init__(
        self, server: _Server, shard: ShardInfo, principal: Principal, settings: Settings, clock: Clock
    ) -> None:
        self._server = server
        self._shard = shard
        self._clock = clock
        self._seconds_max = settings.server_statement_seconds_max
        self._limits = wire.Limits(
            batch_rows=wire.BATCH_ROWS_MAX,
            message_bytes=message_sizes.MESSAGE_BYTES_MAX,
            kept_bytes=wire.RESULT_BYTES_MAX,
        )
        self._login = shard_login(settings)
        self._behalf = (ON_BEHALF, f"{principal.role.name.lower()} {principal.tenant}")
        self._mutex = threading.Lock()
        self._token: str | None = None
        # Prepared statements that are not in use at the moment, by their text.
        self._handles: OrderedDict[str, bytes] = OrderedDict()

    def execute(
        self, text: str, call: Call, *, parameters: pa.Table | None, is_update: bool, may_change: bool
    ) -> StatementOutcome:
        """Run one statement; with `is_update` its rows are counted, otherwise they can be read."""
        return self._in_session(lambda: self._execute(text, call, parameters, is_update, may_change))

    def prepare(self, text: str, call: Call) -> StatementFacts:
        """Inspect a statement without running it."""

        def look() -> StatementFacts:
            self._headers(call)
            token = self._token
            created = self._create(text, call)
            self._hand_back(text, created.prepared_statement_handle, token)
            return StatementFacts(
                schema=_schema(created.dataset_schema),
                parameters=_schema(created.parameter_schema),
                is_update=created.is_update,
            )

        return self._in_session(look)

    def ingest(self, target: IngestTarget, rows: pa.RecordBatchReader, call: Call) -> int:
        """Forward a stream of rows and return their number."""
        token = self._token
        try:
            sent = self._put(_ingest(target), call, rows.schema, iter(rows), may_change=True)
        except NotLoggedInError:
            self._leave(token)
            # Only the caller has the rows and can send them again.
            raise StaleRouteError(f"The session on {self._shard.id} has ended.") from None
        return sql.DoPutUpdateResult.FromString(sent).record_count

    def describe(self, command: Message, schema: pa.Schema, call: Call) -> TableResult:
        """Return the answer to a catalog command as one table with the columns `schema`; the other
        server also builds it as a whole.
        """
        ticket = flight.Ticket(ticket=messages.pack(command))
        found = self._in_session(lambda: list(self.read(ticket, call)))
        return TableResult(pa.Table.from_batches(found, schema))

    def close(self) -> None:
        """End the session on the other server; if this notification is lost, it expires there."""
        if self._token is not None:
            self._notify("CloseSession", flight.CloseSessionRequest().SerializeToString())

    # Statements.

    def _execute(
        self, text: str, call: Call, parameters: pa.Table | None, is_update: bool, may_change: bool
    ) -> StatementOutcome:
        if parameters is None:
            if is_update:
                return self._update(sql.CommandStatementUpdate(query=text), call, None, may_change=may_change)
            return self._query(sql.CommandStatementQuery(query=text), call, may_change=may_change)
        with self._borrowed(text, call) as handle:
            if is_update:
                command = sql.CommandPreparedStatementUpdate(prepared_statement_handle=handle)
                return self._update(command, call, parameters, may_change=may_change)
            query = sql.CommandPreparedStatementQuery(prepared_statement_handle=handle)
            self._put(query, call, parameters.schema, iter(parameters.to_batches()), may_change=False)
            return self._query(query, call, may_change=may_change)

    def _update(self, command: Message, call: Call, rows: pa.Table | None, *, may_change: bool) -> StatementOutcome:
        schema, batches = (None, iter(())) if rows is None else (rows.schema, iter(rows.to_batches()))
        answer = self._put(command, call, schema, batches, may_change=may_change)
        return StatementOutcome(sql.DoPutUpdateResult.FromString(answer).record_count, _Nothing())

    def _query(self, command: Message, call: Call, *, may_change: bool) -> StatementOutcome:
        request = _described(command).SerializeToString()
        future = self._server.ask.future(request, metadata=self._headers(call), timeout=self._left_s(call))
        info = flight.FlightInfo.FromString(self._answer(future, call, may_be_done=lambda: may_change))
        return StatementOutcome(None, PeerResult(self, info))

    @contextmanager
    def _borrowed(self, text: str, call: Call) -> Iterator[bytes]:
        """Borrow a prepared statement for exclusive use: parameters stay bound to it."""
        self._headers(call)
        with self._mutex:
            token, handle = self._token, self._handles.pop(text, None)
        if handle is None:
            handle = self._create(text, call).prepared_statement_handle
        try:
            yield handle
        finally:
            self._hand_back(text, handle, token)

    def _hand_back(self, text: str, handle: bytes, token: str | None) -> None:
        with self._mutex:
            if token != self._token:
                # The handle belongs to a session that has ended.
                return
            unused = [self._handles.pop(text)] if text in self._handles else []
            self._handles[text] = handle
            if len(self._handles) > _HANDLES_MAX:
                unused.append(self._handles.popitem(last=False)[1])
        for each in unused:
            request = sql.ActionClosePreparedStatementRequest(prepared_statement_handle=each)
            self._notify("ClosePreparedStatement", messages.pack(request))

    def _create(self, text: str, call: Call) -> sql.ActionCreatePreparedStatementResult:
        request = messages.pack(sql.ActionCreatePreparedStatementRequest(query=text))
        body = self._act("CreatePreparedStatement", request, call, self._headers(call))[0]
        return messages.body(sql.ActionCreatePreparedStatementResult, body)

    def read(self, ticket: flight.Ticket, call: Call) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a ticket as they arrive."""
        stream = self._server.get(ticket.SerializeToString(), metadata=self._headers(call), timeout=self._left_s(call))
        failures: list[Exception] = []
        try:
            # On failure, end the stream between two messages; Arrow would replace the error with
            # one of its own.
            rows = wire.Upload(wire.FlightData(), self._parts(stream, call, failures), self._limits).rows()
            if rows is not None:
                yield from rows
        finally:
            stream.cancel()
        if failures:
            raise failures[0]

    def _parts(self, stream: Any, call: Call, failures: list[Exception]) -> Iterator[bytes]:
        while True:
            try:
                with call.interruptible(stream.cancel):
                    part = next(stream, None)
            except (grpc.RpcError, CancelledError) as error:
                failures.append(self._failure(error, call, may_be_done=False))
                return
            if part is None:
                return
            yield part

    def forget(self, info: flight.FlightInfo) -> None:
        """Notify the other server that a result will not be read."""
        self._notify("CancelFlightInfo", flight.CancelFlightInfoRequest(info=info).SerializeToString())

    # Calls.

    def _put(
        self,
        command: Message,
        call: Call,
        schema: pa.Schema | None,
        batches: Iterable[pa.RecordBatch],
        *,
        may_change: bool,
    ) -> bytes:
        """Send a command, with rows if it has a schema, and return the content of the answer."""
        sending = _Sending(command, schema, batches)
        future = self._server.put.future(sending, metadata=self._headers(call), timeout=self._left_s(call))
        try:
            # The other server does not process rows before it has all of them.
            answer = self._answer(future, call, may_be_done=lambda: may_change and (schema is None or sending.is_sent))
        except CatchmentError:
            if sending.failure is not None:
                # Reading the rows failed, so the other server has kept none.
                raise sending.failure from None
            raise
        return flight.PutResult.FromString(answer).app_metadata

    def _act(self, kind: str, body: bytes, call: Call, headers: tuple[tuple[str, str], ...]) -> tuple[bytes, Any]:
        action = flight.Action(type=kind, body=body).SerializeToString()
        future = self._server.act.future(action, metadata=headers, timeout=self._left_s(call))
        answer = self._answer(future, call, may_be_done=lambda: False)
        return flight.Result.FromString(answer).body, future

    def _notify(self, kind: str, body: bytes) -> None:
        """Notify the other server. If this is lost, it finds out later by itself."""
        headers = ((AUTHORIZATION, f"Bearer {self._token}"), self._behalf)
        action = flight.Action(type=kind, body=body).SerializeToString()
        # The connection may be closed already.
        with suppress(ValueError):
            self._server.keep(self._server.act.future(action, metadata=headers, timeout=_NOTICE_S))

    def _answer(self, future: Any, call: Call, *, may_be_done: Callable[[], bool]) -> bytes:
        try:
            with call.interruptible(future.cancel):
                answer: bytes = future.result()
        except (grpc.RpcError, grpc.FutureCancelledError, CancelledError) as error:
            future.cancel()
            raise self._failure(error, call, may_be_done=may_be_done()) from None
        return answer

    def _failure(self, error: Exception, call: Call, *, may_be_done: bool) -> Exception:
        """Return the other server's error or, if it reported none, the one that the call implies."""
        if isinstance(error, grpc.RpcError):
            reported = reported_failure(error)
            if reported is not None:
                return reported
        text = error.details() or "no reason given" if isinstance(error, grpc.RpcError) else "it was cancelled"
        is_unsent = isinstance(error, grpc.RpcError) and was_never_sent(error)
        if may_be_done and not is_unsent:
            return CommitUnknownError(
                f"The statement forwarded to {self._shard.id} may or may not have been executed: {text}.",
                hint="Check whether its rows are there before you run it again.",
            )
        try:
            call.refuse_stopped()
        except CancelledError as stopped:
            return stopped
        if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return TimedOutError()
        return ShardUnreachableError(f"Shard {self._shard.id} at {self._shard.location} cannot be reached: {text}.")

    def _left_s(self, call: Call) -> float:
        if call.deadline_s is None:
            return self._seconds_max
        return max(0.001, call.deadline_s - self._clock.monotonic_s())

    # The session itself.

    def _in_session(self, operation: Callable[[], T]) -> T:
        """Run an operation, and run it once more if the other server no longer knows the session."""
        token = self._token
        try:
            return operation()
        except NotLoggedInError:
            self._leave(token)
        return operation()

    def _headers(self, call: Call) -> tuple[tuple[str, str], ...]:
        with self._mutex:
            if self._token is None:
                self._token = self._log_in(call)
            return ((AUTHORIZATION, f"Bearer {self._token}"), self._behalf, *request_id_headers())

    def _log_in(self, call: Call) -> str:
        headers = (*self._login, self._behalf)
        try:
            _, answered = self._act(
                "GetSessionOptions", flight.GetSessionOptionsRequest().SerializeToString(), call, headers
            )
        except NotLoggedInError:
            raise self._shut_out() from None
        found = [str(value) for key, value in answered.initial_metadata() if key == AUTHORIZATION]
        if not found:
            raise self._shut_out()
        return found[0].removeprefix("Bearer ")

    def _leave(self, token: str | None) -> None:
        with self._mutex:
            if self._token == token:
                self._token = None
                self._handles.clear()

    def _shut_out(self) -> ShardUnreachableError:
        return ShardUnreachableError(
            f"Shard {self._shard.id} at {self._shard.location} rejects this server's login.",
            hint="Set CATCHMENT_SHARD_SECRET to the same secret for all shards.",
        )


class PeerResult:
    """Rows that are waiting on another server; can be read once."""

    def __init__(self, session: PeerSession, info: flight.FlightInfo) -> None:
        self.schema = _schema(info.schema)
        self._session = session
        self._info = info
        self._is_taken = False

    def batches(self, call: Call) -> Iterator[pa.RecordBatch]:
        """Return the rows, once."""
        if self._is_taken:
            raise StateError("This result has already been read.")
        self._is_taken = True
        try:
            yield from self._session.read(self._info.endpoint[0].ticket, call)
        except NotLoggedInError:
            raise StateError(
                "The result no longer exists: its server has restarted.", hint="Run the statement again."
            ) from None

    def close(self) -> None:
        """Release the rows that were not read."""
        if not self._is_taken:
            self._session.forget(self._info)
        self._is_taken = True


class _Nothing:
    """Empty result of a statement whose rows were counted."""

    schema = pa.schema([("Count", pa.int64())])

    def batches(self, call: Call) -> Iterator[pa.RecordBatch]:
        del call
        return iter(())

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class _Sending:
    """Messages of an upload. gRPC reads them in its own thread, which does not report errors."""

    def __init__(self, command: Message, schema: pa.Schema | None, batches: Iterable[pa.RecordBatch]) -> None:
        self.is_sent = False
        self.failure: Exception | None = None
        self._messages = self._all(command, schema, batches)

    def __iter__(self) -> "_Sending":
        return self

    def __next__(self) -> bytes:
        return next(self._messages)

    def _all(self, command: Message, schema: pa.Schema | None, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        yield flight.FlightData(flight_descriptor=_described(command)).SerializeToString()
        if schema is not None:
            try:
                yield from wire.stream(schema, iter(batches))
            except (CatchmentError, pa.ArrowException, OSError) as error:
                self.failure = error
                raise
        self.is_sent = True


def _described(command: Message) -> flight.FlightDescriptor:
    return flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=messages.pack(command))


def _schema(encoded: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(encoded)) if encoded else _NO_SCHEMA


def _ingest(target: IngestTarget) -> sql.CommandStatementIngest:
    kinds = sql.CommandStatementIngest.TableDefinitionOptions
    exists = {
        IfExists.FAIL: kinds.TABLE_EXISTS_OPTION_FAIL,
        IfExists.APPEND: kinds.TABLE_EXISTS_OPTION_APPEND,
        IfExists.REPLACE: kinds.TABLE_EXISTS_OPTION_REPLACE,
    }
    missing = kinds.TABLE_NOT_EXIST_OPTION_CREATE if target.create else kinds.TABLE_NOT_EXIST_OPTION_FAIL
    return sql.CommandStatementIngest(
        table_definition_options=kinds(if_not_exist=missing, if_exists=exists[target.if_exists]),
        table=target.table,
        schema=target.schema,
        catalog=target.catalog,
        temporary=target.temporary,
    )
