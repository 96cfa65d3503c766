"""Plans and runs of a drain: which tenants move where, which stay, and in which order they are
deleted.
"""

from datetime import UTC, datetime

from catchment.errors import CatchmentError, NotReadyError
from catchment.tenants.control_store import ControlFacts
from catchment.tenants.drain import DrainMove, DrainPlan, plan_drain, run_drain
from catchment.tenants.model import (
    DualWrite,
    Finalizing,
    MigrationState,
    MoveInfo,
    Positions,
    ShardId,
    ShardInfo,
    TenantConfig,
    TenantId,
    TenantInfo,
)
from catchment.tenants.run_move import MoveReport

NOW = datetime(2026, 1, 2, tzinfo=UTC)
A, B = (ShardInfo(id=ShardId(name), region=name, location=f"grpc://{name}", home=f"/{name}") for name in "ab")
T1, T2, T3 = TenantId(1), TenantId(2), TenantId(3)


def tenant(number: TenantId, shard: ShardInfo, *regions: str) -> TenantInfo:
    config = TenantConfig(required_regions=frozenset(regions))
    return TenantInfo(id=number, name=str(number), config=config, shard=shard.id, epoch=1, created_at=NOW)


def move(number: TenantId, source: ShardInfo, target: ShardInfo, state: MigrationState) -> MoveInfo:
    return MoveInfo(
        id=1,
        token="x",
        tenant=number,
        source=source.id,
        target=target.id,
        state=state,
        version=1,
        created_at=NOW,
        updated_at=NOW,
    )


def facts(*tenants: TenantInfo, moves: tuple[MoveInfo, ...] = ()) -> ControlFacts:
    return ControlFacts(shards=(A, B), reports={}, tenants=tenants, moves=moves)


def report(each: DrainMove, state: str, *, stopped: bool = False) -> MoveReport:
    return MoveReport(
        tenant=each.tenant,
        source=A.id,
        target=each.target,
        states=(state,),
        rows=None,
        bytes=0,
        seconds={},
        pause_ms=None,
        retries=0,
        stopped=stopped,
    )


def plan(*tenants: TenantId) -> DrainPlan:
    return DrainPlan(shard=A, moves=tuple(DrainMove(each, B.id) for each in tenants), left=())


def ignore(_tenant: TenantId, _error: CatchmentError) -> None:
    """Ignore the error."""


def test_tenants_of_a_shard_move_to_another_that_is_allowed_and_the_others_stay() -> None:
    found = plan_drain(facts(tenant(T1, A), tenant(T2, A, "a"), tenant(T3, B)), A, collects=False)
    assert found.moves == (DrainMove(T1, B.id),)
    assert [(each.tenant, each.reason) for each in found.left] == [(T2, "No other shard can accept it.")]


def test_a_move_after_its_switch_is_continued_only_to_delete_its_source() -> None:
    moved = facts(tenant(T1, B), moves=(move(T1, A, B, Finalizing(1)),))
    assert plan_drain(moved, A, collects=False).moves == ()
    assert plan_drain(moved, A, collects=True).moves == (DrainMove(T1, B.id),)


def test_a_tenant_that_is_moving_here_stays_with_the_command_that_ends_its_move() -> None:
    for state, verb in ((DualWrite(Positions()), "abort"), (Finalizing(1), "reverse")):
        found = plan_drain(facts(tenant(T1, B), moves=(move(T1, B, A, state),)), A, collects=True)
        assert found.moves == ()
        assert f"`catchment tenant {verb} t1`" in found.left[0].reason


def test_every_tenant_is_moved_before_the_first_is_deleted() -> None:
    called: list[tuple[TenantId, float | None]] = []

    def run(each: DrainMove, window_s: float | None) -> MoveReport:
        called.append((each.tenant, window_s))
        return report(each, "Finalizing" if window_s is None else "Complete")

    drained = run_drain(plan(T1, T2), run, gc_window_s=5.0, failed=ignore)
    assert called == [(T1, None), (T2, None), (T1, 5.0), (T2, 5.0)]
    assert [each.states for each in drained.moved] == [("Finalizing", "Complete")] * 2
    assert drained.ok


def test_a_move_that_fails_does_not_keep_the_others_waiting_and_is_not_tried_again() -> None:
    errors: list[TenantId] = []

    def run(each: DrainMove, _window_s: float | None) -> MoveReport:
        if each.tenant == T1:
            raise NotReadyError("It is stuck.")
        return report(each, "Finalizing")

    drained = run_drain(plan(T1, T2), run, gc_window_s=0.0, failed=lambda tenant, _error: errors.append(tenant))
    assert [each.tenant for each in drained.moved] == [T2]
    assert [(each.tenant, each.reason) for each in drained.left] == [(T1, "It is stuck.")]
    assert errors == [T1]
    assert not drained.ok


def test_a_stopped_drain_starts_no_further_move() -> None:
    drained = run_drain(
        plan(T1, T2), lambda each, _window_s: report(each, "DualWrite", stopped=True), gc_window_s=0.0, failed=ignore
    )
    assert [each.tenant for each in drained.moved] == [T1]
    assert drained.stopped
    assert not drained.ok
