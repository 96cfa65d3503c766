"""Benchmark of the legacy import, end to end, against its design document and a single INSERT.

    python -m benchmarks.legacy --scale 1

(a) is the design document's algorithm: a transaction per leaf, and each leaf is moved afterwards.
(b) is one INSERT of everything into the same partitioned table; nothing is moved or verified. Ours
includes detection, reading every footer, the move, Spark, digests, one ledger entry per leaf, and
the backup. Each way runs on a separate copy of the tree, and its result is compared with the source
by count and checksum. Spark is warm. Ratios are a peer's time over ours: above 1 means that ours is
faster.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
from pydantic import SecretStr

from benchmarks.encoding import ZSTD, encode
from catchment.foundation import sql
from catchment.foundation.clock import SystemClock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Commit, Lake
from catchment.lake.commit import CreateTable
from catchment.lake.tables import PartitionKey
from catchment.lake.types import Column
from catchment.pipeline import Deliverer, Mode, SparkRunner
from catchment.pipeline.legacy.folders import ImportFolders
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.pipeline.legacy.job import BYTES_PER_COMMIT_MAX, UNITS_PER_COMMIT_MAX, LegacyImport
from catchment.pipeline.plan import ADOPT_BYTES_MIN
from tests.pipeline.legacy.generated_tree import KEYS, LegacyTable, TreeShape, make_legacy_home

REPEATS = 3
TABLE = "aws_cloudtrail_log"
CRUMB_ROWS = 2_000
LARGE_ROWS = 600_000


@dataclass(frozen=True)
class Way:
    """One way of importing the tree, timed."""

    name: str
    seconds: float
    files: int


class Bench:
    """A tree of legacy data, a lake for each way, and one Spark session."""

    def __init__(self, runner: SparkRunner, work: Path, source: Path, catalog: str) -> None:
        self._runner = runner
        self._work = work
        self._source = source
        self._catalog = catalog
        self._runs = 0
        self.leaves = sum(1 for _ in source.rglob("tp_date=*"))

    def per_leaf(self) -> Way:
        return self._timed("(a) per leaf", self._per_leaf)

    def single(self) -> Way:
        return self._median("(b) one INSERT", self._single)

    def ours(self, name: str, options: ImportOptions) -> Way:
        return self._median(name, lambda lake, home: self._import(lake, home, options))

    def _median(self, name: str, work: Callable[[Lake, Path], None]) -> Way:
        runs = sorted((self._timed(name, work) for _ in range(REPEATS)), key=lambda way: way.seconds)
        return runs[len(runs) // 2]

    def _timed(self, name: str, work: Callable[[Lake, Path], None]) -> Way:
        with self._scene() as (lake, home):
            os.sync()
            started = time.perf_counter()
            work(lake, home)
            seconds = time.perf_counter() - started
            return Way(name, seconds, self._check(lake))

    @contextmanager
    def _scene(self) -> Iterator[tuple[Lake, Path]]:
        """A lake without tables, and a copy of the tree by hard links."""
        self._runs += 1
        folder = self._work / f"{self._catalog}-{self._runs}"
        home = folder / "tailpipe"
        shutil.copytree(self._source, home, copy_function=os.link)
        with Lake.from_settings(self._settings(folder)) as lake:
            yield lake, home
        shutil.rmtree(folder)

    def _settings(self, folder: Path) -> Settings:
        url = f"{self._catalog}:{folder / 'lake' / 'catalog'}"
        return Settings(home=folder / "lake", lake_catalog=SecretStr(url))

    def _import(self, lake: Lake, home: Path, options: ImportOptions) -> None:
        settings = self._settings(home.parent)
        job = LegacyImport(
            ImportFolders.tailpipe(home),
            options,
            find_lake=lambda: lake,
            deliverer=lambda: Deliverer(
                lake,
                self._runner,
                settings,
                units_per_commit_max=UNITS_PER_COMMIT_MAX,
                bytes_per_commit_max=BYTES_PER_COMMIT_MAX,
            ),
            parallelism=self._runner.parallelism,
            adopt_bytes_min=ADOPT_BYTES_MIN,
            data_path=Path(lake.address.data_path),
            clock=SystemClock(),
        )
        report = job.run(job.plan())
        assert report.ok, report.failures

    def _per_leaf(self, lake: Lake, home: Path) -> None:
        """Follow the design: detect, prepare, identify, a transaction per leaf, finalize."""
        data, migration = home / "data", home / "migration"
        (migration / "migrated").mkdir(parents=True)
        data.rename(migration / "migrating")
        root = migration / "migrating" / "default"
        self._create(lake, next(root.rglob("*.parquet")))
        with lake.cursor() as cursor:
            encode(cursor, lake.name, ZSTD)
            for leaf in sorted({path.parent for path in root.rglob("*.parquet")}):
                cursor.execute(self._insert(leaf / "*.parquet"))
                target = migration / "migrated" / "default" / leaf.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                leaf.rename(target)
        (root / "tailpipe.db").rename(migration / "migrated" / "default" / "tailpipe.db")

    def _single(self, lake: Lake, home: Path) -> None:
        root = home / "data" / "default"
        self._create(lake, next(root.rglob("*.parquet")))
        with lake.cursor() as cursor:
            encode(cursor, lake.name, ZSTD)
            cursor.execute(self._insert(root / "*" / "*" / "*" / "*" / "*.parquet"))

    def _insert(self, pattern: Path) -> str:
        return f"INSERT INTO {TABLE} BY NAME {_reading(pattern)}"

    def _create(self, lake: Lake, sample: Path) -> None:
        with lake.cursor() as cursor:
            described = cursor.execute(f"DESCRIBE {_reading(sample)}").fetchall()
        columns = tuple(Column(name=row[0], type=row[1]) for row in described)
        keys = tuple(PartitionKey(column=key) for key in KEYS)
        change = CreateTable(table=TableId("main", TABLE), columns=columns, partition_by=keys)
        lake.commit(Commit(message="create", changes=(change,)))

    def _check(self, lake: Lake) -> int:
        sums = f"SELECT count(*), sum(hash(COLUMNS(* EXCLUDE ({', '.join(KEYS)}, tp_table)))), sum(hash(tp_date))"
        source = _reading(self._source / "data" / "default" / "*" / "*" / "*" / "*" / "*.parquet")
        with lake.cursor() as cursor:
            there = cursor.execute(f"{sums} FROM {TABLE}").fetchone()
            wanted = cursor.execute(f"{sums} FROM ({source})").fetchone()
            assert there == wanted, "the lake differs from the source"
            row = cursor.execute(f"SELECT count(*) FROM ducklake_list_files('lake', '{TABLE}')").fetchone()
        return int(row[0]) if row else 0


def _reading(pattern: Path) -> str:
    types = "{'tp_table': 'VARCHAR', 'tp_partition': 'VARCHAR', 'tp_index': 'VARCHAR', 'tp_date': 'DATE'}"
    return f"FROM read_parquet({sql.literal(str(pattern))}, hive_partitioning = true, hive_types = {types})"


def _warm(number: int) -> int:
    duckdb.sql("SELECT 1").fetchall()
    return number


def _show(title: str, ways: list[Way], bars: dict[str, dict[str, float]]) -> list[dict[str, object]]:
    print(f"\n{title}")
    print(f"  {'way':34}{'seconds':>9}{'files':>8}{'x (a)':>9}{'x (b)':>9}   bars")
    peers = {way.name[:3]: way.seconds for way in ways if way.name.startswith("(")}
    rows: list[dict[str, object]] = []
    for way in ways:
        ratios = {peer: seconds / way.seconds for peer, seconds in peers.items()}
        verdict = ", ".join(
            f"{peer} {ratios[peer]:.2f} of {bar:g} {'ok' if ratios[peer] >= bar else 'BELOW'}"
            for peer, bar in bars.get(way.name, {}).items()
        )
        shown = "".join(f"{ratios[peer]:9.2f}" if peer in ratios else f"{'-':>9}" for peer in ("(a)", "(b)"))
        print(f"  {way.name:34}{way.seconds:9.2f}{way.files:8}{shown}   {verdict}")
        rows.append({"title": title, "way": way.name, "seconds": way.seconds, "files": way.files, **ratios})
    return rows


def _run(scale: float, catalogs: list[str], work: Path) -> list[dict[str, object]]:
    crumbs, large = max(8, int(2_000 * scale)), max(2, int(40 * scale))
    print(f"Making {crumbs} crumbs and {large} large leaves in {work} …")
    trees = {}
    for name, leaves, rows_each in (("crumbs", crumbs, CRUMB_ROWS), ("large", large, LARGE_ROWS)):
        table = LegacyTable(name=TABLE, shape=TreeShape.CLOUDTRAIL, leaves=leaves, rows_per_file=rows_each)
        trees[name] = make_legacy_home(work / name, tables=[table]).home
    with SparkRunner(Settings(home=work / "spark")) as runner:
        runner.context.parallelize(range(4), 4).map(_warm).collect()
        return [row for catalog in catalogs for row in _catalog(runner, catalog, work, trees)]


def _catalog(runner: SparkRunner, catalog: str, work: Path, trees: dict[str, Path]) -> list[dict[str, object]]:
    bench = Bench(runner, work, trees["crumbs"], catalog)
    ways = [
        bench.per_leaf(),
        bench.single(),
        bench.ours("auto", ImportOptions()),
        bench.ours("rewrite", ImportOptions(mode=Mode.REWRITE)),
        bench.ours("auto, unpartitioned", ImportOptions(partition_by=())),
    ]
    title = f"{bench.leaves} crumbs of {CRUMB_ROWS:,} rows, {catalog} catalog"
    rows = _show(title, ways, {"auto": {"(a)": 5.0, "(b)": 0.8}})
    bench = Bench(runner, work, trees["large"], catalog)
    ways = [
        bench.single(),
        bench.ours("auto, without digests", ImportOptions(digests=False)),
        bench.ours("auto", ImportOptions()),
    ]
    title = f"{bench.leaves} leaves of {LARGE_ROWS:,} rows, {catalog} catalog"
    return rows + _show(title, ways, {"auto, without digests": {"(b)": 30.0}, "auto": {"(b)": 3.0}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is 2,000 crumbs and 40 large leaves")
    parser.add_argument("--catalogs", default="sqlite,duckdb")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="catchment-bench-") as folder:
        rows = _run(given.scale, given.catalogs.split(","), Path(folder))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
