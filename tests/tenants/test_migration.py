"""A tenant moves to another shard while it is written to, and no row is lost or doubled."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from catchment.errors import (
    CatchmentError,
    InputError,
    InvalidStateError,
    MismatchError,
    NotReadyError,
    StaleRouteError,
)
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake.dead_letters import DeadLetter, DeadLetters, packed
from catchment.pipeline.tenant_history import ShardBackfill
from catchment.tenants.model import Complete, DualWrite, Finalizing, Idle, Positions, PreparingTarget, TenantId
from catchment.testing import EmbeddedPostgres, InlineRunner
from tests.tenants.two_shards import EVENTS, T7, A, B, Scene, caught_up, events, in_dual_write, two_shards

WINDOW_NS = 5 * 60 * 1_000_000_000


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with two_shards(tmp_path) as scene:
        yield scene


def test_a_move_goes_through_its_states_and_every_row_is_at_the_target_once(scene: Scene) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(1, 2, 3))
    scene.queues[A].force_flush_all()
    write(T7, "events", events(4))
    move = scene.move()
    assert move.state == Idle()
    move.prepare_target()
    assert isinstance(move.state, PreparingTarget)
    write(T7, "events", events(5))
    assert move.enter_dual_write() == 5
    assert isinstance(move.state, DualWrite)
    write(T7, "events", events(6))
    caught_up(scene)
    move.finalize()
    assert isinstance(move.state, Finalizing)
    write(T7, "events", events(7))
    assert scene.rows_in(B) == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(NotReadyError, match="kept for another"):
        move.gc_source(WINDOW_NS)
    assert move.gc_source(0).files == 1
    assert isinstance(move.state, Complete)
    assert list(Path(scene.lake(A).address.data_path, "t7").rglob("*")) == []
    write(T7, "events", events(8))
    scene.queues[B].force_flush_all()
    assert scene.rows_in(B) == list(range(1, 9))
    assert scene.rows_in(A) == []
    assert scene.lake(A).tables() == ()
    assert scene.lake(B).audit().ok


def test_a_move_is_decided_in_postgres_as_well(tmp_path: Path, postgres: EmbeddedPostgres) -> None:
    with two_shards(tmp_path, control_db=f"postgres:{postgres.new_database()}") as scene:
        write = scene.gateway().signal_for_tenant
        write(T7, "events", events(1))
        move = scene.move()
        move.prepare_target()
        move.enter_dual_write()
        write(T7, "events", events(2))
        caught_up(scene)
        move.finalize()
        write(T7, "events", events(3))
        move.gc_source(0)
        assert scene.rows_in(B) == [1, 2, 3]
        assert scene.rows_in(A) == []


def test_ten_writes_during_dual_write_are_readable_from_both(scene: Scene) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(0))
    move = scene.move()
    move.prepare_target()
    move.enter_dual_write()
    for number in range(1, 11):
        write(T7, "events", events(number))
    caught_up(scene)
    assert scene.rows_in(A) == scene.rows_in(B) == list(range(11))


def test_finalize_is_not_ready_until_the_target_has_caught_up(scene: Scene) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(1))
    move = scene.move()
    move.prepare_target()
    caught_up(scene)
    scene.away.add(B)
    write(T7, "events", events(2))
    move.enter_dual_write()
    write(T7, "events", events(3))
    scene.away.clear()
    with pytest.raises(NotReadyError):
        # The shipper waits a moment before it tries again.
        move.finalize()
    caught_up(scene)
    move.finalize()
    assert scene.rows_in(B) == [1, 2, 3]


def test_a_thousand_writes_during_dual_write_are_all_at_the_target(scene: Scene) -> None:
    gateway = scene.gateway()
    gateway.signal_for_tenant(T7, "events", events(0))
    move = scene.move()
    move.prepare_target()
    move.enter_dual_write()
    failures: list[CatchmentError] = []

    def write(start: int) -> None:
        try:
            for number in range(start, start + 250):
                gateway.signal_for_tenant(T7, "events", events(number))
        except CatchmentError as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(start,)) for start in (1, 251, 501, 751)]
    for writer in writers:
        writer.start()
    # In the middle of it.
    caught_up(scene)
    move.finalize()
    for writer in writers:
        writer.join()
    assert failures == []
    assert scene.rows_in(B) == list(range(1001))


def test_steps_that_are_not_of_the_state_are_refused_and_change_nothing(scene: Scene) -> None:
    scene.gateway().signal_for_tenant(T7, "events", events(1))
    move = scene.move()
    for step in (move.enter_dual_write, move.finalize, lambda: move.gc_source(0), move.abort, move.reverse):
        with pytest.raises(InvalidStateError):
            step()
    move.prepare_target()
    for step in (move.finalize, lambda: move.gc_source(0), move.reverse):
        with pytest.raises(InvalidStateError):
            step()
    assert isinstance(move.state, PreparingTarget)
    move.enter_dual_write()
    with pytest.raises(InvalidStateError):
        move.prepare_target()
    caught_up(scene)
    move.finalize()
    for step in (move.abort, move.enter_dual_write):
        with pytest.raises(InvalidStateError):
            step()
    move.gc_source(0)
    for step in (move.abort, move.reverse, move.finalize):
        with pytest.raises(InvalidStateError):
            step()
    assert scene.rows_in(B) == [1]


def test_a_router_with_an_old_route_cannot_write_to_the_old_primary(scene: Scene) -> None:
    scene.gateway().signal_for_tenant(T7, "events", events(1))
    epoch = scene.router().epoch(T7)
    forgotten = scene.gateway()
    forgotten.signal_for_tenant(T7, "events", events(2))
    move = scene.move()
    move.prepare_target()
    move.enter_dual_write()
    caught_up(scene)
    move.finalize()
    with pytest.raises(StaleRouteError):
        scene.shards[A].write(T7, "events", events(3), epoch=epoch)
    with pytest.raises(StaleRouteError):
        scene.shards[B].write(T7, "events", events(3), epoch=epoch)
    # Its first try is refused, and it looks the route up again.
    forgotten.signal_for_tenant(T7, "events", events(4))
    assert scene.rows_in(B) == [1, 2, 4]


def test_while_the_target_is_away_writes_are_acknowledged_by_the_source_and_the_gap_is_closed_later(
    scene: Scene,
) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(1))
    move = scene.move()
    move.prepare_target()
    move.enter_dual_write()
    caught_up(scene)
    scene.away.add(B)
    write(T7, "events", events(2))
    write(T7, "events", events(3))
    assert scene.rows_in(B) == [1]
    assert not scene.shards[A].lag(T7).is_sync
    scene.away.clear()
    caught_up(scene)
    assert scene.rows_in(B) == [1, 2, 3]


def test_an_aborted_move_leaves_the_tenant_at_its_source_and_nothing_at_the_target(scene: Scene) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(1))
    scene.queues[A].force_flush_all()
    move = scene.move()
    move.prepare_target()
    move.enter_dual_write()
    write(T7, "events", events(2))
    caught_up(scene)
    move.abort()
    move.abort()
    assert move.state == Idle()
    write(T7, "events", events(3))
    assert scene.rows_in(A) == [1, 2, 3]
    assert scene.rows_in(B) == []
    # And it can be moved again.
    again = scene.move()
    again.prepare_target()
    again.enter_dual_write()
    caught_up(scene)
    again.finalize()
    again.gc_source(0)
    write(T7, "events", events(4))
    assert scene.rows_in(B) == [1, 2, 3, 4]


def test_a_reversed_move_brings_back_what_was_written_since(scene: Scene) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(1))
    move = scene.move()
    move.prepare_target()
    move.enter_dual_write()
    caught_up(scene)
    move.finalize()
    write(T7, "events", events(2))
    scene.queues[B].force_flush_all()
    write(T7, "events", events(3))
    move.reverse()
    assert move.state == Idle()
    write(T7, "events", events(4))
    assert scene.rows_in(A) == [1, 2, 3, 4]
    assert scene.rows_in(B) == []
    scene.queues[A].force_flush_all()
    assert scene.rows_in(A) == [1, 2, 3, 4]
    assert scene.lake(A).audit().ok


def test_source_and_target_that_differ_stop_the_move(scene: Scene) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(1))
    scene.queues[A].force_flush_all()
    move = scene.move()
    move.prepare_target()
    move.enter_dual_write()
    caught_up(scene)
    scene.queues[B].force_flush_all()
    with scene.lake(B).write() as connection:
        connection.execute(f"DELETE FROM lake.{EVENTS.schema}.{EVENTS.name} WHERE id = 1")
    with pytest.raises(MismatchError, match=r"t7\.events"):
        move.finalize()
    assert isinstance(move.state, DualWrite)
    write(T7, "events", events(2))
    assert scene.rows_in(A) == [1, 2]


def test_files_of_two_tables_that_cannot_be_adopted_are_rewritten_each_into_its_own(scene: Scene) -> None:
    write = scene.gateway().signal_for_tenant
    lists = pa.list_(pa.list_(pa.int64()))
    for name, number in (("one", 1), ("two", 2)):
        rows = pa.table({"id": pa.array([number], pa.int64()), "tags": pa.array([[[number]]], lists)})
        write(T7, name, rows)
    scene.queues[A].force_flush_all()
    move = in_dual_write(scene)
    assert scene.rows_in(B, TableId("t7", "one")) == [1]
    assert scene.rows_in(B, TableId("t7", "two")) == [2]
    assert move.verify().ok


def test_a_table_created_while_source_and_target_are_compared_is_not_a_difference(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = scene.gateway().signal_for_tenant
    write(T7, "events", events(1))
    move = in_dual_write(scene)
    scene.away.add(B)
    digests = scene.shards[A].digests

    def late(tenant: TenantId, at: Positions) -> Any:
        write(T7, "late", events(2))
        return digests(tenant, at)

    monkeypatch.setattr(scene.shards[A], "digests", late)
    assert move.verify().ok


def bury(scene: Scene, *tables: TableId) -> None:
    """A dead letter of each table in the source's lake."""
    with scene.lake(A).write() as connection:
        DeadLetters(connection, scene.lake(A).name).add(
            DeadLetter(
                id=f"letter-{table}",
                unit_id="unit",
                producer=ProducerId("queue", str(table), "1"),
                seq=1,
                table=table,
                reason="It does not fit.",
                row=packed(events(1)),
                buried_at=scene.clock.now(),
            )
            for table in tables
        )


def test_a_tenant_with_dead_letters_is_not_moved(scene: Scene) -> None:
    scene.gateway().signal_for_tenant(T7, "events", events(1))
    scene.lake(B).open()
    source, target = scene.store.shard(A), scene.store.shard(B)
    backfill = ShardBackfill(InlineRunner(), clock=scene.clock)
    backfill.plan(T7, source, target, snapshot=None, token="x")
    bury(scene, EVENTS, TableId("t8", "events"))
    with pytest.raises(InputError, match="1 dead letters"):
        backfill.plan(T7, source, target, snapshot=None, token="x")


def test_dead_letters_of_a_moving_tenant_are_deleted_with_it_and_no_others(scene: Scene) -> None:
    scene.gateway().signal_for_tenant(T7, "events", events(1))
    move = in_dual_write(scene)
    bury(scene, EVENTS, TableId("t8", "events"))
    move.finalize()
    move.gc_source(0)
    assert [letter.table.schema for letter in scene.lake(A).dead_letters()] == ["t8"]
