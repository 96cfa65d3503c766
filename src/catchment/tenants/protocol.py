"""A tenant's move, decided: what its next state is, and what a shard may do by the record that it keeps. Pure.

    Idle ── prepare ─▶ PreparingTarget ── dual-write ─▶ DualWrite ── finalize ─▶ Finalizing ── collect ─▶ Complete
      ◀── abort ─────────────┴──────────────────────────────┘                        │
      ◀── reverse ───────────────────────────────────────────────────────────────────┘

`advance` is for whoever moves the tenant; its step counts once the control database has swapped it in. The rest is for
the shards. That no acked write is lost, and that never two shards take writes, rests on five sentences:

- An epoch is made by the control database alone, in the swap that changes the home or lets the copy go. So no shard is
  ever ahead of it, and no two decisions share an epoch.
- A shard becomes home, copy or nothing by a newer epoch only: what comes late or twice is passed over.
- A gate that was closed for a version of the move opens once the move has another version, and not before.
- A copy takes the row behind its last one, and no other: it may be late, and has no gaps.
- Nothing is dropped before the swap after which nobody needs it.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from catchment.errors import InvalidStateError, MismatchError, NotReadyError, StaleRouteError
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
    TenantInfo,
)
from catchment.tenants.shard_api import Replica, ShardRole, TenantRecord

_NS_PER_S = 1e9


class Request(StrEnum):
    """What can be wanted of a move."""

    PREPARE = "prepare"
    DUAL_WRITE = "dual-write"
    FINALIZE = "finalize"
    COLLECT = "gc"
    ABORT = "abort"
    REVERSE = "reverse"


class Side(StrEnum):
    """Which of a move's two shards."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPrepared:
    """The history is copied, and the source ships what came after it: the target is this far."""

    target: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class DualWriting:
    """Every write goes to both, and AFTER that began, under the gate, the source was this far."""

    cutover: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """How far the target is, before writers are made to wait for it, and whether both hold the same."""

    target: Positions
    is_same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The source's gate is closed for the version that is about to be swapped; the source ends at `gate`."""

    target: Positions
    closed_at: Positions
    now_ns: int
    pause_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The gate's deadline has passed: the home wants its writers back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting:
    """How long it is since the switch, who still reads the source, and whether both hold the same."""

    now_ns: int
    gc_window_ns: int
    readers: int
    is_same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborting:
    """The move is not wanted any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversing:
    """The target's gate is closed for the version that is about to be swapped; the target ends at `gate`."""

    source: Positions
    closed_at: Positions


Observation = TargetPrepared | DualWriting | CaughtUp | Closed | Returned | Collecting | Aborting | Reversing


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What to swap in: the state, and with `is_new_route` the next epoch, under which `home` is the tenant's home.

    With an outcome, the move is over. `is_repeat`: the state is there already, and nothing needs to be swapped; but the
    shards may not have been told.
    """

    state: MigrationState
    primary: Side = Side.SOURCE
    is_new_route: bool = False
    is_repeat: bool = False
    outcome: str | None = None


_FROM: dict[Request, tuple[type[MigrationState], ...]] = {
    Request.PREPARE: (Idle,),
    Request.DUAL_WRITE: (PreparingTarget,),
    Request.FINALIZE: (DualWrite,),
    Request.COLLECT: (Finalizing,),
    Request.ABORT: (Idle, PreparingTarget, DualWrite),
    Request.REVERSE: (Finalizing,),
}
_TO: dict[Request, type[MigrationState]] = {
    Request.PREPARE: PreparingTarget,
    Request.DUAL_WRITE: DualWrite,
    Request.FINALIZE: Finalizing,
    Request.COLLECT: Complete,
    Request.REVERSE: Idle,
}


def is_due(state: MigrationState, request: Request) -> bool:
    """Whether there is something to do for the request, or its state is there already; InvalidStateError for others.

    It is asked before anything is done: a request that is not of the state has no effect.
    """
    if isinstance(state, _FROM[request]):
        return True
    if type(state) is _TO.get(request):
        return False
    allowed = [str(each) for each, states in _FROM.items() if isinstance(state, states)]
    raise InvalidStateError(
        f"The move is in {state.name}; {request} is for {' and '.join(each.name for each in _FROM[request])}.",
        hint=f"Now it can: {', '.join(allowed)}." if allowed else "It is over.",
        state=state.name,
        wanted=str(request),
        allowed=allowed,
    )


def advance(state: MigrationState, observation: Observation) -> Transition:
    """The step that what was observed leads to; NotReadyError where it has to wait. A repeated one leads to the same.

    A move that has an outcome is over and advances no more: its shards are told, as often as it takes.
    """
    match observation:
        case TargetPrepared():
            return _prepare(state, observation)
        case DualWriting():
            return _dual_write(state, observation)
        case CaughtUp() | Closed():
            return _finalize(state, observation)
        case Returned():
            return _reopen(state)
        case Collecting():
            return _collect(state, observation)
        case Aborting():
            is_due(state, Request.ABORT)
            return Transition(state=Idle(), is_new_route=True, outcome="aborted")
        case Reversing():
            return _reverse(state, observation)
    assert_never(observation)


def _prepare(state: MigrationState, seen: TargetPrepared) -> Transition:
    if not is_due(state, Request.PREPARE):
        return Transition(state=state, is_repeat=True)
    return Transition(state=PreparingTarget(seen.target.total))


def _dual_write(state: MigrationState, seen: DualWriting) -> Transition:
    if not is_due(state, Request.DUAL_WRITE):
        return Transition(state=state, is_repeat=True)
    return Transition(state=DualWrite(seen.cutover))


def _finalize(state: MigrationState, seen: CaughtUp | Closed) -> Transition:
    if not is_due(state, Request.FINALIZE) or not isinstance(state, DualWrite):
        return Transition(state=state, primary=Side.TARGET, is_repeat=True)
    _require(seen.target, state.cutover, "target", "the cut-over requires")
    if isinstance(seen, CaughtUp):
        _require_same(seen.is_same)
        return Transition(state=state, is_repeat=True)
    _require(seen.target, seen.closed_at, "target", "the source is at")
    return Transition(state=Finalizing(seen.now_ns, seen.pause_ms), primary=Side.TARGET, is_new_route=True)


def _reopen(state: MigrationState) -> Transition:
    match state:
        case DualWrite():
            return Transition(state=replace(state, returned=state.returned + 1))
        case Finalizing():
            return Transition(state=state, primary=Side.TARGET)
    raise InvalidStateError(f"The move is in {state.name}, in which no gate is closed.", state=state.name)


def _collect(state: MigrationState, seen: Collecting) -> Transition:
    if not is_due(state, Request.COLLECT) or not isinstance(state, Finalizing):
        return Transition(state=state, primary=Side.TARGET, is_repeat=True)
    left_ns = seen.gc_window_ns - max(0, seen.now_ns - state.switched_at_ns)
    if left_ns > 0:
        raise NotReadyError(f"The source is kept for another {left_ns / _NS_PER_S:,.1f} s.", left_ns=left_ns)
    if seen.readers:
        raise NotReadyError(f"The source is still read by {seen.readers}.", readers=seen.readers)
    _require_same(seen.is_same)
    return Transition(
        state=Complete(state.pause_ms or None), primary=Side.TARGET, is_new_route=True, outcome="complete"
    )


def _reverse(state: MigrationState, seen: Reversing) -> Transition:
    if not is_due(state, Request.REVERSE):
        return Transition(state=state, is_repeat=True)
    _require(seen.source, seen.closed_at, "source", "the target is at")
    return Transition(state=Idle(), is_new_route=True, outcome="reversed")


def _require(reached: Positions, required: Positions, who: str, why: str) -> None:
    if reached.covers(required):
        return
    one, other, where = reached.total, required.total, ""
    if one >= other:
        # One table has more than is needed, and hides that another has less.
        table, other = next(each for each in required.by_table.items() if reached.by_table.get(each[0], 0) < each[1])
        one, where = reached.by_table.get(table, 0), f" in {table}"
    raise NotReadyError(
        f"The {who} is at {one:,}{where}, and {why} {other:,}.",
        reached=reached.to_json(),
        required=required.to_json(),
    )


def _require_same(is_same: bool) -> None:
    if not is_same:
        raise MismatchError


# What a shard may do, by its record.


def is_behind(record: TenantRecord | None, epoch: int) -> bool:
    """Whether somebody knows of a newer epoch than the shard: it has to ask the control plane before it answers."""
    return record is None or record.epoch < epoch


def admits(record: TenantRecord | None, epoch: int) -> TenantRecord:
    """The record by which a write is taken; StaleRouteError where it is not for here, NotReadyError where it waits."""
    record = _current(record, epoch)
    if record.role is not ShardRole.PRIMARY:
        raise StaleRouteError(f"This shard is not the home of {record.tenant}.", epoch=record.epoch)
    if record.closed_for is not None:
        raise NotReadyError(f"{record.tenant} is changing its home: its writes wait.", epoch=record.epoch)
    return record


def accepts(record: TenantRecord | None, epoch: int) -> TenantRecord:
    """The record by which rows are taken from the home; StaleRouteError where they come from an old one."""
    record = _current(record, epoch)
    if record.role is not ShardRole.REPLICA:
        raise StaleRouteError(f"This shard is no copy of {record.tenant}.", epoch=record.epoch)
    return record


def settles(record: TenantRecord | None, decided: TenantRecord) -> TenantRecord:
    """The record once the shard has heard of a decision. What it knows already, or knows better, changes nothing."""
    return decided if is_behind(record, decided.epoch) or record is None else record


def reopens(record: TenantRecord, version: int) -> TenantRecord:
    """The record of a home once it has read, from the control plane, that its move is at `version`.

    Closed for an older version, it is still the home: whoever wanted the gate closed has lost the swap.
    """
    is_over = record.closed_for is not None and record.closed_for < version
    return replace(record, closed_for=None) if is_over else record


def closes(record: TenantRecord | None, *, move: str, version: int) -> TenantRecord:
    """The record of a home that promises to take no write before this version of the move is decided.

    It never goes back to an older version: that would let it open while a newer one is being decided.
    """
    if record is None or record.role is not ShardRole.PRIMARY or record.move != move or record.replica is None:
        raise StaleRouteError("This shard is not the home that this move is about to change.")
    if record.closed_for is not None and record.closed_for > version:
        raise StaleRouteError(f"The gate is closed for version {record.closed_for} of the move, not {version}.")
    return replace(record, closed_for=version)


def retains_log(record: TenantRecord | None, *, epoch: int, move: str) -> TenantRecord:
    """The record of a home that keeps its log for a move."""
    record = _current(record, epoch)
    if record.role is not ShardRole.PRIMARY:
        raise StaleRouteError(f"This shard is not the home of {record.tenant}.", epoch=record.epoch)
    return replace(record, move=move)


def replicates(record: TenantRecord | None, replica: Replica, *, epoch: int) -> TenantRecord:
    """The record of a home that ships to a copy. One that writers wait for, they wait for until it is let go."""
    record = _current(record, epoch)
    if record.role is not ShardRole.PRIMARY:
        raise StaleRouteError(f"This shard is not the home of {record.tenant}.", epoch=record.epoch)
    is_sync = record.replica is not None and record.replica.shard == replica.shard and record.replica.sync
    return replace(record, replica=replace(replica, sync=replica.sync or is_sync))


def welcomes(record: TenantRecord | None, fresh: TenantRecord) -> TenantRecord:
    """The record of a shard that becomes a copy. Where it changes, all that is here is from before, and goes."""
    if record is None:
        return fresh
    if record.epoch > fresh.epoch or record.role is ShardRole.PRIMARY:
        raise StaleRouteError(f"This shard is at epoch {record.epoch} of {record.tenant}.", epoch=record.epoch)
    return record if record.move == fresh.move and record.epoch == fresh.epoch else fresh


def drops(record: TenantRecord | None, *, epoch: int) -> TenantRecord:
    """The record by which all that is here of a tenant may go: it is decided that this shard is nothing to it."""
    record = _current(record, epoch)
    if record.role is not ShardRole.GONE:
        raise StaleRouteError(f"This shard is still the {record.role} of {record.tenant}.", epoch=record.epoch)
    return record


def _current(record: TenantRecord | None, epoch: int) -> TenantRecord:
    """The record, where it is of that epoch."""
    if record is None:
        raise StaleRouteError("This shard knows nothing of the tenant.", epoch=0)
    if record.epoch != epoch:
        raise StaleRouteError(
            f"{record.tenant} is at epoch {record.epoch} here, and the call is of epoch {epoch}.", epoch=record.epoch
        )
    return record


def duty(shard: ShardId, tenant: TenantInfo, move: MoveInfo | None, other: ShardInfo | None) -> TenantRecord:
    """What a shard is to a tenant, by the tenant's home and its unfinished move, whose other shard is `other`."""
    replica: Replica | None = None
    under_way = move is not None and shard in (move.source, move.target) and not isinstance(move.state, Idle)
    if tenant.shard != shard:
        role = ShardRole.REPLICA if under_way else ShardRole.GONE
    else:
        role = ShardRole.PRIMARY
        if under_way and move is not None and other is not None:
            replica = Replica(shard=other.id, location=other.location, sync=not isinstance(move.state, PreparingTarget))
    return TenantRecord(
        tenant=tenant.id,
        role=role,
        epoch=tenant.epoch,
        replica=replica,
        move=move.token if under_way and move is not None else None,
    )
