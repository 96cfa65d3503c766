"""Benchmark of the queue against DuckLake itself: small durable writes, and their flush.

    python -m benchmarks.queue --scale 1

Enqueues: batches of 10 and 1,000 rows by 1, 8 and 32 writers, against (a) DuckLake with inlining
and (b) without, one commit per batch, with writers that take turns so that none loses a conflict.
Flush: from the buffer to the committed table, against one DuckDB INSERT of the same Arrow rows. All
in one run on one disk. Ratios are our rate over a peer's: above 1 means that ours is faster.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path

import duckdb
import pyarrow as pa
from pydantic import SecretStr

from benchmarks.encoding import ZSTD, encode
from benchmarks.rates import Rate, drive, drive_while, rows_of
from catchment.foundation import sql
from catchment.foundation.clock import SystemClock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Commit, Lake
from catchment.lake.commit import CreateTable
from catchment.pipeline import Deliverer, SparkRunner
from catchment.pipeline.flush import FILE_BYTES_MIN, FlushPipeline
from catchment.queue import DqCoordinator
from catchment.queue.incoming import columns_of
from catchment.queue.shared.shared_buffer import SharedBuffer

SECONDS = 4.0
PEER_SECONDS = 4.0
FLUSH_ROWS = 1_000_000
REPEATS = 5


class Bench:
    """A lake with a queue, and the peers."""

    def __init__(self, work: Path, runner: SparkRunner) -> None:
        self.settings = Settings(home=work, lake_catalog=SecretStr(f"sqlite:{work / 'catalog.sqlite'}"))
        self.lake = Lake.from_settings(self.settings)
        self.lake.open()
        with self.lake.cursor() as cursor:
            encode(cursor, self.lake.name, ZSTD)
        self.clock = SystemClock()
        self.buffer = SharedBuffer.from_settings(self.settings, clock=self.clock)
        self.pipeline = FlushPipeline(
            Deliverer(self.lake, runner, self.settings, file_bytes_min=FILE_BYTES_MIN), self.buffer
        )
        self.queue = DqCoordinator(
            buffer=self.buffer, lake=self.lake, flusher=self.pipeline, settings=self.settings, clock=self.clock
        )
        self._tables = 0

    def new_table(self, rows: pa.Table, *, inlined: int | None = None) -> TableId:
        self._tables += 1
        table = TableId("main", f"t{self._tables}")
        change = CreateTable(table=table, columns=columns_of(rows.schema))
        self.lake.commit(Commit(message="create", changes=(change,)))
        if inlined is not None:
            with self.lake.cursor() as cursor:
                call = f"{sql.identifier(self.lake.name)}.set_option"
                cursor.execute(f"CALL {call}('data_inlining_row_limit', {inlined}, table_name => '{table.name}')")
        return table

    def enqueue(self, batch: pa.Table, writers: int) -> Rate:
        table = self.new_table(batch)
        rate = drive(lambda rows: self.queue.enqueue(table, rows), batch, writers, SECONDS)
        self.queue.force_flush_all()
        return rate

    def direct(self, batch: pa.Table, writers: int, *, inlined: bool, seconds: float = PEER_SECONDS) -> Rate:
        table = self.new_table(batch, inlined=batch.num_rows if inlined else 0)
        turn = threading.Lock()
        local = threading.local()

        def write(rows: pa.Table) -> None:
            if not hasattr(local, "cursor"):
                local.cursor = self.lake.cursor()
                local.cursor.register("batch", rows)
            with turn:
                local.cursor.execute(f"INSERT INTO {table} FROM temp.main.batch")

        return drive(write, batch, writers, seconds)


def enqueues(bench: Bench) -> list[dict[str, object]]:
    print(f"\n{'writers':>8}{'rows':>7}{'queue rows/s':>14}{'p50 ms':>9}{'p99 ms':>9}", end="")
    print(f"{'(a) rows/s':>12}{'(b) rows/s':>12}{'x (a)':>8}{'x (b)':>8}   bars")
    found: list[dict[str, object]] = []
    for size in (10, 1_000):
        batch = rows_of(size)
        for writers in (1, 8, 32):
            ours = bench.enqueue(batch, writers)
            inlined = bench.direct(batch, writers, inlined=True)
            plain = bench.direct(batch, writers, inlined=False)
            a, b = ours.rows_per_s / inlined.rows_per_s, ours.rows_per_s / plain.rows_per_s
            bar = ""
            if (size, writers) == (10, 8):
                bar = f"{_verdict(a, 20)} 20x (a), {'ok' if ours.p99_ms < 20 else 'ABOVE'} p99 20 ms"
            print(
                f"{writers:8}{size:7}{ours.rows_per_s:14,.0f}{ours.p50_ms:9.2f}{ours.p99_ms:9.2f}"
                f"{inlined.rows_per_s:12,.0f}{plain.rows_per_s:12,.0f}{a:8.1f}{b:8.1f}   {bar}"
            )
            found.append({"writers": writers, "rows": size, "rows_per_s": ours.rows_per_s, "a": a, "b": b})
    return found


def flushes(bench: Bench, scale: float) -> list[dict[str, object]]:
    count = max(50_000, int(FLUSH_ROWS * scale))
    rows = rows_of(count)
    batches = rows.to_batches(max_chunksize=50_000)
    print(f"\nFlush of {count:,} rows, {rows.nbytes / 1e6:,.0f} MB of Arrow, buffer to committed, medians of {REPEATS}")
    ours, theirs = [], []
    for _ in range(REPEATS + 1):
        table = bench.new_table(rows)
        for batch in batches:
            bench.queue.enqueue(table, batch)
        os.sync()
        started = time.perf_counter()
        report = bench.queue.force_flush_all()
        ours.append(time.perf_counter() - started)
        assert report.rows == count
        peer = bench.new_table(rows)
        os.sync()
        with bench.lake.cursor() as cursor:
            cursor.register("arrow_rows", rows)
            started = time.perf_counter()
            cursor.execute(f"INSERT INTO {peer} FROM temp.main.arrow_rows")
            theirs.append(time.perf_counter() - started)
            assert _same(cursor, table, peer), f"{table} and {peer} differ"
    # The first run includes the start of Spark.
    mine, peers = sorted(ours[1:])[REPEATS // 2], sorted(theirs[1:])[REPEATS // 2]
    ratio = peers / mine
    print(f"  queue {mine:.2f} s, one INSERT {peers:.2f} s: {ratio:.2f} of 0.7 {_verdict(ratio, 0.7)}")
    return [{"title": "flush", "seconds": mine, "peer_seconds": peers, "ratio": ratio}]


def _same(cursor: duckdb.DuckDBPyConnection, one: TableId, other: TableId) -> bool:
    sums = [cursor.execute(f"SELECT count(*), sum(hash(COLUMNS(*))) FROM {table}").fetchone() for table in (one, other)]
    return sums[0] == sums[1]


def large_files(bench: Bench, scale: float) -> list[dict[str, object]]:
    """Flush rows that do not compress, and print the sizes of the files."""
    count = max(100_000, int(1_500_000 * scale))
    with duckdb.connect() as connection:
        rows = connection.execute(
            f"SELECT i AS id, hash(i, 1) AS a, hash(i, 2) AS b, hash(i, 3)::VARCHAR AS c, uuid()::VARCHAR AS d, "
            f"hash(i, 4) AS e FROM range({count}) r(i)"
        ).to_arrow_table()
    table = bench.new_table(rows)
    for batch in rows.to_batches(max_chunksize=50_000):
        bench.queue.enqueue(table, batch)
    report = bench.queue.force_flush_all()
    with bench.lake.cursor() as cursor:
        query = f"SELECT data_file_size_bytes FROM ducklake_list_files('lake', {sql.literal(table.name)})"
        sizes = sorted(row[0] for row in cursor.execute(query).fetchall())
    least = sizes[0] / 1e6
    print(f"\nFiles of a buffer with {report.rows:,} rows that do not compress, MB: ", end="")
    print(", ".join(f"{size / 1e6:.0f}" for size in sizes), f"  64 {_verdict(least, 64 if sum(sizes) > 64e6 else 0)}")
    return [{"title": "files", "bytes": sizes}]


def while_flushing(bench: Bench, scale: float) -> list[dict[str, object]]:
    """Measure enqueues by 8 writers, alone and during a flush of another table."""
    small, big = rows_of(10), rows_of(max(100_000, int(FLUSH_ROWS * scale)))
    table, flushed = bench.new_table(small), bench.new_table(big)
    alone = drive(lambda rows: bench.queue.enqueue(table, rows), small, 8, SECONDS)
    bench.queue.force_flush_all()
    for _ in range(2):
        for batch in big.to_batches(max_chunksize=50_000):
            bench.queue.enqueue(flushed, batch)
    done: list[int] = []
    flush = threading.Thread(target=lambda: done.append(bench.queue.force_flush_all().rows))
    flush.start()
    during = drive_while(flush.is_alive, lambda rows: bench.queue.enqueue(table, rows), small, 8)
    flush.join()
    ratio = during.rows_per_s / alone.rows_per_s
    print(
        f"\nEnqueues by 8 writers of 10 rows: alone {alone.rows_per_s:,.0f} rows/s (p99 {alone.p99_ms:.1f} ms), while "
        f"{done[0]:,} rows are flushed {during.rows_per_s:,.0f} (p99 {during.p99_ms:.1f} ms): "
        f"{ratio:.2f} of 0.5 {_verdict(ratio, 0.5)}"
    )
    return [{"title": "while flushing", "alone": alone.rows_per_s, "during": during.rows_per_s, "ratio": ratio}]


def _verdict(ratio: float, bar: float) -> str:
    return "ok" if ratio >= bar else "BELOW"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 flushes a million rows")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="catchment-bench-") as folder:
        work = Path(folder)
        with SparkRunner(Settings(home=work / "spark")) as runner:
            bench = Bench(work / "home", runner)
            rows = [
                *enqueues(bench),
                *flushes(bench, given.scale),
                *while_flushing(bench, given.scale),
                *large_files(bench, given.scale),
            ]
            bench.buffer.close()
            bench.lake.close()
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
