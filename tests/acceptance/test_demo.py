"""`catchment demo` from an installed wheel: its acts and checks, and that no process is left
running.
"""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from catchment.foundation.clock import SystemClock
from catchment.foundation.files import FileLock
from tests.acceptance.installed import Installed
from tests.acceptance.shell import COMMAND, Ended, Shell
from tests.waiting import wait_until

_PATIENCE_S = 120


@dataclass(frozen=True)
class Interrupted:
    """A demo that was stopped by Ctrl-C while its writers wrote."""

    code: int
    err: str
    children: list[psutil.Process]


@pytest.fixture(scope="module")
def shell(installed: Installed) -> Shell:
    return Shell(installed.folder)


@pytest.fixture(scope="module")
def interrupted(shell: Shell) -> Interrupted:
    environment = {"PATH": os.environ["PATH"], "HOME": str(shell.folder), "COLUMNS": "200"}
    with subprocess.Popen(
        [COMMAND, "demo"],
        cwd=shell.folder,
        env={**environment, **{name: os.environ[name] for name in ("JAVA_HOME", "PYTHONPATH") if name in os.environ}},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        said = list(_lines_until(process.stderr, "rows acknowledged in"))
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        said.append(process.communicate(timeout=_PATIENCE_S)[1])
    return Interrupted(process.returncode, "".join(said), children)


@pytest.fixture(scope="module")
def finished(installed: Installed, interrupted: Interrupted) -> Ended:
    """The demo in the folder of the interrupted one, from the wheel, where Spark's workers find it
    too.
    """
    assert interrupted.code
    return installed.ended("catchment", "demo", "--json")


def _lines_until(lines: Iterator[str], text: str) -> Iterator[str]:
    said = []
    for line in lines:
        yield line
        said.append(line)
        if text in line:
            return
    raise AssertionError(f"it did not print {text!r}, but\n{''.join(said)}")


def _is_open(uri: str) -> bool:
    parts = urlsplit(uri)
    with closing(socket.socket()) as client:
        return client.connect_ex((parts.hostname or "", parts.port or 0)) == 0


def test_a_demo_that_is_interrupted_says_so_and_leaves_nothing_running(interrupted: Interrupted) -> None:
    assert interrupted.code == 130, interrupted.err
    assert "Stopped. No process is left running" in interrupted.err
    assert "Traceback" not in interrupted.err
    assert len(interrupted.children) >= 2
    wait_until(lambda: not any(child.is_running() for child in interrupted.children), "every child is gone")
    uris = re.findall(r"(?:grpc|http)://127\.0\.0\.1:\d+", interrupted.err)
    assert len(uris) == 4
    assert not any(map(_is_open, uris))


def test_the_demo_keeps_every_promise(finished: Ended) -> None:
    assert finished.code == 0, finished.err
    story = finished.json
    assert story["ok"] is True
    assert [check for check in story["checks"] if not check["ok"]] == []
    assert story["acked"] == story["in_lake"] == story["distinct"] == sum(story["writers"].values()) > 300
    assert story["errors"] == []
    assert (story["fresh"]["in_lake"], story["fresh"]["seen"] >= story["fresh"]["acked"] > 0) == (0, True)
    assert story["flush"]["files"] == 1
    assert story["flush"]["rows"] >= story["fresh"]["acked"]


def test_the_demo_imports_a_tree_once_and_changes_a_schema_under_its_writers(finished: Ended) -> None:
    legacy, schema = finished.json["legacy"], finished.json["schema"]
    assert legacy == {"leaves": 24, "rows": 12_000, "leaves_again": 0, "failures": 0}
    assert schema["script"] == 'ALTER TABLE "readings" ADD COLUMN "unit" VARCHAR DEFAULT \'celsius\''
    assert schema["buffered"] > 0
    assert schema["units"].keys() == {"celsius", "kelvin"}


def test_the_demo_moves_a_tenant_whose_writers_see_no_error(finished: Ended) -> None:
    move = finished.json["move"]
    assert (move["from"], move["to"], move["state"], move["errors"]) == ("a", "b", "Complete", 0)
    assert 0 < move["pause_ms"] < 5_000
    assert move["acked_meanwhile"] > 0


def test_the_demo_stops_its_servers(finished: Ended) -> None:
    story = finished.json
    assert story["exit_codes"] == {"a": 0, "b": 0}
    assert not any(psutil.pid_exists(server["pid"]) for server in story["servers"])
    assert not any(_is_open(server[name]) for server in story["servers"] for name in ("uri", "web"))


def test_a_demo_after_an_interrupted_one_says_what_was_there_and_finds_all_of_it(finished: Ended) -> None:
    assert finished.json["run"] == {"tenant": "t2", "earlier": ["t1"]}
    (earlier,) = [check for check in finished.json["checks"] if "earlier run" in check["what"]]
    assert earlier["what"] == "rows of t1, from an earlier run, in a"
    assert earlier["promised"] == earlier["found"] > 300


def test_the_demo_prints_its_story_to_stderr(finished: Ended) -> None:
    titles = [line.removeprefix("▸ ") for line in finished.err.splitlines() if line.startswith("▸ ")]
    assert [title.partition(" ")[0] for title in titles] == [f"{number}/7" for number in range(1, 8)]
    assert finished.err.count("Why it matters: ") == 7
    assert "dashboard http://127.0.0.1:" in finished.err


def test_a_second_demo_in_the_same_folder_is_refused(shell: Shell, tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "demo" / "demo.lock", clock=SystemClock()).take()
    assert lock is not None
    ended = shell.run("demo", "--json", home=tmp_path)
    lock.release()
    assert ended.code == 2
    assert "already runs in" in ended.json["message"]


def test_a_demo_does_not_touch_the_lake_that_the_environment_names(shell: Shell, tmp_path: Path) -> None:
    elsewhere = tmp_path / "mine.sqlite"
    ended = shell.run("demo", "--json", home=tmp_path, CATCHMENT_LAKE_CATALOG=f"sqlite:{elsewhere}")
    assert ended.code == 2
    assert "CATCHMENT_LAKE_CATALOG" in ended.json["message"]
    assert not elsewhere.exists()
