"""A shard under failures and late messages."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from catchment.errors import (
    ConflictError,
    ControlUnavailableError,
    NotReadyError,
    NotSupportedError,
    QuotaExceededError,
    StaleRouteError,
    StateError,
)
from catchment.foundation.ids import TableId
from catchment.pipeline.tenant_history import ShardBackfill
from catchment.tenants.control_client import ControlClient
from catchment.tenants.migration import TenantMigration
from catchment.tenants.model import DualWrite, Finalizing, Positions, TenantConfig, TenantId
from catchment.tenants.shard import TenantShard, Waits
from catchment.tenants.shard_api import ShardRole, TenantRecord
from catchment.testing import InlineRunner
from tests.tenants.two_shards import T7, A, B, Scene, events, in_dual_write, two_shards
from tests.waiting import wait_until

WAITS = Waits(gate_s=30, replica_s=2, drain_s=3)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with two_shards(tmp_path, waits=WAITS) as scene:
        scene.gateway().signal_for_tenant(T7, "events", events(1))
        yield scene


def test_a_write_barrier_whose_mover_is_gone_opens_and_the_old_decision_is_void(scene: Scene) -> None:
    in_dual_write(scene)
    known = scene.store.move(T7)
    assert known is not None
    scene.shards[A].close_barrier(T7, move=known.token, version=known.version, deadline_s=0.1)
    # It waits at the barrier, and is admitted.
    scene.gateway().signal_for_tenant(T7, "events", events(2))
    assert scene.rows_in(A) == [1, 2]
    found = scene.store.move(T7)
    assert found is not None
    assert isinstance(found.state, DualWrite)
    assert found.state.returned == 1
    with pytest.raises(ConflictError):
        scene.store.change_move(known, Finalizing(1))


def test_a_primary_killed_with_a_closed_barrier_asks_before_it_takes_a_write(scene: Scene) -> None:
    in_dual_write(scene)
    known = scene.store.move(T7)
    assert known is not None
    scene.shards[A].close_barrier(T7, move=known.token, version=known.version, deadline_s=3600)
    scene.shards[A].close()
    decisions = _Away(ControlClient(scene.store))
    again = TenantShard(
        A,
        scene.queues[A],
        home=scene.folder / A.name,
        decisions=decisions,
        connect=scene.connect_shards,
        clock=scene.clock,
        waits=Waits(gate_s=0.3),
    )
    scene.shards[A] = again
    again.open()
    epoch = scene.store.tenant(T7).epoch
    with pytest.raises(NotReadyError):
        again.write(T7, "events", events(2), epoch=epoch)
    decisions.is_away = False
    wait_until(lambda: not again._barrier(T7).is_closed, "the gate opens")
    again.write(T7, "events", events(3), epoch=epoch)
    assert scene.rows_in(A) == [1, 3]
    again.close()


class _Away:
    """The control database, for a shard that cannot reach it."""

    def __init__(self, decisions: ControlClient) -> None:
        self._decisions = decisions
        self.is_away = True

    def decided(self, tenant: TenantId, shard: object) -> TenantRecord | None:
        self._refuse()
        return self._decisions.decided(tenant, A)

    def take_back(self, tenant: TenantId, move: str, version: int) -> int:
        self._refuse()
        return self._decisions.take_back(tenant, move, version)

    def _refuse(self) -> None:
        if self.is_away:
            raise ControlUnavailableError("It is away.")


def test_a_primary_that_missed_the_switch_learns_of_it_from_the_first_write_of_the_new_epoch(scene: Scene) -> None:
    move = in_dual_write(scene)
    move.finalize()
    epoch = scene.store.tenant(T7).epoch
    # As if the target had not been informed.
    scene.shards[B]._records.keep(TenantRecord(tenant=T7, role=ShardRole.REPLICA, epoch=epoch - 1, move="x"))
    scene.shards[B].write(T7, "events", events(2), epoch=epoch)
    assert scene.rows_in(B) == [1, 2]


def test_the_source_is_kept_while_it_is_being_read(scene: Scene) -> None:
    move = in_dual_write(scene)
    with ExitStack() as reading:
        reading.enter_context(scene.shards[A].reading(T7))
        move.finalize()
        with pytest.raises(NotReadyError, match="still has readers: 1"):
            move.gc_source(0)
        # New readers are sent to the new primary.
        with pytest.raises(StaleRouteError), scene.shards[A].reading(T7):
            pass
        assert scene.rows_in(A) == [1]
    move.gc_source(0)
    assert scene.rows_in(A) == []


def test_changes_past_the_queue_wait_until_the_move_is_over(scene: Scene) -> None:
    with scene.shards[A].changing(T7):
        pass
    move = in_dual_write(scene)
    with pytest.raises(NotReadyError, match="duckling_queue"), scene.shards[A].changing(T7):
        pass
    move.abort()
    with scene.shards[A].changing(T7):
        pass


def test_of_two_concurrent_switches_one_decides_and_the_tenant_has_one_primary(scene: Scene) -> None:
    in_dual_write(scene)
    outcomes: list[str] = []

    def finalize() -> None:
        try:
            scene.move().finalize()
            outcomes.append("done")
        except (ConflictError, NotReadyError, StaleRouteError) as error:
            outcomes.append(type(error).__name__)

    movers = [threading.Thread(target=finalize) for _ in range(3)]
    for mover in movers:
        mover.start()
    for mover in movers:
        mover.join()
    assert "done" in outcomes
    assert scene.store.tenant(T7).epoch == 2
    roles = {shard: found and found.role for shard, found in ((each, scene.shards[each].record(T7)) for each in (A, B))}
    assert roles == {A: ShardRole.REPLICA, B: ShardRole.PRIMARY}
    scene.gateway().signal_for_tenant(T7, "events", events(2))
    assert scene.rows_in(B) == [1, 2]


def test_a_replica_refuses_rows_of_an_old_primary_or_of_another_tenant(scene: Scene) -> None:
    move = in_dual_write(scene)
    scene.gateway().signal_for_tenant(T7, "events", events(2))
    shipment = scene.queues[A].replication.log.read_log(TableId("t7", "events"), 0, rows_max=10)
    assert shipment is not None
    # What it has, it passes over.
    scene.shards[B].append_replicated(T7, [shipment], epoch=1)
    with pytest.raises(StateError, match="not a table of t7"):
        scene.shards[B].append_replicated(T7, [replace(shipment, table=TableId("t8", "events"))], epoch=1)
    move.finalize()
    with pytest.raises(StaleRouteError):
        scene.shards[B].append_replicated(T7, [shipment], epoch=1)
    with pytest.raises(StaleRouteError):
        scene.shards[B].append_replicated(T7, [shipment], epoch=2)
    assert scene.rows_in(B) == [1, 2]


@pytest.mark.parametrize(
    ("config", "is_draining", "reason"),
    [
        (TenantConfig(required_regions=frozenset({"mars"})), False, "must"),
        (TenantConfig(), True, "drain"),
        (TenantConfig(storage_bytes_max=1), False, "limit"),
    ],
    ids=["residency", "draining", "quota"],
)
def test_a_move_that_cannot_be_made_is_refused_before_anything_is_changed(
    tmp_path: Path, config: TenantConfig, is_draining: bool, reason: str
) -> None:
    with two_shards(tmp_path) as scene:
        scene.gateway().signal_for_tenant(T7, "events", events(1))
        scene.queues[A].force_flush_all()
        if config.required_regions:
            scene.store.change_shard(replace(scene.store.shard(A), region="mars"))
        scene.store.set_config(T7, config)
        if is_draining:
            scene.store.set_draining(B)
        with pytest.raises(StateError, match=reason):
            scene.move().prepare_target()
        assert scene.store.move(T7) is None
        assert scene.queues[A].replication.log.retained_schemas() == frozenset()
        assert scene.shards[B].record(T7) is None


def test_a_target_that_has_tables_of_that_name_already_is_refused(scene: Scene) -> None:
    with scene.lake(B).write() as connection:
        connection.execute("CREATE SCHEMA lake.t7")
        connection.execute("CREATE TABLE lake.t7.events (id BIGINT, kind VARCHAR)")
    with pytest.raises(StateError, match="already"):
        scene.move().prepare_target()
    assert scene.lake(B).tables() == (TableId("t7", "events"),)


def test_the_default_tenant_lives_in_the_default_schema_and_moves_too(tmp_path: Path) -> None:
    with two_shards(tmp_path) as scene:
        zero = TenantId(0)
        scene.store.create_tenant(zero, "everybody", TenantConfig(), A)
        gateway = scene.gateway()
        gateway.signal_for_tenant(zero, "events", events(1))
        move = TenantMigration(
            zero,
            A,
            B,
            control=scene.store,
            connect=scene.connect,
            backfill=ShardBackfill(InlineRunner(), clock=scene.clock),
            clock=scene.clock,
        )
        move.prepare_target()
        move.enter_dual_write()
        scene.shards[A]._shippers[zero].catch_up(scene.shards[A].positions(zero), wait_s=20)
        move.finalize()
        move.gc_source(0)
        gateway.signal_for_tenant(zero, "events", events(2))
        assert scene.rows_in(B, TableId("main", "events")) == [1, 2]
        assert scene.rows_in(A, TableId("main", "events")) == []


def test_a_shard_with_one_file_per_session_cannot_take_part_in_a_move(tmp_path: Path) -> None:
    with two_shards(tmp_path, layout="sessions") as scene, pytest.raises(NotSupportedError, match="sessions"):
        scene.gateway().signal_for_tenant(T7, "events", events(1))


def test_a_tenant_over_its_limit_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    class Full:
        def admit(self, tenant: TenantId, table: TableId, rows: object) -> None:
            raise QuotaExceededError(f"{tenant} is full.")

    with two_shards(tmp_path, admission=Full()) as scene:
        with pytest.raises(QuotaExceededError):
            scene.shards[A].write(T7, "events", events(1), epoch=1)
        assert scene.shards[A].positions(T7) == Positions({})
