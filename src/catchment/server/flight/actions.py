"""Flight SQL actions: prepared statements, transactions, cancellation, session options."""

from collections.abc import Callable
from contextlib import suppress

import duckdb
import grpc

from catchment.errors import CatchmentError, InputError, NotSupportedError, StateError
from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation import sql as text
from catchment.foundation.settings import Settings
from catchment.server.encoding import messages, wire
from catchment.server.flight.session_lookup import SessionLookup
from catchment.server.sessions.session import Session
from catchment.server.shards.shard_calls import ShardCalls
from catchment.server.values import Call
from catchment.tenants.shard import TenantShard
from catchment.tenants.transport import shard_messages

ACTIONS = {
    "CreatePreparedStatement": "Prepare a statement. Returns its handle and the schemas of its rows and parameters.",
    "ClosePreparedStatement": "Close a prepared statement.",
    "BeginTransaction": "Begin a transaction. Returns its id.",
    "EndTransaction": "Commit a transaction, or roll it back.",
    "CancelFlightInfo": "Cancel a statement, given its FlightInfo.",
    "CancelQuery": "Cancel a statement (for older clients).",
    "CancelRequest": "Cancel the session's calls of a request, given its x-request-id as the body.",
    "GetSessionOptions": "Return the session's catalog and schema.",
    "SetSessionOptions": "Set the session's catalog or schema.",
    "CloseSession": "End the session.",
}
_NAME_CHARACTERS_MAX = 100
_CATALOG = "catalog"
_SCHEMA = "schema"


class Actions:
    """Runs actions. Each returns the body of its single result."""

    def __init__(self, lookup: SessionLookup, settings: Settings, shard: TenantShard | None = None) -> None:
        self._lookup = lookup
        self._shard_calls = ShardCalls(shard)
        self._settings = settings
        self._known: dict[str, Callable[[bytes, grpc.ServicerContext, Call], bytes]] = {
            "CreatePreparedStatement": self._prepare,
            "ClosePreparedStatement": self._close_prepared,
            "BeginTransaction": self._begin,
            "EndTransaction": self._end,
            "CancelFlightInfo": self._cancel_flight_info,
            "CancelQuery": self._cancel_query,
            "CancelRequest": self._cancel_request,
            "GetSessionOptions": self._get_options,
            "SetSessionOptions": self._set_options,
            "CloseSession": self._close_session,
        }

    def do(self, action: flight.Action, context: grpc.ServicerContext, call: Call) -> bytes:
        """Run the action and return its result's body, which may be empty."""
        call.name = action.type[:_NAME_CHARACTERS_MAX]
        if action.type.startswith(shard_messages.PREFIX):
            name = action.type.removeprefix(shard_messages.PREFIX)
            return self._shard_calls.do(name, action.body, self._lookup.principal(context))
        known = self._known.get(action.type)
        if known is None:
            raise NotSupportedError(f"The action {call.name} is not supported.")
        return known(action.body, context, call)

    def _prepare(self, body: bytes, context: grpc.ServicerContext, call: Call) -> bytes:
        request = messages.body(sql.ActionCreatePreparedStatementRequest, body)
        statement = call.text = messages.text_in(request)
        with self._lookup.session(context, request.transaction_id) as session:
            prepared = session.prepare(statement, transaction=messages.transaction_in(request), call=call)
            result = sql.ActionCreatePreparedStatementResult(
                prepared_statement_handle=prepared.handle,
                # No schema at all, rather than an empty one, tells old clients that there are no
                # rows.
                dataset_schema=wire.encode_schema(prepared.schema) if len(prepared.schema) else b"",
                parameter_schema=wire.encode_schema(prepared.parameters) if len(prepared.parameters) else b"",
                is_update=prepared.is_update,
            )
        return messages.pack(result)

    def _close_prepared(self, body: bytes, context: grpc.ServicerContext, _call: Call) -> bytes:
        handle = messages.body(sql.ActionClosePreparedStatementRequest, body).prepared_statement_handle
        # A session that has ended has closed it already.
        with suppress(StateError), self._lookup.session(context, handle) as session:
            session.close_prepared(handle)
        return b""

    def _begin(self, body: bytes, context: grpc.ServicerContext, _call: Call) -> bytes:
        messages.body(sql.ActionBeginTransactionRequest, body)
        with self._lookup.session(context) as session:
            return messages.pack(sql.ActionBeginTransactionResult(transaction_id=session.begin()))

    def _end(self, body: bytes, context: grpc.ServicerContext, call: Call) -> bytes:
        request = messages.body(sql.ActionEndTransactionRequest, body)
        if request.action == sql.ActionEndTransactionRequest.END_TRANSACTION_UNSPECIFIED:
            raise InputError("The action specifies neither commit nor rollback.")
        is_commit = request.action == sql.ActionEndTransactionRequest.END_TRANSACTION_COMMIT
        # A session that has ended was rolled back. Drivers that get an error for a rollback never
        # open a transaction again.
        forgiven: tuple[type[StateError], ...] = () if is_commit else (StateError,)
        with suppress(*forgiven), self._lookup.session(context, request.transaction_id) as session:
            session.end(request.transaction_id, commit=is_commit, call=call)
        return b""

    def _cancel_flight_info(self, body: bytes, context: grpc.ServicerContext, _call: Call) -> bytes:
        request = messages.body(flight.CancelFlightInfoRequest, body)
        is_cancelled = self._cancel(request.info, context)
        status = flight.CANCEL_STATUS_CANCELLED if is_cancelled else flight.CANCEL_STATUS_NOT_CANCELLABLE
        return flight.CancelFlightInfoResult(status=status).SerializeToString()

    def _cancel_query(self, body: bytes, context: grpc.ServicerContext, _call: Call) -> bytes:
        request = messages.body(sql.ActionCancelQueryRequest, body)
        is_cancelled = self._cancel(messages.parse(flight.FlightInfo, request.info), context)
        kinds = sql.ActionCancelQueryResult
        result = kinds.CANCEL_RESULT_CANCELLED if is_cancelled else kinds.CANCEL_RESULT_NOT_CANCELLABLE
        return messages.pack(sql.ActionCancelQueryResult(result=result))

    def _cancel_request(self, body: bytes, context: grpc.ServicerContext, _call: Call) -> bytes:
        """Cancel a running statement by its request id; it has no FlightInfo yet."""
        with self._lookup.session(context) as session:
            is_cancelled = session.calls.cancel_request(body.decode("ascii", "replace"))
        status = flight.CANCEL_STATUS_CANCELLED if is_cancelled else flight.CANCEL_STATUS_NOT_CANCELLABLE
        return flight.CancelFlightInfoResult(status=status).SerializeToString()

    def _cancel(self, info: flight.FlightInfo, context: grpc.ServicerContext) -> bool:
        """Cancel the statements of the info's tickets; return whether any was cancelled."""
        tickets = [messages.command(endpoint.ticket.ticket) for endpoint in info.endpoint]
        handles = [ticket.statement_handle for ticket in tickets if isinstance(ticket, sql.TicketStatementQuery)]
        if not handles:
            return False
        with self._lookup.session(context, handles[0]) as session:
            cancelled = [session.cancel(handle) for handle in handles]
        return any(cancelled)

    def _get_options(self, body: bytes, context: grpc.ServicerContext, call: Call) -> bytes:
        messages.body(flight.GetSessionOptionsRequest, body)
        with self._lookup.session(context) as session:
            result = flight.GetSessionOptionsResult()
            result.session_options[_CATALOG].string_value = self._settings.lake_name
            result.session_options[_SCHEMA].string_value = _current_schema(session, call)
        return result.SerializeToString()

    def _set_options(self, body: bytes, context: grpc.ServicerContext, call: Call) -> bytes:
        request = messages.body(flight.SetSessionOptionsRequest, body)
        result = flight.SetSessionOptionsResult()
        with self._lookup.session(context) as session:
            for name, value in request.session_options.items():
                problem = self._set_option(name, value, session, call)
                if problem is not None:
                    result.errors[name].value = problem
        return result.SerializeToString()

    def _set_option(
        self, name: str, value: flight.SessionOptionValue, session: Session, call: Call
    ) -> "flight.SetSessionOptionsResult.ErrorValue | None":
        """Set an option; return the error if it cannot be set, otherwise None."""
        lake = self._settings.lake_name
        if name not in (_CATALOG, _SCHEMA):
            return flight.SetSessionOptionsResult.INVALID_NAME
        if name == _CATALOG:
            is_lake = text.fold(value.string_value) == text.fold(lake)
            return None if is_lake else flight.SetSessionOptionsResult.INVALID_VALUE
        try:
            session.execute(f"USE {text.qualified(lake, value.string_value)}", call, transaction=None).result.close()
        except (CatchmentError, duckdb.Error):
            return flight.SetSessionOptionsResult.INVALID_VALUE
        return None

    def _close_session(self, body: bytes, context: grpc.ServicerContext, _call: Call) -> bytes:
        messages.body(flight.CloseSessionRequest, body)
        with self._lookup.session(context) as session:
            self._lookup.close(session)
        return flight.CloseSessionResult(status=flight.CloseSessionResult.CLOSED).SerializeToString()


def _current_schema(session: Session, call: Call) -> str:
    if session.state.scope is not None:
        return session.state.scope.schema
    outcome = session.execute("SELECT current_schema()", call, transaction=None)
    rows = [value for batch in outcome.result.batches(call) for value in batch.column(0).to_pylist()]
    return str(rows[0])
