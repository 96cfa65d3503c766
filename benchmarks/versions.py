"""Benchmark of the server against an earlier version of it, both running in turns.

    python -m benchmarks.versions --before REVISION

Each version has a server with a lake of its own; both use the installed dependencies. Above 1 means
that this version is faster.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from adbc_driver_flightsql import dbapi

from benchmarks import clients
from benchmarks.rates import Rate, rows_of
from benchmarks.server import QUEUE, ROUNDS, Bar, Contender, Contest, measure
from benchmarks.serving import Server, catchment_server
from catchment.foundation.clock import SystemClock
from catchment.lake.attach import LakeAddress, SqliteCatalog, open_connection

SECONDS = 3.0
READ_ROWS = 5_000_000
POINTS = 100
SESSIONS = 30
_MEASURED = "measured"
_TABLE = f"""
CREATE TABLE main.{_MEASURED} AS
SELECT i AS id, i % 10007 / 100.0 AS amount, 'user-' || i % 1000 AS name FROM range({{rows}}) r(i)
"""


class Version:
    """One side: a running server with a table to read."""

    def __init__(self, side: str, server: Server, *, rows: int, seconds: float) -> None:
        self.side = side
        self.server = server
        self._rows = rows
        self._seconds = seconds
        self._small = rows_of(10)
        server.run(_TABLE.format(rows=rows))

    def writer(self, way: clients.Way, rows: int) -> Contender:
        """Return a contender that writes `rows` rows at a time to the queue."""

        def run(count: int) -> Rate:
            table = f"{QUEUE}.{self.server.new_table(self._small)}"
            load = clients.Load(way=way, address=self.server.address, table=table, rows=rows, seconds=self._seconds)
            return clients.drive(load, count)

        return Contender(side=self.side, name="", run=run)

    def reader(self) -> Contender:
        """Return a contender that reads the whole table."""

        def read(cursor: dbapi.Cursor, _: int) -> None:
            cursor.execute(f"FROM main.{_MEASURED}")
            assert cursor.fetch_arrow_table().num_rows == self._rows

        return self._reading(read, self._rows, times=1)

    def points(self) -> Contender:
        """Return a contender that reads single rows."""

        def read(cursor: dbapi.Cursor, number: int) -> None:
            cursor.execute(f"FROM main.{_MEASURED} WHERE id = {number * self._rows // POINTS}")
            assert len(cursor.fetchall()) == 1

        return self._reading(read, 1, times=POINTS)

    def sessions(self) -> Contender:
        """Return a contender that opens a session for each statement."""

        def read(_: int) -> None:
            assert self.server.run("SELECT 42") == [(42,)]

        return Contender(side=self.side, name="", run=lambda _: _timed(read, 1, times=SESSIONS))

    def _reading(self, read: Callable[[dbapi.Cursor, int], None], rows: int, *, times: int) -> Contender:
        def run(_: int) -> Rate:
            with dbapi.connect(self.server.address, autocommit=True) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 42").fetchall()
                return _timed(lambda number: read(cursor, number), rows, times=times)

        return Contender(side=self.side, name="", run=run)

    def memory(self) -> str:
        """Return the memory of the server's processes, in MiB."""
        server = psutil.Process(self.server.pid)
        sizes = [round(each.memory_info().rss / 1024**2) for each in (server, *server.children(recursive=True))]
        return f"{self.side}: {' + '.join(map(str, sizes))} MiB"


def _timed(read: Callable[[int], None], rows: int, *, times: int) -> Rate:
    latencies_s = []
    for number in range(times):
        started = time.perf_counter()
        read(number)
        latencies_s.append(time.perf_counter() - started)
    return Rate.of(latencies_s, rows, sum(latencies_s))


@contextmanager
def in_process(home: Path, rows: int) -> Iterator[Contender]:
    """Yield a contender that reads a server's table by DuckDB, without a server."""
    address = LakeAddress(catalog=SqliteCatalog(path=home / "catalog.sqlite"), data_path=str(home / "data"))
    with open_connection(address, clock=SystemClock(), settings={}) as connection:

        def read(_: int) -> None:
            found = connection.execute(f"FROM {address.name}.main.{_MEASURED}").to_arrow_table()
            assert found.num_rows == rows

        yield Contender(side="duckdb", name="", run=lambda _: _timed(read, rows, times=1))


@contextmanager
def source_of(revision: str, folder: Path) -> Iterator[Path]:
    """Check a revision out while the block runs."""
    root = Path(__file__).parent.parent
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, revision], cwd=root, check=True)
    try:
        yield folder / "src"
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=root, check=True)


def compare(work: Path, before: str, scale: float) -> None:
    """Let both versions take turns, and print what each does."""
    rows, seconds = max(50_000, int(READ_ROWS * scale)), max(0.5, SECONDS * scale)
    with (
        source_of(before, work / "before") as source,
        catchment_server(work / "old", flushes=False, PYTHONPATH=str(source)) as old,
        catchment_server(work / "new", flushes=False) as new,
        in_process(work / "new", rows) as duckdb,
    ):
        sides = [Version(side, server, rows=rows, seconds=seconds) for side, server in (("ours", new), ("before", old))]
        contests = (
            Contest(
                title="INSERT of 1 row into the queue",
                contenders=[each.writer(clients.flight_update, 1) for each in sides],
                bars=[Bar(peer="before", least=0.97)],
            ),
            Contest(
                title="ingest of 1,000 rows into the queue",
                contenders=[each.writer(clients.flight_ingest, 1_000) for each in sides],
                bars=[Bar(peer="before", least=0.95)],
            ),
            Contest(
                title=f"reading {rows:,} rows",
                contenders=[*(each.reader() for each in sides), duckdb],
                bars=[Bar(peer="before", least=0.85), Bar(peer="duckdb", least=0.6)],
            ),
            Contest(title="reading 1 row", contenders=[each.points() for each in sides], bars=[]),
            Contest(title="a session for each SELECT", contenders=[each.sessions() for each in sides], bars=[]),
        )
        for contest in contests:
            measure(contest, 1, ROUNDS if scale >= 1 else 1)
        print("\nmemory", *(each.memory() for each in sides), sep="\n  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="revision to compare with, as git names it")
    parser.add_argument("--scale", type=float, default=1.0, help="1 reads five million rows, and takes five turns")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="catchment-bench-") as folder:
        compare(Path(folder), given.before, given.scale)


if __name__ == "__main__":
    main()
