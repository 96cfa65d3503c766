"""Warm processes behave like any other: streams, exit codes, signals, and isolation."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.shortcuts import warm

# Reads JSON from stdin until it ends, and writes it in a nicer form.
ECHO = [sys.executable, "-m", "json.tool", "--compact"]
HERE = [sys.executable, "-m", "site"]


def _echo() -> warm.Process:
    return warm.Process(ECHO, stdin=warm.PIPE, stdout=warm.PIPE, stderr=warm.PIPE)


def _say(process: warm.Process, text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()


def test_a_warm_process_reads_its_stdin_and_writes_its_stdout() -> None:
    with _echo() as process:
        _say(process, '[ "ä" ]')
        assert process.communicate() == ('["\\u00e4"]\n', "")
        assert process.returncode == 0


def test_an_error_is_reported_on_stderr_and_by_the_exit_code() -> None:
    with _echo() as process:
        _say(process, "nonsense")
        out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert "Expecting value" in err


def test_one_that_ends_before_its_number_is_read_has_an_exit_code_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "orders"))
        listener.listen()
        monkeypatch.setattr(warm, "_server", lambda: str(tmp_path / "orders"))

        def answer() -> None:
            with listener.accept()[0] as connection, connection.makefile("rb") as orders:
                orders.readline()
                connection.sendall(b"4711\n3\n")

        server = threading.Thread(target=answer)
        server.start()
        with warm.Process(HERE) as process:
            server.join()
            assert (process.pid, process.wait(timeout=30)) == (4711, 3)


def test_a_signal_ends_this_one_and_no_other() -> None:
    with _echo() as one, _echo() as other:
        assert len({one.pid, other.pid, os.getpid()}) == 3
        one.kill()
        assert one.wait(timeout=30) == -signal.SIGKILL
        assert other.poll() is None
        _say(other, "[]")
        assert other.communicate()[0] == "[]\n"


def test_a_warm_process_has_the_given_folder_and_environment(tmp_path: Path) -> None:
    ended = warm.run(HERE, cwd=tmp_path, env={"HOME": str(tmp_path / "home")}, timeout=60)
    assert ended.returncode in (0, 1, 2), ended.stderr
    assert str(tmp_path / "home") in ended.stdout
    assert Path.cwd() != tmp_path


def test_one_that_takes_too_long_is_killed_and_an_error() -> None:
    endless = [sys.executable, "-m", "timeit", "-n", "1", "-r", "1", "while True: pass"]
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run(endless, timeout=0.2)


def test_only_installed_commands_modules_code_and_scripts_start_warm() -> None:
    with pytest.raises(AssertionError, match="nothing that starts warm"):
        warm.Process(["/bin/true"])
