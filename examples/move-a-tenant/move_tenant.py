"""Serve two shards, write to a tenant of the first, and move it to the second meanwhile."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import adbc_driver_flightsql.dbapi as flight
import pyarrow as pa

import catchment

A, B, T7 = "a", "b", "t7"
ROWS, PAUSE_S = 10, 0.05


@contextmanager
def served(home: Path, shard: str, control: Path) -> Iterator[str]:
    """Serve a home as a shard of the control database, and yield the server's address."""
    home.mkdir(parents=True)
    (home / "catchment.toml").write_text(f'control_db = "sqlite:{control}"\n')
    program = str(Path(sys.executable).with_name("catchment"))
    command = [program, "serve", "--home", str(home), "--port", "0", "--shard", shard]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            uri = server.stdout.readline().split()[1]
            with catchment.open(home) as c:
                c.tenants.add_shard(shard, location=uri)
            yield uri
        finally:
            server.terminate()


def write(uri: str, stop: Event) -> int:
    """Write ten rows at a time until `stop` is set; return how many were acknowledged."""
    acked = 0
    with flight.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        while not stop.wait(PAUSE_S):
            rows = pa.table({"n": range(acked, acked + ROWS)})
            acked += cursor.adbc_ingest("events", rows, mode="append", catalog_name="duckling_queue", db_schema_name=T7)
    return acked


def main(folder: Path) -> None:
    control = folder.absolute() / "control.sqlite"
    homes = {shard: folder.absolute() / shard for shard in (A, B)}
    if control.exists():
        sys.exit(f"{folder} is in use already; name another folder.")
    with served(homes[A], A, control) as a, served(homes[B], B, control), catchment.open(homes[A]) as c:
        c.tenants.create(T7, name="seven", shard=A)
        with flight.connect(a, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA t7")
            cursor.execute("CREATE TABLE t7.events (n BIGINT)")

        stop = Event()
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(write, a, stop)
            try:
                report = c.tenants.move(T7, B, gc_window_s=0)
            finally:
                stop.set()
        shard = c.tenants.tenant(T7).shard
        print(f"t7's primary is {shard}; writes waited for {report.pause_ms:.0f} ms at the switch")

    # The servers have ended, and have flushed their buffers.
    acked = writing.result()
    with catchment.open(homes[B]) as c:
        (found,) = c.lake.query("SELECT count(*) AS total, count(DISTINCT n) AS different FROM t7.events").to_pylist()
        print(f"rows acknowledged: {acked}; rows in the lake: {found['total']}")
        print("every row is there, once:", found == {"total": acked, "different": acked})
        print("audit:", "clean" if c.audit().ok else "findings")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
