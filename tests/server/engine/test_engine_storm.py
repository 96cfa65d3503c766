"""Engines are killed at random under writers and readers: every row once, and nothing left behind."""

import os
import random
import signal
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import grpc
import psutil
import pytest

from catchment.foundation.clock import SystemClock
from tests.conftest import MakeSettings
from tests.server.raw_client import Client
from tests.server.server_process import ServerProcess, serving
from tests.waiting import BEAT_S, wait_until

Code = grpc.StatusCode
CLIENTS = 4
# Beyond what connections and threads of the storm itself need.
FILES_MORE_MAX = 40
RESIDENT_MORE_MAX = 300_000_000
SECONDS, SOAK_SECONDS = 6.0, 150.0
SEED = 7
READS = ("SELECT count(*) FROM t", "SELECT sum(a) FROM catchment_fresh.t")


@dataclass
class History:
    """The answers that clients got about each row."""

    acked: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    # Errors of writes that need no engine: there must be none.
    wrong: list[str] = field(default_factory=list)
    read: Counter[str] = field(default_factory=Counter)


class Storm:
    """Writers, readers and a killer, until `stop`."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.history = History()
        self.kills = 0
        self._server = server
        self._random = random.Random(seed)
        self._numbers = count()
        self._over = threading.Event()
        work = [self._write] * CLIENTS + [self._read] * CLIENTS + [self._kill]
        self._threads = [threading.Thread(target=each, daemon=True) for each in work]

    def run(self, seconds: float) -> None:
        for thread in self._threads:
            thread.start()
        self._over.wait(seconds)
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        history = self.history
        with Client(self._server.uri) as client:
            client.authorization = f"Bearer {client.handshake()}"
            while not self._over.wait(BEAT_S):
                number = next(self._numbers)
                form = number % 4
                text = (
                    f"INSERT INTO duckling_queue.t VALUES ({number})",
                    f"INSERT INTO duckling_queue.t SELECT {number}",
                    f"INSERT INTO t SELECT {number}",
                    f"INSERT INTO duckling_queue.t VALUES ({number})",
                )[form]
                try:
                    assert client.update(text) == 1
                except grpc.RpcError as error:
                    if error.code() is Code.UNKNOWN:
                        history.unknown.append(number)
                    else:
                        history.failed[number] = f"{text}: {error.details()}"
                    if form in (0, 3):
                        history.wrong.append(f"{text}: {error.details()}")
                else:
                    history.acked.append(number)

    def _read(self) -> None:
        with Client(self._server.uri) as client:
            client.authorization = f"Bearer {client.handshake()}"
            while not self._over.wait(BEAT_S):
                try:
                    client.query(
                        self._random.choice(["SELECT count(*) FROM t", "SELECT sum(a) FROM catchment_fresh.t"])
                    )
                except grpc.RpcError as error:
                    self.history.read[error.code().name] += 1
                else:
                    self.history.read["OK"] += 1

    def _kill(self) -> None:
        numbers = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
        while not self._over.wait(self._random.uniform(0.2, 1.5)):
            for engine in engines(self._server):
                with suppress(ProcessLookupError):
                    os.kill(engine, self._random.choice(numbers))
                    self.kills += 1


def engines(server: ServerProcess) -> list[int]:
    found = []
    for child in psutil.Process(server.pid).children():
        with suppress(psutil.Error):
            if "catchment.server.engine.worker" in child.cmdline():
                found.append(child.pid)
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def catalog(request: pytest.FixtureRequest, make_settings: MakeSettings) -> str:
    return make_settings(request.param).catalog_url.get_secret_value()


def storm(home: Path, layout: str, catalog: str, seconds: float) -> None:
    environment = {
        "DUCKLING_QUEUE_LAYOUT": layout,
        "CATCHMENT_LAKE_CATALOG": catalog,
        "CATCHMENT_LAKE_THREADS_MAX": "1",
        "DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS": "86400",
    }
    with serving(home, None, **environment) as server, Client(server.uri) as client:
        client.authorization = f"Bearer {client.handshake()}"
        client.update("CREATE TABLE t (a BIGINT)")
        process = psutil.Process(server.pid)
        before = (process.num_fds(), process.memory_info().rss)
        run = Storm(server, seed=SEED)
        run.run(seconds)
        assert run.kills > 1
        _check(run.history, rows_of(client))
        # No lock is left: the next write gets it at once.
        begun_s = SystemClock().monotonic_s()
        assert client.update("INSERT INTO t VALUES (-1)") == 1
        assert SystemClock().monotonic_s() - begun_s < 30
        wait_until(lambda: process.num_fds() < before[0] + FILES_MORE_MAX, "files are closed")
        assert process.memory_info().rss < before[1] + RESIDENT_MORE_MAX
        left = engines(server)
    wait_until(lambda: not any(psutil.pid_exists(each) for each in left), "no engine outlives its server")


def rows_of(client: Client) -> Counter[int]:
    """How often each row is there, once an engine answers."""
    found: list[Counter[int]] = []

    def answers() -> bool:
        with suppress(grpc.RpcError):
            found.append(Counter(row["a"] for row in client.query("SELECT a FROM catchment_fresh.t")))
        return bool(found)

    wait_until(answers, "an engine answers")
    return found[-1]


def _check(history: History, rows: Counter[int]) -> None:
    assert history.wrong == []
    assert [each for each in history.acked if rows[each] != 1] == []
    assert {each: said for each, said in history.failed.items() if rows[each]} == {}
    assert [each for each in history.unknown if rows[each] > 1] == []
    assert set(rows) <= {*history.acked, *history.unknown}
    assert history.acked
    assert history.read["OK"]


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["shared", "sessions"])
def test_rows_are_there_once_however_often_engines_are_killed(layout: str, catalog: str, tmp_path: Path) -> None:
    storm(tmp_path / "home", layout, catalog, SECONDS)


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["shared", "sessions"])
def test_rows_are_there_once_after_minutes_of_killed_engines(layout: str, catalog: str, tmp_path: Path) -> None:
    storm(tmp_path / "home", layout, catalog, SOAK_SECONDS)
