"""SIGKILL of the server while other processes write: acknowledged rows are there exactly once."""

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from catchment.foundation.ids import TableId
from tests.queue.queues import LAYOUTS_ON_DISK, assert_drained, ids_in, open_queue
from tests.repo.source_tree import ROOT
from tests.server.server_process import ServerProcess, serving
from tests.shortcuts import warm
from tests.waiting import wait_until

# Rows in a statement, client by client.
BATCHES = (1, 10, 1, 10)
IDS = 1_000_000
ACKED_MIN = 40
TABLE = TableId("main", "events")
SOAK_ROUNDS = 20


class Clients:
    """Processes that write, and what they say was acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._first = 0
        self._processes = [
            warm.Process(
                [sys.executable, "-m", "tests.crash.server_child"], cwd=ROOT, stdin=warm.PIPE, stdout=warm.PIPE
            )
            for _ in BATCHES
        ]

    def start(self, server: ServerProcess) -> None:
        """Have all of them write new ids until the server is gone."""
        for number, (process, batch) in enumerate(zip(self._processes, BATCHES, strict=True)):
            assert process.stdin is not None
            log = self.folder / f"{self._first:012d}_{number}"
            print(server.uri, TABLE.name, self._first, batch, log, file=process.stdin, flush=True)
            self._first += IDS
            log.touch()

    def wait_for_acks(self, of_each: int) -> None:
        """Wait until every client has that many rows acknowledged in this round."""
        logs = sorted(self.folder.iterdir())[-len(BATCHES) :]
        wait_until(lambda: all(log.read_bytes().count(b"\n") >= of_each for log in logs), "clients write")

    def wait(self) -> None:
        """Wait until all have noticed that the server is gone."""
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "gone\n"

    def acked(self) -> set[int]:
        """Every id that was ever acknowledged."""
        return {int(line) for log in self.folder.iterdir() for line in log.read_text().splitlines()}

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    clients = Clients(tmp_path_factory.mktemp("acked"))
    yield clients
    clients.close()


@pytest.fixture
def clients(processes: Clients, tmp_path: Path) -> Clients:
    """The processes, for a server that none of them has written to."""
    processes.folder = tmp_path / "acked"
    processes.folder.mkdir()
    return processes


def _assert_once(found: list[int], acked: set[int]) -> None:
    assert len(found) == len(set(found)), "rows are there twice"
    assert acked <= set(found), "acknowledged rows are lost"


def _fresh_ids(server: ServerProcess) -> list[int]:
    return [row[0] for row in server.rows(f"SELECT id FROM catchment_fresh.{TABLE.name}")]


def _assert_drained_once(server: ServerProcess, acked: set[int]) -> None:
    """Flush the buffer without the server; the lake must have every row once."""
    with open_queue(server.settings) as queue:
        queue.force_flush_all()
        assert_drained(queue)
        _assert_once(ids_in(queue.lake, TABLE), acked)


@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_no_acknowledged_row_is_lost_or_doubled_by_a_kill(clients: Clients, tmp_path: Path, layout: str) -> None:
    with serving(tmp_path / "home", DUCKLING_QUEUE_LAYOUT=layout) as server:
        server.rows(f"CREATE TABLE {TABLE.name} (id BIGINT)", "SELECT 1")
        clients.start(server)
        clients.wait_for_acks(ACKED_MIN)
        server.kill()
        clients.wait()
        server.start()
        acked = clients.acked()
        assert len(acked) >= ACKED_MIN * len(BATCHES)
        _assert_once(_fresh_ids(server), acked)
        server.kill()
        _assert_drained_once(server, acked)


@pytest.mark.soak
@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_no_acknowledged_row_is_lost_or_doubled_by_many_kills(clients: Clients, tmp_path: Path, layout: str) -> None:
    """At random moments, half of them while the server flushes by itself."""
    luck = random.Random(layout)
    with ExitStack() as running:
        server = running.enter_context(
            serving(
                tmp_path / "home",
                DUCKLING_QUEUE_LAYOUT=layout,
                DUCKLING_QUEUE_BUFFER_MAX_ROWS="300",
                DUCKLING_QUEUE_ROTATE_INTERVAL_SECONDS="2",
                DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS="1",
            )
        )
        server.rows(f"CREATE TABLE {TABLE.name} (id BIGINT)", "SELECT 1")
        for number in range(SOAK_ROUNDS):
            clients.start(server)
            clients.wait_for_acks(luck.randint(1, 400))
            if number % 2:
                _wait_for_flush(server)
            server.kill()
            clients.wait()
            server.start()
            _assert_once(_fresh_ids(server), clients.acked())
        server.kill()
        _assert_drained_once(server, clients.acked())


def _wait_for_flush(server: ServerProcess) -> None:
    with server.cursor() as cursor:

        def is_flushing() -> bool:
            cursor.execute("CALL duckling_queue_status()")
            return any(row["flushing"] for row in cursor.fetch_arrow_table().to_pylist())

        wait_until(is_flushing, "a flush runs")
