"""Calls over a limit are refused with the limit's name, and the next call is served."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import cast

import grpc
import pyarrow as pa
import pytest

from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.flight_protocol import message_sizes
from catchment.foundation.settings import MIB, Settings
from catchment.server.encoding import messages, wire
from catchment.server.sessions import session as sessions
from tests.server.raw_client import ENDLESS, Client, ingest, put_messages, refused, server

OVER = grpc.StatusCode.RESOURCE_EXHAUSTED
BOUND = pa.table({"x": [1]})


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Client]]:
    """Clients of one server, each with a session, as small as a server can be."""
    settings = Settings(
        home=tmp_path_factory.mktemp("limits"),
        lake_threads_max=1,
        server_port=0,
        server_sessions_max=4,
        server_statements_max=1,
        server_write_bytes_max=MIB,
        server_memory_mb=64,
    )
    clients: list[Client] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_sizes, "MESSAGE_BYTES_MAX", MIB)
        patch.setattr(messages, "STATEMENT_BYTES_MAX", 1024)
        patch.setattr(wire, "BATCH_ROWS_MAX", 100)
        patch.setattr(wire, "RESULT_BYTES_MAX", MIB)
        patch.setattr(sessions, "PREPARED_MAX", 3)
        with server(settings) as running:

            def open_one() -> Client:
                client = Client(running.uri)
                clients.append(client)
                client.authorization = f"Bearer {client.handshake()}"
                client.query("SELECT 1")
                return client

            yield open_one
            for client in clients:
                client.close()


@pytest.fixture
def client(connect: Callable[[], Client]) -> Iterator[Client]:
    client = connect()
    yield client
    assert client.query("SELECT 42 AS x") == [{"x": 42}]
    client.act("CloseSession")


def strings(count: int, size: int) -> pa.Table:
    return pa.table({"a": ["x" * size] * count})


def test_the_size_of_a_message_is_limited(client: Client) -> None:
    text = refused(OVER, client.put, ingest("large", temporary=True), strings(1, 2 * MIB))
    assert "larger" in text
    assert str(MIB) in text


@pytest.mark.parametrize("letter", ["x", "ä"])
def test_the_length_of_a_statement_is_limited(client: Client, letter: str) -> None:
    long = f"SELECT '{letter * 1_100}'"
    for attempt in (client.query, client.update, client.prepare):
        assert "1,024 bytes" in refused(OVER, attempt, long)
    assert "1,024 bytes" in refused(OVER, client.schema, sql.CommandStatementQuery(query=long))


def test_the_rows_of_a_batch_are_limited(client: Client) -> None:
    assert "101 rows" in refused(OVER, client.put, ingest("rows", temporary=True), strings(101, 1))
    assert client.put(ingest("rows", temporary=True), strings(100, 1)) == 100


def test_the_size_of_one_write_to_the_queue_is_bounded(client: Client) -> None:
    client.update("CREATE TABLE IF NOT EXISTS target (a VARCHAR)")
    command = ingest("target", schema="duckling_queue")
    batches = [batch for _ in range(20) for batch in put_messages(command, strings(100, 1_000))[1:]]
    upload = client.upload([put_messages(command, strings(1, 1))[0], *batches])
    assert "write to the queue" in refused(OVER, upload.result)
    text = "INSERT INTO duckling_queue.target SELECT repeat('x', 1000) FROM range(2000)"
    assert "write to the queue" in refused(OVER, client.update, text)
    assert client.query("SELECT count(*) AS n FROM catchment_fresh.target") == [{"n": 0}]


def test_bound_parameters_are_limited_in_size(client: Client) -> None:
    handle = client.prepare("SELECT ? AS x").prepared_statement_handle
    command = sql.CommandPreparedStatementQuery(prepared_statement_handle=handle)
    batches = [batch for _ in range(20) for batch in put_messages(command, strings(100, 1_000))[1:]]
    upload = client.upload([put_messages(command, strings(1, 1))[0], *batches])
    assert "The rows have more than" in refused(OVER, upload.result)


def test_the_memory_of_a_result_is_bounded(client: Client) -> None:
    info = client.info(sql.CommandStatementQuery(query="SELECT repeat('x', 1000) AS x FROM range(100000)"))
    assert client.query("SELECT 42 AS x") == [{"x": 42}]
    assert "over 1,048,576 bytes" in refused(OVER, client.get, info.endpoint[0].ticket.ticket)


def test_the_rows_that_a_changing_statement_returns_are_bounded(client: Client) -> None:
    client.update("CREATE TEMP TABLE returned (a VARCHAR)")
    text = "INSERT INTO returned SELECT repeat('x', 1000) FROM range(2000) RETURNING a"
    assert "1,048,576 bytes" in refused(OVER, client.query, text)
    assert client.query("SELECT count(*) AS n FROM returned") == [{"n": 0}]


def test_the_memory_of_a_statement_is_limited(client: Client) -> None:
    assert "memory" in refused(OVER, client.query, "SELECT list(range) FROM range(100000000)").lower()


def test_statements_at_the_same_time_are_bounded(client: Client, connect: Callable[[], Client]) -> None:
    other = connect()
    running = client.asking(sql.CommandStatementQuery(query=ENDLESS))

    def ask_until_refused() -> None:
        # The endless one may not have begun yet. Results are not read: that would wait for a slot.
        for _ in range(1_000):
            other.asking(sql.CommandStatementQuery(query="SELECT 1")).result()

    assert "1 statements are running" in refused(OVER, ask_until_refused)
    running.cancel()
    other.act("CloseSession")


def test_sessions_are_bounded(client: Client, connect: Callable[[], Client]) -> None:
    others = [connect() for _ in range(3)]
    assert "the limit is 4" in refused(OVER, connect)
    others.pop().act("CloseSession")
    others.append(connect())
    for other in others:
        other.act("CloseSession")


def test_sessions_without_state_make_room_for_new_clients(client: Client, connect: Callable[[], Client]) -> None:
    others = [connect() for _ in range(3)]
    for other in others:
        other.act("CloseSession")
    for _ in range(2):
        for other in others:
            assert other.query("SELECT 1 AS x") == [{"x": 1}]
    more = [connect() for _ in range(3)]
    assert "the limit is 4" in refused(OVER, connect)
    for each in (*more, *others):
        each.act("CloseSession")


def test_prepared_statements_of_a_session_are_bounded(client: Client) -> None:
    handles = [client.prepare("SELECT 1").prepared_statement_handle for _ in range(3)]
    assert "3 prepared statements" in refused(OVER, client.prepare, "SELECT 1")
    client.act("ClosePreparedStatement", sql.ActionClosePreparedStatementRequest(prepared_statement_handle=handles[0]))
    client.prepare("SELECT 1")


def test_transactions_of_a_session_are_bounded(client: Client) -> None:
    opened = [client.begin() for _ in range(8)]
    assert "8 open transactions" in refused(OVER, client.begin)
    for transaction in opened:
        client.end(transaction, commit=False)


def test_rows_that_a_transaction_keeps_for_the_queue_are_bounded(client: Client) -> None:
    client.update("CREATE TABLE IF NOT EXISTS target (a VARCHAR)")
    transaction = client.begin()
    text = "INSERT INTO duckling_queue.target SELECT repeat('x', 1000) FROM range(600)"
    client.update(text, transaction)
    assert "transaction" in refused(OVER, client.update, text, transaction)
    client.end(transaction, commit=False)
    assert client.query("SELECT count(*) AS n FROM catchment_fresh.target") == [{"n": 0}]


@pytest.mark.parametrize("messages", [2, 5])
def test_a_client_that_leaves_a_long_result_leaves_no_slot_taken(tmp_path: Path, messages: int) -> None:
    """After some batches, the next one takes hours; it is built while the client has not read all."""
    endless = "SELECT i FROM range(1000000000000) r(i) WHERE i < 500000 OR hash(i) = 1"
    settings = Settings(home=tmp_path, server_port=0, server_statements_max=1, lake_threads_max=1)
    with server(settings) as running, Client(running.uri, keeps_session=True) as client, Client(running.uri) as other:
        ticket = client.info(sql.CommandStatementQuery(query=endless)).endpoint[0].ticket.ticket
        stream = client.stream("DoGet", flight.Ticket(ticket=ticket).SerializeToString())
        for _ in range(messages):
            next(stream)
        cast(Generator[bytes, None, None], stream).close()
        assert other.query("SELECT 42 AS x") == [{"x": 42}]
        assert client.query("SELECT 42 AS x") == [{"x": 42}]
