"""Draining a shard: which of its tenants move where, and which cannot leave."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from catchment.errors import CatchmentError
from catchment.tenants.control_store import ControlFacts
from catchment.tenants.model import Finalizing, MoveInfo, ShardId, ShardInfo, TenantId
from catchment.tenants.placement import place
from catchment.tenants.run_move import MoveReport, Watcher


@dataclass(frozen=True, slots=True)
class DrainMove:
    """A tenant that leaves a shard, and the shard that it moves to."""

    tenant: TenantId
    target: ShardId


@dataclass(frozen=True, slots=True)
class LeftTenant:
    """A tenant that stays in a drained shard, and the reason."""

    tenant: TenantId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPlan:
    """Moves that drain a shard, and the tenants that cannot leave it."""

    shard: ShardInfo
    moves: tuple[DrainMove, ...]
    left: tuple[LeftTenant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """Outcome of a drain. `stopped` is set if the caller stopped it."""

    shard: ShardId
    moved: tuple[MoveReport, ...]
    left: tuple[LeftTenant, ...]
    stopped: bool

    @property
    def ok(self) -> bool:
        return not self.left and not self.stopped


class DrainWatcher(Watcher, Protocol):
    """Callbacks for the progress of a drain: each move, and the progress of that move."""

    def moving(self, source: ShardId, move: DrainMove) -> None:
        """The move of a tenant begins, or continues after its window."""
        ...

    def left_behind(self, tenant: TenantId, error: CatchmentError) -> None:
        """The move of a tenant failed; the drain continues with the others."""
        ...


def plan_drain(facts: ControlFacts, shard: ShardInfo, *, collects: bool) -> DrainPlan:
    """Plan the moves that drain a shard; `collects` also continues moves that only wait for their
    source to be deleted. Pure.
    """
    others = [each for each in facts.shards if each.id != shard.id]
    under_way = {move.tenant: move for move in facts.moves if move.finished_at is None}
    moves: list[DrainMove] = []
    left: list[LeftTenant] = []
    for tenant in facts.tenants:
        move = under_way.get(tenant.id)
        if move is not None and move.source == shard.id:
            # After its switch, there is only work left if its source is to be deleted.
            if tenant.shard == shard.id or collects:
                moves.append(DrainMove(tenant.id, move.target))
        elif move is not None and move.target == shard.id:
            left.append(LeftTenant(tenant.id, _arriving(move)))
        elif tenant.shard == shard.id:
            target = place(tenant.id, tenant.config, others)
            if target is None:
                left.append(LeftTenant(tenant.id, "No other shard can accept it."))
            else:
                moves.append(DrainMove(tenant.id, target.id))
    return DrainPlan(shard=shard, moves=tuple(moves), left=tuple(left))


def run_drain(
    plan: DrainPlan,
    move: Callable[[DrainMove, float | None], MoveReport],
    *,
    gc_window_s: float | None,
    failed: Callable[[TenantId, CatchmentError], None],
) -> DrainReport:
    """Move every tenant of the plan, then delete each at its source, so that the windows pass
    concurrently. `move` gets the window to wait for, `failed` the error of a move that failed.
    """
    reports: dict[TenantId, MoveReport] = {}
    left = {each.tenant: each for each in plan.left}
    stopped = False
    rounds: list[float | None] = [None] if gc_window_s is None else [None, gc_window_s]
    for window_s in rounds:
        for each in plan.moves:
            if stopped or each.tenant in left:
                continue
            try:
                report = move(each, window_s)
            except CatchmentError as error:
                # The other tenants need not wait for it.
                left[each.tenant] = LeftTenant(each.tenant, error.message)
                failed(each.tenant, error)
                continue
            before = reports.get(each.tenant)
            reports[each.tenant] = report if before is None else before.then(report)
            stopped = report.stopped
    return DrainReport(shard=plan.shard.id, moved=tuple(reports.values()), left=tuple(left.values()), stopped=stopped)


def _arriving(move: MoveInfo) -> str:
    verb = "reverse" if isinstance(move.state, Finalizing) else "abort"
    return (
        f"It is being moved here from {move.source}, in {move.state.name}: `catchment tenant {verb} {move.tenant}`, "
        f"or finish that move with `catchment tenant move {move.tenant} --to {move.target} --gc-after 0`."
    )
