"""Clients that stop reading or sending block no other client, and are ended."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pyarrow as pa
import pytest

from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.settings import Settings
from catchment.server.flight import calls, watchdog
from catchment.server.flight.calls import STALL_SECONDS_MAX, STREAMS_PER_SESSION_MAX
from catchment.server.flight_server import FlightServer
from catchment.server.values import Call
from tests.server.raw_client import Client, ingest, put_messages, refused, server
from tests.waiting import wait_until

# gRPC would read ahead what it finds that the connection carries: some megabytes, or many.
LITTLE_AHEAD = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64 * 1024))
# Far more than fits into the buffers between server and client.
LONG = "SELECT range, repeat('x', 1000) AS text FROM range(1000000)"
# More than that, and little enough to be kept in memory when the session's next statement comes.
SHORT = "SELECT range, repeat('x', 1000) AS text FROM range(12000)"
STATEMENTS_MAX = 2
PATIENCE_S = 30.0
ROWS = pa.table({"a": [1]})
MakeServer = Callable[..., FlightServer]


@pytest.fixture
def make_server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeServer]:
    with ExitStack() as stack:

        def make(*, stall_s: float = STALL_SECONDS_MAX, **values: Any) -> FlightServer:
            monkeypatch.setattr(calls, "STALL_SECONDS_MAX", stall_s)
            home = tmp_path_factory.mktemp("stalls")
            settings = Settings(
                home=home, lake_threads_max=1, server_port=0, server_statements_max=STATEMENTS_MAX, **values
            )
            return stack.enter_context(server(settings))

        yield make


@contextmanager
def connected(running: FlightServer) -> Iterator[Client]:
    client = Client(running.uri)
    client.close()
    client._channel = grpc.insecure_channel(running.uri.removeprefix("grpc://"), options=LITTLE_AHEAD)
    client.authorization = f"Bearer {client.handshake()}"
    yield client
    client.close()


def ticket(client: Client, text: str) -> bytes:
    found = client.info(sql.CommandStatementQuery(query=text)).endpoint[0].ticket.ticket
    return flight.Ticket(ticket=found).SerializeToString()


def stalled(client: Client, text: str = SHORT) -> Iterator[bytes]:
    """A result of which one message is read."""
    stream = client.stream("DoGet", ticket(client, text))
    next(stream)
    return stream


def test_stalled_readers_block_no_other_reader_or_writer(make_server: MakeServer) -> None:
    running = make_server()
    with ExitStack() as stack:
        readers = [stack.enter_context(connected(running)) for _ in range(5)]
        streams = [stalled(reader, LONG) for reader in readers]
        busy = stack.enter_context(connected(running))
        streams += [stalled(busy) for _ in range(STREAMS_PER_SESSION_MAX)]
        assert len(streams) > 5 * STATEMENTS_MAX
        for _ in range(2):
            other = stack.enter_context(connected(running))
            other.update("CREATE TABLE IF NOT EXISTS t (id BIGINT)")
            assert other.update("INSERT INTO t VALUES (1)") == 1
            assert other.update("INSERT INTO duckling_queue.t VALUES (2)") == 1
            assert other.put(ingest("t", schema="duckling_queue", create=False), pa.table({"id": [3]})) == 1
            assert [row["text"] for row in other.query("SELECT 'read' AS text")] == ["read"]
            assert other.query("SELECT count(*) AS n FROM duckdb_columns() WHERE table_name = 't'") == [{"n": 1}]
        # A stream that goes on is whole.
        first, *rest = streams
        assert sum(1 for _ in first) > 100
        for each in rest:
            each.close()  # type: ignore[attr-defined]


def test_a_session_reads_so_many_results_at_once_and_a_refused_one_can_be_read_later(make_server: MakeServer) -> None:
    running = make_server()
    with connected(running) as client:
        streams = [stalled(client) for _ in range(STREAMS_PER_SESSION_MAX)]
        small = client.info(sql.CommandStatementQuery(query="SELECT 42 AS x")).endpoint[0].ticket.ticket
        assert "8 results" in refused(grpc.StatusCode.RESOURCE_EXHAUSTED, client.get, small)
        streams.pop().close()  # type: ignore[attr-defined]
        wait_until(lambda: can_read(client, small), "a result can be read again")
        for each in streams:
            each.close()  # type: ignore[attr-defined]


def can_read(client: Client, found: bytes) -> bool:
    try:
        return bool(client.get(found).to_pylist() == [{"x": 42}])
    except grpc.RpcError as error:
        failure: Any = error
        assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, failure.details()
        return False


def test_a_reader_that_stalls_too_long_gets_an_error_once_it_reads_on(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "GRACE_S", 3_600.0)
    told = threading.Event()
    stall = Call.stall

    def stall_and_tell(call: Call) -> None:
        stall(call)
        told.set()

    monkeypatch.setattr(Call, "stall", stall_and_tell)
    running = make_server(stall_s=0.3)
    with connected(running) as client:
        stream = stalled(client)
        assert told.wait(PATIENCE_S)
        text = refused(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: list(stream))
        assert f"waits at most {STALL_SECONDS_MAX} s" in text
        assert client.query("SELECT 42 AS x") == [{"x": 42}]


def test_a_reader_that_never_reads_on_is_cut_off_and_leaves_nothing(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "GRACE_S", 0.05)
    running = make_server(stall_s=0.3)
    with connected(running) as client:
        streams = [stalled(client) for _ in range(STREAMS_PER_SESSION_MAX)]
        wait_until(lambda: not being_read(running), "streams are ended")
        for stream in streams:
            with pytest.raises(grpc.RpcError):
                list(stream)
        assert client.query("SELECT 42 AS x") == [{"x": 42}]


def being_read(running: FlightServer) -> int:
    """How many results the server counts as being read."""
    grpc_server: Any = running._grpc
    return int(grpc_server._state.generic_handlers[0]._calls._streams.total())


def test_a_reader_that_is_slow_but_reads_is_left_alone(make_server: MakeServer) -> None:
    running = make_server(stall_s=0.5)
    pause = threading.Event()
    with connected(running) as client:
        count = 0
        for _ in client.stream("DoGet", ticket(client, LONG)):
            count += 1
            if count % 50 == 0:
                pause.wait(0.1)
        assert count > 400


def test_an_upload_that_stalls_is_cut_off_and_its_place_is_free(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "GRACE_S", 0.05)
    running = make_server(stall_s=0.3)
    release = threading.Event()

    def half() -> Iterator[bytes]:
        yield from put_messages(ingest("t"), ROWS)
        release.wait(PATIENCE_S)

    with connected(running) as client, connected(running) as other:
        uploads = [client.upload(half()) for _ in range(STATEMENTS_MAX)]
        for upload in uploads:
            with pytest.raises(grpc.RpcError):
                upload.result(timeout=PATIENCE_S)
        release.set()
        assert other.put(ingest("t"), ROWS) == 1
        assert other.query("SELECT count(*) AS n FROM t") == [{"n": 1}]
