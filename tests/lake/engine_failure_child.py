"""A server in which DuckDB fails internally under several clients.

    python -m tests.lake.engine_failure_child HOME CATALOG

It ends well if every client goes on. It is a process of its own, because DuckDB may end the one
that it fails in.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from pydantic import SecretStr

from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation import events
from catchment.foundation.clock import SystemClock
from catchment.foundation.events import Event
from catchment.foundation.settings import Settings
from catchment.server.flight_server import FlightServer
from tests.server.raw_client import Client, server

# DuckDB 1.5 fails inside on it within some hundred runs, if it has more threads than one.
FAILING = """
    WITH numbers AS (SELECT i AS x FROM range(1) t(i)),
    people AS (
        SELECT * FROM numbers WHERE x >= 5000
        UNION ALL SELECT * FROM numbers WHERE NOT EXISTS (SELECT 1 FROM numbers WHERE x >= 5000)
    )
    SELECT x, count() OVER () AS n FROM people ORDER BY x DESC LIMIT 5
"""
_RUNS_MAX = 20_000
_RECOVERY_S = 2.0
# Far more than fits into the buffers between server and client.
_LONG = "SELECT t.a, r, repeat('x', 1000) AS s FROM t, range(1000000) g(r)"


def main(home: str, catalog: str) -> None:
    settings = Settings(
        home=Path(home),
        lake_catalog=SecretStr(f"{catalog}:{home}/catalog.{catalog}"),
        lake_threads_max=4,
        server_port=0,
    )
    seen: list[Event] = []
    with server(settings) as running, events.listening(seen.append):
        for _ in range(2):
            _fail_once(running, seen)
            seen.clear()
        assert running.app.meters.engines_replaced.read() == 2
    sys.stdout.write("every client went on\n")


def _fail_once(running: FlightServer, seen: list[Event]) -> None:
    idle, writer, sql_writer, named, stalled, culprit = (_client(running) for _ in range(6))
    idle.update("CREATE TABLE IF NOT EXISTS t AS SELECT 1 AS a")
    named.update("CREATE TEMP TABLE mine AS SELECT 1 AS a")
    assert idle.query("SELECT count(*) > 0 AS x FROM t") == [{"x": True}]
    rows = _count(idle)
    transaction = writer.begin()
    writer.update("INSERT INTO t VALUES (-1)", transaction)
    sql_writer.update("BEGIN")
    sql_writer.query("SELECT * FROM t")
    stream = stalled.stream("DoGet", _ticket(stalled, _LONG))
    next(stream)

    assert "failed internally" in _failed(culprit)
    clock = SystemClock()
    end_s = clock.monotonic_s() + _RECOVERY_S
    # Constants need no DuckDB.
    idle.update("INSERT INTO duckling_queue.t VALUES (1)")
    _until(end_s, lambda: culprit.query("SELECT 42 AS x"))
    _until(end_s, lambda: idle.update("INSERT INTO duckling_queue.t SELECT a + 1 FROM range(1) r(a)"))
    _until(end_s, lambda: idle.update("INSERT INTO t VALUES (2)"))
    assert _count(idle) == rows + 1
    assert clock.monotonic_s() < end_s, "it took too long"

    # What was open is rolled back, and is to be begun again.
    said = [
        _refusal(writer.update, "INSERT INTO t VALUES (-2)", transaction),
        _refusal(writer.end, transaction, commit=True),
        _refusal(sql_writer.update, "INSERT INTO t VALUES (-3)"),
    ]
    assert said == [(grpc.StatusCode.ABORTED, said[0][1])] * 3, said
    assert "rolled back" in said[0][1], said
    assert sql_writer.query("SELECT 42 AS x") == [{"x": 42}]
    code, text = _refusal(named.query, "SELECT * FROM mine")
    assert (code, "temporary tables" in text) == (grpc.StatusCode.ABORTED, True), text
    assert named.query("SELECT 42 AS x") == [{"x": 42}]
    # The end of its engine may be known from its own connection, or from the others.
    assert _refusal(lambda: [*stream])[0] is grpc.StatusCode.ABORTED

    running.app.queue.force_flush_all()
    assert sorted(row["a"] for row in idle.query("SELECT a FROM t WHERE a < 0")) == []
    assert _count(idle) == rows + 3
    assert running.app.audit().ok
    running.app.maintain(dry_run=False)
    assert [event.verb for event in seen].count("engine_replaced") == 1
    for each in (idle, writer, sql_writer, named, stalled, culprit):
        each.act("CloseSession")
        each.close()


def _client(running: FlightServer) -> Client:
    client = Client(running.uri)
    client.authorization = f"Bearer {client.handshake()}"
    client.query("SELECT 1")
    return client


def _count(client: Client) -> int:
    return int(client.query("SELECT count(*) AS n FROM t")[0]["n"])


def _ticket(client: Client, text: str) -> bytes:
    ticket = client.info(sql.CommandStatementQuery(query=text)).endpoint[0].ticket.ticket
    return flight.Ticket(ticket=ticket).SerializeToString()


def _failed(client: Client) -> str:
    """Run the failing statement until it fails; return the client's error."""
    for _ in range(_RUNS_MAX):
        try:
            client.query(FAILING)
        except grpc.RpcError as error:
            failure: Any = error
            assert failure.code() is grpc.StatusCode.INTERNAL, failure.details()
            return str(failure.details())
    raise AssertionError("DuckDB does not fail on it any more")


def _refusal(call: Callable[..., object], *given: object, **named: object) -> tuple[grpc.StatusCode, str]:
    try:
        call(*given, **named)
    except grpc.RpcError as error:
        refusal: Any = error
        return refusal.code(), refusal.details()
    raise AssertionError("it was not refused")


def _until(end_s: float, call: Callable[[], object]) -> None:
    """Repeat what may be refused for a moment."""
    clock = SystemClock()
    while True:
        try:
            call()
            return
        except grpc.RpcError as error:
            refusal: Any = error
            retryable = refusal.code() in (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)
            assert retryable, refusal.details()
            assert clock.monotonic_s() < end_s, refusal.details()
            clock.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
