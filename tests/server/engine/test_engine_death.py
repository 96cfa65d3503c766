"""An engine process ends in every way there is, and only those who used it notice."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import grpc
import pyarrow as pa
import pytest

from catchment.errors import EngineFailedError, TimedOutError
from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation import events, process
from catchment.foundation.events import Event
from catchment.foundation.settings import Settings
from catchment.server.engine import engine_process
from catchment.server.engine.engine_process import EngineProcess
from catchment.server.engine.engines import BARE, Engines
from catchment.server.flight_server import FlightServer
from catchment.server.sessions.connections import Connection, Parameters
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.values import Call, Principal, Role
from catchment.status.model import EngineStatus
from tests.server.engine.cpu_time import cpu_s
from tests.server.raw_client import ENDLESS, Client, ingest, put_messages, refused, server
from tests.server.server_process import serving
from tests.waiting import wait_until

AGAIN = grpc.StatusCode.ABORTED
# DuckDB 1.5 overflows its stack on it, while it binds the statement.
CRASHING = "SELECT json_structure(repeat('[', 100000) || repeat(']', 100000)) AS x"
# Runs for minutes in one function, which does not look at interrupts.
DEAF = "SELECT levenshtein(repeat('a', 400000), repeat('b', 400000)) AS x"
# The parser takes many seconds for it. The server refuses such a statement of a client.
HARD_TO_PARSE = f"SELECT {'a AND ' * 150_000} a"
# Two batches, and no third for hours.
NEVER_ENDING = "SELECT i FROM range(1000000000000) r(i) WHERE i < 180000 OR hash(i) = 1"
# Two batches at once, and a third after hours: DuckDB fills a buffer before it hands out one.
LONG = "SELECT i FROM range(1000000000000) r(i) WHERE i < 300000 OR hash(i) = 1"
STATEMENT_S_MAX = 120.0
# More than parsing a statement takes.
CPU_S_MIN = 0.3

Connect = Callable[[], Client]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    settings = Settings(
        home=tmp_path_factory.mktemp("engines"),
        server_port=0,
        lake_threads_max=1,
        server_memory_mb=1000,
        server_statement_seconds_max=STATEMENT_S_MAX,
    )
    with server(settings) as found, Client(found.uri) as client:
        client.authorization = f"Bearer {client.handshake()}"
        client.update("CREATE TABLE t (a BIGINT)")
        client.update("INSERT INTO t VALUES (0)")
        yield found


@pytest.fixture
def connect(running: FlightServer) -> Iterator[Connect]:
    clients: list[Client] = []

    def open_one() -> Client:
        client = Client(running.uri)
        clients.append(client)
        client.authorization = f"Bearer {client.handshake()}"
        assert client.query("SELECT 42 AS x") == [{"x": 42}]
        return client

    yield open_one
    for client in clients:
        client.close()


def sessions(running: FlightServer) -> SessionRegistry:
    assert running._sessions is not None
    return running._sessions


def engines(running: FlightServer) -> Engines:
    found = sessions(running).backend.engines
    assert found is not None
    return found


def engine(running: FlightServer) -> EngineStatus:
    (found,) = engines(running).status()
    return found


def pid(running: FlightServer) -> int:
    wait_until(lambda: engine(running).pid is not None, "an engine runs")
    found = engine(running).pid
    assert found is not None
    return found


def start(running: FlightServer, client: Client, text: str) -> Any:
    """Start a long statement; return its call once the engine computes it."""
    with until_computing(running, text):
        return client.asking(sql.CommandStatementQuery(query=text))


@contextmanager
def until_computing(running: FlightServer, text: str) -> Iterator[None]:
    """Wait at the end of the block until the engine computes the text."""
    found = engines(running)._engines[0].process()
    before_s = cpu_s(found.pid)
    yield
    wait_until(lambda: cpu_s(found.pid) - before_s > CPU_S_MIN and _runs(found, text), "the engine computes it")


def _runs(engine: EngineProcess, text: str) -> bool:
    return any(each.text == text for each in engine.statements())


def kill(running: FlightServer, number: int = signal.SIGKILL) -> None:
    """End the engine process, and wait until the server knows."""
    replaced = engine(running).replaced
    os.kill(pid(running), number)
    wait_until(lambda: engine(running).replaced > replaced, "the server has noticed")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_after_the_end_of_an_engine_other_sessions_go_on_at_once(
    running: FlightServer, connect: Connect, number: int
) -> None:
    client = connect()
    before = pid(running)
    os.kill(before, number)
    # Constants need no engine.
    assert client.update("INSERT INTO duckling_queue.t VALUES (1)") == 1
    wait_until(lambda: process.start_tick(before) is None, "it has ended")
    wait_until(lambda: engine(running).pid not in (None, before), "it was replaced")
    assert client.query("SELECT 42 AS x") == [{"x": 42}]
    assert signal.Signals(number).name in str(engine(running).last_end)


def test_a_statement_that_ends_its_engine_gets_a_clear_error_that_may_be_retried(
    running: FlightServer, connect: Connect
) -> None:
    client, other = connect(), connect()
    seen: list[Event] = []
    with events.listening(seen.append):
        said = refused(AGAIN, client.prepare, f"{CRASHING}, 1 AS first")
    assert "engine process that ran the statement ended: signal 11 (SIGSEGV)" in said
    assert "Run the statement again" in said
    (event,) = [each for each in seen if each.verb == "engine_replaced"]
    assert event.facts["reason"] == "signal 11 (SIGSEGV)"
    # Its lines in the log have the id that identifies the statement.
    (failed,) = [each for each in seen if each.verb == "statement_failed"]
    assert event.facts["requests"] == [failed.facts["request"]]
    assert failed.facts["error"] == "EngineFailedError"
    assert client.query("SELECT 42 AS x") == other.query("SELECT 42 AS x") == [{"x": 42}]


def test_running_statements_fail_and_open_transactions_release_the_lock(
    running: FlightServer, connect: Connect
) -> None:
    owner, reader, writer = connect(), connect(), connect()
    transaction = owner.begin()
    owner.update("INSERT INTO t VALUES (100)", transaction)
    call = start(running, reader, ENDLESS)
    kill(running)
    assert "engine process" in refused(AGAIN, call.result)
    # With a SQLite catalog, the transaction held the lake's commit lock.
    assert writer.update("INSERT INTO t VALUES (101)") == 1
    assert "Run" in refused(AGAIN, owner.update, "INSERT INTO t VALUES (102)", transaction)
    assert writer.query("SELECT a FROM t WHERE a BETWEEN 100 AND 102") == [{"a": 101}]


@pytest.mark.parametrize("is_running", [False, True], ids=["idle", "running"])
def test_a_lost_transaction_fails_once_releases_the_lock_and_can_be_rolled_back(
    running: FlightServer, connect: Connect, is_running: bool
) -> None:
    owner, writer = connect(), connect()
    owner.update("BEGIN")
    owner.update("INSERT INTO t VALUES (200)")
    if is_running:
        call = start(running, owner, f"{ENDLESS} WHERE a.range > 0")
        kill(running)
        refused(AGAIN, call.result)
    else:
        kill(running)
    owner.update("ROLLBACK")
    assert writer.update("INSERT INTO t VALUES (201)") == 1
    owner.update("BEGIN")
    kill(running)
    refused(AGAIN, owner.update, "INSERT INTO t VALUES (200)")
    owner.update("BEGIN")
    owner.update("ROLLBACK")
    owner.update("BEGIN")
    kill(running)
    assert "Run" in refused(AGAIN, owner.update, "INSERT INTO t VALUES (200)")
    assert owner.update("INSERT INTO t VALUES (202)") == 1
    owner.prepare("ROLLBACK")
    assert writer.query("SELECT count(*) AS n FROM t WHERE a = 200") == [{"n": 0}]


def test_settings_and_prepared_statements_come_back_and_temporary_tables_are_reported_gone(
    running: FlightServer, connect: Connect
) -> None:
    client, plain = connect(), connect()
    for each in (client, plain):
        each.update("SET TimeZone = 'Asia/Tokyo'")
        each.update("CREATE SCHEMA IF NOT EXISTS lake.other")
        each.update("USE lake.other")
        each.update("PREPARE twice AS SELECT 2 * $1 AS x")
    prepared = plain.prepare("SELECT current_setting('TimeZone') AS zone, current_schema() AS schema")
    client.update("CREATE TEMP TABLE mine AS SELECT 1 AS a")
    kill(running)
    expected = [{"zone": "Asia/Tokyo", "schema": "other"}]
    command = sql.CommandPreparedStatementQuery(prepared_statement_handle=prepared.prepared_statement_handle)
    assert plain.read(command).to_pylist() == expected
    assert plain.query("EXECUTE twice(21)") == [{"x": 42}]
    said = refused(AGAIN, client.query, "SELECT 42 AS x")
    assert "temporary tables, views and macros, and its variables are gone" in said
    query = "SELECT current_setting('TimeZone') AS zone, current_schema() AS schema"
    assert client.query(query) == expected


def test_a_search_path_whose_schema_was_dropped_is_reported_once_when_an_engine_ends(
    running: FlightServer, connect: Connect
) -> None:
    client, other = connect(), connect()
    client.update("CREATE SCHEMA lake.gone")
    client.update("SET TimeZone = 'Asia/Tokyo'")
    client.update("USE lake.gone")
    other.update("DROP SCHEMA lake.gone")
    kill(running)
    # Not an error that clients repeat the statement for: it would then run in another schema.
    said = refused(grpc.StatusCode.FAILED_PRECONDITION, client.update, "CREATE TABLE misplaced (a BIGINT)")
    assert "`USE lake.gone` cannot be repeated" in said
    query = "SELECT current_setting('TimeZone') AS zone, current_schema() AS schema"
    assert client.query(query) == [{"zone": "Asia/Tokyo", "schema": "main"}]
    kill(running)
    assert client.query(query) == [{"zone": "Asia/Tokyo", "schema": "main"}]


def test_no_statement_runs_before_its_search_path_is_restored(
    running: FlightServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    client.update("CREATE SCHEMA IF NOT EXISTS lake.other")
    client.update("USE lake.other")
    kill(running)
    real = Connection.run

    def run(self: Connection, statement: str, call: Call, parameters: Parameters | None = None) -> Any:
        if statement == "USE lake.other":
            raise duckdb.IOException("IO Error: The catalog does not answer.")
        return real(self, statement, call, parameters)

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "run", run)
        for _ in range(2):
            refused(grpc.StatusCode.UNAVAILABLE, client.update, "CREATE TABLE misplaced (a BIGINT)")
    assert client.query("SELECT current_schema() AS schema") == [{"schema": "other"}]


def test_a_statement_that_does_not_react_to_its_cancellation_takes_its_engine_along(
    running: FlightServer, connect: Connect
) -> None:
    client, other = connect(), connect()
    before = pid(running)
    call = start(running, client, DEAF)
    call.cancel()
    wait_until(lambda: engine(running).pid != before, "its engine is killed")
    assert engine(running).last_end == "a statement did not react to its interruption"
    assert other.query("SELECT 42 AS x") == [{"x": 42}]


def test_a_statement_whose_parsing_goes_on_after_its_deadline_takes_its_engine_along(
    running: FlightServer, connect: Connect
) -> None:
    client = connect()
    before, parser = pid(running), engines(running)._engines[0].parser
    call = Call()

    def parse() -> None:
        with call.as_current():
            parser.tree(HARD_TO_PARSE)

    with ThreadPoolExecutor(1) as pool:
        with until_computing(running, HARD_TO_PARSE):
            parsing = pool.submit(parse)
        call.time_out()
        with pytest.raises(EngineFailedError, match="did not react to its interruption"):
            parsing.result()
    assert client.query("SELECT 42 AS x") == [{"x": 42}]
    assert pid(running) != before


def test_a_stopped_call_parses_nothing(running: FlightServer) -> None:
    session = sessions(running).open(Principal("founder", Role.ADMIN))
    call = Call()
    call.time_out()
    for run in (partial(session.execute, call=call), partial(session.prepare, call=call)):
        with pytest.raises(TimedOutError):
            run("SELECT 42 AS not_parsed_yet, 1 AS first")
    sessions(running).close(session)


def test_an_abandoned_result_blocks_neither_its_transaction_nor_others(running: FlightServer, connect: Connect) -> None:
    client, other = connect(), connect()
    before = pid(running)
    transaction = client.begin()
    client.update("INSERT INTO t VALUES (200)", transaction)
    client.end(transaction, commit=True)
    assert other.query("SELECT a FROM t WHERE a = 200") == [{"a": 200}]
    transaction = client.begin()
    client.update("INSERT INTO t VALUES (202)", transaction)
    client.info(sql.CommandStatementQuery(query=NEVER_ENDING, transaction_id=transaction))
    client.end(transaction, commit=False)
    assert other.update("INSERT INTO t VALUES (203)") == 1
    assert pid(running) == before


def test_nothing_is_computed_for_a_result_that_is_not_read(running: FlightServer, connect: Connect) -> None:
    client = connect()
    info = client.info(sql.CommandStatementQuery(query=NEVER_ENDING))
    found = engines(running)._engines[0].process()
    assert not found.statements()
    parts = client.stream("DoGet", flight.Ticket(ticket=info.endpoint[0].ticket.ticket).SerializeToString())
    next(parts)
    wait_until(lambda: _runs(found, NEVER_ENDING), "the engine computes what is read")
    parts.close()  # type: ignore[attr-defined]
    wait_until(lambda: not found.statements(), "it has stopped")


def test_a_transaction_survives_the_end_of_a_result_that_was_read_in_part(
    running: FlightServer, connect: Connect
) -> None:
    client, other = connect(), connect()
    transaction = client.begin()
    client.update("INSERT INTO t VALUES (300)", transaction)
    assert running._sessions is not None
    (session,) = [each for each in running._sessions.sessions() if each.state.has_transactions]
    result = session.execute(LONG, Call(), transaction=transaction).result
    rows = result.batches(Call())
    assert [next(rows).num_rows for _ in range(2)] == [65_536] * 2
    result.close()
    client.end(transaction, commit=True)
    assert other.query("SELECT a FROM t WHERE a = 300") == [{"a": 300}]


def test_a_failed_cast_of_a_large_value_is_an_error_like_others(running: FlightServer, connect: Connect) -> None:
    client = connect()
    before = pid(running)
    refused(grpc.StatusCode.INVALID_ARGUMENT, client.query, "SELECT CAST(repeat('x', 70000000) AS INTEGER)")
    assert pid(running) == before


def test_the_schema_of_a_statement_has_a_deadline_and_suspects(running: FlightServer, connect: Connect) -> None:
    client = connect()
    text = f"{CRASHING}, 3 AS schema"
    for _ in range(2):
        refused(AGAIN, client.schema, sql.CommandStatementQuery(query=text))
    refused(grpc.StatusCode.FAILED_PRECONDITION, client.schema, sql.CommandStatementQuery(query=text))


def test_a_connection_that_was_closed_after_the_end_of_its_engine_reports_that_end(running: FlightServer) -> None:
    instance = engines(running)._engines[0].instances[BARE]
    closed, lost = instance.remote_cursor(), instance.remote_cursor()
    closed.close()
    with pytest.raises(duckdb.ConnectionException, match="already closed"):
        closed.execute("SELECT 42")
    kill(running)
    lost.close()
    with pytest.raises(EngineFailedError, match="SIGKILL"):
        lost.execute("SELECT 42")


def test_a_view_whose_engine_has_ended_is_gone_without_an_error(running: FlightServer) -> None:
    instance = engines(running)._engines[0].instances[BARE]
    closed, lost = instance.remote_cursor(), instance.remote_cursor()
    for each in (closed, lost):
        each.register("rows", pa.table({"a": [1]}))
    closed.close()
    closed.unregister("rows")
    kill(running)
    lost.unregister("rows")


def test_fresh_reads_that_are_open_when_their_engine_ends_do_not_disturb_the_sweeps(
    running: FlightServer, connect: Connect
) -> None:
    client = connect()
    client.update("INSERT INTO duckling_queue.t VALUES (300)")
    query = sql.CommandStatementQuery(query="SELECT a FROM catchment_fresh.t")
    seen: list[Event] = []
    with events.listening(seen.append):
        infos = [client.info(query) for _ in range(3)]
        kill(running)
        wait_until(sessions(running).sweep, "the connections are closed")
    assert not [each for each in seen if each.verb == "session_sweep_failed"]
    for info in infos:
        refused(AGAIN, client.get, info.endpoint[0].ticket.ticket)


def test_an_engine_that_is_stopped_is_replaced(
    running: FlightServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    before = pid(running)
    monkeypatch.setattr(engine_process, "_SILENCE_S_MAX", 1.0)
    os.kill(before, signal.SIGSTOP)
    # No deadline ends the call: the statement's own is far away.
    assert "it gave no sign of life" in refused(AGAIN, client.query, "SELECT a FROM t")
    monkeypatch.undo()
    assert client.query("SELECT 42 AS x") == [{"x": 42}]


def test_a_statement_that_reacts_leaves_its_engine_alive(running: FlightServer, connect: Connect) -> None:
    client, other = connect(), connect()
    before = pid(running)
    call = start(running, client, ENDLESS)
    call.cancel()
    wait_until(lambda: not engines(running)._engines[0].process().statements(), "the statement has ended")
    assert other.query("SELECT 42 AS x") == [{"x": 42}]
    assert pid(running) == before


def test_an_insert_into_the_queue_is_all_or_nothing_when_its_engine_ends(
    running: FlightServer, connect: Connect
) -> None:
    client, other = connect(), connect()
    other.update("CREATE TABLE IF NOT EXISTS whole (a BIGINT)")
    text = "INSERT INTO duckling_queue.whole SELECT r FROM range(100000) x(r), range(100000) y"
    call = start(running, client, text)
    kill(running)
    refused(AGAIN, call.result)
    assert other.query("SELECT count(*) AS n FROM catchment_fresh.whole") == [{"n": 0}]


def test_an_ingest_whose_engine_ends_leaves_no_rows(running: FlightServer, connect: Connect) -> None:
    client, other = connect(), connect()
    other.update("CREATE TABLE IF NOT EXISTS sent (a BIGINT)")
    put = put_messages(ingest("sent", create=False), pa.table({"a": pa.array(range(2_000_000), pa.int64())}))
    folder = running.app.settings.home / "data" / "main" / "sent"

    def until_it_is_written() -> Iterator[bytes]:
        yield from put[:-1]
        wait_until(lambda: any(folder.rglob("*.parquet")), "the engine writes")
        kill(running)
        yield put[-1]

    refused(AGAIN, client.upload(until_it_is_written()).result)
    assert other.query("SELECT count(*) AS n FROM sent") == [{"n": 0}]
    assert other.update("INSERT INTO sent VALUES (1)") == 1


def test_a_statement_that_ends_engines_again_and_again_is_refused(running: FlightServer, connect: Connect) -> None:
    client, other = connect(), connect()
    text = f"{CRASHING}, 2 AS again"
    for _ in range(2):
        refused(AGAIN, client.prepare, text)
    replaced = engine(running).replaced
    said = refused(grpc.StatusCode.FAILED_PRECONDITION, client.prepare, text)
    assert "ended its engine process repeatedly" in said
    assert "ended its engine process repeatedly" in refused(grpc.StatusCode.FAILED_PRECONDITION, other.query, text)
    assert engine(running).replaced == replaced
    assert other.query("SELECT 42 AS x") == [{"x": 42}]


def test_memory_beyond_the_limit_ends_the_statement_or_its_engine_and_nothing_else(
    running: FlightServer, connect: Connect
) -> None:
    client, other = connect(), connect()
    with pytest.raises(grpc.RpcError):
        client.query("SELECT list_sum(list_resize([1::HUGEINT], 400000000)) AS x")
    assert other.query("SELECT 42 AS x") == [{"x": 42}]
    own = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert own < 4_000_000_000


@pytest.mark.parametrize("layout", ["shared", "sessions"])
def test_expressions_of_tables_are_computed_in_engines_only(layout: str, tmp_path: Path) -> None:
    dangerous = "json_structure(repeat('[', 100000) || repeat(']', 100000))"
    with serving(tmp_path / "home", DUCKLING_QUEUE_LAYOUT=layout) as served, Client(served.uri) as client:
        client.authorization = f"Bearer {client.handshake()}"
        client.update(f"CREATE TABLE absent (a BIGINT, b VARCHAR DEFAULT {dangerous})")
        said = refused(
            grpc.StatusCode.INVALID_ARGUMENT, client.update, "INSERT INTO duckling_queue.absent (a) VALUES (1)"
        )
        assert "its default is computed for clients' own INSERTs only" in said
        refused(AGAIN, client.update, "INSERT INTO absent (a) VALUES (1)")
        client.update("CREATE TABLE inserted (a HUGEINT, b VARCHAR)")
        client.update(f"ALTER TABLE inserted SET SORTED BY (concat(b, {dangerous}))")
        said = refused(
            grpc.StatusCode.UNIMPLEMENTED, client.update, "INSERT INTO duckling_queue.inserted VALUES (1, 'x')"
        )
        assert "which is computed for clients' own statements only" in said
        client.update("CREATE TABLE sorted (a BIGINT, b VARCHAR)")
        client.update(f"ALTER TABLE sorted SET SORTED BY (concat(b, {dangerous}))")
        assert client.update("INSERT INTO duckling_queue.absent VALUES (1, 'x')") == 1
        assert client.update("INSERT INTO duckling_queue.sorted VALUES (1, 'x')") == 1
        client.update("CALL duckling_queue_flush()")
        for table in ("absent", "sorted"):
            assert client.query(f"SELECT a, b FROM {table}") == [{"a": 1, "b": "x"}]


def test_no_engine_outlives_its_server(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as served, Client(served.uri) as client:
        assert client.query("SELECT 42 AS x") == [{"x": 42}]
        found = [each for each in _children(served.pid) if "engine.worker" in _command(each)]
        assert found
        served.kill()
        wait_until(lambda: all(process.start_tick(each) is None for each in found), "its engine has ended")


def _children(parent: int) -> list[int]:
    parents: dict[int, int] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return [each for each, of in parents.items() if of == parent]


def _command(number: int) -> str:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
