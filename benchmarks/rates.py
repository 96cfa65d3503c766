"""Throughput and latency of writers."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from benchmarks.leaves import LOG_LIKE


@dataclass(frozen=True)
class Rate:
    """Rows per second, and percentiles of the time of a write."""

    rows_per_s: float
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, latencies_s: Iterable[float], rows: int, elapsed_s: float) -> "Rate":
        """Compute the rate from the latencies of writes of `rows` rows each."""
        every = sorted(latencies_s)
        return cls(
            rows_per_s=len(every) * rows / elapsed_s,
            p50_ms=every[len(every) // 2] * 1000,
            p99_ms=every[int(len(every) * 0.99)] * 1000,
        )


def rows_of(count: int) -> pa.Table:
    """Return `count` rows that look like logs."""
    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        return connection.execute(LOG_LIKE.format(rows=count)).to_arrow_table()


def drive(write: Callable[[pa.Table], object], batch: pa.Table, writers: int, seconds: float) -> Rate:
    """Let `writers` threads write the batch repeatedly for `seconds`."""
    end = time.perf_counter() + seconds
    return drive_while(lambda: time.perf_counter() < end, write, batch, writers)


def drive_while(go_on: Callable[[], bool], write: Callable[[pa.Table], object], batch: pa.Table, writers: int) -> Rate:
    """Let `writers` threads write the batch repeatedly while `go_on()` is true."""
    latencies: list[list[float]] = [[] for _ in range(writers)]

    def one(mine: list[float]) -> None:
        while go_on():
            started = time.perf_counter()
            write(batch)
            mine.append(time.perf_counter() - started)

    threads = [threading.Thread(target=one, args=(mine,)) for mine in latencies]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    return Rate.of((each for mine in latencies for each in mine), batch.num_rows, elapsed)
