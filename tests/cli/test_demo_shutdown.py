"""How the demo's processes and threads end: servers of a killed demo, and writers without an
answer.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import catchment
from catchment.cli.demo import servers, writers
from catchment.cli.demo.interrupts import Interrupts
from catchment.cli.demo.servers import Servers
from catchment.cli.demo.writers import DemoWriter, Writers
from catchment.errors import StateError
from catchment.foundation import process
from catchment.foundation.clock import SystemClock
from catchment.foundation.server_file import FILE_NAME
from tests.waiting import wait_until

_NO_SERVER = "grpc://127.0.0.1:1"
# Starts a server as the demo does, prints its process, and waits to be killed.
_KILLED = """
import signal, sys
from pathlib import Path
from catchment.cli.demo import servers
print(servers._launch("a", Path(sys.argv[1]), 0, 0).process.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is announced as the server of a home."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as started:
        tick = process.start_tick(started.pid)
        facts = {"pid": started.pid, "started": tick, "uri": _NO_SERVER, "certificate": None, "token": "t"}
        (tmp_path / FILE_NAME).write_text(json.dumps(facts), encoding="utf-8")
        yield started
        started.kill()


def _wait_for_earlier(home: Path) -> list[str]:
    notes: list[str] = []
    Servers(SystemClock(), Interrupts()).wait_for_earlier(catchment.open(home), notes.append)
    return notes


def test_a_demo_waits_until_an_earlier_server_has_stopped(tmp_path: Path, server: "subprocess.Popen[bytes]") -> None:
    ending = threading.Timer(0.2, server.terminate)
    ending.start()
    # The process stays a zombie, because this test has not collected it.
    assert _wait_for_earlier(tmp_path) == [f"waiting for the server in {tmp_path} to stop, process {server.pid}"]
    assert server.wait() == -signal.SIGTERM


def test_a_demo_does_not_start_beside_a_server_that_keeps_running(
    tmp_path: Path, server: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_GENTLE_S_MAX", 0.1)
    with pytest.raises(StateError, match=f"process {server.pid}"):
        _wait_for_earlier(tmp_path)
    assert server.poll() is None


def test_a_server_stops_if_its_demo_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        pid = int(demo.stdout.readline())
        wait_until(lambda: (tmp_path / FILE_NAME).exists(), "the server is ready")
        demo.kill()
    wait_until(lambda: process.start_tick(pid) is None, "the server has stopped")


class _Hanging(DemoWriter):
    """A writer whose last write is not answered until `answered` is set."""

    answered: threading.Event

    def _run(self) -> None:
        self.answered.wait()


def test_an_unanswered_write_is_waited_for_within_a_limit_and_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_ANSWER_S_MAX", 0.01)
    writer = _Hanging("kitchen", _NO_SERVER, SystemClock())
    writer.answered = threading.Event()
    both = Writers((writer, DemoWriter("cellar", _NO_SERVER, SystemClock())))
    writer.start()
    both.stop()
    both.stop()
    assert both.errors == ["kitchen: the last write is not answered after 0.01 s"]
    writer.answered.set()


def test_an_interrupt_is_raised_after_the_deferred_block_or_discarded() -> None:
    interrupts, steps = Interrupts(), []

    def interrupted() -> None:
        with interrupts.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("the block goes on")
        steps.append("never")

    with interrupts.handled():
        with interrupts.deferred(discard=True):
            os.kill(os.getpid(), signal.SIGTERM)
        assert not interrupts.was_raised
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    assert steps == ["the block goes on"]
    assert interrupts.was_raised
