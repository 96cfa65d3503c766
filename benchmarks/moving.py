"""Benchmark of delivering Parquet files into a lake, against plain INSERTs of the same files.

    python -m benchmarks.moving --scale 1

(a) one INSERT transaction per leaf, (b) one INSERT for everything, (c) rewrite on Spark, (d) adopt
on Spark, and (e) as (b), with the Parquet options that Catchment sets. All ways write zstd, (a) and
(b) at DuckDB's default level, and all tables are compared by count and checksum afterwards. Ratios
are a peer's time over ours: above 1 means that ours is faster.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from benchmarks.encoding import OURS, ZSTD, encode
from benchmarks.leaves import make_leaves
from benchmarks.memory import peak_memory
from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Commit, Lake
from catchment.lake.commit import CreateTable
from catchment.pipeline import Deliverer, DeliveryReport, Mode, ParquetFiles, SparkRunner
from catchment.testing import EmbeddedPostgres

REPEATS = 5
SMALL_ROWS = 2_000
LARGE_ROWS = 300_000
PEERS = ("(a)", "(b)")


@dataclass(frozen=True)
class Way:
    """One way of bringing the files into the lake, timed."""

    name: str
    seconds: float
    files: int
    commit_s: float = 0.0


class Bench:
    """One lake, one Spark session, and the ways to bring files in."""

    def __init__(self, lake: Lake, runner: SparkRunner, settings: Settings) -> None:
        self._lake = lake
        self._deliverer = Deliverer(lake, runner, settings)
        self._tables = 0
        with lake.cursor() as cursor:
            encode(cursor, lake.name, ZSTD)

    def per_leaf(self, paths: list[Path]) -> Way:
        return self._timed("(a) INSERT per leaf", paths, lambda table: self._insert(table, [[path] for path in paths]))

    def single(self, paths: list[Path]) -> Way:
        return self._timed("(b) one INSERT", paths, lambda table: self._insert(table, [paths]))

    def single_as_ours(self, paths: list[Path]) -> Way:
        with self._lake.cursor() as cursor:
            encode(cursor, self._lake.name, OURS)
            way = self._timed("(e) the same, lighter", paths, lambda table: self._insert(table, [paths]))
            encode(cursor, self._lake.name, ZSTD)
        return way

    def rewrite(self, paths: list[Path]) -> Way:
        return self._timed("(c) rewrite", paths, lambda table: self._deliver(table, paths, Mode.REWRITE))

    def adopt(self, paths: list[Path]) -> Way:
        return self._timed("(d) adopt", paths, lambda table: self._deliver(table, paths, Mode.ADOPT))

    def bare(self, paths: list[Path], mode: Mode) -> None:
        """Deliver without comparing."""
        self._deliver(self._new_table(paths), paths, mode)

    def _timed(self, name: str, paths: list[Path], move: Callable[[TableId], DeliveryReport | None]) -> Way:
        table = self._new_table(paths)
        # Write back the pages of the previous way, so that this one does not pay for them.
        os.sync()
        started = time.perf_counter()
        report = move(table)
        seconds = time.perf_counter() - started
        self._compare(table, paths)
        return Way(name, seconds, self._files(table), report.commit_s if report else 0.0)

    def _new_table(self, paths: list[Path]) -> TableId:
        self._tables += 1
        table = TableId("bench", f"t{self._tables}")
        columns = ParquetFiles(paths[:1], table).columns()
        self._lake.commit(Commit(message="create", changes=(CreateTable(table=table, columns=columns),)))
        return table

    def _insert(self, table: TableId, groups: list[list[Path]]) -> None:
        with self._lake.cursor() as cursor:
            for group in groups:
                listed = sql.literals(map(str, group))
                query = f"INSERT INTO {table} FROM read_parquet({listed}, hive_partitioning = false)"
                cursor.execute(query)

    def _deliver(self, table: TableId, paths: list[Path], mode: Mode) -> DeliveryReport:
        report = self._deliverer.run(ParquetFiles(paths, table), mode=mode)
        assert report.ok, report.failures
        assert report.delivered == len(paths)
        return report

    def _compare(self, table: TableId, paths: list[Path]) -> None:
        sums = "SELECT count(*), sum(hash(COLUMNS(*)))"
        with self._lake.cursor() as cursor:
            listed = sql.literals(map(str, paths))
            there = cursor.execute(f"{sums} FROM {table}").fetchone()
            wanted = cursor.execute(f"{sums} FROM read_parquet({listed}, hive_partitioning = false)").fetchone()
        assert there == wanted, f"{table} differs from its files"

    def _files(self, table: TableId) -> int:
        query = f"SELECT count(*) FROM ducklake_list_files('lake', {sql.literal(table.name)}, schema => 'bench')"
        with self._lake.cursor() as cursor:
            row = cursor.execute(query).fetchone()
        return int(row[0]) if row else 0


def _in_turns(paths: list[Path], *ways: Callable[[list[Path]], Way]) -> list[Way]:
    """Return the median of each way; they take turns, so that a slow minute affects all of them."""
    turns = [[way(paths) for way in ways] for _ in range(REPEATS)]
    return [sorted(runs, key=lambda way: way.seconds)[REPEATS // 2] for runs in zip(*turns, strict=True)]


def _show(title: str, ways: list[Way], bars: dict[str, dict[str, float]]) -> list[dict[str, object]]:
    print(f"\n{title}")
    print(f"  {'way':22}{'seconds':>9}{'files':>8}{'commit':>9}{'x (a)':>9}{'x (b)':>9}   bars")
    by_name = {way.name[:3]: way.seconds for way in ways}
    rows: list[dict[str, object]] = []
    for way in ways:
        ratios: dict[str, float] = {peer: by_name[peer] / way.seconds for peer in PEERS if peer in by_name}
        wanted = bars.get(way.name[:3], {})
        verdict = ", ".join(
            f"{peer} {ratios[peer]:.2f} of {bar:g} {'ok' if ratios[peer] >= bar else 'BELOW'}"
            for peer, bar in wanted.items()
        )
        shown = "".join(f"{ratios[peer]:9.2f}" if peer in ratios else f"{'-':>9}" for peer in PEERS)
        print(f"  {way.name:22}{way.seconds:9.2f}{way.files:8}{way.commit_s:9.2f}{shown}   {verdict}")
        rows.append({"title": title, "way": way.name, "seconds": way.seconds, "files": way.files, **ratios})
    return rows


def _lake(catalog: str, home: Path, postgres: EmbeddedPostgres) -> Settings:
    url = f"postgres:{postgres.new_database()}" if catalog == "postgres" else f"{catalog}:{home / catalog / 'catalog'}"
    return Settings(home=home / catalog, lake_catalog=SecretStr(url))


def _run(scale: float, catalogs: list[str], work: Path) -> list[dict[str, object]]:
    counts = [max(4, int(count * scale)) for count in (100, 500, 2_000, 5_000)]
    print(f"Making {counts[-1]} small and {max(4, int(40 * scale))} large leaves in {work} …")
    small = make_leaves(work / "small", counts[-1], SMALL_ROWS)
    large = make_leaves(work / "large", max(4, int(40 * scale)), LARGE_ROWS)
    rows: list[dict[str, object]] = []
    postgres = EmbeddedPostgres()
    with SparkRunner(Settings(home=work / "spark")) as runner:
        for catalog in catalogs:
            settings = _lake(catalog, work, postgres)
            with Lake.from_settings(settings) as lake:
                bench = Bench(lake, runner, settings)
                if catalog == catalogs[0]:
                    rows += _memory(bench, small, large)
                bench.rewrite(small[:50])
                bench.adopt(small[:50])
                bars = {"(c)": {"(a)": 6.0, "(b)": 0.9}}
                if catalog == "duckdb":
                    bars["(d)"] = {"(a)": 10.0, "(b)": 1.2}
                some = small[: counts[2]]
                turns = (bench.single, bench.rewrite, bench.adopt, bench.single_as_ours)
                ways = [bench.per_leaf(some), *_in_turns(some, *turns)]
                rows += _show(f"{len(some)} leaves of {SMALL_ROWS} rows, {catalog} catalog", ways, bars)
                print(f"  adopting costs {ways[3].commit_s / len(some) * 1000:.2f} ms of commit per file")
                if catalog == catalogs[0]:
                    ways = _in_turns(large, *turns)
                    title = f"{len(large)} leaves of {LARGE_ROWS:,} rows, {catalog} catalog"
                    rows += _show(title, ways, {"(d)": {"(b)": 30.0}})
                    rows += _flat(bench, small, counts)
    postgres.close()
    return rows


def _memory(bench: Bench, small: list[Path], large: list[Path]) -> list[dict[str, object]]:
    # Separately, because sampling costs time; and first, because the peers leave the driver with a
    # larger heap.
    with peak_memory() as peak:
        bench.bare(small, Mode.REWRITE)
        bench.bare(small, Mode.ADOPT)
        bench.bare(large, Mode.REWRITE)
    print("\nPeak memory of our ways, MiB: " + ", ".join(f"{kind} {value:.0f}" for kind, value in peak.mib.items()))
    return [{"title": "peak memory, MiB", **peak.mib}]


def _flat(bench: Bench, small: list[Path], counts: list[int]) -> list[dict[str, object]]:
    print("\nMilliseconds per leaf, by number of leaves")
    rows: list[dict[str, object]] = []
    for count in counts:
        ways = _in_turns(small[:count], bench.rewrite, bench.adopt)
        per_leaf = {way.name: way.seconds / count * 1000 for way in ways}
        print(f"  {count:6}" + "".join(f"   {name} {value:6.2f}" for name, value in per_leaf.items()))
        rows.append({"title": "ms per leaf", "leaves": count, **per_leaf})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is 2,000 small leaves and 40 large ones")
    parser.add_argument("--catalogs", default="duckdb,sqlite,postgres")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="catchment-bench-") as folder:
        rows = _run(given.scale, given.catalogs.split(","), Path(folder))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
