"""`catchment status` as an operator runs it: with a server, with one without a web, without one."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from catchment import Catchment
from catchment.cli import status as command
from catchment.foundation.settings import Settings
from catchment.server.access.users import Users
from catchment.server.values import Role
from tests.acceptance.shell import Shell
from tests.status.rich_status import rich_status
from tests.status.sample_status import NOW
from tests.web.watched_server import Watched, watched

LONG = "web_checkout_funnel_events_with_attribution_v2"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A server with three rows in its queue."""
    with watched(tmp_path_factory.mktemp("served")) as found:
        found.execute("CREATE TABLE events (id INTEGER)", "INSERT INTO duckling_queue.events VALUES (1), (2), (3)")
        yield found


def test_the_status_comes_from_the_server_that_runs_on_the_home(served: Watched, tmp_path: Path) -> None:
    # From now on others have to log in; the command of this machine does not.
    Users.from_settings(Settings(home=served.home)).add("ann", Role.READER, "correct horse")
    assert served.get("/status.json").code == 401
    found = Shell(tmp_path).run("status", "--json", home=served.home)
    assert found.code == 0, found.err
    status = found.json
    assert status["serving"]
    assert status["totals"]["acked_rows"] == 3
    assert status["home"] == str(served.home)
    assert status["queue"]["tables"][0]["rows"] == 3
    assert status["sessions"]["slow"][0]["text"].startswith("INSERT INTO duckling_queue.events")


def test_the_text_output_has_a_few_lines_and_tables(served: Watched, tmp_path: Path) -> None:
    found = Shell(tmp_path).run("status", home=served.home)
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    assert lines[0].startswith("OK  A server runs on ")
    assert any(line.startswith("writes    3 rows acknowledged") for line in lines)
    assert any(line.startswith("queue     3 rows buffered for 1 table,") for line in lines)
    assert any(line.split()[:2] == ["main.events", "3"] for line in lines)
    assert "Slow statements" in found.out


def test_the_text_output_fits_the_terminal(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with watched(home) as served:
        served.execute(
            f"CREATE TABLE {LONG} (id INTEGER)",
            "CREATE TABLE events (id INTEGER)",
            f"INSERT INTO duckling_queue.{LONG} SELECT * FROM range(1234)",
            "INSERT INTO duckling_queue.events VALUES (1)",
            "CALL duckling_queue_flush()",
            "INSERT INTO duckling_queue.events VALUES (2)",
        )
        narrow, wide = (Shell(tmp_path).run("status", home=home, COLUMNS=columns) for columns in ("80", "160"))
    for found, columns in ((narrow, 80), (wide, 160)):
        assert found.code == 0, found.err
        lines = found.out.splitlines()
        # A path is a word, which stays whole.
        assert [line for line in lines if len(line) > columns and str(home) not in line] == []
        assert {f"main.{LONG}", "main.events"} <= {line.split()[0] for line in lines}
        assert "…" not in found.out.partition("Slow statements")[0]
    assert "Queue (too narrow for: " in narrow.out
    assert "too narrow" not in wide.out
    assert "1,234 rows in " in wide.out


@pytest.mark.parametrize("columns", [80, 120, 160])
def test_trouble_and_moves_are_shown_and_no_line_is_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, columns: int
) -> None:
    facts = rich_status(NOW).to_json()
    monkeypatch.setattr(Catchment, "status", lambda *_: facts)
    # Its handler would outlive the test, with a stream that is closed.
    monkeypatch.setattr("catchment.foundation.events.configure_logging", lambda **_: None)
    monkeypatch.setenv("COLUMNS", str(columns))
    command.status(home=tmp_path / "home")
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > columns] == []
    firsts = {line.split()[0] for line in lines}
    assert {each["table"] for each in facts["queue"]["tables"]} <= firsts
    text = " ".join(" ".join(lines).split())
    for each in facts["schemas"]["databases"]:
        assert (f"! {each['name']} is {each['state']}: " in text) == (each["state"] in ("PENDING", "DIVERGED"))
        assert (each["next"] or "") in text
    [_, *rows] = lines[lines.index("Finished moves") + 1 :]
    assert rows[0].split()[:6] == ["t31", "us-1", "eu-2", "complete", "28", "ms"]


def test_a_server_without_a_web_still_reports_its_queue(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with watched(home, web_port="off") as served:
        assert served.web is None
        served.execute("CREATE TABLE events (id INTEGER)", "INSERT INTO duckling_queue.events VALUES (1)")
        found = Shell(tmp_path).run("status", "--json", home=home)
    assert found.code == 0, found.err
    assert "--web-port off" in found.err
    assert not found.json["serving"]
    assert found.json["queue"]["rows"] == 1
    assert found.json["lake"]["tables_total"] == 1


def test_without_a_server_the_status_is_found_directly_and_nothing_is_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    found = Shell(tmp_path).run("status", "--json", home=home)
    assert found.code == 0, found.err
    assert not found.json["serving"]
    assert found.json["health"] == {"state": "ok", "reasons": []}
    assert found.json["sessions"]["unavailable"] == "No server runs on this home."
    assert not home.exists()


def test_a_server_prints_the_address_of_its_status_after_the_ready_line(tmp_path: Path) -> None:
    process = Shell(tmp_path).start("serve", "--port", "0", "--web-port", "0", "--home", tmp_path / "home")
    assert process.stdout is not None
    try:
        ready, web = process.stdout.readline(), process.stdout.readline()
        assert ready.startswith("ready grpc://127.0.0.1:")
        found = Watched(tmp_path / "home", "", web.removeprefix("web ").strip())
        assert found.get("/healthz").body == "ok\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("port", ["on", "70000"])
def test_a_web_port_that_is_none_is_refused_before_anything_starts(tmp_path: Path, port: str) -> None:
    ended = Shell(tmp_path).run("serve", "--port", "0", "--web-port", port, "--json", home=tmp_path / "home")
    assert ended.code == 2
    assert "server_web_port" in ended.json["message"]
    assert not (tmp_path / "home").exists()
