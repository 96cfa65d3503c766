"""`TenantMigration`: moves a tenant from one shard to another while it keeps writing.

    prepare_target ──▶ enter_dual_write ──▶ finalize ──▶ gc_source          abort before the switch, reverse after it
    history, then      both get every       one swap     the source
    the log            write                decides      deletes its data

The state is in the control database and changes by compare-and-swap only. A killed process leaves
the state as it was, and every step can be repeated from it, in this process or another.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from catchment.errors import (
    ConflictError,
    InputError,
    InvalidStateError,
    MismatchError,
    NotReadyError,
    ShardUnreachableError,
    StateError,
)
from catchment.foundation import events, faults
from catchment.foundation.clock import Clock
from catchment.lake.erase import Erased
from catchment.tenants.control_client import record_for
from catchment.tenants.control_store import ControlStore
from catchment.tenants.model import (
    DualWrite,
    Finalizing,
    Idle,
    MigrationState,
    MoveInfo,
    Positions,
    Route,
    ShardId,
    ShardInfo,
    TenantId,
    TenantInfo,
)
from catchment.tenants.protocol import (
    Aborting,
    CaughtUp,
    Closed,
    Collecting,
    DualWriting,
    Request,
    Reversing,
    Side,
    TargetPrepared,
    Transition,
    advance,
    is_due,
)
from catchment.tenants.shard_api import Lag, Replica, RetainedHistory, ShardNode, TableDigest

# Time without a decision after which a primary with a closed write barrier accepts writes again.
GATE_SECONDS_MAX = 5.0
_COMPARISONS_MAX = 20
_COMPARE_AGAIN_S = 0.1
_DISK_SPARE = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A tenant's tables as a backfill found them, and the lakes; `notes` describe the copy."""

    tables: int
    files: int
    bytes: int
    source_lake: str = ""
    target_lake: str = ""
    notes: tuple[str, ...] = ()


class HistoryCopier(Protocol):
    """Copies a tenant's history from one shard's lake into another's."""

    def plan(
        self, tenant: TenantId, source: ShardInfo, target: ShardInfo, *, snapshot: int | None, token: str
    ) -> History:
        """Plan the copy, without effect. Raises InputError if it is not possible."""
        ...

    def run(
        self,
        tenant: TenantId,
        source: ShardInfo,
        target: ShardInfo,
        *,
        snapshot: int,
        token: str,
        progress: "HistoryProgress | None" = None,
    ) -> History:
        """Copy the files that the target does not have yet, each once."""
        ...


class HistoryProgress(Protocol):
    """Callback for the progress of a backfill: bytes done, and all bytes."""

    def __call__(self, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """Findings before a move; nothing was changed."""

    tenant: TenantInfo
    source: ShardInfo
    target: ShardInfo
    history: History
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of source and target at a position that both have reached."""

    at: Positions
    rows: int
    tables: int
    differences: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.differences


class TenantMigration:
    """The move of one tenant. Several processes may run it: the control database admits one."""

    def __init__(
        self,
        tenant: TenantId,
        source_shard: ShardId,
        target_shard: ShardId,
        *,
        control: ControlStore,
        connect: Callable[[ShardId, str], ShardNode],
        backfill: HistoryCopier,
        clock: Clock,
        gate_s: float | None = None,
    ) -> None:
        """`gate_s` is how long the write barrier may stay closed before it opens again."""
        if source_shard == target_shard:
            raise InputError(f"{tenant} is in {source_shard} already.")
        self.tenant = tenant
        self.source_shard = source_shard
        self.target_shard = target_shard
        self._control = control
        self._connect = connect
        self._backfill = backfill
        self._clock = clock
        self._gate_s = GATE_SECONDS_MAX if gate_s is None else gate_s

    # State and checks.

    @property
    def state(self) -> MigrationState:
        """The state of the move."""
        move = self._find_move()
        return Idle() if move is None or move.outcome in ("aborted", "reversed") else move.state

    def preflight(self) -> Preflight:
        """Check whether the move is possible, without effect."""
        tenant = self._control.tenant(self.tenant)
        source, target = (self._control.shard(each) for each in (self.source_shard, self.target_shard))
        problems: list[str] = []
        history = History(tables=0, files=0, bytes=0)
        if tenant.shard != self.source_shard:
            problems.append(f"{tenant.id} lives in {tenant.shard}, not in {self.source_shard}.")
        if not tenant.config.allows(target.region):
            regions = ", ".join(sorted(tenant.config.required_regions))
            problems.append(f"{tenant.id} must stay in {regions}; {target.id} is in {target.region}.")
        if target.is_draining:
            problems.append(f"{target.id} is being drained.")
        try:
            ours, theirs = self._node(source).facts(), self._node(target).facts()
            free = int(theirs["free_bytes"])
            history = self._backfill.plan(tenant.id, source, target, snapshot=None, token="preflight")
            for shard, facts, lake in ((source, ours, history.source_lake), (target, theirs, history.target_lake)):
                if facts["lake"] != lake:
                    problems.append(f"{shard.id} serves another lake than catchment.toml in {shard.home} names.")
            if free < history.bytes * _DISK_SPARE:
                problems.append(f"{target.id} has {free:,} bytes free; the tenant has {history.bytes:,}.")
            limit = tenant.config.storage_bytes_max
            if limit is not None and history.bytes > limit:
                problems.append(f"{tenant.id} has {history.bytes:,} bytes; its limit is {limit:,}.")
        except (ShardUnreachableError, InputError) as error:
            problems.append(error.message)
        return Preflight(tenant=tenant, source=source, target=target, history=history, problems=tuple(problems))

    def lag(self) -> Lag:
        """Return the lag of the replica. Raises InvalidStateError if there is none."""
        source, target = self._nodes()
        return (target if isinstance(self.state, Finalizing) else source).lag(self.tenant)

    def verify(self) -> Comparison:
        """Compare source and target, table by table, at a position that both have reached."""
        source, target = self._nodes()
        error: NotReadyError | None = None
        for _ in range(_COMPARISONS_MAX):
            try:
                return self._compare(source, target)
            except NotReadyError as late:
                # A flush happened during the comparison; the next position is after it.
                error = late
                self._clock.sleep(_COMPARE_AGAIN_S)
        raise error or NotReadyError("Source and target could not be compared.")

    def _compare(self, source: ShardNode, target: ShardNode) -> Comparison:
        one, other = source.positions(self.tenant), target.positions(self.tenant)
        tables = one.by_table.keys() | other.by_table.keys()
        at = Positions({table: min(one.by_table.get(table, 0), other.by_table.get(table, 0)) for table in tables})
        ours, theirs = source.digests(self.tenant, at), target.digests(self.tenant, at)
        differences = tuple(
            f"{table}: {_shown(ours.get(table))} at the source, {_shown(theirs.get(table))} at the target"
            for table in sorted(ours.keys() | theirs.keys())
            if not _is_same(ours.get(table), theirs.get(table))
        )
        rows = sum(each.rows for each in ours.values())
        return Comparison(at=at, rows=rows, tables=len(ours), differences=differences)

    # Steps.

    def prepare_target(self, progress: HistoryProgress | None = None) -> int:
        """Copy the history to the target and ship the log from there; return its position."""
        move, epoch = self._open_move()
        source, target = self._nodes()
        if is_due(move.state, Request.PREPARE):
            target.welcome(self.tenant, epoch=epoch, move=move.token)
            retained = source.retain_log(self.tenant, epoch=epoch, move=move.token)
            faults.reach("move.after_hold")
            self._copy_history(move, retained, progress)
            faults.reach("move.after_backfill")
            target.start_after(self.tenant, retained.watermarks, move=move.token)
            source.replicate(self.tenant, self._replica(sync=False), epoch=epoch)
            faults.reach("move.after_replicate")
        reached = target.positions(self.tenant)
        self._step(move, advance(move.state, TargetPrepared(target=reached)))
        return reached.total

    def enter_dual_write(self) -> int:
        """Send writes to both shards; return the position the target must reach to switch."""
        move, epoch = self._required_move()
        cutover = Positions()
        if is_due(move.state, Request.DUAL_WRITE):
            # In this order: everything written before the change is in the positions that it
            # returns.
            cutover = self._nodes()[0].replicate(self.tenant, self._replica(sync=True), epoch=epoch)
            faults.reach("move.after_dual_write")
        state = self._step(move, advance(move.state, DualWriting(cutover=cutover))).state
        return state.cutover_seqno if isinstance(state, DualWrite) else cutover.total

    def finalize(self) -> None:
        """Make the target the primary. Raises NotReadyError if it lacks rows, MismatchError if rows
        differ.
        """
        move, _ = self._required_move()
        if is_due(move.state, Request.FINALIZE):
            source, target = self._nodes()
            advance(move.state, CaughtUp(target=target.positions(self.tenant), is_same=True))
            self._require_same(move)
            started_s = self._clock.monotonic_s()
            closed_at = source.close_barrier(
                self.tenant, move=move.token, version=move.version, deadline_s=self._gate_s
            )
            faults.reach("move.after_close")
            reached = target.positions(self.tenant)
            move = self._step(
                move, advance(move.state, Closed(target=reached, closed_at=closed_at, now_ns=self._now_ns()))
            )
            faults.reach("move.after_switch")
            self._settle_all()
            self._note_pause(move, (self._clock.monotonic_s() - started_s) * 1000)
        else:
            self._settle_all()

    def gc_source(self, gc_window_ns: int) -> Erased:
        """Delete the tenant from the source, after the window has passed and if it has no readers."""
        move = self._find_move()
        if move is None:
            raise InvalidStateError(f"{self.tenant} was not moved from {self.source_shard} to {self.target_shard}.")
        if is_due(move.state, Request.COLLECT):
            self._settle_all()
            waited = Collecting(
                now_ns=self._now_ns(),
                gc_window_ns=gc_window_ns,
                readers=self._nodes()[0].readers(self.tenant),
                is_same=True,
            )
            # Everything but the comparison, which reads all rows.
            advance(move.state, waited)
            self._require_same(move)
            self._step(move, advance(move.state, waited))
            faults.reach("move.after_collect")
        return self._discard(gone=self.source_shard)

    def abort(self) -> Erased:
        """Undo a move that has not switched: the tenant stays, and the target deletes its data."""
        move = self._find_move()
        if move is None:
            raise InvalidStateError(f"{self.tenant} is not being moved.")
        if move.finished_at is None:
            # First, so that a process that is about to switch fails.
            self._step(move, advance(move.state, Aborting()))
            faults.reach("move.after_abort")
        elif move.outcome != "aborted":
            raise InvalidStateError(f"The last move of {self.tenant} is {move.outcome}.")
        return self._discard(gone=self.target_shard)

    def reverse(self) -> Erased:
        """Make the source the primary again, with all rows; the target deletes its data."""
        move = self._find_move()
        if move is None:
            raise InvalidStateError(f"{self.tenant} was not moved.")
        if move.finished_at is None and is_due(move.state, Request.REVERSE):
            self._settle_all()
            self._require_same(move)
            source, target = self._nodes()
            closed_at = target.close_barrier(
                self.tenant, move=move.token, version=move.version, deadline_s=self._gate_s
            )
            faults.reach("move.after_close")
            self._step(move, advance(move.state, Reversing(source=source.positions(self.tenant), closed_at=closed_at)))
            faults.reach("move.after_reverse")
        elif move.outcome != "reversed":
            raise InvalidStateError(f"The last move of {self.tenant} is {move.outcome}.")
        return self._discard(gone=self.target_shard)

    # Internals.

    def _step(self, move: MoveInfo, step: Transition) -> MoveInfo:
        """Swap in a step. Raises ConflictError, and changes nothing, if another process was faster."""
        if step.is_repeat:
            return move
        route = None
        if step.is_new_route:
            primary = self.source_shard if step.primary is Side.SOURCE else self.target_shard
            route = Route(tenant=self.tenant, epoch=self._control.tenant(self.tenant).epoch + 1, primary=primary)
        changed = self._control.change_move(move, step.state, route=route, outcome=step.outcome)
        name, outcome = step.state.name, step.outcome
        events.emit("move_changed", tenant=str(self.tenant), move=move.token, state=name, outcome=outcome)
        return changed

    def _note_pause(self, move: MoveInfo, pause_ms: float) -> None:
        events.emit("tenant_switched", tenant=str(self.tenant), move=move.token, pause_ms=round(pause_ms, 1))
        if isinstance(move.state, Finalizing):
            with suppress(ConflictError):
                # For reports only: the switch is done.
                noted = Finalizing(move.state.switched_at_ns, round(pause_ms, 3))
                self._control.change_move(move, noted)

    def _settle_all(self) -> int:
        """Send the decision to both shards concurrently, because writers wait; return its epoch."""
        placement = self._control.placement(self.tenant)
        with ThreadPoolExecutor(2) as executor:
            calls = [
                executor.submit(events.carried(node.settle), record)
                for node in self._nodes()
                if (record := record_for(node.id, placement)) is not None
            ]
        for each in calls:
            each.result()
        return 0 if placement.tenant is None else placement.tenant.epoch

    def _discard(self, *, gone: ShardId) -> Erased:
        """End the move: its primary has no replica any more, and the other shard deletes its data."""
        epoch = self._settle_all()
        faults.reach("move.before_drop")
        return self._node(self._control.shard(gone)).drop(self.tenant, epoch=epoch)

    def _copy_history(self, move: MoveInfo, retained: RetainedHistory, progress: HistoryProgress | None) -> None:
        source, target = (self._control.shard(each) for each in (move.source, move.target))
        self._backfill.run(self.tenant, source, target, snapshot=retained.snapshot, token=move.token, progress=progress)

    def _require_same(self, move: MoveInfo) -> None:
        compared = self.verify()
        if not compared.ok:
            raise MismatchError(f"Source and target differ: {'; '.join(compared.differences)}.")
        facts = {"tables": compared.tables, "rows": compared.rows}
        events.emit("tenant_compared", tenant=str(self.tenant), move=move.token, **facts)

    def _replica(self, *, sync: bool) -> Replica:
        target = self._control.shard(self.target_shard)
        return Replica(target.id, target.location, sync)

    def _nodes(self) -> tuple[ShardNode, ShardNode]:
        source, target = (self._control.shard(each) for each in (self.source_shard, self.target_shard))
        return self._node(source), self._node(target)

    def _node(self, shard: ShardInfo) -> ShardNode:
        return self._connect(shard.id, shard.location)

    def _find_move(self) -> MoveInfo | None:
        """Return the tenant's newest move if it is between these two shards."""
        move = self._control.move(self.tenant) or self._control.last_move(self.tenant)
        if move is None or (move.source, move.target) != (self.source_shard, self.target_shard):
            return None
        events.identify(move=move.token)
        return move

    def _required_move(self) -> tuple[MoveInfo, int]:
        """Return the open move with the epoch of that moment: a process that has lost the move must
        not act for the next one.
        """
        placement = self._control.placement(self.tenant)
        move, tenant = placement.move, placement.tenant
        if move is None or tenant is None or (move.source, move.target) != (self.source_shard, self.target_shard):
            raise InvalidStateError(
                f"{self.tenant} is not being moved from {self.source_shard} to {self.target_shard}."
            )
        events.identify(move=move.token)
        return move, tenant.epoch

    def _open_move(self) -> tuple[MoveInfo, int]:
        if self._control.move(self.tenant) is None:
            self._finish_last()
            found = self.preflight()
            if not found.ok:
                raise StateError(f"{self.tenant} cannot be moved: {' '.join(found.problems)}", problems=found.problems)
            self._control.open_move(self.tenant, self.source_shard, self.target_shard, self._clock.now())
        return self._required_move()

    def _finish_last(self) -> None:
        """Complete the deletion at the target if the process of the last move died before it."""
        last = self._control.last_move(self.tenant)
        if last is not None and self.target_shard == (last.source if last.outcome == "complete" else last.target):
            self._discard(gone=self.target_shard)

    def _now_ns(self) -> int:
        return int(self._clock.now().timestamp() * 1_000_000_000)


def _is_same(one: TableDigest | None, other: TableDigest | None) -> bool:
    """Return whether both are equal; a table created since has no rows up to an agreed position,
    and may be missing.
    """
    return one == other or not any(each is not None and each.rows for each in (one, other))


def _shown(found: TableDigest | None) -> str:
    return "no such table" if found is None else f"{found.rows:,} rows ({found.digest})"
