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
from catchment.server.engine.engine_process import EngineStatement
from catchment.server.engine.engines import Engine
from catchment.server.flight_server import FlightServer
from catchment.server.values import Role
from catchment.status.model import EngineStatus
from tests.conftest import MakeSettings
from tests.server.raw_client import Client, refused, server
from tests.waiting import wait_until

AGAIN = grpc.StatusCode.ABORTED
CRASH = "json_structure(repeat('[', 100000) || repeat(']', 100000))"
COMMON = "SELECT a FROM t"
STATEMENT_S_MAX = 1.0
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
