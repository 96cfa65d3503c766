"""Benchmark of copying a tenant's history into another lake, against `cp` of the same files.

    python -m benchmarks.tenants --scale 1

On one file system a backfill creates hard links. Between two, it copies the files as `cp` does.
Files with deleted rows are rewritten, which is slower than copying: a tenth of them, shown without
a bar. Every result is compared with the source by count and digest. Spark is warm. Ratios are our
speed over that of `cp` in the same run: above 1 means that ours is faster.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import duckdb
from pydantic import SecretStr

from benchmarks.leaves import LOG_LIKE
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.digest import table_digest
from catchment.lake.snapshot_schema import schema_at
from catchment.pipeline import Deliverer, SparkRunner
from catchment.pipeline.backfill import Backfill

REPEATS = 3
SCHEMA = "t7"
FILES = 40
FILE_ROWS = 600_000
BACKFILL_BAR = 0.5


@dataclass(frozen=True)
class Way:
    """One way of copying the tenant's files, timed; `peer` names the way to compare it with."""

    name: str
    megabytes: float
    seconds: float
    peer: str | None = None
    bar: float | None = None

    @property
    def megabytes_per_s(self) -> float:
        return self.megabytes / self.seconds


class Copying:
    """A lake with a tenant, and target folders on two file systems."""

    def __init__(self, runner: SparkRunner, source: Lake, here: Path, there: Path) -> None:
        self._runner = runner
        self._source = source
        self._folders = {"same disk": here, "another": there}
        self._runs = 0

    def ways(self) -> list[Way]:
        """Measure every way; each peer comes before the ways that are compared with it."""
        snapshot = self._source.newest_snapshot()
        with self._source.cursor() as cursor:
            cursor.execute(f"DELETE FROM {SCHEMA}.log WHERE id % 1000 = 5 AND id // {FILE_ROWS} % 10 = 0")
        changed = self._source.newest_snapshot()
        found = []
        for place in self._folders:
            peer = f"cp, {place}"
            found += [
                self._median(peer, place, snapshot),
                self._median(f"backfill, {place}", place, snapshot, peer=peer, bar=BACKFILL_BAR),
                self._median(f"backfill, a tenth rewritten, {place}", place, changed, peer=peer),
            ]
        return found

    def _median(
        self, name: str, place: str, snapshot: int, *, peer: str | None = None, bar: float | None = None
    ) -> Way:
        paths = [file.path for table in schema_at(self._source, SCHEMA, snapshot) for file in table.files]
        megabytes = sum(Path(path).stat().st_size for path in paths) / 1e6
        times = []
        for _ in range(REPEATS):
            self._runs += 1
            folder = self._folders[place] / str(self._runs)
            folder.mkdir(parents=True)
            times.append(self._copy(paths, folder) if peer is None else self._backfill(folder, snapshot))
            shutil.rmtree(folder)
        return Way(name, megabytes, sorted(times)[len(times) // 2], peer, bar)

    def _copy(self, paths: list[str], folder: Path) -> float:
        os.sync()
        started = time.perf_counter()
        subprocess.run(["cp", *paths, str(folder)], check=True)
        return time.perf_counter() - started

    def _backfill(self, folder: Path, snapshot: int) -> float:
        settings = _settings(folder)
        with Lake.from_settings(settings) as target:
            os.sync()
            started = time.perf_counter()
            backfill = Backfill(self._source, Deliverer(target, self._runner, settings))
            backfill.run(backfill.plan(SCHEMA, snapshot, "bench"))
            elapsed = time.perf_counter() - started
            self._check(target, snapshot)
        return elapsed

    def _check(self, target: Lake, snapshot: int) -> None:
        for past in schema_at(self._source, SCHEMA, snapshot):
            name, columns = past.table.id, past.table.columns
            with self._source.snapshot() as one, target.snapshot() as other:
                wanted = table_digest(one, self._source.name, name, columns, snapshot=snapshot)
                assert table_digest(other, target.name, name, columns) == wanted, f"{name} differs from the source"


def backfill_against_cp(scale: float, work: Path) -> list[dict[str, object]]:
    """Copy a tenant's history by backfill and by `cp`, and print the comparison."""
    files = max(2, int(FILES * scale))
    print(f"Making a tenant with {files} files of {FILE_ROWS:,} rows in {work} …")
    with ExitStack() as stack:
        source = stack.enter_context(Lake.from_settings(_settings(work / "source")))
        with source.cursor() as cursor:
            cursor.execute("SET enable_progress_bar = false")
            cursor.execute(f"CREATE SCHEMA {SCHEMA}")
            cursor.execute(f"CREATE TABLE {SCHEMA}.log AS {LOG_LIKE.format(rows=0)}")
            # Generated once: that takes several times as long as writing the rows.
            cursor.execute(f"CREATE TEMP TABLE made AS {LOG_LIKE.format(rows=FILE_ROWS)}")
            for at in range(files):
                moved = f"SELECT * REPLACE (id + {at * FILE_ROWS} AS id) FROM temp.made"
                cursor.execute(f"INSERT INTO {SCHEMA}.log {moved}")
            cursor.execute("DROP TABLE temp.made")
        there = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catchment-bench-", dir="/dev/shm")))
        runner = stack.enter_context(SparkRunner(Settings(home=work / "spark")))
        runner.context.parallelize(range(4), 4).map(_warm).collect()
        return _show(f"{files} files of a tenant", Copying(runner, source, work / "here", there).ways())


def _settings(folder: Path) -> Settings:
    return Settings(home=folder, lake_catalog=SecretStr(f"sqlite:{folder / 'catalog'}"))


def _warm(number: int) -> int:
    duckdb.sql("SELECT 1").fetchall()
    return number


def _show(title: str, ways: list[Way]) -> list[dict[str, object]]:
    print(f"\n{title}")
    print(f"  {'way':40}{'MB':>8}{'seconds':>9}{'MB/s':>9}{'x cp':>8}   bar")
    speeds = {way.name: way.megabytes_per_s for way in ways}
    rows: list[dict[str, object]] = []
    for way in ways:
        ratio = way.megabytes_per_s / speeds[way.peer] if way.peer else None
        shown = "-" if ratio is None else f"{ratio:.2f}"
        verdict = "" if ratio is None or way.bar is None else f"{way.bar:g} {'ok' if ratio >= way.bar else 'BELOW'}"
        print(f"  {way.name:40}{way.megabytes:8.0f}{way.seconds:9.2f}{way.megabytes_per_s:9.0f}{shown:>8}   {verdict}")
        rows.append({"way": way.name, "seconds": way.seconds, "megabytes_per_s": way.megabytes_per_s, "ratio": ratio})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is a tenant with 40 files of 600,000 rows")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="catchment-bench-") as folder:
        rows = backfill_against_cp(given.scale, Path(folder))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
