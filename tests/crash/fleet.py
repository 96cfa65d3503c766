"""Shards in their own processes with one control database, and tenants that are written to."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as flight
from pydantic import SecretStr

from catchment.control import ControlDatabase
from catchment.foundation.clock import SystemClock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.tenants.control_store import ControlStore
from catchment.tenants.gateway import TenantGateway
from catchment.tenants.model import ShardId, ShardInfo, TenantConfig, TenantId
from catchment.tenants.router import TenantRouter
from catchment.tenants.transport.remote_shard import Remotes
from tests.queue.queues import assert_drained, open_queue
from tests.repo.source_tree import ROOT
from tests.sample_events import rows_of
from tests.shortcuts import warm
from tests.tenants.two_shards import A, B, Writers, events


class ShardProcess:
    """A shard's server in a process of its own, on the port that it had before."""

    def __init__(self, home: Path, shard: ShardId, control: str) -> None:
        self.home = home
        self.port = 0
        self._shard = shard
        self._control = control
        self._process: warm.Process | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.crash.shard_child", str(self.home), self._shard.name, self._control]
        with (self.home / "shard.err").open("a") as err:
            self._process = warm.Process(
                [*command, str(self.port)],
                cwd=ROOT,
                stdin=warm.PIPE,
                stdout=warm.PIPE,
                stderr=err,
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline().split()
        assert said, (self.home / "shard.err").read_text()
        self.port = int(said[1])

    def arm(self, point: str) -> None:
        """Have it end at a crash point."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        print(point, file=process.stdin, flush=True)
        assert process.stdout.readline() == "armed\n"

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What a statement gives."""
        uri = f"grpc://127.0.0.1:{self.port}"
        with flight.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
            return list(cursor.execute(statement).fetchall())

    def wait(self) -> int:
        """Wait until it has ended by itself."""
        code = self._running().wait(timeout=60)
        self._close()
        return code

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close()

    def _close(self) -> None:
        process, self._process = self._running(), None
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def _running(self) -> warm.Process:
        assert self._process is not None
        return self._process


class Fleet:
    """Two shards in processes, and the control database that they share."""

    def __init__(self, folder: Path) -> None:
        clock = SystemClock()
        self.control = f"sqlite:{folder / 'control.sqlite'}"
        self.settings = Settings(home=folder, control_db=SecretStr(self.control))
        self.store = ControlStore(ControlDatabase.open(self.settings, clock=clock), clock=clock)
        self.remotes = Remotes(self.settings)
        # Tenants whose rows were found to be right, where they live, and what was written.
        self.moved: list[tuple[TenantId, ShardId, Writers]] = []
        self.shards = {shard: ShardProcess(folder / shard.name, shard, self.control) for shard in (A, B)}
        for shard, process in self.shards.items():
            process.start()
            location = f"grpc://127.0.0.1:{process.port}"
            self.store.add_shard(ShardInfo(id=shard, region="eu", location=location, home=str(process.home)))

    def gateway(self) -> TenantGateway:
        router = TenantRouter(self.store, route_seconds_max=3600, routes_max=100)
        return TenantGateway(router, self.remotes.connect, clock=SystemClock())

    def mover(self, tenant: TenantId, what: str, *points: str) -> warm.Process:
        arguments = [self.control, str(tenant), A.name, B.name, what, *points]
        return warm.Process([sys.executable, "-m", "tests.crash.mover_child", *arguments], cwd=ROOT)

    def move(self, tenant: TenantId, what: str, *points: str) -> int:
        """Run a mover to its end; what it exits with."""
        with self.mover(tenant, what, *points) as process:
            return process.wait(timeout=120)

    def close(self) -> None:
        self.remotes.close()
        for process in self.shards.values():
            process.kill()


@contextmanager
def fleet_in(folder: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        fleet = Fleet(folder)
        stack.callback(fleet.close)
        yield fleet
        assert_drained_once(fleet)


_numbers = count(1)


def new_tenant(fleet: Fleet) -> TenantId:
    """A tenant in the first shard, with a row in the lake and one in the buffer."""
    tenant = TenantId(next(_numbers))
    fleet.store.create_tenant(tenant, str(tenant), TenantConfig(), A)
    fleet.gateway().signal_for_tenant(tenant, "events", events(-1))
    return tenant


def assert_once(fleet: Fleet, tenant: TenantId, home: ShardId, writers: Writers) -> None:
    """The primary has each acknowledged row once, and the other shard nothing of the tenant."""
    writers.acked.add(-1)
    for shard, process in fleet.shards.items():
        tables = process.rows(f"SELECT table_name FROM duckdb_tables() WHERE schema_name = '{tenant.schema}'")
        assert tables == ([("events",)] if shard == home else [])
        if shard != home:
            files = Settings(home=process.home).data_path
            assert list((Path(files) / tenant.schema).rglob("*.parquet")) == []
    writers.assert_once(
        [row[0] for row in fleet.shards[home].rows(f"SELECT id FROM catchment_fresh.{tenant.schema}.events")]
    )
    fleet.moved.append((tenant, home, writers))


def assert_drained_once(fleet: Fleet) -> None:
    """The same without servers, after a flush; and the audits agree."""
    for shard, process in fleet.shards.items():
        process.kill()
        with open_queue(Settings(home=process.home)) as queue:
            queue.force_flush_all()
            assert_drained(queue)
            tables = queue.lake.tables()
            for tenant, home, writers in fleet.moved:
                table = TableId(tenant.schema, "events")
                assert (table in tables) == (shard == home)
                if shard == home:
                    writers.assert_once([int(str(row[0])) for row in rows_of(queue.lake, f"SELECT id FROM {table}")])
