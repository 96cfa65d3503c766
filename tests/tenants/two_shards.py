"""Two shards in one process, or in two, with a tenant on the first."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pydantic import SecretStr

from catchment.control import ControlDatabase
from catchment.errors import CatchmentError, CommitUnknownError, ShardUnreachableError
from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline.tenant_history import ShardBackfill
from catchment.queue import DqCoordinator
from catchment.tenants.control_client import ControlClient
from catchment.tenants.control_store import ControlStore
from catchment.tenants.gateway import TenantGateway
from catchment.tenants.migration import TenantMigration
from catchment.tenants.model import (
    ShardId,
    ShardInfo,
    TenantConfig,
    TenantId,
)
from catchment.tenants.router import TenantRouter
from catchment.tenants.shard import Admission, TenantShard, Waits
from catchment.tenants.shard_api import ShardNode
from catchment.testing import InlineRunner
from tests.queue.queues import open_queue
from tests.shortcuts.made_lakes import put_lake
from tests.waiting import BEAT_S, wait_until

T7 = TenantId(7)
A, B = ShardId("a"), ShardId("b")
EVENTS = TableId("t7", "events")


@dataclass
class Scene:
    """Shards `a` and `b`; tenant `t7` is on `a`. Shards in `away` are unreachable."""

    folder: Path
    clock: Clock
    store: ControlStore
    layout: str = "shared"
    queues: dict[ShardId, DqCoordinator] = field(default_factory=dict)
    shards: dict[ShardId, TenantShard] = field(default_factory=dict)
    away: set[ShardId] = field(default_factory=set)
    opened: ExitStack = field(default_factory=ExitStack)

    def connect(self, shard: ShardId, _location: str) -> ShardNode:
        return self.shards[shard]

    def connect_shards(self, shard: ShardId, location: str) -> ShardNode:
        """As the shards reach each other."""
        if shard in self.away:
            raise ShardUnreachableError(f"Shard {shard} cannot be reached.")
        return self.connect(shard, location)

    def settings(self, shard: ShardId) -> Settings:
        home = self.folder / shard.name
        return Settings(home=home, queue_auto_create_tables=True, queue_layout=self.layout)

    def router(self) -> TenantRouter:
        return TenantRouter(self.store, route_seconds_max=3600, routes_max=100, clock=self.clock)

    def gateway(self) -> TenantGateway:
        return TenantGateway(self.router(), self.connect, clock=self.clock)

    def move(self, *, gate_s: float = 5.0) -> TenantMigration:
        return TenantMigration(
            T7,
            A,
            B,
            control=self.store,
            connect=self.connect,
            backfill=ShardBackfill(InlineRunner(), clock=self.clock),
            clock=self.clock,
            gate_s=gate_s,
        )

    def rows_in(self, shard: ShardId, table: TableId = EVENTS) -> list[int]:
        """The ids that a shard has of a table, flushed or not."""
        queue = self.queues[shard]
        queue.lake.open()
        if table not in queue.lake.tables():
            return []
        with queue.fresh(table) as fresh:
            return sorted(row["id"] for row in fresh.rows().to_pylist())

    def lake(self, shard: ShardId) -> Lake:
        return self.queues[shard].lake


@contextmanager
def two_shards(
    folder: Path,
    *,
    waits: Waits | None = None,
    admission: Admission | None = None,
    layout: str = "shared",
    control_db: str | None = None,
) -> Iterator[Scene]:
    """Two shards, closed at the end."""
    clock = SystemClock()
    place = Settings(home=folder / "control", control_db=None if control_db is None else SecretStr(control_db))
    control = ControlDatabase.open(place, clock=clock)
    scene = Scene(folder=folder, clock=clock, store=ControlStore(control, clock=clock), layout=layout)
    with scene.opened:
        for shard in (A, B):
            home = folder / shard.name
            scene.store.add_shard(ShardInfo(id=shard, region="eu", location=f"grpc://{shard}", home=str(home)))
            put_lake(scene.settings(shard))
            scene.queues[shard] = scene.opened.enter_context(open_queue(scene.settings(shard), clock=clock))
            opened = TenantShard(
                shard,
                scene.queues[shard],
                home=home,
                decisions=ControlClient(scene.store),
                connect=scene.connect_shards,
                clock=clock,
                admission=admission,
                waits=waits,
            )
            scene.shards[shard] = opened
            opened.open()
            scene.opened.callback(opened.close)
        scene.store.create_tenant(T7, "seven", TenantConfig(), A)
        yield scene


def caught_up(scene: Scene) -> None:
    """Wait until the target of a move has all rows of the source."""
    scene.shards[A]._shippers[T7].catch_up(scene.shards[A].positions(T7), wait_s=60)


def in_dual_write(scene: Scene) -> TenantMigration:
    """Return a move whose target has all rows of the source and follows it."""
    move = scene.move()
    move.prepare_target()
    move.enter_dual_write()
    caught_up(scene)
    return move


def events(*ids: int) -> pa.Table:
    """Rows with these ids."""
    return pa.table({"id": pa.array(ids, pa.int64()), "kind": [f"k{each}" for each in ids]})


class Writers:
    """Threads that write single rows for a tenant, one after the other, until they are stopped."""

    def __init__(self, gateway: TenantGateway, tenant: TenantId, *, threads: int = 4) -> None:
        self.acked: set[int] = set()
        self.unknown: set[int] = set()
        self.failures: list[CatchmentError] = []
        self._gateway = gateway
        self._tenant = tenant
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(threads)]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, rows: int = 20) -> None:
        """Wait until that many more are acknowledged."""
        enough = len(self.acked) + rows
        wait_until(lambda: len(self.acked) >= enough or bool(self.failures), "writers write")

    def _write(self, number: int) -> None:
        each = number * 10_000_000
        while not self._stopping.wait(BEAT_S):
            each += 1
            try:
                self._gateway.signal_for_tenant(self._tenant, "events", events(each))
                self.acked.add(each)
            except CommitUnknownError:
                # Its answer was lost: it may be there or not, and is not written again.
                self.unknown.add(each)
            except CatchmentError as error:
                self.failures.append(error)
                return

    def assert_once(self, found: list[int]) -> None:
        """Every row that was acknowledged is there once, and none twice."""
        assert self.failures == []
        assert len(found) == len(set(found)), "rows are there twice"
        assert self.acked <= set(found), f"{len(self.acked - set(found))} acknowledged rows are lost"
        assert set(found) <= self.acked | self.unknown, "rows that were never written"
