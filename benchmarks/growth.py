"""Memory growth of the server: its RSS while four clients write, ingest and read, with flushes."""

import multiprocessing
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import linear_regression

from adbc_driver_flightsql import dbapi

from benchmarks.rates import rows_of
from benchmarks.serving import Server, catchment_server

CLIENTS = 4
MINUTES = 10.0
GROWTH_MAX = 1.1
_SAMPLE_S = 1.0


def flat_memory(work: Path, scale: float) -> list[dict[str, object]]:
    """Sample the server's memory under load; the first tenth counts as its start."""
    seconds = 60 * MINUTES * scale
    with catchment_server(work / "home") as server:
        samples = _watch(server, seconds)
    at = {"start": 0.0, "after the first tenth": seconds / 10, "end": seconds}
    found = {when: next(mib for moment, mib in samples if moment >= least) for when, least in at.items()}
    settled = [(moment / 60, mib) for moment, mib in samples if moment >= seconds / 2]
    slope = linear_regression(*zip(*settled, strict=True)).slope
    growth = found["end"] / found["after the first tenth"]
    print(f"\nRSS of the server in MiB, {CLIENTS} clients, {seconds / 60:.1f} minutes")
    print("  " + ", ".join(f"{when} {mib:.0f}" for when, mib in found.items()), end="")
    print(f"; slope of the second half {slope:+.2f} MiB a minute")
    print(f"  grew {growth:.2f}x: {'ok' if growth <= GROWTH_MAX else 'ABOVE'} {GROWTH_MAX}x")
    return [{**found, "slope_mib_per_minute": slope, "growth": growth, "samples": samples}]


def _watch(server: Server, seconds: float) -> list[tuple[float, float]]:
    """Return samples of (seconds, MiB) while clients work."""
    table = server.new_table(rows_of(1))
    context = multiprocessing.get_context("spawn")
    end = context.Event()
    workers = [context.Process(target=_work, args=(server.address, table, end)) for _ in range(CLIENTS)]
    for worker in workers:
        worker.start()
    samples: list[tuple[float, float]] = []
    started = time.monotonic()
    try:
        while not samples or samples[-1][0] < seconds:
            samples.append((time.monotonic() - started, server.rss_mib()))
            assert all(worker.is_alive() for worker in workers), "a client failed"
            time.sleep(_SAMPLE_S)
    finally:
        end.set()
        for worker in workers:
            worker.join()
    print(f"  {server.count(table):,} rows were flushed during the run")
    return samples


def _work(address: str, table: str, end: Event) -> None:
    """Write single rows, ingest batches and run queries, in turns."""
    batch = rows_of(1_000)
    values = tuple(batch.slice(0, 1).to_pylist()[0].values())
    text = f"INSERT INTO duckling_queue.{table} VALUES ({', '.join('?' * len(values))})"
    while not end.is_set():
        # A new connection for each turn, so that sessions open and close too.
        with dbapi.connect(address, autocommit=True) as connection, connection.cursor() as cursor:
            for _ in range(100):
                cursor.execute(text, values)
            for _ in range(5):
                cursor.adbc_ingest(table, batch, mode="append", db_schema_name="duckling_queue")
            cursor.execute(f"SELECT count(*), max(id) FROM main.{table}").fetchall()
            cursor.execute(f"SELECT * FROM main.{table} LIMIT 10000").fetch_arrow_table()
