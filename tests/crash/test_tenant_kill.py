"""SIGKILL of the mover and of both shards during a move: no row is lost, none is there twice."""

from collections.abc import Iterator

import pytest

from catchment.foundation import faults
from catchment.tenants.model import ShardId
from tests.crash.fleet import Fleet, assert_once, fleet_in, new_tenant
from tests.tenants.two_shards import A, B, Writers

MOVED = {
    "move": (
        "move.after_hold",
        "move.after_backfill",
        "move.after_replicate",
        "move.after_dual_write",
        "move.after_close",
        "move.after_switch",
        "move.after_collect",
        "move.before_drop",
    ),
    "abort": ("move.after_abort",),
    "reverse": ("move.after_reverse",),
}
AT_SHARDS = (
    ("tenant.after_hold", A),
    ("tenant.after_home_write", A),
    ("tenant.after_receive", B),
    ("tenant.after_close", A),
    ("tenant.after_settle", A),
    ("tenant.after_settle", B),
    ("tenant.between_drops", A),
    ("tenant.before_erase", A),
)


KILLED = {point for points in MOVED.values() for point in points} | {point for point, _ in AT_SHARDS}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two shards for all tests, each of which has a tenant of its own."""
    with fleet_in(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.mark.parametrize(("what", "point"), [(what, point) for what, points in MOVED.items() for point in points])
def test_a_move_whose_mover_is_killed_anywhere_is_finished_by_another(fleet: Fleet, what: str, point: str) -> None:
    tenant = new_tenant(fleet)
    with Writers(fleet.gateway(), tenant) as writers:
        writers.wait_for_more()
        if what != "move":
            assert fleet.move(tenant, "move", "move.after_dual_write" if what == "abort" else "move.after_switch") == -9
        assert fleet.move(tenant, what, point) == -9
        writers.wait_for_more()
        assert fleet.move(tenant, what) == 0
        writers.wait_for_more()
    assert writers.unknown == set()
    assert_once(fleet, tenant, B if what == "move" else A, writers)


@pytest.mark.parametrize(("point", "shard"), AT_SHARDS, ids=lambda each: str(each))
def test_a_move_whose_shard_is_killed_anywhere_goes_on_when_it_is_back(
    fleet: Fleet, point: str, shard: ShardId
) -> None:
    tenant = new_tenant(fleet)
    if point == "tenant.after_home_write":
        # Only a write that is to have a copy counts.
        assert fleet.move(tenant, "move", "move.after_dual_write") == -9
    with Writers(fleet.gateway(), tenant) as writers:
        writers.wait_for_more()
        fleet.shards[shard].arm(point)
        with fleet.mover(tenant, "move") as mover:
            assert fleet.shards[shard].wait() == -9
            fleet.shards[shard].start()
            assert mover.wait(timeout=120) == 0
        writers.wait_for_more()
    assert_once(fleet, tenant, B, writers)


def test_every_crash_point_of_moves_is_killed() -> None:
    assert {point for point in faults.POINTS if point.startswith(("move.", "tenant."))} == KILLED
