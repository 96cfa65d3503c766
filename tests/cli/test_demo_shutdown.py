"""How the demo ends what it started: servers that an earlier one forgot, and no others; writers, within a bound."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from catchment.cli.demo import process_file, writers
from catchment.cli.demo.demo_folder import A, DemoPlace
from catchment.cli.demo.interrupts import Interrupts
from catchment.cli.demo.process_file import ProcessMark
from catchment.cli.demo.servers import Servers
from catchment.cli.demo.writers import DemoWriter, Login, Writers
from catchment.errors import MachineError, StateError
from catchment.foundation.clock import SystemClock
from catchment.foundation.server_file import FILE_NAME

_NOBODY = "grpc://127.0.0.1:1"


@pytest.fixture
def place(tmp_path: Path) -> DemoPlace:
    made = DemoPlace.in_home(tmp_path)
    made.write_settings()
    return made


@pytest.fixture
def server(place: DemoPlace) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that says it serves the first shard's home."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        said = {"pid": process.pid, "started": ProcessMark.of(process.pid).started, "uri": _NOBODY, "certificate": None}
        (place.home(A) / FILE_NAME).write_text(json.dumps({**said, "token": "t"}), encoding="utf-8")
        yield process
        process.kill()


def _end_forgotten(place: DemoPlace) -> None:
    Servers(place, SystemClock(), Interrupts())._end_forgotten(A)


def test_a_leftover_server_of_an_earlier_demo_is_stopped_and_a_zombie_counts_as_stopped(
    place: DemoPlace, server: "subprocess.Popen[bytes]"
) -> None:
    process_file.write(place.home(A), ProcessMark.of(server.pid))
    # Nobody waits for it meanwhile, so that it stays a zombie.
    _end_forgotten(place)
    assert server.wait() == -signal.SIGTERM


def test_a_server_that_no_demo_started_is_left_alone(place: DemoPlace, server: "subprocess.Popen[bytes]") -> None:
    with pytest.raises(StateError, match=f"did not start, process {server.pid}"):
        _end_forgotten(place)
    assert server.poll() is None


@pytest.mark.parametrize("field", ["boot", "started"])
def test_a_process_that_has_the_number_of_an_earlier_one_is_left_alone(
    place: DemoPlace, server: "subprocess.Popen[bytes]", field: str
) -> None:
    mark = ProcessMark.of(server.pid)
    process_file.write(place.home(A), replace(mark, boot="1") if field == "boot" else replace(mark, started="1"))
    (place.home(A) / FILE_NAME).unlink()
    _end_forgotten(place)
    assert server.poll() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_mark_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "demo-server.json").write_text(text, encoding="utf-8")
    assert process_file.read(tmp_path) is None


def test_a_server_of_another_user_is_said_to_be_one(
    place: DemoPlace, server: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError

    process_file.write(place.home(A), ProcessMark.of(server.pid))
    monkeypatch.setattr(os, "kill", refuse)
    with pytest.raises(MachineError, match="another user's"):
        _end_forgotten(place)


class _Hanging(DemoWriter):
    """A writer whose last write is not answered until it is let go."""

    answered: threading.Event

    def _run(self) -> None:
        self.answered.wait()


def test_a_writer_without_an_answer_is_waited_for_within_a_bound_and_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writers, "_ANSWER_S_MAX", 0.01)
    writer = _Hanging(Login("kitchen", _NOBODY, "ada", "x"), SystemClock())
    writer.answered = threading.Event()
    both = Writers((writer, DemoWriter(Login("cellar", _NOBODY, "ben", "x"), SystemClock())))
    writer.start()
    both.stop()
    both.stop()
    assert both.errors == ["kitchen: the last write is not answered after 0.01 s"]
    writer.answered.set()
