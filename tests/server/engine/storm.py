"""Writers and readers of a server whose engines are disturbed, and the check of what they saw."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import grpc
import psutil

from catchment.foundation.clock import SystemClock
from tests.server.raw_client import Client
from tests.server.server_process import ServerProcess, serving
from tests.waiting import BEAT_S, wait_until

_CLIENTS = 4
# Beyond what connections and threads of the storm itself need.
_FILES_MORE_MAX = 40
_RESIDENT_MORE_MAX = 300_000_000
_FREE_S_MAX = 30.0
# The number of rows of a write that selects them: its rows must be there together.
_SELECTED = 3
_READS = ("SELECT count(*) FROM t", "SELECT sum(a) FROM catchment_fresh.t")


@dataclass(frozen=True)
class Write:
    """A statement, and the values that it inserts."""

    text: str
    values: range
    # Constants for the queue need no engine: such a write must succeed whatever engines do.
    needs_engine: bool = True
    in_transaction: bool = False

    @classmethod
    def numbered(cls, number: int) -> "Write":
        """Return the write of that number; its values are in no other one."""
        start = number * _SELECTED
        selected, values = f"SELECT {start} + r FROM range({_SELECTED}) x(r)", range(start, start + _SELECTED)
        match number % 5:
            case 0:
                return cls(f"INSERT INTO duckling_queue.t {selected}", values)
            case 1:
                return cls(f"INSERT INTO t {selected}", values)
            case 2:
                return cls(f"INSERT INTO t {selected}", values, in_transaction=True)
            case _:
                text = f"INSERT INTO duckling_queue.t VALUES ({start})"
                return cls(text, range(start, start + 1), needs_engine=False)


@dataclass
class History:
    """The answers that clients got."""

    acked: list[Write] = field(default_factory=list)
    unknown: list[Write] = field(default_factory=list)
    failed: list[tuple[Write, str]] = field(default_factory=list)
    read: Counter[str] = field(default_factory=Counter)

    def check(self, rows: Counter[int]) -> None:
        """Assert that `rows`, values with the number of times they are there, fit the answers."""
        assert [said for write, said in self.failed if not write.needs_engine] == []
        assert [write for write in self.acked if any(rows[value] != 1 for value in write.values)] == []
        assert [write for write, _ in self.failed if any(value in rows for value in write.values)] == []
        for write in self.unknown:
            assert [rows[value] for value in write.values] in ([0] * len(write.values), [1] * len(write.values))
        assert set(rows) <= {value for write in (*self.acked, *self.unknown) for value in write.values}
        assert self.acked
        assert self.read["OK"]


class Storm:
    """Writers and readers, while a disturbance runs."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.history = History()
        self._server = server
        self._random = random.Random(seed)
        self._numbers = count()
        self._over = threading.Event()

    def run(self, disturb: Callable[[], None]) -> None:
        """Write and read until `disturb` returns."""
        work = [self._write] * _CLIENTS + [self._read] * _CLIENTS
        threads = [threading.Thread(target=each, daemon=True) for each in work]
        for thread in threads:
            thread.start()
        try:
            disturb()
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _write(self) -> None:
        with connected(self._server) as client:
            while not self._over.wait(BEAT_S):
                write = Write.numbered(next(self._numbers))
                try:
                    self._send(client, write)
                except grpc.RpcError as error:
                    if error.code() is grpc.StatusCode.UNKNOWN:
                        self.history.unknown.append(write)
                    else:
                        self.history.failed.append((write, f"{write.text}: {error.details()}"))
                else:
                    self.history.acked.append(write)

    @staticmethod
    def _send(client: Client, write: Write) -> None:
        if not write.in_transaction:
            assert client.update(write.text) == len(write.values)
            return
        transaction = client.begin()
        try:
            client.update(write.text, transaction)
        except grpc.RpcError:
            with suppress(grpc.RpcError):
                client.end(transaction, commit=False)
            raise
        client.end(transaction, commit=True)

    def _read(self) -> None:
        with connected(self._server) as client:
            while not self._over.wait(BEAT_S):
                try:
                    client.query(self._random.choice(_READS))
                except grpc.RpcError as error:
                    self.history.read[error.code().name] += 1
                else:
                    self.history.read["OK"] += 1


@contextmanager
def connected(server: ServerProcess) -> Iterator[Client]:
    """A client with a session of its own."""
    with Client(server.uri) as client:
        client.authorization = f"Bearer {client.handshake()}"
        yield client
        client.act("CloseSession")


def engines(server: ServerProcess) -> list[int]:
    """The process ids of the server's engines."""
    found = []
    for child in psutil.Process(server.pid).children():
        with suppress(psutil.Error):
            if "catchment.server.engine.worker" in child.cmdline():
                found.append(child.pid)
    return found


def survive(home: Path, disturb: Callable[[ServerProcess], None], *, seed: int, **environment: str) -> None:
    """Write and read while `disturb` runs: every row is there once, and nothing is left behind."""
    environment = {
        "CATCHMENT_LAKE_THREADS_MAX": "1",
        "DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS": "86400",
        **environment,
    }
    with serving(home, None, **environment) as server, connected(server) as client:
        client.update("CREATE TABLE t (a BIGINT)")
        process, server_pid = psutil.Process(server.pid), server.pid
        before = (process.num_fds(), process.memory_info().rss)
        storm = Storm(server, seed)
        storm.run(lambda: disturb(server))
        assert process.is_running(), server.said
        assert server.pid == server_pid
        storm.history.check(_rows(client))
        # No lock is left: the next write gets it at once.
        begun_s = SystemClock().monotonic_s()
        assert client.update("INSERT INTO t VALUES (-1)") == 1
        assert SystemClock().monotonic_s() - begun_s < _FREE_S_MAX
        wait_until(lambda: process.num_fds() < before[0] + _FILES_MORE_MAX, "files are closed")
        assert process.memory_info().rss < before[1] + _RESIDENT_MORE_MAX
        left = engines(server)
    wait_until(lambda: not any(psutil.pid_exists(each) for each in left), "no engine outlives its server")


def _rows(client: Client) -> Counter[int]:
    """How often each value is there, once an engine answers."""
    found: list[Counter[int]] = []

    def answers() -> bool:
        with suppress(grpc.RpcError):
            found.append(Counter(row["a"] for row in client.query("SELECT a FROM catchment_fresh.t")))
        return bool(found)

    wait_until(answers, "an engine answers")
    return found[-1]
