"""The Flight service by its protocol: effects of each call, refusals, and lost clients."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage

from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.flight_protocol import message_sizes
from catchment.foundation.settings import MIB, Settings
from catchment.server.encoding import messages, wire
from catchment.server.flight_server import FlightServer
from catchment.server.sessions.session import Session
from tests.repo.source_tree import ROOT
from tests.server.raw_client import (
    ENDLESS,
    SERVICE,
    Client,
    descriptor,
    ingest,
    put_messages,
    refused,
    server,
    sessions,
)
from tests.shortcuts import warm
from tests.waiting import PATIENCE_S, wait_until

Code = grpc.StatusCode
Connect = Callable[[], Client]
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    home = tmp_path_factory.mktemp("flight")
    settings = Settings(home=home, server_port=0, server_statements_max=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_sizes, "MESSAGE_BYTES_MAX", MIB)
        patch.setattr(wire, "BATCH_ROWS_MAX", 10_000)
        patch.setattr(messages, "STATEMENT_BYTES_MAX", 2_000)
        with server(settings) as found:
            yield found


@pytest.fixture
def connect(running: FlightServer) -> Iterator[Connect]:
    """Clients that know their token, each with a session of its own."""
    clients = []

    def new() -> Client:
        client = Client(running.uri)
        client.info(sql.CommandStatementQuery(query="USE main"))
        client.authorization = client.token
        clients.append(client)
        return client

    yield new
    for client in clients:
        client.act("CloseSession")
        client.close()


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


@pytest.fixture
def stranger(running: FlightServer) -> Iterator[Client]:
    """A client that never sends a token."""
    found = Client(running.uri)
    yield found
    found.close()


# Statements.


def test_a_query_runs_when_it_is_asked_for_and_is_read_by_its_ticket_once(client: Client) -> None:
    client.update("CREATE OR REPLACE TABLE once (x INT)")
    info = client.info(sql.CommandStatementQuery(query="INSERT INTO once VALUES (1)"))
    assert client.query("SELECT count(*) AS n FROM once") == [{"n": 1}]
    ticket = info.endpoint[0].ticket.ticket
    assert client.get(ticket).num_rows == 1
    refused(Code.FAILED_PRECONDITION, lambda: client.get(ticket))
    assert client.query("SELECT count(*) AS n FROM once") == [{"n": 1}]


def test_an_update_returns_how_many_rows_it_changed(client: Client) -> None:
    assert client.update("CREATE OR REPLACE TABLE counted (x INT)") == 0
    assert client.update("INSERT INTO counted VALUES (1), (2)") == 2
    assert client.update("DELETE FROM counted") == 2


def test_a_statement_is_never_run_by_reading(client: Client) -> None:
    client.update("CREATE OR REPLACE TABLE untouched (x INT)")
    for command in (sql.CommandStatementUpdate, sql.CommandStatementQuery):
        ticket = messages.pack(command(query="INSERT INTO untouched VALUES (1)"))
        refused(Code.INVALID_ARGUMENT, client.get, ticket)
    assert client.query("SELECT count(*) AS n FROM untouched") == [{"n": 0}]


def test_a_large_result_comes_whole_in_messages_that_clients_take(client: Client) -> None:
    ticket = client.info(sql.CommandStatementQuery(query="SELECT range AS x, repeat('y', 100) AS y FROM range(100000)"))
    parts = list(client.stream("DoGet", ticket.endpoint[0].ticket.SerializeToString()))
    assert max(map(len, parts)) < 2 * MIB + 10_000
    following = iter(parts[1:])
    limits = wire.Limits(batch_rows=1 << 30, message_bytes=1 << 30, kept_bytes=1 << 30)
    table = wire.Upload(wire.parse(parts[0]), following, limits).table()
    assert table is not None
    assert table.column("x").to_pylist() == list(range(100_000))


def test_enums_come_as_text(client: Client) -> None:
    assert client.query("SELECT 'b'::ENUM ('a', 'b') AS e, ['a'::ENUM ('a')] AS l") == [{"e": "b", "l": ["a"]}]


def test_the_schema_of_a_query_is_returned_without_running_it(client: Client) -> None:
    assert client.schema(sql.CommandStatementQuery(query="SELECT 1 AS x, 'a' AS y")).names == ["x", "y"]
    handle = client.prepare("SELECT 1 AS z").prepared_statement_handle
    assert client.schema(sql.CommandPreparedStatementQuery(prepared_statement_handle=handle)).names == ["z"]


# Prepared statements.


def test_a_prepared_query_is_bound_and_run_again(client: Client) -> None:
    prepared = client.prepare("SELECT ? + 1 AS x")
    assert not prepared.is_update
    command = sql.CommandPreparedStatementQuery(prepared_statement_handle=prepared.prepared_statement_handle)
    for value in (1, 41):
        answer = client.upload(put_messages(command, pa.table({"1": [value]}))).result(timeout=PATIENCE_S)
        bound = sql.DoPutPreparedStatementResult.FromString(flight.PutResult.FromString(answer).app_metadata)
        assert bound.prepared_statement_handle == prepared.prepared_statement_handle
        assert client.read(command).to_pylist() == [{"x": value + 1}]


def test_a_prepared_update_takes_its_rows_in_the_call_that_runs_it(client: Client) -> None:
    client.update("CREATE OR REPLACE TABLE prepared (id INT, name VARCHAR)")
    prepared = client.prepare("INSERT INTO prepared VALUES (?, ?)")
    assert prepared.is_update
    assert not prepared.dataset_schema
    command = sql.CommandPreparedStatementUpdate(prepared_statement_handle=prepared.prepared_statement_handle)
    assert client.put(command, ROWS) == 3
    client.act(
        "ClosePreparedStatement",
        sql.ActionClosePreparedStatementRequest(prepared_statement_handle=prepared.prepared_statement_handle),
    )
    refused(Code.FAILED_PRECONDITION, lambda: client.put(command, ROWS))
    assert client.query("SELECT count(*) AS n FROM prepared") == [{"n": 3}]


# Ingest.


def test_an_ingest_makes_its_table_or_appends_as_it_says(client: Client) -> None:
    client.update("DROP TABLE IF EXISTS taken")
    refused(Code.NOT_FOUND, lambda: client.put(ingest("taken", create=False), ROWS))
    assert client.put(ingest("taken", exists="FAIL"), ROWS) == 3
    refused(Code.ALREADY_EXISTS, lambda: client.put(ingest("taken", exists="FAIL"), ROWS))
    assert client.put(ingest("taken", create=False), ROWS) == 3
    assert client.query("SELECT count(*) AS n FROM taken") == [{"n": 6}]
    assert client.put(ingest("taken", exists="REPLACE"), ROWS) == 3
    assert client.query("SELECT count(*) AS n FROM taken") == [{"n": 3}]


def test_an_ingest_that_does_not_say_what_it_wants_is_refused(client: Client) -> None:
    refused(Code.INVALID_ARGUMENT, lambda: client.put(ingest("t", exists="UNSPECIFIED"), ROWS))
    refused(Code.INVALID_ARGUMENT, lambda: client.put(ingest(""), ROWS))
    refused(Code.INVALID_ARGUMENT, lambda: client.put(ingest("t")))


def test_a_damaged_upload_is_refused_and_leaves_nothing(client: Client) -> None:
    client.update("CREATE OR REPLACE TABLE damaged (id BIGINT, name VARCHAR)")
    first, batch = put_messages(ingest("damaged"), pa.table({"id": [1, 2], "name": ["abc", "def"]}))
    wrong = batch.replace(b"\x00\x00\x00\x00\x03\x00\x00\x00\x06\x00\x00\x00", b"\x00" * 8 + b"\xff\xff\xff\x3f")
    assert wrong != batch
    for broken in ([first, batch, wrong], [first, batch, batch[:-20]], [first, batch, b"\xff" * 50]):
        refused(Code.INVALID_ARGUMENT, lambda sent: client.upload(sent).result(timeout=PATIENCE_S), broken)
    assert client.query("SELECT count(*) AS n FROM damaged") == [{"n": 0}]


def test_calls_over_a_limit_are_refused_as_such_and_leave_nothing(client: Client) -> None:
    client.update("CREATE OR REPLACE TABLE limited (x VARCHAR)")
    rows = pa.table({"x": pa.nulls(10_001, pa.string())})
    assert "10,001 rows" in refused(Code.RESOURCE_EXHAUSTED, lambda: client.put(ingest("limited"), rows))
    large = pa.table({"x": ["x" * 1_100_000]})
    refused(Code.RESOURCE_EXHAUSTED, lambda: client.put(ingest("limited"), large))
    refused(Code.RESOURCE_EXHAUSTED, lambda: client.query(f"SELECT '{'x' * 2_000}'"))
    refused(Code.RESOURCE_EXHAUSTED, lambda: client.prepare(f"SELECT '{'ä' * 1_000}'"))
    assert client.query("SELECT count(*) AS n FROM limited") == [{"n": 0}]


# Transactions.


def test_a_transaction_is_kept_by_its_commit_and_by_nothing_else(client: Client) -> None:
    client.update("CREATE OR REPLACE TABLE kept (x INT)")
    for commit, expected in ((False, 0), (True, 1)):
        transaction = client.begin()
        assert client.update("INSERT INTO kept VALUES (1)", transaction) == 1
        assert client.query("SELECT count(*) AS n FROM kept", transaction) == [{"n": 1}]
        client.end(transaction, commit=commit)
        assert client.query("SELECT count(*) AS n FROM kept") == [{"n": expected}]
        refused(Code.FAILED_PRECONDITION, lambda ended: client.end(ended, commit=True), transaction)


def test_an_end_that_does_not_say_which_is_refused(client: Client) -> None:
    transaction = client.begin()
    request = sql.ActionEndTransactionRequest(transaction_id=transaction)
    refused(Code.INVALID_ARGUMENT, lambda: client.act("EndTransaction", request))
    client.end(transaction, commit=False)


# What is not understood, and what is not offered.


def test_bytes_that_are_not_a_message_are_refused_as_such(client: Client) -> None:
    for method in ("GetFlightInfo", "GetSchema", "DoAction"):
        refused(Code.INVALID_ARGUMENT, client.unary, method, b"\xff\xff\xff")
    refused(Code.INVALID_ARGUMENT, lambda: client.get(b"\xff\xff\xff"))
    refused(Code.INVALID_ARGUMENT, lambda: client.get(b""))
    refused(Code.INVALID_ARGUMENT, lambda: client.upload([]).result(timeout=PATIENCE_S))
    refused(Code.INVALID_ARGUMENT, lambda: client.upload([b"\xff" * 9]).result(timeout=PATIENCE_S))
    path = flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=["a"]).SerializeToString()
    refused(Code.INVALID_ARGUMENT, lambda: client.unary("GetFlightInfo", path))
    refused(Code.INVALID_ARGUMENT, lambda: client.act("CreatePreparedStatement", b"\xff\xff"))


def test_methods_that_are_not_offered_are_unimplemented(client: Client) -> None:
    packed = AnyMessage(type_url="type.googleapis.com/arrow.flight.protocol.sql.CommandStatementSubstraitPlan")
    wanted = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=packed.SerializeToString())
    refused(Code.UNIMPLEMENTED, lambda: client.unary("GetFlightInfo", wanted.SerializeToString()))
    for action in ("BeginSavepoint", "EndSavepoint", "CreatePreparedSubstraitPlan", "Nope"):
        refused(Code.UNIMPLEMENTED, client.act, action)
    refused(Code.UNIMPLEMENTED, lambda: list(client.stream("ListFlights", b"")))
    refused(Code.UNIMPLEMENTED, lambda: client.unary("PollFlightInfo", wanted.SerializeToString()))
    refused(Code.UNIMPLEMENTED, lambda: client.info(ingest("t")))
    refused(Code.UNIMPLEMENTED, lambda: client.put(sql.CommandGetCatalogs()))


def test_the_actions_that_are_offered_are_listed(client: Client) -> None:
    listed = {flight.ActionType.FromString(each).type for each in client.stream("ListActions", b"")}
    assert {"CreatePreparedStatement", "BeginTransaction", "CancelFlightInfo", "CloseSession"} <= listed


def test_errors_say_what_is_wrong_and_nothing_of_the_server(client: Client, running: FlightServer) -> None:
    text = refused(Code.NOT_FOUND, lambda: client.query("SELECT * FROM nope"))
    assert "nope" in text
    assert "Traceback" not in text
    assert str(running.app.settings.home) not in text


# Sessions.


def test_a_client_without_a_token_gets_one_and_resumes_its_session_by_it(
    stranger: Client, running: FlightServer
) -> None:
    before = sessions(running)
    stranger.update("CREATE TEMP TABLE mine AS SELECT 7 AS x")
    token = stranger.token
    assert token is not None
    assert token.startswith("Bearer ")
    stranger.authorization, stranger.token = token, None
    assert stranger.query("SELECT * FROM mine") == [{"x": 7}]
    assert stranger.token is None
    assert sessions(running) == before + 1
    stranger.act("CloseSession")
    assert sessions(running) == before


def test_a_client_without_a_token_resumes_its_session_by_handles(stranger: Client) -> None:
    transaction = stranger.begin()
    stranger.update("CREATE OR REPLACE TABLE by_handle (x INT)", transaction)
    stranger.end(transaction, commit=True)
    handle = stranger.prepare("SELECT 5 AS x").prepared_statement_handle
    assert stranger.read(sql.CommandPreparedStatementQuery(prepared_statement_handle=handle)).to_pylist() == [{"x": 5}]
    stranger.act("ClosePreparedStatement", sql.ActionClosePreparedStatementRequest(prepared_statement_handle=handle))


def test_a_session_that_cannot_be_resumed_is_closed_with_its_call(stranger: Client, running: FlightServer) -> None:
    before = sessions(running)
    stranger.read(sql.CommandGetCatalogs())
    refused(Code.NOT_FOUND, lambda: stranger.query("SELECT * FROM nope"))
    handle = stranger.prepare("SELECT 1").prepared_statement_handle
    assert sessions(running) == before + 1
    stranger.act("ClosePreparedStatement", sql.ActionClosePreparedStatementRequest(prepared_statement_handle=handle))
    assert sessions(running) == before


def test_an_expired_token_is_replaced_if_no_login_is_required(stranger: Client, running: FlightServer) -> None:
    before = sessions(running)
    stranger.authorization = "Bearer nonsense"
    stranger.query("SELECT 1")
    assert stranger.token is not None
    assert sessions(running) == before


def test_a_client_that_returns_with_its_token_has_one_session_from_then_on(
    client: Client, stranger: Client, running: FlightServer
) -> None:
    client.update("CREATE OR REPLACE TABLE came_back (x INT)")
    before = sessions(running)
    stranger.update("INSERT INTO duckling_queue.came_back VALUES (1)")
    assert sessions(running) == before
    stranger.authorization, stranger.token = stranger.token, None
    for _ in range(3):
        stranger.update("INSERT INTO duckling_queue.came_back VALUES (1)")
        assert sessions(running) == before + 1
    assert stranger.token is None
    stranger.update("CREATE TEMP TABLE mine AS SELECT 7 AS x")
    assert stranger.query("FROM mine") == [{"x": 7}]
    stranger.act("CloseSession")
    assert sessions(running) == before


def test_a_session_that_is_forgotten_while_a_call_of_it_arrives_is_opened_again(
    stranger: Client, running: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger.query("SELECT 1")
    stranger.authorization, stranger.token = stranger.token, None
    real = Session.begin_use
    forgotten: list[Session] = []

    def begin(session: Session) -> None:
        if session.is_replaceable and not forgotten:
            forgotten.append(session)
            assert running._sessions is not None
            running._sessions.close(session)
        real(session)

    monkeypatch.setattr(Session, "begin_use", begin)
    assert stranger.query("SELECT 2 AS x") == [{"x": 2}]
    assert len(forgotten) == 1
    assert stranger.token is None
    stranger.act("CloseSession")


def test_a_handle_finds_its_session_if_the_token_beside_it_is_of_a_closed_one(stranger: Client) -> None:
    stranger.query("SELECT 1")
    over = stranger.token
    transaction = stranger.begin()
    stranger.authorization = over
    stranger.update("CREATE OR REPLACE TABLE beside (x INT)", transaction)
    stranger.end(transaction, commit=True)
    stranger.authorization = None
    assert stranger.query("SELECT count(*) AS n FROM beside") == [{"n": 0}]


def test_handles_of_one_session_are_not_anothers(connect: Connect) -> None:
    one, other = connect(), connect()
    transaction = one.begin()
    refused(Code.FAILED_PRECONDITION, lambda: other.end(transaction, commit=True))
    handle = one.prepare("SELECT 1").prepared_statement_handle
    refused(
        Code.FAILED_PRECONDITION,
        lambda: other.info(sql.CommandPreparedStatementQuery(prepared_statement_handle=handle)),
    )
    ticket = one.info(sql.CommandStatementQuery(query="SELECT 1")).endpoint[0].ticket.ticket
    refused(Code.FAILED_PRECONDITION, lambda: other.get(ticket))
    one.end(transaction, commit=False)


def test_the_sessions_schema_is_an_option(client: Client) -> None:
    client.update("CREATE SCHEMA IF NOT EXISTS elsewhere")
    request = flight.SetSessionOptionsRequest()
    request.session_options["catalog"].string_value = "lake"
    request.session_options["schema"].string_value = "elsewhere"
    assert not flight.SetSessionOptionsResult.FromString(
        client.act("SetSessionOptions", request.SerializeToString())
    ).errors
    found = flight.GetSessionOptionsResult.FromString(client.act("GetSessionOptions")).session_options
    assert {name: value.string_value for name, value in found.items()} == {"catalog": "lake", "schema": "elsewhere"}


def test_an_option_that_cannot_be_set_is_named(client: Client) -> None:
    request = flight.SetSessionOptionsRequest()
    for name, value in (("catalog", "nope"), ("schema", "nope"), ("color", "red")):
        request.session_options[name].string_value = value
    errors = flight.SetSessionOptionsResult.FromString(
        client.act("SetSessionOptions", request.SerializeToString())
    ).errors
    kinds = flight.SetSessionOptionsResult
    assert {name: each.value for name, each in errors.items()} == {
        "catalog": kinds.INVALID_VALUE,
        "schema": kinds.INVALID_VALUE,
        "color": kinds.INVALID_NAME,
    }


# The end of calls.


def test_a_result_can_be_cancelled_by_what_was_said_of_it(client: Client) -> None:
    info = client.info(sql.CommandStatementQuery(query="SELECT 1"))
    body = flight.CancelFlightInfoRequest(info=info).SerializeToString()
    statuses = [flight.CancelFlightInfoResult.FromString(client.act("CancelFlightInfo", body)).status for _ in range(2)]
    assert statuses == [flight.CANCEL_STATUS_CANCELLED, flight.CANCEL_STATUS_NOT_CANCELLABLE]
    refused(Code.FAILED_PRECONDITION, lambda: client.get(info.endpoint[0].ticket.ticket))
    old = sql.ActionCancelQueryRequest(
        info=client.info(sql.CommandStatementQuery(query="SELECT 1")).SerializeToString()
    )
    result = messages.body(sql.ActionCancelQueryResult, client.act("CancelQuery", old)).result
    assert result == sql.ActionCancelQueryResult.CANCEL_RESULT_CANCELLED


def test_a_statement_stops_when_its_client_wants_it_no_more(client: Client) -> None:
    call = client.asking(sql.CommandStatementUpdate(query=ENDLESS))
    refused(Code.UNIMPLEMENTED, call.result)
    call = client.asking(sql.CommandStatementQuery(query=f"CREATE TABLE never AS {ENDLESS}"))
    threading.Event().wait(0.3)
    call.cancel()
    # The session's next statement would wait for it.
    assert client.query("SELECT 1 AS x") == [{"x": 1}]
    refused(Code.NOT_FOUND, lambda: client.query("SELECT * FROM never"))


def test_a_result_that_is_read_in_part_leaves_the_session_as_it_was(client: Client) -> None:
    text = "SELECT range AS x, repeat('y', 1000) AS y FROM range(1000000)"
    for _ in range(6):
        info = client.info(sql.CommandStatementQuery(query=text))
        parts = client.stream("DoGet", info.endpoint[0].ticket.SerializeToString())
        assert [next(parts), next(parts)]
        # Closing the generator cancels the call.
        del parts
        assert client.query("SELECT 1 AS x") == [{"x": 1}]


def test_an_error_in_the_middle_of_a_result_is_the_status_of_its_end(client: Client) -> None:
    text = "SELECT CASE WHEN range < 900000 THEN range ELSE error('too far') END AS x FROM range(1000000)"
    info = client.info(sql.CommandStatementQuery(query=text))
    assert "too far" in refused(Code.INVALID_ARGUMENT, client.get, info.endpoint[0].ticket.ticket)
    assert client.query("SELECT 1 AS x") == [{"x": 1}]


@pytest.mark.parametrize("reads", [True, False])
def test_more_statements_than_may_run_are_refused_and_those_that_read_keep_none_from_writing(
    connect: Connect, reads: bool
) -> None:
    busy = [connect() for _ in range(4)]
    other = connect()
    text = ENDLESS if reads else f"CREATE TABLE never AS {ENDLESS}"
    query: Callable[[], object] = partial(other.query, "SELECT 1 AS x")
    write: Callable[[], object] = partial(other.update, "CREATE TEMP TABLE IF NOT EXISTS y (x INT)")
    calls = [each.asking(sql.CommandStatementQuery(query=text)) for each in busy]
    try:
        threading.Event().wait(0.5)
        assert "4 statements" in refused(Code.RESOURCE_EXHAUSTED, query if reads else write)
        if reads:
            write()
        else:
            query()
    finally:
        for call in calls:
            call.cancel()
    for each in busy:
        assert each.query("SELECT 1 AS x") == [{"x": 1}]


def answers(client: Client) -> bool:
    with suppress(grpc.RpcError):
        return client.query("SELECT 1 AS x") == [{"x": 1}]
    return False


def test_a_statement_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, server_port=0, server_statement_seconds_max=0.5)
    with server(settings) as running:
        client = Client(running.uri)
        # On a busy machine, the start of the engine takes longer than a statement may.
        wait_until(lambda: answers(client), "the engine answers")
        text = refused(Code.DEADLINE_EXCEEDED, lambda: client.query(f"CREATE TABLE never AS {ENDLESS}"))
        assert "CATCHMENT_SERVER_STATEMENT_SECONDS_MAX" in text
        refused(Code.NOT_FOUND, lambda: client.query("SELECT * FROM never"))

        # One that sends nothing cannot hear that its time is up: it is cut off.
        def silent() -> Iterator[bytes]:
            yield put_messages(ingest("never"), ROWS)[0]
            threading.Event().wait(20)

        refused(Code.CANCELLED, lambda: client.upload(silent()).result(timeout=PATIENCE_S))
        client.close()


_HALF = """
import sys, threading
import pyarrow as pa
from tests.server.raw_client import Client, ingest, put_messages
first, batch = put_messages(ingest("half"), pa.table({"x": ["y" * 1000] * 100}))
def sending():
    yield first
    for _ in range(20):
        yield batch
    print("sent", flush=True)
    threading.Event().wait()
Client(sys.argv[1]).upload(sending()).result()
"""


def test_half_of_an_upload_is_never_taken_for_a_whole_one(running: FlightServer, client: Client) -> None:
    client.update("CREATE OR REPLACE TABLE half (x VARCHAR)")
    for _ in range(3):
        process = warm.Process([sys.executable, "-c", _HALF, running.uri], cwd=ROOT, stdout=warm.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        process.kill()
        process.wait()
        process.stdout.close()
    # Whatever would be taken is taken before the next write, for which it holds the lake's lock.
    client.update("CREATE OR REPLACE TABLE after_half (x INT)")
    assert client.query("SELECT count(*) AS n FROM half") == [{"n": 0}]


def test_a_method_that_streams_is_declared_as_the_protocol_has_it(running: FlightServer) -> None:
    """One answer to an action looks to a client like a stream of one."""
    with grpc.insecure_channel(running.uri.removeprefix("grpc://")) as channel:
        action = flight.Action(type="GetSessionOptions").SerializeToString()
        actions: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(SERVICE + "DoAction")
        answers = list(actions(action))
        uploads: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(SERVICE + "DoPut")
        update = put_messages(sql.CommandStatementUpdate(query="CREATE OR REPLACE TABLE streamed (x INT)"))
        results = list(uploads(iter(update)))
    assert (len(answers), len(results)) == (1, 1)


def test_a_descriptor_comes_back_in_the_answer(client: Client) -> None:
    command = sql.CommandStatementQuery(query="SELECT 1")
    assert client.info(command).flight_descriptor == descriptor(command)
