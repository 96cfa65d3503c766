"""`catchment serve` as an operator runs it: a process, signals, and the client of its banner."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import adbc_driver_flightsql.dbapi as flight
import adbc_driver_manager
import pytest

from catchment.control import database
from catchment.control.models import MODELS
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.schema import Migrate, SqliteEngine, State
from catchment.server.access.users import Users
from catchment.server.values import Role
from tests import sample_events
from tests.acceptance.shell import COMMAND, Ended, Shell, command_with
from tests.shortcuts import warm
from tests.waiting import BEAT_S

PASSWORD = "correct horse"
CERTIFICATES = Path(__file__).parents[1] / "certificates"
TLS = {
    "CATCHMENT_SERVER_TLS_CERTIFICATE": str(CERTIFICATES / "loopback.crt"),
    "CATCHMENT_SERVER_TLS_KEY": str(CERTIFICATES / "loopback.key"),
}
ISSUED = {
    "CATCHMENT_SERVER_TLS_CERTIFICATE": str(CERTIFICATES / "issued.crt"),
    "CATCHMENT_SERVER_TLS_KEY": str(CERTIFICATES / "issued.key"),
}
# On a busy machine, a probe of the slot may take it for longer than the client waits.
CLIENT = """
import sys
import adbc_driver_flightsql.dbapi as flight
with flight.connect(sys.argv[1], autocommit=True) as connection, connection.cursor() as cursor:
    while True:
        try:
            cursor.execute(sys.argv[2])
        except flight.Error as error:
            if "statements are running" not in str(error):
                raise
        else:
            break
    cursor.fetchall()
"""
# Takes longer than any test has patience for.
LONG = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"


@dataclass
class Served:
    """A server in a process of its own; what it says on stderr goes to a file."""

    process: warm.Process
    home: Path
    uri: str
    log: Path

    def connect(self, **options: str) -> Any:
        return flight.connect(self.uri, options, autocommit=True)

    def execute(self, *statements: str) -> Any:
        """The rows of the last one."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=120)

    def wait_for(self, text: str) -> None:
        """Wait until it has said that; `tail` waits for us."""
        with subprocess.Popen(["tail", "-n", "+1", "-f", self.log], stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            try:
                assert any(text in line for line in tail.stdout)
            finally:
                tail.kill()

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")


Serve = Callable[..., Served]


@contextmanager
def _serving(
    home: Path, *arguments: str, constants: Mapping[str, float] | None = None, **environment: str
) -> Iterator[Served]:
    home.mkdir(parents=True, exist_ok=True)
    log = home / "serve.err"
    kept = {
        name: os.environ[name] for name in ("PATH", "JAVA_HOME", "CATCHMENT_LAKE_THREADS_MAX") if name in os.environ
    }
    with log.open("w") as err:
        process = warm.Process(
            [*command_with(constants), "serve", "--port", "0", *arguments, "--home", home],
            env={**kept, "HOME": str(home), "COLUMNS": "200", "CATCHMENT_LOG_JSON": "false", **environment},
            stdout=warm.PIPE,
            stderr=err,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.match(r"ready (\S+) ", line)
        assert found, log.read_text()
        yield Served(process, home, found[1], log)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers on one home; they end with the test."""
    with ExitStack() as running:

        def start(*arguments: str, constants: Mapping[str, float] | None = None, **environment: str) -> Served:
            return running.enter_context(_serving(tmp_path / "home", *arguments, constants=constants, **environment))

        yield start


def _run(*arguments: str, home: Path, **environment: str) -> Ended:
    return Shell(home.parent).run(*arguments, home=home, **environment)


def _pasted(served: Served, **replaced: str) -> str:
    """What the example in the banner prints when it is run."""
    lines = [line[4:] for line in served.said.splitlines() if line.startswith("    ")]
    script = "\n".join(lines)
    for name, value in replaced.items():
        script = script.replace(name, value)
    assert len(lines) == 3
    ended = warm.run([sys.executable, "-c", script], timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_server_reports_ready_serves_and_exits_with_zero_on_sigterm(serve: Serve) -> None:
    served = serve()
    assert served.uri.startswith("grpc://127.0.0.1:")
    assert served.execute("SELECT 42") == [(42,)]
    assert served.end() == 0
    assert served.said.splitlines()[-1] == "Stopped."


def test_ctrl_c_stops_the_server_as_gracefully(serve: Serve) -> None:
    assert serve().end(signal.SIGINT) == 0


def test_the_example_of_the_banner_works(serve: Serve) -> None:
    assert _pasted(serve()) == "[(42,)]\n"


def test_the_example_of_its_banner_works_with_login_and_tls(serve: Serve, tmp_path: Path) -> None:
    Users(tmp_path / "home" / "users.json").add("ada", Role.READER, PASSWORD)
    served = serve(**TLS)
    assert served.uri.startswith("grpc+tls://127.0.0.1:")
    assert _pasted(served, NAME="ada", PASSWORD=PASSWORD) == "[(42,)]\n"


def test_with_json_the_ready_line_is_json(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [COMMAND, "serve", "--port", "0", "--json", "--home", tmp_path / "home"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    text = ""
    while not text.endswith("}\n"):
        text += process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")
    facts = json.loads(text)
    assert (facts["ready"], facts["pid"], facts["login"], facts["tls"]) == (True, process.pid, False, False)
    assert facts["uri"].startswith("grpc://127.0.0.1:")
    assert facts["home"] == str(tmp_path / "home")


def test_a_port_that_is_taken_exits_with_two_and_a_hint(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = str(other.getsockname()[1])
        ended = _run("serve", "--port", port, "--json", home=tmp_path / "home")
    assert (ended.code, ended.json["error"]) == (2, "MachineError")
    assert ended.json["message"] == f"Cannot listen on 127.0.0.1:{port}: the port is in use."
    assert "--port" in ended.json["hint"]
    assert not (tmp_path / "home" / "server.json").exists()


def test_a_second_server_on_the_port_of_the_first_is_refused(serve: Serve, tmp_path: Path) -> None:
    port = serve().uri.rpartition(":")[2]
    ended = _run("serve", "--port", port, "--json", home=tmp_path / "another")
    assert (ended.code, ended.json["error"]) == (2, "MachineError")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_others_reach_needs_tls_and_users(tmp_path: Path, host: str) -> None:
    home = tmp_path / "home"
    ended = _run("serve", "--host", host, "--json", home=home)
    assert (ended.code, ended.json["error"]) == (2, "SettingsError")
    assert "TLS is not configured" in ended.json["message"]
    assert "CATCHMENT_SERVER_TLS_CERTIFICATE" in ended.json["hint"]
    ended = _run("serve", "--host", host, "--json", home=home, **TLS)
    assert (ended.code, "no users" in ended.json["message"]) == (2, True)
    assert "catchment user add" in ended.json["hint"]
    assert not home.exists()


def test_with_tls_and_users_a_server_serves_other_machines_and_requires_a_login(serve: Serve, tmp_path: Path) -> None:
    Users(tmp_path / "home" / "users.json").add("ada", Role.READER, PASSWORD)
    served = serve("--host", "0.0.0.0", **TLS)
    assert "grpc+tls://HOST:" in served.said
    served.uri = served.uri.replace("0.0.0.0", "127.0.0.1")
    trust = {"adbc.flight.sql.client_option.tls_root_certs": (CERTIFICATES / "loopback.crt").read_text()}
    with served.connect(**trust, username="ada", password=PASSWORD) as connection, connection.cursor() as cursor:
        assert cursor.execute("SELECT 42").fetchall() == [(42,)]
    for login in ({}, {"username": "ada", "password": "a wrong one"}):
        with pytest.raises(adbc_driver_manager.Error, match=r"(?i)unauthenticated"):
            _ask(served, {**trust, **login})


def _ask(served: Served, options: dict[str, str]) -> None:
    with served.connect(**options) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 42")


@pytest.mark.parametrize("arguments", [("--tls-key", "x"), ("--tls-certificate", "x", "--tls-key", "x")])
def test_options_of_the_command_line_are_settings_like_others(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ended = _run("serve", *arguments, "--json", home=tmp_path / "home")
    assert (ended.code, ended.json["error"]) == (2, "SettingsError")


def test_an_older_control_database_is_backed_up_and_upgraded_at_the_start(serve: Serve, tmp_path: Path) -> None:
    scripts = sorted(path.name for path in database.SCRIPTS.iterdir())
    first = copytree(database.SCRIPTS, tmp_path / "first_version")
    for later in scripts[1:]:
        (first / later).unlink()
    path = tmp_path / "home" / "control.sqlite"
    path.parent.mkdir()
    Migrate(SqliteEngine(path, scripts=first), MODELS, edits_scripts=False).apply(scripts[0])
    served = serve()
    assert f"The control database {path} was backed up into {path}.bak, and upgraded: {scripts[1]}" in served.said
    migrate = Migrate(SqliteEngine(path, scripts=database.SCRIPTS), MODELS, edits_scripts=False)
    assert migrate.look().state is State.CURRENT
    assert "pre_002.control.sqlite.bak" in [backup.name for backup in migrate.backups()]
    served.end()
    assert "control database" not in serve().said


def test_a_lake_that_is_away_is_a_warning(serve: Serve) -> None:
    away = "postgres:host=127.0.0.1 port=1 dbname=lake connect_timeout=1"
    served = serve(constants={"catchment.lake.lake.COMMIT_ATTEMPTS_MAX": 1}, CATCHMENT_LAKE_CATALOG=away)
    assert "The lake cannot be reached" in served.said
    assert served.execute("SELECT 42") == [(42,)]
    assert served.end() == 0


def test_a_second_server_of_a_home_is_refused_and_the_first_goes_on(serve: Serve) -> None:
    served = serve()
    ended = _run("serve", "--port", "0", "--json", home=served.home)
    assert (ended.code, ended.json["error"]) == (1, "BufferHeldError")
    assert served.execute("SELECT 42") == [(42,)]
    assert _run("queue", "status", home=served.home).code == 0


def test_a_statement_under_way_is_cancelled_when_the_time_is_up(serve: Serve) -> None:
    served = serve(CATCHMENT_SERVER_SHUTDOWN_SECONDS="1", CATCHMENT_SERVER_STATEMENTS_MAX="1")
    with _running(served) as client:
        assert served.end() == 0
        _, err = client.communicate(timeout=60)
    assert client.returncode == 1
    assert "Cancelling all calls" in err


def test_a_second_signal_stops_the_server_at_once(serve: Serve) -> None:
    served = serve(CATCHMENT_SERVER_SHUTDOWN_SECONDS="300", CATCHMENT_SERVER_STATEMENTS_MAX="1")
    with _running(served):
        served.process.send_signal(signal.SIGTERM)
        served.wait_for("Stopping")
        assert served.end() == 130


@contextmanager
def _running(served: Served) -> Iterator[warm.Process]:
    """A client that waits for a statement, which takes the only slot there is."""
    command = [sys.executable, "-c", CLIENT, served.uri, LONG]
    with warm.Process(command, stderr=warm.PIPE) as client:
        try:
            # With a pause: who asks without one keeps the client from the slot.
            pause = threading.Event()
            while not _is_busy(served):
                if client.poll() is not None:
                    pytest.fail(client.communicate()[1])
                pause.wait(BEAT_S)
            yield client
        finally:
            client.kill()


def _is_busy(served: Served) -> bool:
    try:
        served.execute("SELECT 42")
    except adbc_driver_manager.Error as error:
        return "statements are running" in str(error)
    return False


def test_rows_that_were_acknowledged_are_in_the_lake_after_a_gentle_end(serve: Serve) -> None:
    served = serve()
    _write(served, 30)
    assert served.end() == 0
    with Lake.from_settings(Settings(home=served.home)) as lake:
        assert sample_events.rows_of(lake, "SELECT count(*), count(DISTINCT id) FROM events") == [(30, 30)]


def test_without_time_for_a_flush_they_wait_for_the_next_start(serve: Serve) -> None:
    served = serve(CATCHMENT_SERVER_SHUTDOWN_SECONDS="0")
    _write(served, 30)
    assert served.end() == 0
    again = serve()
    assert again.execute("SELECT count(*) FROM catchment_fresh.events") == [(30,)]


def _write(served: Served, rows: int) -> None:
    values = ", ".join(f"({number})" for number in range(rows))
    served.execute("CREATE TABLE events (id BIGINT)", f"INSERT INTO duckling_queue.events VALUES {values}")


def test_server_json_is_for_its_owner_alone_and_goes_with_the_server(serve: Serve) -> None:
    served = serve()
    path = served.home / "server.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    facts = json.loads(path.read_text())
    assert (facts["pid"], facts["uri"]) == (served.process.pid, served.uri)
    served.end()
    assert not path.exists()


def test_beside_a_server_the_status_is_what_it_is_without_it(serve: Serve) -> None:
    served = serve(CATCHMENT_SERVER_SHUTDOWN_SECONDS="0")
    _write(served, 30)
    beside = _run("queue", "status", "--json", home=served.home)
    assert beside.code == 0, beside.err
    assert "30 rows buffered" in _run("queue", "status", home=served.home).out
    served.end(signal.SIGKILL)
    # The file of the killed server is still there, and is not believed.
    assert (served.home / "server.json").exists()
    alone = _run("queue", "status", "--json", home=served.home)
    assert alone.code == 0, alone.err
    assert _steady(beside.json) == _steady(alone.json)


def _steady(status: dict[str, Any]) -> dict[str, Any]:
    """What of a status does not change with the time, nor by opening the buffer again."""
    tables = [
        {name: fact for name, fact in table.items() if name not in ("oldest_age_seconds", "bytes")}
        for table in status["tables"]
    ]
    return {**{name: fact for name, fact in status.items() if name not in ("at", "bytes")}, "tables": tables}


@pytest.mark.parametrize("tls", [{}, TLS, ISSUED], ids=["plain", "tls", "tls for a name"])
def test_beside_a_server_with_users_a_command_of_this_machine_needs_no_password(
    serve: Serve, tmp_path: Path, tls: dict[str, str]
) -> None:
    Users(tmp_path / "home" / "users.json").add("ada", Role.READER, PASSWORD)
    served = serve(**tls)
    ended = _run("queue", "status", "--json", home=served.home)
    assert (ended.code, ended.json["tables"]) == (0, [])


def test_beside_a_server_a_flush_goes_through_it(serve: Serve) -> None:
    served = serve()
    _write(served, 30)
    ended = _run("queue", "flush", "--json", home=served.home)
    assert ended.code == 0, ended.err
    assert (ended.json["rows"], ended.json["files"]) == (30, 1)
    assert ended.json["tables"][0]["table"] == "main.events"
    assert "main.events: 30 rows in 1 file" in ended.err
    assert served.execute("SELECT count(*) FROM events") == [(30,)]
    assert _run("queue", "flush", home=served.home).out == "Nothing is buffered.\n"
    served.execute("INSERT INTO duckling_queue.events VALUES (100)")
    served.execute("DROP TABLE events")
    left = _run("queue", "flush", "--json", home=served.home)
    assert left.code == 0, left.err
    assert [(each["table"], each["stranded"]) for each in left.json["tables"]] == [("main.events", 1)]
