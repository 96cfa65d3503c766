"""Decisions of a tenant's move: its next state, and the actions that a shard's record allows. Pure.

    Idle ── prepare ─▶ PreparingTarget ── dual-write ─▶ DualWrite ── finalize ─▶ Finalizing ── collect ─▶ Complete
      ◀── abort ─────────────┴──────────────────────────────┘                        │
      ◀── reverse ───────────────────────────────────────────────────────────────────┘

`advance` is for the process that moves the tenant; its step takes effect when the control database
has swapped it in. The rest is for the shards. Five rules ensure that no acknowledged write is lost
and that two shards never accept writes at once:

- Only the control database creates an epoch, in the swap that changes the primary or removes the
  replica. So no shard is ever ahead of it, and no two decisions share an epoch.
- A shard changes its role only by a newer epoch; late and repeated decisions are ignored.
- A write barrier that was closed for a version of the move opens when the move has another version,
  and not before.
- A replica appends only the row after its last one: it may be late, but has no gaps.
- No data is dropped before the swap after which it is not needed.
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
    """Steps that can be requested of a move."""

    PREPARE = "prepare"
    DUAL_WRITE = "dual-write"
    FINALIZE = "finalize"
    COLLECT = "gc"
    ABORT = "abort"
    REVERSE = "reverse"


class Side(StrEnum):
    """One of the two shards of a move."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPrepared:
    """The history is copied, and the source ships later rows; `target` is the target's position."""

    target: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class DualWriting:
    """Every write goes to both shards; `cutover` is the source's position AFTER that began, under
    the write barrier.
    """

    cutover: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """The target's position before writers wait for it, and whether both shards are equal."""

    target: Positions
    is_same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The source's write barrier is closed for the version that is about to be swapped; its last
    position is `closed_at`.
    """

    target: Positions
    closed_at: Positions
    now_ns: int
    pause_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The deadline of the write barrier has passed: the primary accepts writes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting:
    """Time since the switch, readers of the source, and whether source and target are equal."""

    now_ns: int
    gc_window_ns: int
    readers: int
    is_same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborting:
    """The move is to be undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversing:
    """The target's write barrier is closed for the version that is about to be swapped; its last
    position is `closed_at`.
    """

    source: Positions
    closed_at: Positions


Observation = TargetPrepared | DualWriting | CaughtUp | Closed | Returned | Collecting | Aborting | Reversing


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The change to swap in: the state and, with `is_new_route`, the next epoch, in which `primary`
    is the primary.

    With an outcome, the move is over. `is_repeat`: the move is already in this state and nothing
    needs to be swapped, but the shards may not know it yet.
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
    """Return whether the request has work to do; False if the move is already in its state. Raises
    InvalidStateError for any other state.

    Called before anything is done, so that a request in the wrong state has no effect.
    """
    if isinstance(state, _FROM[request]):
        return True
    if type(state) is _TO.get(request):
        return False
    allowed = [str(each) for each, states in _FROM.items() if isinstance(state, states)]
    raise InvalidStateError(
        f"The move is in {state.name}; {request} is for {' and '.join(each.name for each in _FROM[request])}.",
        hint=f"Possible now: {', '.join(allowed)}." if allowed else "It is over.",
        state=state.name,
        wanted=str(request),
        allowed=allowed,
    )


def advance(state: MigrationState, observation: Observation) -> Transition:
    """Return the step that an observation leads to; the same one if it is repeated. Raises
    NotReadyError if the step has to wait.

    A move with an outcome is over and does not advance; its shards are notified until they know it.
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
    raise InvalidStateError(f"The move is in {state.name}, in which no write barrier is closed.", state=state.name)


def _collect(state: MigrationState, seen: Collecting) -> Transition:
    if not is_due(state, Request.COLLECT) or not isinstance(state, Finalizing):
        return Transition(state=state, primary=Side.TARGET, is_repeat=True)
    left_ns = seen.gc_window_ns - max(0, seen.now_ns - state.switched_at_ns)
    if left_ns > 0:
        raise NotReadyError(f"The source is kept for another {left_ns / _NS_PER_S:,.1f} s.", left_ns=left_ns)
    if seen.readers:
        raise NotReadyError(f"The source still has readers: {seen.readers}.", readers=seen.readers)
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
        # The total is reached because one table is past its required position. Report one that is
        # not.
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


# Actions that a shard's record allows.


def is_behind(record: TenantRecord | None, epoch: int) -> bool:
    """Return whether the caller knows a newer epoch: the shard must ask the control plane."""
    return record is None or record.epoch < epoch


def admits(record: TenantRecord | None, epoch: int) -> TenantRecord:
    """Return the record by which a write is accepted. Raises StaleRouteError if it belongs to
    another shard, NotReadyError if it has to wait.
    """
    record = _current(record, epoch)
    if record.role is not ShardRole.PRIMARY:
        raise StaleRouteError(f"This shard is not the primary of {record.tenant}.", epoch=record.epoch)
    if record.closed_for is not None:
        raise NotReadyError(f"{record.tenant} is changing its primary; its writes wait.", epoch=record.epoch)
    return record


def accepts(record: TenantRecord | None, epoch: int) -> TenantRecord:
    """Return the record by which rows are accepted from the primary. Raises StaleRouteError if they
    come from a former one.
    """
    record = _current(record, epoch)
    if record.role is not ShardRole.REPLICA:
        raise StaleRouteError(f"This shard is not a replica of {record.tenant}.", epoch=record.epoch)
    return record


def settles(record: TenantRecord | None, decided: TenantRecord) -> TenantRecord:
    """Return the record after a decision; one that is not newer changes nothing."""
    return decided if is_behind(record, decided.epoch) or record is None else record


def reopens(record: TenantRecord, version: int) -> TenantRecord:
    """Return a primary's record after it has read that its move is at `version`.

    If it is closed for an older version, it is still the primary: the process that closed it has
    lost the swap.
    """
    is_over = record.closed_for is not None and record.closed_for < version
    return replace(record, closed_for=None) if is_over else record


def closes(record: TenantRecord | None, *, move: str, version: int) -> TenantRecord:
    """Return the record of a primary that accepts no write until this version is decided.

    It never returns to an older version, because it could then open while a newer one is being
    decided.
    """
    if record is None or record.role is not ShardRole.PRIMARY or record.move != move or record.replica is None:
        raise StaleRouteError("This shard is not the primary that this move is about to change.")
    if record.closed_for is not None and record.closed_for > version:
        raise StaleRouteError(f"The write barrier is closed for version {record.closed_for}, not {version}.")
    return replace(record, closed_for=version)


def retains_log(record: TenantRecord | None, *, epoch: int, move: str) -> TenantRecord:
    """Return the record of a primary that retains its log for a move."""
    record = _current(record, epoch)
    if record.role is not ShardRole.PRIMARY:
        raise StaleRouteError(f"This shard is not the primary of {record.tenant}.", epoch=record.epoch)
    return replace(record, move=move)


def replicates(record: TenantRecord | None, replica: Replica, *, epoch: int) -> TenantRecord:
    """Return the record of a primary that ships to a replica. A replica that writers wait for stays
    synchronous until it is removed.
    """
    record = _current(record, epoch)
    if record.role is not ShardRole.PRIMARY:
        raise StaleRouteError(f"This shard is not the primary of {record.tenant}.", epoch=record.epoch)
    is_sync = record.replica is not None and record.replica.shard == replica.shard and record.replica.sync
    return replace(record, replica=replace(replica, sync=replica.sync or is_sync))


def welcomes(record: TenantRecord | None, fresh: TenantRecord) -> TenantRecord:
    """Return the record of a shard that becomes a replica. If the record changes, data here is from
    an earlier move, and the caller deletes it.
    """
    if record is None:
        return fresh
    if record.epoch > fresh.epoch or record.role is ShardRole.PRIMARY:
        raise StaleRouteError(f"This shard is at epoch {record.epoch} of {record.tenant}.", epoch=record.epoch)
    return record if record.move == fresh.move and record.epoch == fresh.epoch else fresh


def drops(record: TenantRecord | None, *, epoch: int) -> TenantRecord:
    """Return the record by which a tenant's data may be deleted: this shard has no role."""
    record = _current(record, epoch)
    if record.role is not ShardRole.GONE:
        raise StaleRouteError(
            f"This shard is still the {record.role.name.lower()} of {record.tenant}.", epoch=record.epoch
        )
    return record


def _current(record: TenantRecord | None, epoch: int) -> TenantRecord:
    """Return the record, or raise StaleRouteError if it is of another epoch."""
    if record is None:
        raise StaleRouteError("This shard does not know the tenant.", epoch=0)
    if record.epoch != epoch:
        raise StaleRouteError(
            f"{record.tenant} is at epoch {record.epoch} here; the call is for epoch {epoch}.", epoch=record.epoch
        )
    return record


def duty(shard: ShardId, tenant: TenantInfo, move: MoveInfo | None, other: ShardInfo | None) -> TenantRecord:
    """Return the record of a shard, by the tenant and its unfinished move with `other`."""
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
