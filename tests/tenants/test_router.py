"""Routes: their content, their lifetime, and a router without the control database."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import cast

import pytest

from catchment.errors import ControlUnavailableError, InvalidStateError, StateError
from catchment.tenants.control_store import ControlStore, Placement
from catchment.tenants.model import (
    DualWrite,
    Finalizing,
    Idle,
    MigrationState,
    MoveInfo,
    Positions,
    PreparingTarget,
    ShardId,
    ShardInfo,
    TenantConfig,
    TenantId,
    TenantInfo,
)
from catchment.tenants.placement import place
from catchment.tenants.router import EPOCH_UNASSIGNED, Access, TenantRouter, routed_by
from catchment.testing import FakeClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A = ShardInfo(id=ShardId("a"), region="eu", location="grpc://a", home="a")
B = ShardInfo(id=ShardId("b"), region="eu", location="grpc://b", home="b")
C = ShardInfo(id=ShardId("c"), region="us", location="grpc://c", home="c")
SEVEN = TenantId(7)


def tenant(home: ShardInfo = A, *, epoch: int = 1, config: TenantConfig | None = None) -> TenantInfo:
    return TenantInfo(
        id=SEVEN, name="acme", config=config or TenantConfig(), shard=home.id, epoch=epoch, created_at=NOW
    )


def move(state: MigrationState, source: ShardInfo = A, target: ShardInfo = B) -> MoveInfo:
    return MoveInfo(
        id=1, token="x", tenant=SEVEN, source=source.id, target=target.id, state=state, version=1,
        created_at=NOW, updated_at=NOW,
    )  # fmt: skip


def placed(known: TenantInfo | None = None, under_way: MoveInfo | None = None) -> Placement:
    return Placement(tenant=known or tenant(), move=under_way, shards=(A, B, C))


@dataclass
class Plane:
    """A control plane with given answers that counts its calls."""

    answer: Placement = field(default_factory=placed)
    is_away: bool = False
    asked: list[TenantId] = field(default_factory=list)

    def placement(self, tenant_id: TenantId) -> Placement:
        self.asked.append(tenant_id)
        if self.is_away:
            raise ControlUnavailableError
        return self.answer


@pytest.fixture
def plane() -> Plane:
    return Plane()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def router(plane: Plane, clock: FakeClock) -> TenantRouter:
    return TenantRouter(cast(ControlStore, plane), route_seconds_max=30, routes_max=3, clock=clock)


@pytest.mark.parametrize(
    ("known", "under_way", "reads", "writes"),
    [
        (tenant(), None, (A,), (A,)),
        (tenant(), move(Idle()), (A,), (A,)),
        (tenant(), move(PreparingTarget(0)), (A,), (A,)),
        (tenant(), move(DualWrite(Positions())), (A,), (A, B)),
        (tenant(B), move(Finalizing(0)), (B,), (B,)),
        (tenant(B), move(DualWrite(Positions())), (B,), (B, A)),
        (tenant(B), None, (B,), (B,)),
    ],
    ids=["at rest", "begun", "preparing", "dual-write", "switched", "dual-write from the other side", "moved"],
)
def test_reads_go_to_the_primary_and_writes_to_both_only_in_dual_write(
    known: TenantInfo, under_way: MoveInfo | None, reads: tuple[ShardInfo, ...], writes: tuple[ShardInfo, ...]
) -> None:
    routed = routed_by(SEVEN, placed(known, under_way))
    assert (routed.shards(Access.READ), routed.shards(Access.WRITE)) == (reads, writes)
    assert [routed.route.primary, routed.route.replica] == [writes[0].id, writes[1].id if writes[1:] else None]


def test_an_assignment_wins_over_the_hash_and_a_draining_primary_stays_one() -> None:
    by_hash = place(SEVEN, TenantConfig(), (A, B, C))
    for home in (A, B, C):
        drained = tuple(replace(shard, is_draining=shard == home) for shard in (A, B, C))
        routed = routed_by(SEVEN, Placement(tenant=tenant(home), move=None, shards=drained))
        assert routed.route.primary == home.id
    unassigned = routed_by(SEVEN, Placement(tenant=None, move=None, shards=(A, B, C)))
    assert (unassigned.primary, unassigned.route.epoch) == (by_hash, EPOCH_UNASSIGNED)


def test_a_tenant_without_a_shard_in_its_regions_has_no_route() -> None:
    martian = tenant(config=TenantConfig(required_regions=frozenset({"mars"})))
    with pytest.raises(StateError, match=r"No shard in mars, where it must live, can accept t7\."):
        routed_by(SEVEN, placed(martian))
    with pytest.raises(StateError, match="No shard can accept t7"):
        routed_by(SEVEN, Placement(tenant=None, move=None, shards=()))


def test_no_route_leads_out_of_a_tenants_regions_whatever_is_assigned() -> None:
    american = TenantConfig(required_regions=frozenset({"us"}))
    with pytest.raises(StateError, match="must live in us; a is in eu"):
        routed_by(SEVEN, placed(tenant(A, config=american)))
    european = TenantConfig(required_regions=frozenset({"eu"}))
    with pytest.raises(StateError, match="must live in eu; c is in us"):
        routed_by(SEVEN, placed(tenant(A, config=european), move(DualWrite(Positions()), target=C)))


def test_a_route_is_remembered_until_it_is_too_old(router: TenantRouter, plane: Plane, clock: FakeClock) -> None:
    assert router.route(SEVEN, Access.READ) == (A,)
    plane.answer = placed(tenant(B, epoch=2))
    clock.advance(29.9)
    assert router.route(SEVEN, Access.READ) == (A,)
    assert router.epoch(SEVEN) == 1
    assert len(plane.asked) == 1
    clock.advance(0.1)
    assert router.route(SEVEN, Access.READ) == (B,)
    assert (router.epoch(SEVEN), len(plane.asked)) == (2, 2)


def test_a_refresh_learns_of_a_change_at_once(router: TenantRouter, plane: Plane) -> None:
    assert router.epoch(SEVEN) == 1
    plane.answer = placed(tenant(B, epoch=2))
    assert router.refresh(SEVEN).route.primary == B.id
    assert router.route(SEVEN, Access.WRITE) == (B,)


def test_the_routes_that_were_asked_for_last_are_kept(router: TenantRouter, plane: Plane) -> None:
    for number in (1, 2, 3, 1, 4):
        router.route(TenantId(number), Access.READ)
    asked = len(plane.asked)
    for number in (1, 3, 4):
        router.route(TenantId(number), Access.READ)
    assert len(plane.asked) == asked
    router.route(TenantId(2), Access.READ)
    assert len(plane.asked) == asked + 1


def test_with_the_plane_away_writes_go_on_by_the_old_route_and_reads_do_not(
    router: TenantRouter, plane: Plane, clock: FakeClock
) -> None:
    router.route(SEVEN, Access.WRITE)
    plane.is_away = True
    clock.advance(60)
    assert router.route(SEVEN, Access.WRITE) == (A,)
    assert router.epoch(SEVEN) == 1
    with pytest.raises(ControlUnavailableError):
        router.route(SEVEN, Access.READ)
    with pytest.raises(ControlUnavailableError):
        router.route(TenantId(8), Access.WRITE)


def test_writers_do_not_all_ask_a_control_database_that_is_away(
    router: TenantRouter, plane: Plane, clock: FakeClock
) -> None:
    assert router.epoch(SEVEN) == 1
    plane.is_away = True
    clock.advance(31)
    # It may take seconds until a connection fails.
    assert [router.epoch(SEVEN) for _ in range(5)] == [1] * 5
    assert len(plane.asked) == 2
    clock.advance(31)
    plane.is_away, plane.answer = False, placed(tenant(B, epoch=2))
    assert router.epoch(SEVEN) == 2


def test_switches_believe_only_what_the_control_plane_says(router: TenantRouter, plane: Plane) -> None:
    with pytest.raises(InvalidStateError, match="t7 lives in a with no shard as its replica"):
        router.set_dual_write(SEVEN, A.id, B.id)
    plane.answer = placed(tenant(A, epoch=2), move(DualWrite(Positions())))
    assert router.set_dual_write(SEVEN, A.id, B.id).replica == B.id
    with pytest.raises(InvalidStateError, match="not in b with no shard"):
        router.finalize_migration(SEVEN, B.id)
    plane.answer = placed(tenant(B, epoch=3), move(Finalizing(0)))
    assert router.finalize_migration(SEVEN, B.id).epoch == 3


def test_an_older_reading_that_ends_last_does_not_bring_the_old_route_back(clock: FakeClock) -> None:
    has_read, may_return = threading.Event(), threading.Event()

    class SlowPlane(Plane):
        def placement(self, tenant_id: TenantId) -> Placement:
            answer = super().placement(tenant_id)
            if len(self.asked) == 1:
                has_read.set()
                assert may_return.wait(10)
            return answer

    plane = SlowPlane()
    router = TenantRouter(cast(ControlStore, plane), route_seconds_max=30, routes_max=3, clock=clock)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(router.refresh, SEVEN)
        assert has_read.wait(10)
        plane.answer = placed(tenant(B, epoch=2))
        assert router.refresh(SEVEN).route.epoch == 2
        may_return.set()
        assert slow.result(10).route.epoch == 2
    assert router.route(SEVEN, Access.WRITE) == (B,)


def test_a_tenant_whose_route_is_read_slowly_does_not_delay_another(clock: FakeClock) -> None:
    is_reading, may_return = threading.Event(), threading.Event()

    class StuckPlane(Plane):
        def placement(self, tenant_id: TenantId) -> Placement:
            if tenant_id == SEVEN:
                is_reading.set()
                assert may_return.wait(10)
            return super().placement(tenant_id)

    router = TenantRouter(cast(ControlStore, StuckPlane()), route_seconds_max=30, routes_max=3, clock=clock)
    with ThreadPoolExecutor(2) as pool:
        stuck = pool.submit(router.route, SEVEN, Access.READ)
        assert is_reading.wait(10)
        assert pool.submit(router.route, TenantId(8), Access.READ).result(10) == (A,)
        assert not stuck.done()
        may_return.set()
        assert stuck.result(10) == (A,)


def test_age_and_number_of_kept_routes_are_bounded(plane: Plane, clock: FakeClock) -> None:
    router = TenantRouter(cast(ControlStore, plane), route_seconds_max=2, routes_max=1, clock=clock)
    router.route(SEVEN, Access.READ)
    clock.advance(1.9)
    router.route(SEVEN, Access.READ)
    assert len(plane.asked) == 1
    clock.advance(0.1)
    router.route(SEVEN, Access.READ)
    router.route(TenantId(8), Access.READ)
    router.route(SEVEN, Access.READ)
    assert len(plane.asked) == 4
