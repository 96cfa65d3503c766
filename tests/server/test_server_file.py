"""`server.json` counts only while the process that wrote it is alive."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from catchment.foundation import server_file
from catchment.foundation.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture
def path(settings: Settings) -> Path:
    """The file of a server that runs: this process."""
    server_file.announce(settings, uri="grpc://127.0.0.1:4214", token="secret")
    return settings.home / "server.json"


def _change(path: Path, **facts: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def test_a_server_that_was_announced_is_found_until_it_is_withdrawn(settings: Settings, path: Path) -> None:
    found = server_file.find(settings)
    assert found is not None
    assert (found.pid, found.uri, found.certificate, found.token) == (
        os.getpid(),
        "grpc://127.0.0.1:4214",
        None,
        "secret",
    )
    assert "secret" not in repr(found)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server_file.withdraw(settings)
    assert server_file.find(settings) is None
    assert not path.exists()


def test_the_file_of_a_dead_process_is_ignored(settings: Settings, path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    _change(path, pid=ended.pid)
    assert server_file.find(settings) is None


def test_the_file_is_ignored_if_another_process_has_its_pid(settings: Settings, path: Path) -> None:
    _change(path, started="1")
    assert server_file.find(settings) is None


def test_a_server_does_not_remove_the_file_of_another_one(settings: Settings, path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        stat_line = Path(f"/proc/{other.pid}/stat").read_text()
        _change(path, pid=other.pid, started=stat_line.rpartition(")")[2].split()[19])
        assert server_file.find(settings) is not None
        server_file.withdraw(settings)
        assert path.exists()
        other.kill()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', "3"])
def test_an_empty_server_file_means_no_server(settings: Settings, path: Path, text: str) -> None:
    path.write_text(text)
    assert server_file.find(settings) is None


def test_a_home_without_the_file_has_no_server(settings: Settings) -> None:
    assert server_file.find(settings) is None
    server_file.withdraw(settings)
    assert not settings.home.exists()
