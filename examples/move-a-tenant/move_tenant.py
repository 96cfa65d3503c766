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

from catchment.app import App
from catchment.foundation.settings import load_settings
from catchment.lake import Lake
from catchment.tenants.control import ControlPlane
from catchment.tenants.model import ShardId, ShardInfo, TenantConfig, TenantId

A, B, T7 = ShardId("a"), ShardId("b"), TenantId(7)
ROWS, PAUSE_S = 10, 0.05


@contextmanager
def served(home: Path, shard: ShardId, control: Path) -> Iterator[ShardInfo]:
    """A server that is a shard; its home says where the control database is."""
    home.mkdir(parents=True)
    (home / "catchment.toml").write_text(f'control_db = "sqlite:{control}"\n')
    catchment = str(Path(sys.executable).with_name("catchment"))
    command = [catchment, "serve", "--home", str(home), "--port", "0", "--shard", shard.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            uri = server.stdout.readline().split()[1]
            yield ShardInfo(id=shard, region="default", location=uri, home=str(home))
        finally:
            server.terminate()


def write(uri: str, stop: Event) -> int:
    """Ten rows at a time, until it is told to stop; returns how many were acknowledged."""
    acked = 0
    with flight.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        while not stop.wait(PAUSE_S):
            rows = pa.table({"n": range(acked, acked + ROWS)})
            acked += cursor.adbc_ingest(
                "events", rows, mode="append", catalog_name="duckling_queue", db_schema_name=T7.schema
            )
    return acked


def main(folder: Path) -> None:
    control = folder.absolute() / "control.sqlite"
    homes = {shard: folder.absolute() / shard.name for shard in (A, B)}
    if control.exists():
        sys.exit(f"{folder} is in use already; name another folder.")
    with served(homes[A], A, control) as a, served(homes[B], B, control) as b, App(load_settings(homes[A])) as app:
        plane = ControlPlane(app.control_store, app.clock)
        for shard in (a, b):
            plane.update_topology(shard)
        plane.create_tenant(T7, name="seven", config=TenantConfig(), shard=A)
        with flight.connect(a.location, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA t7")
            cursor.execute("CREATE TABLE t7.events (n BIGINT)")

        stop = Event()
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(write, a.location, stop)
            try:
                report = app.tenants.move(T7, B, gc_window_s=0)
            finally:
                stop.set()
        print(f"t7 lives in {app.tenants.tenant(T7).shard}; writes waited for {report.pause_ms:.0f} ms at the switch")

    # The servers have ended, and have flushed what was buffered.
    with Lake.from_settings(load_settings(homes[B])) as lake:
        with lake.cursor() as cursor:
            found = cursor.execute("SELECT count(*), count(DISTINCT n) FROM t7.events").fetchall()[0]
        print(f"rows acknowledged: {writing.result()}; rows in the lake: {found[0]}")
        print("every row is there, once:", found == (writing.result(), writing.result()))
        print("audit:", "clean" if lake.audit().ok else "findings")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
