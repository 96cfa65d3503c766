"""Benchmark of the server against its peers, with one and four clients in separate processes.

    python -m benchmarks.server --scale 1
    python -m benchmarks.server --memory

Every write is durable when it returns. The peers are:

- `quack`, DuckDB's own remote protocol, with a DuckDB file; the fastest of its ways counts;
- DuckLake with inlining, in process, a transaction for each row;
- one INSERT of the same Arrow rows by DuckDB in process, into a DuckLake with default options and
  into one with the Parquet options that Catchment sets;
- our own queue in process, which shows the overhead of the server.

All of them take turns, in one run on one disk. A ratio is our rate over the peer's in the same
turn, because the machine may be slower in the next one. Above 1 means that ours is faster; the
median counts.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import clients, encoding
from benchmarks.growth import flat_memory
from benchmarks.leaves import LOG_LIKE
from benchmarks.quack import quack_server
from benchmarks.queue import Bench
from benchmarks.rates import Rate, drive, rows_of
from benchmarks.serving import Server, catchment_server
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from catchment.lake.attach import LakeAddress, SqliteCatalog, open_connection
from catchment.pipeline import SparkRunner

CLIENTS = (1, 4)
SECONDS = 2.0
ROUNDS = 5
INGEST_ROWS = 1_000_000
QUEUE = "duckling_queue"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to write: its side, its name, and the measurement with a number of clients."""

    side: str
    name: str
    run: Callable[[int], Rate]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The ratio that our ways must reach against the fastest way of a peer."""

    peer: str
    least: float


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Ways to write the same rows."""

    title: str
    contenders: Sequence[Contender]
    bars: Sequence[Bar]


class Contests:
    """All contests, at one scale."""

    def __init__(self, server: Server, quack: str, bench: Bench, work: Path, scale: float) -> None:
        self._server = server
        self._quack = quack
        self._bench = bench
        self._plain = InProcess(work / "plain", {})
        self._tuned = InProcess(work / "tuned", encoding.OURS)
        self._seconds = max(0.5, SECONDS * scale)
        self._ingest_rows = max(50_000, int(INGEST_ROWS * scale))
        self._small = rows_of(10)

    def all(self) -> list[Contest]:
        """Single rows, batches, and bulk."""
        return [self._single(), self._batches(), self._bulk()]

    def _single(self) -> Contest:
        ways = {
            "text": clients.flight_text,
            "text, one call": clients.flight_update,
            "prepared": clients.flight_prepared,
        }
        quacks = {
            "query": clients.quack_query,
            "text": clients.quack_attached_text,
            "prepared": clients.quack_prepared,
        }
        return Contest(
            title="1 row",
            contenders=[
                *(self._ours(name, way, rows=1) for name, way in ways.items()),
                *(self._theirs(name, way, rows=1) for name, way in quacks.items()),
                Contender(side="inlining", name="", run=self._inlining),
                self._in_process(1),
            ],
            bars=[Bar(peer="inlining", least=5), Bar(peer="quack", least=1.2)],
        )

    def _batches(self) -> Contest:
        rows = 1_000
        ways = {"executemany": clients.flight_many, "ingest": clients.flight_ingest}
        return Contest(
            title="batches of 1,000 rows",
            contenders=[
                *(self._ours(name, way, rows=rows) for name, way in ways.items()),
                self._theirs("arrow", clients.quack_arrow, rows=rows),
                self._in_process(rows),
            ],
            bars=[Bar(peer="quack", least=1)],
        )

    def _bulk(self) -> Contest:
        rows = self._ingest_rows
        return Contest(
            title=f"{rows:,} rows at once, divided among the clients",
            contenders=[
                self._ours("ingest, lake", clients.flight_ingest, rows=rows, schema="main", once=True),
                Contender(side="duckdb", name="INSERT", run=lambda _: self._plain.insert(self._ingest_rows)),
                Contender(side="our files", name="INSERT", run=lambda _: self._tuned.insert(self._ingest_rows)),
                self._ours("ingest, queue", clients.flight_ingest, rows=rows, once=True),
                self._theirs("arrow", clients.quack_arrow, rows=rows, once=True),
            ],
            bars=[Bar(peer="duckdb", least=0.9), Bar(peer="quack", least=3)],
        )

    def _ours(self, name: str, way: clients.Way, *, rows: int, schema: str = QUEUE, once: bool = False) -> Contender:
        def run(count: int) -> Rate:
            table = self._server.new_table(self._small)
            load = self._load(way, self._server.address, f"{schema}.{table}", rows, count, once=once)
            rate = clients.drive(load, count)
            self._server.flush()
            if once:
                assert self._server.count(table) == load.rows * count, f"{table} is short of rows"
            return rate

        return Contender(side="ours", name=name, run=run)

    def _theirs(self, name: str, way: clients.Way, *, rows: int, once: bool = False) -> Contender:
        return Contender(
            side="quack",
            name=name,
            run=lambda count: clients.drive(self._load(way, self._quack, "t", rows, count, once=once), count),
        )

    def _load(self, way: clients.Way, address: str, table: str, rows: int, count: int, *, once: bool) -> clients.Load:
        if once:
            return clients.Load(way=way, address=address, table=table, rows=rows // count, writes=1)
        return clients.Load(way=way, address=address, table=table, rows=rows, seconds=self._seconds)

    def _inlining(self, count: int) -> Rate:
        return self._bench.direct(rows_of(1), count, inlined=True, seconds=self._seconds)

    def _in_process(self, rows: int) -> Contender:
        def run(count: int) -> Rate:
            table, batch = self._bench.new_table(self._small), rows_of(rows)
            # The first write reads the table's schema from the lake.
            self._bench.queue.enqueue(table, batch)
            return drive(lambda each: self._bench.queue.enqueue(table, each), batch, count, self._seconds)

        return Contender(side="in process", name="enqueue", run=run)


class InProcess:
    """A DuckLake with a SQLite catalog, without Catchment, with the given options."""

    def __init__(self, work: Path, options: dict[str, str]) -> None:
        address = LakeAddress(catalog=SqliteCatalog(path=work / "catalog.sqlite"), data_path=str(work / "data"))
        self._connection = open_connection(address, clock=SystemClock(), settings={})
        self._connection.execute(f"USE {address.name}")
        encoding.encode(self._connection, address.name, options)
        self._tables = 0

    def insert(self, count: int) -> Rate:
        """INSERT `count` Arrow rows into a new table."""
        rows = rows_of(count)
        self._tables += 1
        self._connection.register("arrow_rows", rows)
        self._connection.execute(f"CREATE TABLE t{self._tables} AS FROM temp.main.arrow_rows LIMIT 0")
        self._connection.register("arrow_rows", rows.__arrow_c_stream__())
        started = time.perf_counter()
        self._connection.execute(f"INSERT INTO t{self._tables} FROM temp.main.arrow_rows")
        elapsed = time.perf_counter() - started
        return Rate.of([elapsed], count, elapsed)


def measure(contest: Contest, count: int, rounds: int) -> list[dict[str, object]]:
    """Let the contenders take turns, print the results and return them."""
    print(f"\n{contest.title}, {count} client{'s' if count > 1 else ''}")
    found: dict[tuple[str, str], list[Rate]] = {}
    for _ in range(rounds):
        for each in contest.contenders:
            # Write back dirty pages, so that the syncs of the next contender do not wait for them.
            os.sync()
            found.setdefault((each.side, each.name), []).append(each.run(count))
    medians = {key: sorted(rates, key=lambda rate: rate.rows_per_s)[len(rates) // 2] for key, rates in found.items()}
    peers = list(dict.fromkeys(side for side, _ in found if side != "ours"))
    print(f"  {'way':28}{'rows/s':>12}{'p50 ms':>10}{'p99 ms':>10}", *(f"{'x ' + peer:>14}" for peer in peers), sep="")
    for (side, name), rate in medians.items():
        line = f"  {f'{side} {name}':28}{rate.rows_per_s:12,.0f}{rate.p50_ms:10.2f}{rate.p99_ms:10.2f}"
        if side == "ours":
            ratios = {peer: _ratio(found, (side, name), peer) for peer in peers}
            line += "".join(f"{ratios[peer]:14.2f}" for peer in peers)
            line += "   " + ", ".join(_verdict(ratios[bar.peer], bar) for bar in contest.bars)
        print(line, flush=True)
    return [
        {"contest": contest.title, "clients": count, "side": side, "name": name, **vars(rate)}
        for (side, name), rate in medians.items()
    ]


def _ratio(found: Mapping[tuple[str, str], Sequence[Rate]], ours: tuple[str, str], peer: str) -> float:
    """Return the median ratio of our rate to the fastest way of the peer, turn by turn."""
    theirs = [rates for (side, _), rates in found.items() if side == peer]
    best = [max(rates[turn].rows_per_s for rates in theirs) for turn in range(len(found[ours]))]
    return median(rate.rows_per_s / against for rate, against in zip(found[ours], best, strict=True))


def _verdict(ratio: float, bar: Bar) -> str:
    return f"{'ok' if ratio >= bar.least else 'BELOW'} {bar.least:g}x {bar.peer}"


def compare(work: Path, scale: float) -> list[dict[str, object]]:
    """Measure all contests, with one and with four clients."""
    rounds = ROUNDS if scale >= 1 else 1
    with (
        SparkRunner(Settings(home=work / "spark")) as runner,
        catchment_server(work / "home", flushes=False) as server,
        quack_server(work / "quack.duckdb", f"CREATE TABLE t AS {LOG_LIKE.format(rows=0)}") as quack,
    ):
        bench = Bench(work / "in_process", runner)
        contests = Contests(server, quack, bench, work, scale).all()
        found = [row for contest in contests for count in CLIENTS for row in measure(contest, count, rounds)]
        bench.buffer.close()
        bench.lake.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 ingests a million rows, and watches memory 10 min")
    parser.add_argument("--memory", action="store_true", help="watch the server's memory under load instead")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="catchment-bench-") as folder:
        rows = flat_memory(Path(folder), given.scale) if given.memory else compare(Path(folder), given.scale)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
