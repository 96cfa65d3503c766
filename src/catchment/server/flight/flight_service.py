"""The Flight service: dispatches Flight SQL's calls to sessions.

A statement runs in GetFlightInfo or DoPut; DoGet only reads its result. So nothing runs twice if a
client reads twice, and changes are made even if the client reads no result. Commands about the
catalog are answered in DoGet, from their ticket alone.

Every upload and every action has a single response message and is declared so, which saves a round
through gRPC's threads in each call.
"""

from collections.abc import Iterator
from contextlib import closing

import duckdb
import grpc
from google.protobuf.message import Message

from catchment.errors import CatchmentError, InputError, NotSupportedError
from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.flight_protocol import message_sizes
from catchment.foundation.clock import Clock
from catchment.foundation.settings import Settings
from catchment.server.access.auth import Authenticator
from catchment.server.encoding import messages, wire
from catchment.server.flight import metadata
from catchment.server.flight.actions import ACTIONS, Actions
from catchment.server.flight.calls import CallLimits, Calls
from catchment.server.flight.session_lookup import SessionLookup
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from catchment.server.statement_log import StatementLog
from catchment.server.values import Call, StatementOutcome
from catchment.tenants.shard import TenantShard

_SERVICE = "/arrow.flight.protocol.FlightService/"


class FlightService(grpc.GenericRpcHandler):
    """Answers calls, once `add_to` has added it to a server."""

    def __init__(
        self,
        registry: SessionRegistry,
        authenticator: Authenticator,
        settings: Settings,
        *,
        shard: TenantShard | None = None,
        clock: Clock | None = None,
        log: StatementLog | None = None,
    ) -> None:
        """`shard` is the tenants' part of this server, if it has one; `log` records statements."""
        self._settings = settings
        self._log = log or StatementLog(
            registry.backend.app.meters,
            clock=registry.backend.clock,
            log_sql=settings.log_sql,
        )
        self._lookup = SessionLookup(registry, authenticator)
        self._calls = Calls(
            CallLimits(
                statements_max=settings.server_statements_max,
                seconds_max=settings.server_statement_seconds_max,
                streams_max=settings.server_sessions_max,
            ),
            clock=clock,
            log_sql=settings.log_sql,
        )
        self._actions = Actions(self._lookup, settings, shard)
        self._limits = wire.Limits(
            batch_rows=wire.BATCH_ROWS_MAX,
            message_bytes=message_sizes.MESSAGE_BYTES_MAX,
            kept_bytes=settings.server_write_bytes_max,
        )
        self._handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            _SERVICE + "Handshake": grpc.stream_stream_rpc_method_handler(self._handshake),
            _SERVICE + "GetFlightInfo": grpc.unary_unary_rpc_method_handler(self._get_flight_info),
            _SERVICE + "GetSchema": grpc.unary_unary_rpc_method_handler(self._get_schema),
            _SERVICE + "DoGet": grpc.unary_stream_rpc_method_handler(self._do_get),
            _SERVICE + "DoPut": grpc.stream_unary_rpc_method_handler(self._do_put),
            _SERVICE + "DoAction": grpc.unary_unary_rpc_method_handler(self._do_action),
            _SERVICE + "ListActions": grpc.unary_stream_rpc_method_handler(self._list_actions),
        }

    def add_to(self, server: grpc.Server) -> None:
        """Register the handlers of Flight's calls."""
        server.add_generic_rpc_handlers((self,))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Return the handler of a method; for unknown ones gRPC itself reports UNIMPLEMENTED."""
        return self._handlers.get(handler_call_details.method)

    def close(self) -> None:
        """Release resources; no calls may arrive any more."""
        self._calls.close()

    def _handshake(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._calls.answering(context, "Handshake") as call:
            first = next(self._calls.arriving(requests, context, call), b"")
            payload = messages.parse(flight.HandshakeRequest, first).payload
            if payload:
                given = messages.parse(flight.BasicAuth, payload)
                token = self._lookup.log_in(context, given.username, given.password)
            else:
                token = self._lookup.log_in_by_header(context)
            yield flight.HandshakeResponse(payload=token.encode()).SerializeToString()

    def _get_flight_info(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        with self._calls.answering(context, "GetFlightInfo") as call:
            descriptor = messages.parse(flight.FlightDescriptor, request)
            command = messages.described(descriptor)
            if isinstance(command, metadata.COMMANDS):
                with self._lookup.session(context):
                    return _flight_info(descriptor, wire.encode_schema(metadata.schema_of(command)), descriptor.cmd)
            with (
                self._calls.slot(writes=not messages.may_read(command)),
                self._lookup.session(context, messages.handle_in(command)) as session,
                session.calls.running(call),
            ):
                outcome = self._query(command, session, call)
                ticket = sql.TicketStatementQuery(statement_handle=session.keep(outcome))
                return _flight_info(descriptor, wire.encode_schema(outcome.result.schema), messages.pack(ticket))

    def _query(self, command: Message, session: Session, call: Call) -> StatementOutcome:
        match command:
            case sql.CommandStatementQuery():
                return self._execute(command, session, call)
            case sql.CommandPreparedStatementQuery():
                prepared = session.prepared(command.prepared_statement_handle)
                call.text = prepared.text
                with self._log.running(session.id, session.principal, prepared.text):
                    return session.run_prepared(prepared, call)
            case _:
                raise NotSupportedError(f"{command.DESCRIPTOR.name} cannot be run as a query.")

    def _execute(
        self, command: sql.CommandStatementQuery | sql.CommandStatementUpdate, session: Session, call: Call
    ) -> StatementOutcome:
        text = call.text = messages.text_in(command)
        is_update = isinstance(command, sql.CommandStatementUpdate)
        with self._log.running(session.id, session.principal, text):
            return session.execute(text, call, transaction=messages.transaction_in(command), is_update=is_update)

    def _get_schema(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        with self._calls.answering(context, "GetSchema") as call:
            command = messages.described(messages.parse(flight.FlightDescriptor, request))
            with self._lookup.session(context, messages.handle_in(command)) as session:
                match command:
                    case sql.CommandStatementQuery():
                        text = call.text = messages.text_in(command)
                        prepared = session.prepare(text, transaction=messages.transaction_in(command), call=call)
                        schema = prepared.schema
                        session.close_prepared(prepared.handle)
                    case sql.CommandPreparedStatementQuery():
                        schema = session.prepared(command.prepared_statement_handle).schema
                    case _ if isinstance(command, metadata.COMMANDS):
                        schema = metadata.schema_of(command)
                    case _:
                        raise NotSupportedError(f"{command.DESCRIPTOR.name} has no schema.")
                return flight.SchemaResult(schema=wire.encode_schema(schema)).SerializeToString()

    def _do_get(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._calls.answering(context, "DoGet") as call:
            ticket = messages.command(messages.parse(flight.Ticket, request).ticket)
            with (
                self._lookup.session(context, messages.handle_in(ticket)) as session,
                self._calls.stream(session.id),
            ):
                if isinstance(ticket, metadata.COMMANDS):
                    with self._calls.slot():
                        found = metadata.result(ticket, session, self._settings, call)
                    given = wire.stream(found.schema, found.batches(call))
                    yield from self._calls.streamed(given, call, context)
                elif isinstance(ticket, sql.TicketStatementQuery):
                    handle = ticket.statement_handle
                    with closing(session.take(handle).result) as result, session.calls.running(call, handle):
                        given = wire.stream(result.schema, result.batches(call))
                        yield from self._calls.streamed(given, call, context)
                else:
                    raise InputError("Not a ticket.", hint="GetFlightInfo returns tickets.")

    def _do_put(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with self._calls.answering(context, "DoPut") as call:
            arrivals = self._calls.arriving(requests, context, call)
            first = wire.parse(next(arrivals, b""))
            command = messages.described(messages.parse(flight.FlightDescriptor, bytes(first.descriptor)))
            with (
                self._calls.slot(writes=True),
                self._lookup.session(context, messages.handle_in(command)) as session,
                session.calls.running(call),
            ):
                upload = wire.Upload(first, arrivals, self._limits)
                try:
                    result = self._put(command, upload, session, call)
                except (CatchmentError, duckdb.Error):
                    # The component that read the upload reports only that reading failed, not why.
                    if upload.failure is not None:
                        raise upload.failure from None
                    raise
            return flight.PutResult(app_metadata=result.SerializeToString()).SerializeToString()

    def _put(self, command: Message, upload: wire.Upload, session: Session, call: Call) -> Message:
        match command:
            case sql.CommandPreparedStatementUpdate():
                prepared = session.prepared(command.prepared_statement_handle)
                call.text = prepared.text
                # Not bound: another call on the same handle may run at the same time with other
                # rows.
                rows = upload.table()
                with self._log.running(session.id, session.principal, prepared.text):
                    return _changed(session.run_prepared(prepared, call, rows, is_update=True))
            case sql.CommandStatementUpdate():
                return _changed(self._execute(command, session, call))
            case sql.CommandPreparedStatementQuery():
                bound = upload.table()
                if bound is None:
                    raise InputError("The upload contains no parameters to bind.")
                session.prepared(command.prepared_statement_handle).bind(bound)
                return sql.DoPutPreparedStatementResult(prepared_statement_handle=command.prepared_statement_handle)
            case sql.CommandStatementIngest():
                with self._log.running(session.id, session.principal, f"(ingest into {command.table})"):
                    return _ingest(command, upload, session, call)
            case _:
                raise NotSupportedError(f"{command.DESCRIPTOR.name} cannot be put.")

    def _do_action(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        with self._calls.answering(context, "DoAction") as call:
            action = messages.parse(flight.Action, request)
            return flight.Result(body=self._actions.do(action, context, call)).SerializeToString()

    def _list_actions(self, _request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._calls.answering(context, "ListActions"), self._lookup.session(context):
            for name, text in ACTIONS.items():
                yield flight.ActionType(type=name, description=text).SerializeToString()


def _flight_info(descriptor: flight.FlightDescriptor, schema: bytes, ticket: bytes) -> bytes:
    endpoint = flight.FlightEndpoint(ticket=flight.Ticket(ticket=ticket))
    # -1 means unknown: rows are not counted before they are read.
    return flight.FlightInfo(
        schema=schema, flight_descriptor=descriptor, endpoint=[endpoint], total_records=-1, total_bytes=-1
    ).SerializeToString()


def _changed(outcome: StatementOutcome) -> sql.DoPutUpdateResult:
    """Return the number of changed rows; 0 if none, as -1 tells JDBC that there are rows."""
    outcome.result.close()
    return sql.DoPutUpdateResult(record_count=outcome.rows or 0)


def _ingest(
    command: sql.CommandStatementIngest, upload: wire.Upload, session: Session, call: Call
) -> sql.DoPutUpdateResult:
    rows = upload.rows()
    if rows is None:
        raise InputError("The ingest has no Arrow stream.")
    target = messages.ingest_target(command)
    count = session.ingest(target, rows, call, transaction=messages.transaction_in(command))
    return sql.DoPutUpdateResult(record_count=count)
