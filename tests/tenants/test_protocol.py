"""States of a move and records of a shard: transitions, and refusals with their messages."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from catchment.errors import InvalidStateError, MismatchError, NotReadyError, StaleRouteError
from catchment.foundation.ids import TableId
from catchment.tenants import protocol
from catchment.tenants.model import (
    Complete,
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
from catchment.tenants.protocol import Request, Side, Transition
from catchment.tenants.shard_api import Replica, ShardRole, TenantRecord

TENANT = TenantId(7)
ONE, TWO = TableId("t7", "events"), TableId("t7", "clicks")
S, T = ShardId("s"), ShardId("t")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOME = TenantRecord(tenant=TENANT, role=ShardRole.PRIMARY, epoch=4)
COPY = replace(HOME, role=ShardRole.REPLICA, move="m")
GONE = replace(HOME, role=ShardRole.GONE)
TO_T = Replica(shard=T, location="grpc://t", sync=False)


def _at(events: int, clicks: int = 0) -> Positions:
    return Positions({ONE: events, TWO: clicks})


IDLE, PREPARING, DUAL, FINALIZING, COMPLETE = (
    Idle(),
    PreparingTarget(90),
    DualWrite(_at(100)),
    Finalizing(1_000),
    Complete(),
)
CLOSED = protocol.Closed(target=_at(120), closed_at=_at(120), now_ns=5_000, pause_ms=2.5)
WAITED = protocol.Collecting(now_ns=2_000, gc_window_ns=1_000, readers=0, is_same=True)
SHORT_IN_ONE = protocol.CaughtUp(target=_at(90, 50), is_same=True)
BACK = protocol.Reversing(source=_at(130), closed_at=_at(130))


@pytest.mark.parametrize(
    ("state", "observation", "step"),
    [
        (IDLE, protocol.TargetPrepared(target=_at(60, 30)), Transition(state=PREPARING)),
        (PREPARING, protocol.DualWriting(cutover=_at(100)), Transition(state=DUAL)),
        (DUAL, protocol.CaughtUp(target=_at(100), is_same=True), Transition(state=DUAL, is_repeat=True)),
        (DUAL, CLOSED, Transition(state=Finalizing(5_000, 2.5), primary=Side.TARGET, is_new_route=True)),
        (DUAL, protocol.Returned(), Transition(state=DualWrite(_at(100), returned=1))),
        (FINALIZING, protocol.Returned(), Transition(state=FINALIZING, primary=Side.TARGET)),
        (FINALIZING, WAITED, Transition(state=COMPLETE, primary=Side.TARGET, is_new_route=True, outcome="complete")),
        (
            Finalizing(1_000, 2.5),
            WAITED,
            Transition(state=Complete(2.5), primary=Side.TARGET, is_new_route=True, outcome="complete"),
        ),
        (IDLE, protocol.Aborting(), Transition(state=IDLE, is_new_route=True, outcome="aborted")),
        (PREPARING, protocol.Aborting(), Transition(state=IDLE, is_new_route=True, outcome="aborted")),
        (DUAL, protocol.Aborting(), Transition(state=IDLE, is_new_route=True, outcome="aborted")),
        (FINALIZING, BACK, Transition(state=IDLE, is_new_route=True, outcome="reversed")),
    ],
)
def test_observations_lead_to_the_next_state(
    state: MigrationState, observation: protocol.Observation, step: Transition
) -> None:
    assert protocol.advance(state, observation) == step


@pytest.mark.parametrize(
    ("state", "observation", "home"),
    [
        (PREPARING, protocol.TargetPrepared(target=_at(5)), Side.SOURCE),
        (DUAL, protocol.DualWriting(cutover=_at(500)), Side.SOURCE),
        (FINALIZING, replace(CLOSED, target=_at(0)), Side.TARGET),
        (FINALIZING, protocol.CaughtUp(target=_at(0), is_same=False), Side.TARGET),
        (COMPLETE, replace(WAITED, now_ns=0), Side.TARGET),
        (IDLE, replace(BACK, source=_at(0)), Side.SOURCE),
    ],
)
def test_a_repeated_request_finds_its_state_unchanged(
    state: MigrationState, observation: protocol.Observation, home: Side
) -> None:
    assert protocol.advance(state, observation) == Transition(state=state, primary=home, is_repeat=True)


@pytest.mark.parametrize(
    ("state", "observation", "message"),
    [
        (DUAL, protocol.CaughtUp(target=_at(90), is_same=True), "The target is at 90, and the cut-over requires 100."),
        (DUAL, SHORT_IN_ONE, "The target is at 90 in t7.events, and the cut-over requires 100."),
        (DUAL, replace(CLOSED, target=_at(119)), "The target is at 119, and the source is at 120."),
        (
            DUAL,
            replace(CLOSED, target=_at(99), closed_at=_at(99)),
            "The target is at 99, and the cut-over requires 100.",
        ),
        (FINALIZING, replace(WAITED, now_ns=1_999), "The source is kept for another 0.0 s."),
        (FINALIZING, replace(WAITED, now_ns=0, gc_window_ns=12_000_000_000), "The source is kept for another 12.0 s."),
        (FINALIZING, replace(WAITED, readers=3), "The source still has readers: 3."),
        (FINALIZING, replace(BACK, source=_at(129)), "The source is at 129, and the target is at 130."),
    ],
)  # fmt: skip
def test_a_step_that_has_to_wait_says_for_what(
    state: MigrationState, observation: protocol.Observation, message: str
) -> None:
    with pytest.raises(NotReadyError) as refused:
        protocol.advance(state, observation)
    assert refused.value.message == message


def test_shards_that_hold_different_rows_stop_the_move_before_the_switch_and_before_the_end() -> None:
    with pytest.raises(MismatchError):
        protocol.advance(DUAL, protocol.CaughtUp(target=_at(100), is_same=False))
    with pytest.raises(MismatchError):
        protocol.advance(FINALIZING, replace(WAITED, is_same=False))


ALLOWED = {
    Request.PREPARE: {"Idle": True, "PreparingTarget": False},
    Request.DUAL_WRITE: {"PreparingTarget": True, "DualWrite": False},
    Request.FINALIZE: {"DualWrite": True, "Finalizing": False},
    Request.COLLECT: {"Finalizing": True, "Complete": False},
    Request.ABORT: {"Idle": True, "PreparingTarget": True, "DualWrite": True},
    Request.REVERSE: {"Finalizing": True, "Idle": False},
}


@pytest.mark.parametrize("request_", list(Request))
@pytest.mark.parametrize("state", [IDLE, PREPARING, DUAL, FINALIZING, COMPLETE], ids=lambda state: state.name)
def test_a_request_is_of_its_state_or_of_the_one_it_leads_to_and_of_no_other(
    state: MigrationState, request_: Request
) -> None:
    due = ALLOWED[request_].get(state.name)
    if due is not None:
        assert protocol.is_due(state, request_) is due
        return
    with pytest.raises(InvalidStateError) as refused:
        protocol.is_due(state, request_)
    assert refused.value.facts["state"] == state.name
    assert refused.value.facts["wanted"] == request_.value


def test_a_request_of_another_state_is_refused_with_the_allowed_steps() -> None:
    with pytest.raises(InvalidStateError) as refused:
        protocol.advance(FINALIZING, protocol.Aborting())
    assert refused.value.message == "The move is in Finalizing; abort is for Idle and PreparingTarget and DualWrite."
    assert refused.value.hint == "Possible now: gc, reverse."
    with pytest.raises(InvalidStateError, match="no write barrier is closed"):
        protocol.advance(PREPARING, protocol.Returned())


def test_only_the_primary_takes_writes_and_only_of_its_own_epoch() -> None:
    assert protocol.admits(HOME, 4) is HOME
    for record, epoch in [(HOME, 3), (HOME, 5), (COPY, 4), (GONE, 4), (None, 4)]:
        with pytest.raises(StaleRouteError) as refused:
            protocol.admits(record, epoch)
        assert refused.value.facts["epoch"] == (record.epoch if record else 0)
    with pytest.raises(NotReadyError):
        protocol.admits(replace(HOME, closed_for=2), 4)


def test_a_shard_that_hears_of_a_newer_epoch_has_to_ask() -> None:
    assert protocol.is_behind(None, 1)
    assert protocol.is_behind(HOME, 5)
    assert not protocol.is_behind(HOME, 4)


def test_only_a_replica_receives_rows_and_only_from_the_primary_of_its_epoch() -> None:
    assert protocol.accepts(COPY, 4) is COPY
    for record, epoch in [(COPY, 3), (COPY, 5), (HOME, 4), (GONE, 4), (None, 4)]:
        with pytest.raises(StaleRouteError):
            protocol.accepts(record, epoch)


def test_a_newer_decision_is_applied_and_an_older_one_opens_no_barrier() -> None:
    closed = replace(HOME, closed_for=2)
    assert protocol.settles(None, HOME) == HOME
    assert protocol.settles(closed, replace(COPY, epoch=5)) == replace(COPY, epoch=5)
    assert protocol.settles(closed, HOME) == closed
    assert protocol.settles(COPY, replace(HOME, epoch=3)) == COPY


def test_a_gate_opens_once_its_move_has_another_version() -> None:
    closed = replace(HOME, move="m", replica=TO_T, closed_for=2)
    assert protocol.reopens(closed, 2) == closed
    assert protocol.reopens(closed, 1) == closed
    assert protocol.reopens(closed, 3) == replace(closed, closed_for=None)


def test_a_gate_closes_for_its_own_move_and_never_for_an_older_version() -> None:
    home = replace(HOME, move="m", replica=TO_T)
    closed = protocol.closes(home, move="m", version=2)
    assert closed == replace(home, closed_for=2)
    assert protocol.closes(closed, move="m", version=2) == closed
    assert protocol.closes(closed, move="m", version=3).closed_for == 3
    for record, move, version in [(closed, "m", 1), (home, "n", 2), (HOME, "m", 2), (COPY, "m", 2), (None, "m", 2)]:
        with pytest.raises(StaleRouteError):
            protocol.closes(record, move=move, version=version)


def test_a_primary_retains_its_log_and_ships_it_in_its_own_epoch_only() -> None:
    held = protocol.retains_log(HOME, epoch=4, move="m")
    assert held == replace(HOME, move="m")
    shipping = protocol.replicates(held, TO_T, epoch=4)
    assert shipping.replica == TO_T
    for record, epoch in [(HOME, 3), (COPY, 4), (None, 4)]:
        with pytest.raises(StaleRouteError):
            protocol.retains_log(record, epoch=epoch, move="m")
        with pytest.raises(StaleRouteError):
            protocol.replicates(record, TO_T, epoch=epoch)


def test_writers_keep_waiting_for_a_replica_when_an_earlier_call_arrives_late() -> None:
    waiting = protocol.replicates(HOME, replace(TO_T, sync=True), epoch=4)
    assert protocol.replicates(waiting, TO_T, epoch=4) == waiting


def test_a_shard_is_welcomed_once_a_move_and_never_back_into_an_older_epoch() -> None:
    assert protocol.welcomes(None, COPY) == COPY
    assert protocol.welcomes(GONE, COPY) == COPY
    assert protocol.welcomes(COPY, COPY) is COPY
    assert protocol.welcomes(replace(COPY, epoch=3, move="l"), COPY) == COPY
    for record in (HOME, replace(GONE, epoch=5), replace(COPY, epoch=5)):
        with pytest.raises(StaleRouteError):
            protocol.welcomes(record, COPY)


def test_a_shard_drops_a_tenant_only_when_it_is_decided_that_it_is_nothing_to_it() -> None:
    assert protocol.drops(GONE, epoch=4) is GONE
    for record, epoch in [(HOME, 4), (COPY, 4), (GONE, 3), (None, 4)]:
        with pytest.raises(StaleRouteError):
            protocol.drops(record, epoch=epoch)


@pytest.mark.parametrize(
    ("state", "home", "roles", "sync"),
    [
        (IDLE, S, (ShardRole.PRIMARY, ShardRole.GONE), None),
        (PREPARING, S, (ShardRole.PRIMARY, ShardRole.REPLICA), False),
        (DUAL, S, (ShardRole.PRIMARY, ShardRole.REPLICA), True),
        (FINALIZING, T, (ShardRole.REPLICA, ShardRole.PRIMARY), True),
        (None, T, (ShardRole.GONE, ShardRole.PRIMARY), None),
        (None, S, (ShardRole.PRIMARY, ShardRole.GONE), None),
    ],
)
def test_the_control_plane_says_what_each_shard_is(
    state: MigrationState | None, home: ShardId, roles: tuple[ShardRole, ShardRole], sync: bool | None
) -> None:
    tenant = TenantInfo(id=TENANT, name="seven", config=TenantConfig(), shard=home, epoch=4, created_at=NOW)
    shards = {each: ShardInfo(id=each, region="r", location=f"grpc://{each}", home="") for each in (S, T)}
    move = None
    if state is not None:
        move = MoveInfo(
            id=1, token="m", tenant=TENANT, source=S, target=T, state=state, version=2, created_at=NOW, updated_at=NOW
        )  # fmt: skip
    found = tuple(protocol.duty(each, tenant, move, shards[T if each == S else S]) for each in (S, T))
    assert tuple(each.role for each in found) == roles
    assert {each.epoch for each in found} == {4}
    assert {each.move for each in found} == {None if state in (None, IDLE) else "m"}
    copies = [each.replica for each in found if each.role is ShardRole.PRIMARY]
    assert [copy and copy.sync for copy in copies] == [sync]
