"""The log of a real server: JSON lines by which a request, a session and a unit can be followed."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adbc_driver_manager
import grpc
import pytest

from catchment.flight_protocol import flight_pb2 as pb
from catchment.foundation.event_catalogue import VERBS
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from tests.acceptance.shell import COMMAND
from tests.sample_events import rows_of
from tests.server.raw_client import Client
from tests.server.server_process import ServerProcess, serving
from tests.shortcuts import warm
from tests.waiting import wait_until

SECRET = "xyzzy"
HEADER = "adbc.flight.sql.rpc.call_header.x-request-id"
CERTIFICATES = Path(__file__).parents[1] / "certificates"
TLS = {"CERTIFICATE": CERTIFICATES / "issued.crt", "KEY": CERTIFICATES / "issued.key"}
GET_FLIGHT_INFO = "/arrow.flight.protocol.FlightService/GetFlightInfo"

Line = dict[str, Any]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that logs everything, in the format for a stderr that is not a terminal."""
    with serving(
        tmp_path_factory.mktemp("logged"),
        CATCHMENT_LOG_LEVEL="debug",
        DUCKLING_QUEUE_ROTATE_INTERVAL_SECONDS="86400",
    ) as running:
        yield running


def _lines(server: ServerProcess) -> list[Line]:
    """Every line so far; each is one JSON object."""
    text = server.said
    # The last one may be on its way.
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    for line in lines:
        assert list(line)[:3] == ["at", "level", "action"]
        assert line["action"] in VERBS
    return lines


def _found(server: ServerProcess, **facts: object) -> list[Line]:
    return [line for line in _lines(server) if all(line.get(name) == value for name, value in facts.items())]


def _wait_for(server: ServerProcess, **facts: object) -> Line:
    wait_until(lambda: bool(_found(server, **facts)), f"a line with {facts}")
    return _found(server, **facts)[0]


def _fail(server: ServerProcess, statement: str, request: str | None = None) -> adbc_driver_manager.Error:
    options = {} if request is None else {HEADER: request}
    with server.cursor(options=options) as cursor, pytest.raises(adbc_driver_manager.Error) as caught:
        cursor.execute(statement)
    return caught.value


def _request_in(error: adbc_driver_manager.Error) -> str:
    """The request id that the client received."""
    return _details(error)["x-request-id"]


def _details(error: adbc_driver_manager.Error) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in error.details}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def test_a_failed_statement_is_found_by_the_request_id_that_its_client_gave(logged: ServerProcess) -> None:
    error = _fail(logged, f"SELECT {SECRET} FROM nowhere", "complaint-17")
    assert _request_in(error) == "complaint-17"
    line = _wait_for(logged, action="statement_failed", request="complaint-17")
    assert (line["level"], line["user"], line["code"]) == ("info", "anonymous", "not_found")
    assert line["error"] == "CatalogException"
    assert re.fullmatch(r"[0-9a-f]{6}", line["session"])
    assert 0 <= line["seconds"] < 60


def test_a_client_without_a_request_id_receives_the_generated_one(logged: ServerProcess) -> None:
    one, other = (_request_in(_fail(logged, "SELECT 1 FROM nowhere")) for _ in range(2))
    assert one != other
    for request in (one, other):
        assert _wait_for(logged, action="statement_failed", request=request)


@pytest.mark.parametrize("given", ["x" * 65, 'a"b', "a b", "-", "{}", "a/../b"], ids=repr)
def test_an_id_that_is_not_sane_is_not_taken_over(logged: ServerProcess, given: str) -> None:
    made = _request_in(_fail(logged, "SELECT 1 FROM nowhere", given))
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", made)
    assert _wait_for(logged, action="statement_failed", request=made)
    assert given == "-" or given not in [line.get("request") for line in _lines(logged)]


def test_an_error_before_any_session_has_its_request_too(logged: ServerProcess) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{logged.port}") as channel:
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GET_FLIGHT_INFO)
        descriptor = pb.FlightDescriptor(type=pb.FlightDescriptor.CMD, cmd=b"no command").SerializeToString()
        with pytest.raises(grpc.RpcError) as caught:
            ask(descriptor, metadata=(("x-request-id", "raw-1"),), timeout=30)
    trailers = {each.key: str(each.value) for each in caught.value.trailing_metadata()}
    assert (trailers["x-request-id"], trailers["catchment-error"]) == ("raw-1", "InputError")
    assert _wait_for(logged, action="statement_failed", request="raw-1")["error"] == "InputError"


def test_a_session_is_followed_from_its_beginning_to_its_end(logged: ServerProcess) -> None:
    with logged.cursor(options={HEADER: "whole-story"}) as cursor:
        # Has a session of its own to be in.
        cursor.execute("CREATE TEMP TABLE mine (a INTEGER)")
        with pytest.raises(adbc_driver_manager.Error):
            cursor.execute("SELECT 1 FROM nowhere")
    session = _wait_for(logged, action="statement_failed", request="whole-story")["session"]
    _wait_for(logged, action="session_closed", session=session)
    told = [line["action"] for line in _found(logged, session=session)]
    assert (told[0], told[-1]) == ("session_opened", "session_closed")
    assert told.count("statement_failed") == 1


def test_the_session_in_the_log_is_of_no_use_to_a_caller(logged: ServerProcess) -> None:
    with Client(f"127.0.0.1:{logged.port}", keeps_session=True) as raw:
        # A caller that knows the part before the dot may call as the session.
        session = raw.begin().partition(b".")[0].decode()
        _wait_for(logged, action="session_opened", session=session[:6])
    assert len(session) > 6
    assert session not in logged.said
    token = str(raw.token).removeprefix("Bearer ")
    assert len(token) > 20
    assert token not in logged.said


def test_finished_statements_are_logged_without_their_text(logged: ServerProcess) -> None:
    with logged.cursor(options={HEADER: "went-well"}) as cursor:
        cursor.execute(f"SELECT '{SECRET}'")
        assert cursor.fetchall() == [(SECRET,)]
    line = _wait_for(logged, action="statement_finished", request="went-well")
    assert line["level"] == "debug"
    assert "sql" not in line
    assert SECRET not in logged.said


def test_a_flush_is_followed_from_the_request_to_the_unit_in_the_ledger(logged: ServerProcess) -> None:
    logged.rows("CREATE TABLE flushed_rows (a BIGINT)", "SELECT 1")
    with logged.cursor(options={HEADER: "flush-1"}) as cursor:
        cursor.execute("INSERT INTO duckling_queue.flushed_rows VALUES (1), (2), (3)")
        cursor.execute("PRAGMA duckling_queue.flush")
        cursor.fetchall()
    flushed = _wait_for(logged, action="flushed", request="flush-1")
    assert (flushed["table"], flushed["rows"], flushed["units"], flushed["seqs"]) == ("main.flushed_rows", 3, 1, "1..3")
    (delivered,) = _found(logged, action="delivered", flush=flushed["flush"])
    assert delivered["unit_ids"] == flushed["unit_ids"]
    assert (delivered["job"][:4], delivered["request"], delivered["user"]) == ("job-", "flush-1", "anonymous")
    with Lake.from_settings(Settings(home=logged.home)) as lake:
        units = rows_of(lake, f"SELECT unit_id, job_id FROM {lake.name}._catchment.deliveries")
    assert units == [(flushed["unit_ids"][0], delivered["job"])]


def test_malformed_client_input_does_not_break_the_log_format(tmp_path: Path) -> None:
    certificate = {f"CATCHMENT_SERVER_TLS_{name}": str(path) for name, path in TLS.items()}
    # Started cold: gRPC's own log is settled when it is imported.
    process = subprocess.Popen(
        [COMMAND, "serve", "--port", "0", "--json", "--home", tmp_path / "home"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CATCHMENT_LOG_LEVEL": "info", **certificate},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    text = ""
    while not text.endswith("}\n"):
        text += process.stdout.readline()
    port = int(json.loads(text)["uri"].rpartition(":")[2])
    for sent in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256))):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
            stranger.sendall(sent)
            # A client that fails the handshake is cut off; by then the failure has been logged.
            while stranger.recv(1_000):
                pass
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert [json.loads(line)["action"] for line in said.splitlines()][-3:] == ["serving", "stopping", "stopped"]


def test_with_the_setting_the_text_is_in_the_log(tmp_path: Path) -> None:
    with serving(tmp_path, CATCHMENT_LOG_LEVEL="info", CATCHMENT_LOG_SQL="true") as server:
        _fail(server, f"SELECT {SECRET} FROM nowhere", "with-text")
        line = _wait_for(server, action="statement_failed", request="with-text")
    assert line["sql"] == f"SELECT {SECRET} FROM nowhere"
    assert "nowhere" in line["reason"]


def test_a_start_and_an_end_are_nothing_but_lines_of_json(tmp_path: Path) -> None:
    with serving(tmp_path, CATCHMENT_LOG_LEVEL="info") as server:
        assert server.stop() == 0
        told = [line["action"] for line in _lines(server)]
        assert server.said.endswith("\n")
    assert told[-3:] == ["serving", "stopping", "stopped"]


def test_on_a_terminal_the_log_is_prose(tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    process = warm.Process(
        [COMMAND, "serve", "--port", "0", "--home", tmp_path / "home"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "xterm", "CATCHMENT_LOG_LEVEL": "info"},
        stdout=warm.PIPE,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready ")
        process.send_signal(signal.SIGTERM)
        text = _read_to_end(screen)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
        os.close(screen)
    assert "Catchment serves Arrow Flight SQL" in text
    (line,) = [each for each in text.splitlines() if "serving" in each]
    assert re.search(r"\d\d:\d\d:\d\d\.\d{3}.*info.*serving.*uri=.*grpc://127\.0\.0\.1:\d+", line)
    assert "\x1b[" in line


def _read_to_end(screen: int) -> str:
    """What a process says on its terminal until it is gone."""
    text = b""
    while True:
        try:
            piece = os.read(screen, 65_536)
        except OSError:
            # The last one who held the terminal has closed it.
            return text.decode()
        if not piece:
            return text.decode()
        text += piece
