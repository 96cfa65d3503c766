"""A server in this process, and a Flight client that can send what no driver would."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import grpc
import pyarrow as pa
import pytest
from google.protobuf.message import Message

from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.settings import Settings
from catchment.server.encoding import messages, wire
from catchment.server.flight_server import FlightServer
from catchment.testing import InlineRunner
from tests.waiting import PATIENCE_S

SERVICE = "/arrow.flight.protocol.FlightService/"
# Takes hours, and can be interrupted at any moment.
ENDLESS = "SELECT sum(a.range * b.range) AS x FROM range(100000000) a, range(100000000) b"
_LIMITS = wire.Limits(batch_rows=1 << 30, message_bytes=1 << 30, kept_bytes=1 << 30)


class Client:
    """Sends any message with any headers; `keeps_session` sends the token of the last answer along."""

    def __init__(self, uri: str, *, authorization: str | None = None, keeps_session: bool = False) -> None:
        self._channel: Any = grpc.insecure_channel(uri.removeprefix("grpc://"))
        self._keeps_session = keeps_session
        self.authorization = authorization
        # The last token that an answer carried.
        self.token: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def unary(self, method: str, request: bytes) -> bytes:
        answer, call = self._channel.unary_unary(SERVICE + method).with_call(request, metadata=self._headers())
        self._see(call)
        return bytes(answer)

    def stream(self, method: str, request: bytes) -> Iterator[bytes]:
        call = self._channel.unary_stream(SERVICE + method)(request, metadata=self._headers())
        self._see(call)
        try:
            yield from call
        finally:
            call.cancel()

    def upload(self, requests: Iterable[bytes], *, timeout_s: float | None = None) -> Any:
        """A call that is under way."""
        return self._channel.stream_unary(SERVICE + "DoPut").future(
            iter(requests), metadata=self._headers(), timeout=timeout_s
        )

    def handshake(self, payload: bytes = b"") -> str:
        request = flight.HandshakeRequest(payload=payload).SerializeToString()
        call = self._channel.stream_stream(SERVICE + "Handshake")(iter([request]), metadata=self._headers())
        answers = [flight.HandshakeResponse.FromString(each) for each in call]
        self._see(call)
        return answers[0].payload.decode()

    def info(self, command: Message) -> flight.FlightInfo:
        return flight.FlightInfo.FromString(self.unary("GetFlightInfo", descriptor(command).SerializeToString()))

    def asking(self, command: Message) -> Any:
        """GetFlightInfo that is under way."""
        method = self._channel.unary_unary(SERVICE + "GetFlightInfo")
        return method.future(descriptor(command).SerializeToString(), metadata=self._headers())

    def schema(self, command: Message) -> pa.Schema:
        answer = self.unary("GetSchema", descriptor(command).SerializeToString())
        return pa.ipc.read_schema(pa.py_buffer(flight.SchemaResult.FromString(answer).schema))

    def get(self, ticket: bytes) -> pa.Table:
        parts = self.stream("DoGet", flight.Ticket(ticket=ticket).SerializeToString())
        table = wire.Upload(wire.parse(next(parts)), parts, _LIMITS).table()
        assert table is not None
        return table

    def read(self, command: Message) -> pa.Table:
        info = self.info(command)
        found = self.get(info.endpoint[0].ticket.ticket)
        assert found.schema == pa.ipc.read_schema(pa.py_buffer(info.schema))
        return found

    def query(self, text: str, transaction: bytes | None = None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.read(
            sql.CommandStatementQuery(query=text, transaction_id=transaction)
        ).to_pylist()
        return rows

    def update(self, text: str, transaction: bytes | None = None) -> int:
        return self.put(sql.CommandStatementUpdate(query=text, transaction_id=transaction))

    def put(self, command: Message, table: pa.Table | None = None) -> int:
        call = self.upload(put_messages(command, table))
        answer = call.result(timeout=PATIENCE_S)
        self._see(call)
        return int(sql.DoPutUpdateResult.FromString(flight.PutResult.FromString(answer).app_metadata).record_count)

    def act(self, kind: str, body: Message | bytes = b"") -> bytes:
        packed = body if isinstance(body, bytes) else messages.pack(body)
        answer = self.unary("DoAction", flight.Action(type=kind, body=packed).SerializeToString())
        return flight.Result.FromString(answer).body

    def prepare(self, text: str) -> sql.ActionCreatePreparedStatementResult:
        body = self.act("CreatePreparedStatement", sql.ActionCreatePreparedStatementRequest(query=text))
        return messages.body(sql.ActionCreatePreparedStatementResult, body)

    def begin(self) -> bytes:
        body = self.act("BeginTransaction", sql.ActionBeginTransactionRequest())
        return messages.body(sql.ActionBeginTransactionResult, body).transaction_id

    def end(self, transaction: bytes, *, commit: bool) -> None:
        kinds = sql.ActionEndTransactionRequest
        action = kinds.END_TRANSACTION_COMMIT if commit else kinds.END_TRANSACTION_ROLLBACK
        self.act("EndTransaction", kinds(transaction_id=transaction, action=action))

    def _headers(self) -> tuple[tuple[str, str], ...]:
        return () if self.authorization is None else (("authorization", self.authorization),)

    def _see(self, call: Any) -> None:
        for key, value in call.initial_metadata():
            if key == "authorization":
                self.token = value
                if self._keeps_session:
                    self.authorization = value


@contextmanager
def server(settings: Settings) -> Iterator[FlightServer]:
    """A server in this process, on any port, that flushes without Spark."""
    running = FlightServer(settings)
    running.app._runner = InlineRunner()  # type: ignore[assignment]
    running.start()
    try:
        yield running
    finally:
        assert running.stop()


def refused(code: grpc.StatusCode, call: Callable[..., object], *given: object) -> str:
    """The text with which a call was refused, under that status."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*given)
    error: Any = caught.value
    assert error.code() is code, error.details()
    return str(error.details())


def sessions(running: FlightServer) -> int:
    """How many sessions a server has."""
    assert running._sessions is not None
    return len(running._sessions.sessions())


def is_running(running: FlightServer, text: str) -> bool:
    """Whether a statement that begins so is running."""
    assert running._status is not None
    part = running._status.status().sessions.value
    return part is not None and any(text[:20] in each.text for each in part.running)


def descriptor(command: Message) -> flight.FlightDescriptor:
    return flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=messages.pack(command))


def put_messages(command: Message, table: pa.Table | None = None) -> list[bytes]:
    """What a client sends in DoPut."""
    first = flight.FlightData(flight_descriptor=descriptor(command))
    if table is None:
        return [first.SerializeToString()]
    schema, *batches = wire.stream(table.schema, iter(table.to_batches()))
    first.data_header = bytes(wire.parse(schema).header)
    return [first.SerializeToString(), *batches]


def ingest(table: str, *, create: bool = True, exists: str = "APPEND", **values: Any) -> sql.CommandStatementIngest:
    kinds = sql.CommandStatementIngest.TableDefinitionOptions
    options = kinds(
        if_not_exist=kinds.TABLE_NOT_EXIST_OPTION_CREATE if create else kinds.TABLE_NOT_EXIST_OPTION_FAIL,
        if_exists=getattr(kinds, f"TABLE_EXISTS_OPTION_{exists}"),
    )
    return sql.CommandStatementIngest(table=table, table_definition_options=options, **values)
