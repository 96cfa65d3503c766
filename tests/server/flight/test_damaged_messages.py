"""Thousands of damaged messages of every kind: a server answers each with a status, and goes on.

The server is a process of its own, so that a crash of the native code below it would be seen.
"""

import io
import os
import random
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.server.encoding import messages
from catchment.server.flight.actions import ACTIONS
from tests.acceptance.shell import command_with
from tests.repo.source_tree import ROOT
from tests.server.raw_client import SERVICE, Client, descriptor, ingest
from tests.server.sql import sandbox_statements
from tests.waiting import PATIENCE_S

Code = grpc.StatusCode
ANSWERS = {
    *(Code.OK, Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED, Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.ABORTED),
    *(Code.FAILED_PRECONDITION, Code.RESOURCE_EXHAUSTED, Code.UNAUTHENTICATED, Code.PERMISSION_DENIED),
}
BATCH = 25
EDGES = (0, 1, 0x7F, 0x80, 0xFF)
LENGTHS = (-1, 1, 7, 1 << 20, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, -(1 << 63))
WORDS = (
    "SELECT",
    "FROM",
    "t",
    "*",
    "(",
    ")",
    "'",
    '"',
    ",",
    "1",
    "NULL",
    "WHERE",
    "[",
    "]",
    "::",
    "JOIN",
    "?",
    "\u00a0",
)
SETTINGS = {
    "CATCHMENT_LAKE_THREADS_MAX": "1",
    "CATCHMENT_SERVER_MEMORY_MB": "512",
    "CATCHMENT_SERVER_SESSIONS_MAX": "500",
    "CATCHMENT_SERVER_STATEMENT_SECONDS_MAX": "20",
}
CONSTANTS = {"catchment.flight_protocol.message_sizes.MESSAGE_BYTES_MAX": 4 << 20}
campaign = settings(
    deadline=None,
    database=None,
    # What failed stands in the assertion; there is nothing to be made smaller.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@dataclass
class Target:
    """A server in its own process, and a client of it that has a session."""

    process: subprocess.Popen[str]
    client: Client
    channel: Any
    statement: bytes
    transaction: bytes

    def send(self, method: str, requests: list[bytes], headers: tuple[tuple[str, Any], ...] | None = None) -> None:
        """Have the messages answered, whatever they are."""
        metadata = (("authorization", str(self.client.authorization)),) if headers is None else headers
        call = self.channel.stream_stream(SERVICE + method)(iter(requests), metadata=metadata, timeout=PATIENCE_S)
        try:
            for _ in call:
                pass
            code = Code.OK
        except grpc.RpcError:
            code = call.code()
        shown = [request.hex() for request in requests]
        assert code in ANSWERS, (method, code, call.details(), shown, headers)

    def require_alive(self) -> None:
        assert self.process.poll() is None, self.process.returncode
        assert self.client.query("SELECT 42 AS x") == [{"x": 42}]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    home = tmp_path_factory.mktemp("fuzz")
    log = (home.parent / f"{home.name}.log").open("w")
    process = subprocess.Popen(
        [*command_with(CONSTANTS), "serve", "--home", str(home), "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, **SETTINGS, "PYTHONFAULTHANDLER": "1"},
    )
    assert process.stdout is not None
    found = None
    while found is None:
        line = process.stdout.readline()
        assert line, "It did not start."
        found = re.search(r"grpc://\S+", line)
    client = Client(found[0])
    client.authorization = f"Bearer {client.handshake()}"
    client.update("CREATE TABLE t (a BIGINT, b VARCHAR)")
    channel = grpc.insecure_channel(found[0].removeprefix("grpc://"))
    statement = client.prepare("SELECT ? AS x").prepared_statement_handle
    yield Target(process, client, channel, statement, client.begin())
    channel.close()
    client.close()
    # A gentle end would flush the queue, for which there is a server of its own.
    process.kill()
    process.communicate()
    log.close()


# Messages as a client means them.


SCRATCH = ingest("x", exists="REPLACE", temporary=True)
QUEUED = ingest("t", schema="duckling_queue")


def commands(target: Target) -> list[Message]:
    handle = target.statement
    return [
        sql.CommandStatementQuery(query="SELECT 1"),
        sql.CommandStatementQuery(query="SELECT 1", transaction_id=target.transaction),
        sql.CommandStatementUpdate(query="SET VARIABLE x = 1"),
        sql.CommandPreparedStatementQuery(prepared_statement_handle=handle),
        sql.CommandPreparedStatementUpdate(prepared_statement_handle=handle),
        sql.TicketStatementQuery(statement_handle=handle),
        SCRATCH,
        sql.CommandGetCatalogs(),
        sql.CommandGetDbSchemas(catalog="lake", db_schema_filter_pattern="m%"),
        sql.CommandGetTables(db_schema_filter_pattern="%", table_name_filter_pattern="t\\_", include_schema=True),
        sql.CommandGetTableTypes(),
        sql.CommandGetPrimaryKeys(table="t"),
        sql.CommandGetCrossReference(pk_table="t", fk_table="t"),
        sql.CommandGetXdbcTypeInfo(data_type=4),
        sql.CommandGetSqlInfo(info=[0, 500, 576]),
    ]


def actions(target: Target) -> list[Message]:
    info = flight.FlightInfo(
        endpoint=[flight.FlightEndpoint(ticket=flight.Ticket(ticket=messages.pack(commands(target)[5])))]
    )
    option = flight.SessionOptionValue(string_value="main")
    return [
        sql.ActionCreatePreparedStatementRequest(query="SELECT ?"),
        sql.ActionClosePreparedStatementRequest(prepared_statement_handle=b"x.y"),
        sql.ActionEndTransactionRequest(transaction_id=b"x.y", action="END_TRANSACTION_COMMIT"),
        sql.ActionCancelQueryRequest(info=info.SerializeToString()),
        flight.CancelFlightInfoRequest(info=info),
        flight.SetSessionOptionsRequest(session_options={"schema": option, "catalog": option}),
        flight.GetSessionOptionsRequest(),
    ]


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes with a few mistakes in them, of the kinds that a wire or an enemy makes."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(7):
            case 0 if out:
                out[at % len(out)] ^= 1 << chance.randrange(8)
            case 1 if out:
                out[at % len(out)] = chance.choice(EDGES)
            case 2:
                del out[at:]
            case 3:
                del out[at : at + chance.randrange(1, 9)]
            case 4:
                out[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 5:
                out[at : at + 8] = (chance.choice(LENGTHS) % (1 << 64)).to_bytes(8, "little")
            case _:
                out[at : at + 4] = (chance.choice(LENGTHS) % (1 << 32)).to_bytes(4, "little")
    return bytes(out)


def one_of(data: bytes, chance: random.Random) -> bytes:
    """Nearly the message, or nothing like it."""
    return chance.randbytes(chance.randrange(60)) if chance.random() < 0.1 else damaged(data, chance)


# Arrow streams, with all that they can hold.


def tables() -> list[pa.Table]:
    words, numbers = pa.array(["a", None, "ä", "a"]), pa.array([1, 2, None, 4])
    kinds, places = pa.array([0, 1, 0, 1], pa.int8()), pa.array([0, 0, 1, 1], pa.int32())
    enum = words.dictionary_encode()
    nested = pa.StructArray.from_arrays([words, numbers], ["w", "n"])
    return [
        pa.table({"a": numbers, "b": words}),
        pa.table({"d": enum, "l": pa.ListArray.from_arrays([0, 1, 2, 3, 4], enum)}),
        pa.table({"s": nested, "ls": pa.ListArray.from_arrays([0, 2, 2, 3, 4], nested)}),
        pa.table({"m": pa.MapArray.from_arrays([0, 1, 2, 3, 4], pa.array(["k", "l", "m", "n"]), numbers)}),
        pa.table({"f": pa.FixedSizeListArray.from_arrays(numbers, 2), "z": pa.nulls(2)}),
        pa.table({"v": words.cast(pa.string_view()), "w": pa.array([[1], [], None, [2]], pa.list_view(pa.int32()))}),
        pa.table({"r": pa.RunEndEncodedArray.from_arrays([2, 4], ["x", "y"])}),
        pa.table({"u": pa.UnionArray.from_sparse(kinds, [numbers, words])}),
        pa.table({"e": pa.UnionArray.from_dense(kinds, places, [numbers, words])}),
        pa.table({"c": pa.array([1, 2], pa.decimal128(10, 2)), "t": pa.array([1, 2], pa.timestamp("ns", "UTC"))}),
        pa.table({"h": pa.array([1.5, None], pa.float16()), "i": pa.array([1, None], pa.duration("us"))}),
        pa.table({"x": pa.array([b"a", None], pa.large_binary()), "o": pa.array([True, None])}),
        pa.table({"g": pa.array([uuid.UUID(int=1).bytes] * 2, pa.uuid())}),
        pa.table({}),
    ]


def parts(table: pa.Table, chance: random.Random) -> list[tuple[bytes, bytes]]:
    """Headers and bodies of the messages in which a client sends a table."""
    compression = chance.choice((None, None, "lz4", "zstd"))
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=chance.random() < 0.5)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)
    return [
        (each.metadata.to_pybytes(), each.body.to_pybytes() if each.body else b"")
        for each in pa.ipc.MessageReader.open_stream(sink.getvalue())
    ]


def damaged_stream(own: list[tuple[bytes, bytes]], other: list[tuple[bytes, bytes]], chance: random.Random) -> None:
    """Make mistakes in a stream, or in its order."""
    at = chance.randrange(len(own))
    header, body = own[at]
    match chance.randrange(8):
        case 0:
            own[at] = (header, damaged(body, chance))
        case 1:
            own[at] = (header, body[: chance.randrange(len(body) + 1)])
        case 2:
            own.insert(at, chance.choice(other))
        case 3:
            del own[at]
        case 4:
            own[at] = (header, chance.choice(other)[1])
        case 5:
            chance.shuffle(own)
        case _:
            own[at] = (damaged(header, chance), body)


def upload(command: Message, own: list[tuple[bytes, bytes]], chance: random.Random) -> list[bytes]:
    first = flight.FlightData(flight_descriptor=descriptor(command))
    sent = [first, *(flight.FlightData(data_header=header, data_body=body) for header, body in own)]
    if len(sent) > 1 and chance.random() < 0.7:
        # As most clients do it: the descriptor travels with the schema.
        sent[1].flight_descriptor.CopyFrom(first.flight_descriptor)
        del sent[0]
    encoded = [each.SerializeToString() for each in sent]
    if chance.random() < 0.1:
        at = chance.randrange(len(encoded))
        encoded[at] = damaged(encoded[at], chance)
    return encoded


# The campaigns.


def send_commands(target: Target, chance: random.Random) -> None:
    data = one_of(messages.pack(chance.choice(commands(target))), chance)
    method = chance.choice(("GetFlightInfo", "GetFlightInfo", "GetSchema", "DoGet", "DoPut"))
    if method == "DoGet":
        request = flight.Ticket(ticket=data).SerializeToString()
    else:
        request = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=data).SerializeToString()
    if chance.random() < 0.2:
        request = one_of(request, chance)
    if method == "DoPut":
        request = b"\x0a" + bytes([len(request) & 0x7F]) + request
    target.send(method, [request])


def send_actions(target: Target, chance: random.Random) -> None:
    body = chance.choice(actions(target))
    packed = messages.pack(body) if chance.random() < 0.7 else body.SerializeToString()
    kind = chance.choice([each for each in ACTIONS if each not in ("CloseSession", "BeginTransaction")])
    name = "".join(chance.choices("ABCé\n", k=3)) if chance.random() < 0.1 else kind
    request = flight.Action(type=name, body=one_of(packed, chance)).SerializeToString()
    target.send("DoAction", [damaged(request, chance) if chance.random() < 0.2 else request])


def send_headers(target: Target, chance: random.Random) -> None:
    letters = "".join(chance.choices("Basic erabcdef=:/+ '{}%", k=chance.randrange(30)))
    header = chance.choice(("authorization", "auth-token-bin", "cookie", "grpc-trace-bin"))
    value: Any = chance.randbytes(chance.randrange(30)) if header.endswith("-bin") else letters.strip()
    if header == "authorization" and chance.random() < 0.7:
        value = chance.choice(("Basic ", "Bearer ", "bearer ", "Basic")) + value
    login = flight.BasicAuth(username="local", password="x").SerializeToString()
    request = flight.HandshakeRequest(payload=one_of(login, chance)).SerializeToString()
    if chance.random() < 0.5:
        target.send("Handshake", [one_of(request, chance)] * chance.randrange(3), headers=((header, value),))
    else:
        query = descriptor(sql.CommandStatementQuery(query="SELECT 1")).SerializeToString()
        target.send("GetFlightInfo", [query], headers=((header, value),))


def send_streams(target: Target, chance: random.Random) -> None:
    known = tables()
    own, other = parts(chance.choice(known), chance), parts(chance.choice(known), chance)
    for _ in range(chance.choice((1, 1, 2, 3))):
        if own:
            damaged_stream(own, other, chance)
    command = chance.choice(
        (
            SCRATCH,
            QUEUED,
            sql.CommandPreparedStatementQuery(prepared_statement_handle=target.statement),
            sql.CommandPreparedStatementUpdate(prepared_statement_handle=target.statement),
        )
    )
    target.send("DoPut", upload(command, own, chance))


def send_texts(target: Target, chance: random.Random) -> None:
    text = chance.choice((*sandbox_statements.FILES, *sandbox_statements.METADATA, *sandbox_statements.LEGITIMATE[:58]))
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(WORDS) + text[at + chance.randrange(4) :]
    kind = chance.choice((sql.CommandStatementQuery, sql.CommandStatementUpdate))
    method = "DoPut" if kind is sql.CommandStatementUpdate else chance.choice(("GetFlightInfo", "GetSchema"))
    request = descriptor(kind(query=text))
    if method == "DoPut":
        target.send(method, [flight.FlightData(flight_descriptor=request).SerializeToString()])
    else:
        target.send(method, [request.SerializeToString()])


CAMPAIGNS: dict[str, tuple[Callable[[Target, random.Random], None], int]] = {
    "commands": (send_commands, 24),
    "actions": (send_actions, 16),
    "headers": (send_headers, 12),
    "streams": (send_streams, 40),
    "texts": (send_texts, 10),
}


def attack(target: Target, kind: str, *, times: int, derandomize: bool) -> None:
    send, batches = CAMPAIGNS[kind]

    @settings(campaign, max_examples=batches * times, derandomize=derandomize)
    @given(st.integers(0, 2**64))
    def batch(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(BATCH):
            send(target, chance)
        target.require_alive()

    batch()


@pytest.mark.parametrize("kind", CAMPAIGNS)
def test_damaged_messages_are_answered_and_the_server_goes_on(target: Target, kind: str) -> None:
    attack(target, kind, times=1, derandomize=True)


@pytest.mark.soak
@pytest.mark.parametrize("kind", CAMPAIGNS)
def test_a_long_series_of_damaged_messages_is_answered_and_the_server_goes_on(target: Target, kind: str) -> None:
    attack(target, kind, times=10, derandomize=False)
