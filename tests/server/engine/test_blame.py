"""Which statements are refused after engines have ended, and which engines are not ended at all."""

import signal
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import psycopg
import pytest

from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.settings import Settings
from catchment.server.access.users import Users
from catchment.server.engine.engine_process import EngineProcess, EngineStatement
from catchment.server.engine.engines import Engine
from catchment.server.flight_server import FlightServer
from catchment.server.values import Role
from catchment.status.model import EngineStatus
from tests.conftest import MakeSettings
from tests.server.engine.cpu_time import cpu_s
from tests.server.raw_client import ENDLESS, Client, refused, server
from tests.waiting import wait_until

AGAIN = grpc.StatusCode.ABORTED
CRASH = "json_structure(repeat('[', 100000) || repeat(']', 100000))"
COMMON = "SELECT a FROM t"
STATEMENT_S_MAX = 1.0
# A row takes minutes, in one function, which does not look at interrupts.
DEAF = "SELECT levenshtein(repeat('a', 400000 + i), repeat('b', i)) AS x FROM range(400000, 400001) t(i)"
# Less than the time after which an engine is ended because of a statement that only waits.
SOON_S = 20.0
# More than a statement that does not react may compute after its interruption.
COMPUTED_S = 2.5
PASSWORD = "sesame-sesame"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[FlightServer]:
    settings = Settings(home=tmp_path, server_port=0, lake_threads_max=1, server_memory_mb=500)
    users = Users.from_settings(settings)
    for name in ("one", "other"):
        users.add(name, Role.WRITER, PASSWORD)
    with server(settings) as found, logged_in(found, "one") as client:
        client.update("CREATE TABLE t (a BIGINT)")
        client.update("INSERT INTO t VALUES (1)")
        yield found


def logged_in(running: FlightServer, user: str) -> Client:
    client = Client(running.uri)
    client.authorization = "Basic " + b64encode(f"{user}:{PASSWORD}".encode()).decode()
    client.authorization = f"Bearer {client.handshake()}"
    return client


def only_engine(running: FlightServer) -> Engine:
    assert running._sessions is not None
    engines = running._sessions.backend.engines
    assert engines is not None
    (engine,) = engines._engines
    return engine


def has_replaced(running: FlightServer, number: int) -> bool:
    return status(running).replaced >= number


def status(running: FlightServer) -> EngineStatus:
    return only_engine(running).status()


def test_results_that_nobody_has_read_yet_are_not_suspected(running: FlightServer) -> None:
    with logged_in(running, "one") as one, logged_in(running, "one") as two, logged_in(running, "one") as third:
        for client in (one, two):
            client.info(sql.CommandStatementQuery(query=COMMON))
        wait_until(lambda: not only_engine(running).process().statements(), "all are answered")
        for number in range(3):
            refused(AGAIN, third.query, f"SELECT {CRASH} AS x, {number} AS n")
            assert third.query(COMMON) == [{"a": 1}]


def test_a_text_that_ends_engines_is_refused_to_its_user_only(running: FlightServer) -> None:
    with logged_in(running, "one") as one, logged_in(running, "other") as other:
        one.update(f"PREPARE q AS SELECT {CRASH} AS x")
        for _ in range(2):
            refused(AGAIN, one.query, "EXECUTE q")
        assert "ended its engine process" in refused(grpc.StatusCode.FAILED_PRECONDITION, one.query, "EXECUTE q")
        other.update("PREPARE q AS SELECT 42 AS x")
        assert other.query("EXECUTE q") == [{"x": 42}]


@pytest.mark.parametrize("text", ["INSERT INTO duckling_queue.t SELECT 2", "INSERT INTO t SELECT 2"])
def test_a_write_that_has_run_to_its_end_is_not_suspected_any_more(running: FlightServer, text: str) -> None:
    suspects, statement = only_engine(running)._suspects, EngineStatement(text, "one")
    for _ in range(2):
        with logged_in(running, "one") as client:
            suspects.accuse([statement])
            client.update(text)
    suspects.accuse([statement])
    suspects.refuse(statement)


def test_an_engine_that_ends_by_an_unknown_signal_is_replaced(running: FlightServer) -> None:
    with logged_in(running, "one") as client:
        for number in (1, 2):
            only_engine(running).process()._process.send_signal(signal.SIGRTMIN + 1)
            wait_until(partial(has_replaced, running, number), "the server has noticed")
            wait_until(lambda: status(running).pid is not None, "it was replaced")
        assert status(running).last_end == f"signal {signal.SIGRTMIN + 1}"
        assert client.query(COMMON) == [{"a": 1}]


def test_unread_results_cannot_take_all_threads_of_an_engine(
    running: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logged_in(running, "one") as client, logged_in(running, "other") as other:
        assert other.query(COMMON) == [{"a": 1}]
        fresh = "SELECT a FROM catchment_fresh.t"
        client.info(sql.CommandStatementQuery(query=fresh))
        process = only_engine(running).process()
        monkeypatch.setattr(process, "_connections_max", sum(not each.is_closed for each in process._users))
        said = refused(grpc.StatusCode.RESOURCE_EXHAUSTED, client.info, sql.CommandStatementQuery(query=fresh))
        assert "open connections" in said
        assert other.query(COMMON) == [{"a": 1}]


def test_a_statement_that_waits_for_the_catalog_costs_neither_its_engine_nor_its_text(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings(
        "postgres", server_port=0, lake_threads_max=1, server_statement_seconds_max=STATEMENT_S_MAX
    )
    assert settings.lake_catalog is not None
    url = settings.lake_catalog.get_secret_value().removeprefix("postgres:")
    with server(settings) as running, Client(running.uri) as client, Client(running.uri) as other:
        for each in (client, other):
            each.authorization = f"Bearer {each.handshake()}"
        client.update("CREATE TABLE t (a BIGINT)")
        other.update("CREATE TEMP TABLE mine AS SELECT 1 AS a")
        before = status(running).pid
        for _ in range(2):
            with psycopg.connect(url) as catalog:
                catalog.execute("LOCK TABLE ducklake_snapshot IN ACCESS EXCLUSIVE MODE")
                with pytest.raises(grpc.RpcError):
                    client.query("SELECT count(*) AS n FROM t")
            wait_until(lambda: not only_engine(running).process().statements(), "the statement has ended")
        assert status(running).pid == before
        assert other.query("SELECT a FROM mine") == [{"a": 1}]
        assert client.query("SELECT count(*) AS n FROM t") == [{"n": 0}]


def test_a_statement_that_waits_is_not_taken_for_one_that_computes_beside_it(make_settings: MakeSettings) -> None:
    settings = make_settings("postgres", server_port=0, lake_threads_max=1)
    assert settings.lake_catalog is not None
    url = settings.lake_catalog.get_secret_value().removeprefix("postgres:")
    waiting = "SELECT count(*) AS n FROM t"
    with server(settings) as running, Client(running.uri) as client, Client(running.uri) as other:
        for each in (client, other):
            each.authorization = f"Bearer {each.handshake()}"
        client.update("CREATE TABLE t (a BIGINT)")
        client.update("INSERT INTO t VALUES (1)")
        engine = only_engine(running).process()
        computed = other.asking(sql.CommandStatementQuery(query=ENDLESS))
        wait_until(lambda: texts(engine) == {ENDLESS}, "the other statement runs")
        with psycopg.connect(url) as catalog:
            # The other statement has read the snapshot, but no table's files.
            catalog.execute("LOCK TABLE ducklake_data_file IN ACCESS EXCLUSIVE MODE")
            waited = client.asking(sql.CommandStatementQuery(query=waiting))
            wait_until(lambda: catalog.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount > 0, "it waits")
            waited.cancel()
            begun_s = cpu_s(engine.pid)
            wait_until(lambda: not engine.is_running or cpu_s(engine.pid) - begun_s > COMPUTED_S, "it has computed")
            assert engine.is_running
            assert texts(engine) == {ENDLESS, waiting}
        wait_until(lambda: texts(engine) == {ENDLESS}, "the wait has ended")
        assert engine.is_running
        assert not computed.done()
        computed.cancel()


def test_a_statement_that_several_threads_compute_is_ended_as_soon(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, server_port=0, lake_threads_max=4)
    with server(settings) as running, Client(running.uri) as client:
        client.authorization = f"Bearer {client.handshake()}"
        assert client.query("SELECT 42 AS x") == [{"x": 42}]
        engine = only_engine(running).process()
        begun_s = cpu_s(engine.pid)
        call = client.asking(
            sql.CommandStatementQuery(query=f"SELECT max(x) AS x FROM ({' UNION ALL '.join([DEAF] * 3)})")
        )
        wait_until(lambda: cpu_s(engine.pid) - begun_s > 1, "the engine computes it")
        call.cancel()
        wait_until(lambda: has_replaced(running, 1), "it was replaced", patience_s=SOON_S)
        assert status(running).last_end == "a statement did not react to its interruption"


def texts(engine: EngineProcess) -> set[str]:
    return {each.text for each in engine.statements()}
