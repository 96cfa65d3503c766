"""`TenantService`: all operations on shards, tenants and moves, as plain calls."""

from collections.abc import Callable

from catchment.control import ControlDatabase
from catchment.errors import CatchmentError, InvalidStateError, NotReadyError, RetryableError, StateError
from catchment.foundation.clock import Clock
from catchment.foundation.settings import Settings
from catchment.tenants import registration
from catchment.tenants.control import ControlPlane, Topology, health_of
from catchment.tenants.control_store import ControlStore
from catchment.tenants.drain import DrainMove, DrainPlan, DrainReport, DrainWatcher, plan_drain, run_drain
from catchment.tenants.migration import HistoryCopier, TenantMigration
from catchment.tenants.model import (
    Finalizing,
    MoveInfo,
    Positions,
    ShardId,
    ShardInfo,
    TenantConfig,
    TenantId,
    TenantInfo,
)
from catchment.tenants.reports import (
    AddedShard,
    CollectedSource,
    MoveComparison,
    MovePlan,
    MoveRequest,
    MoveStatus,
    ShardStatus,
    TenantDetails,
    TenantEntry,
    TenantMove,
    UndoneMove,
)
from catchment.tenants.run_move import MovePhase, MoveReport, Watcher, retry_step, run_move
from catchment.tenants.transport.remote_shard import Remotes

GC_WINDOW_S = 300.0
_NS_PER_S = 1_000_000_000
# The phase that a move continues with, by its state.
_NEXT_PHASE = {
    "PreparingTarget": MovePhase.CATCHING_UP,
    "DualWrite": MovePhase.DUAL_WRITE,
    "Finalizing": MovePhase.WAITING_FOR_GC,
}

Stop = Callable[[], bool]


def _never() -> bool:
    return False


class TenantService:
    """Shards, tenants and moves of one control database.

    A tenant is given as a `TenantId` or as text (`t7` or `7`), a shard as a `ShardId` or by its
    name. Every call but `add_shard` raises StateError if there is no control database.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        control: Callable[[], ControlDatabase],
        history: Callable[[], HistoryCopier],
        clock: Clock,
    ) -> None:
        """`control` opens the control database, and creates it if missing; `history` returns the
        copier for moves.
        """
        self._settings = settings
        self._control = control
        self._history = history
        self._clock = clock
        self._remotes = Remotes(settings)
        self._store: ControlStore | None = None

    def close(self) -> None:
        """Close the connections to shards."""
        self._remotes.close()

    @property
    def store(self) -> ControlStore:
        """The control database's tables; StateError if there is no control database."""
        if self._store is None:
            if not ControlDatabase.examine(self._settings).exists:
                raise StateError(
                    "There is no control database.",
                    hint="`catchment shard add` creates it. CATCHMENT_CONTROL_DB sets its address, "
                    "--home the home that has it.",
                )
            self._store = self._open_store()
        return self._store

    def topology(self) -> Topology:
        """Return all shards, tenants and unfinished moves, and the health of regions."""
        return ControlPlane(self.store, self._clock).topology()

    # Shards.

    def add_shard(self, shard: ShardId | str, *, location: str | None = None, region: str | None = None) -> AddedShard:
        """Add the home of this service as a shard, or change the shard's location or region.

        Creates the control database if it is missing. The location defaults to that of the server
        that runs on the home. If no server answers there, the shard is added all the same.
        """
        number, home = _shard_id(shard), registration.shard_home(self._settings)
        reached = registration.shard_location(self._settings, number, location)
        store = self._store = self._store or self._open_store()
        known = next((each for each in store.shards() if each.id == number), None)
        described = registration.described_shard(number, home, reached, region, known)
        unreachable = registration.find_unreachable(described, self._remotes.connect)
        if known is None:
            store.add_shard(described)
        else:
            store.change_shard(described)
        return AddedShard(shard=described, is_new=known is None, control=self._control().place, unreachable=unreachable)

    def shards(self) -> tuple[ShardStatus, ...]:
        """Return all shards, by name."""
        facts, now = self.store.facts(), self._clock.now()
        return tuple(
            ShardStatus(
                shard=each,
                report=facts.reports[each.id],
                health=health_of([facts.reports[each.id]], now=now),
                tenants=tuple(tenant.id for tenant in facts.tenants if tenant.shard == each.id),
            )
            for each in facts.shards
        )

    def shard(self, shard: ShardId | str) -> ShardInfo:
        """Return one shard. Raises InputError if there is none of that name."""
        store = self.store
        return store.shard(_shard_id(shard))

    def plan_drain(self, shard: ShardId | str, *, collects: bool = False) -> DrainPlan:
        """Plan the moves that drain a shard, without effect; `collects` also continues moves whose
        source is only kept for its window.
        """
        return plan_drain(self.store.facts(), self.shard(shard), collects=collects)

    def drain(
        self,
        shard: ShardId | str,
        *,
        gc_window_s: float | None = None,
        watcher: DrainWatcher | None = None,
        stop: Stop = _never,
    ) -> DrainReport:
        """Move every tenant away, each to the shard that its hash selects, and accept none.

        With `gc_window_s`, each tenant is deleted from the shard so many seconds after its switch;
        otherwise the shard keeps a replica. A move that fails does not keep the others waiting.
        """
        plan = self.plan_drain(shard, collects=gc_window_s is not None)
        self.store.set_draining(plan.shard.id)

        def move(each: DrainMove, window_s: float | None) -> MoveReport:
            if watcher is not None:
                watcher.moving(plan.shard.id, each)
            migration = self._migration(each.tenant, plan.shard.id, each.target)
            return self._run(migration, gc_window_s=window_s, watcher=watcher, stop=stop)

        def failed(tenant: TenantId, error: CatchmentError) -> None:
            if watcher is not None:
                watcher.left_behind(tenant, error)

        return run_drain(plan, move, gc_window_s=gc_window_s, failed=failed)

    def undo_drain(self, shard: ShardId | str) -> None:
        """Accept tenants in a shard again; those that have left stay away."""
        self.store.set_draining(self.shard(shard).id, False)

    # Tenants.

    def create(
        self,
        tenant: TenantId | str,
        *,
        name: str | None = None,
        config: TenantConfig | None = None,
        shard: ShardId | str | None = None,
    ) -> TenantInfo:
        """Create a tenant; without a shard, on the one that its hash selects. The name defaults to
        its number.

        Raises AlreadyExistsError if there is one of that number.
        """
        plane = ControlPlane(self.store, self._clock)
        number = _tenant_id(tenant)
        chosen = None if shard is None else _shard_id(shard)
        return plane.create_tenant(number, name=name or str(number), config=config or TenantConfig(), shard=chosen)

    def configure(self, tenant: TenantId | str, config: TenantConfig) -> None:
        """Replace a tenant's limits. Raises StateError if they exclude the region that it is in."""
        store = self.store
        store.set_config(_tenant_id(tenant), config)

    def tenants(self) -> tuple[TenantEntry, ...]:
        """Return all tenants, by number, each with its unfinished move."""
        facts = self.store.facts()
        under_way = {move.tenant: move for move in facts.moves if move.finished_at is None}
        return tuple(TenantEntry(tenant=each, move=under_way.get(each.id)) for each in facts.tenants)

    def tenant(self, tenant: TenantId | str) -> TenantInfo:
        """Return one tenant. Raises InputError if there is none of that number."""
        store = self.store
        return store.tenant(_tenant_id(tenant))

    def show(self, tenant: TenantId | str) -> TenantDetails:
        """Return a tenant with the positions of its tables and its unfinished move."""
        found = self.tenant(tenant)
        positions, problem = self._positions(found)
        move = self.store.move(found.id)
        return TenantDetails(
            tenant=found,
            positions=positions,
            positions_unknown=problem,
            move=None if move is None else self._move_status(move),
        )

    def status(self, tenant: TenantId | str) -> TenantMove:
        """Return a tenant with its newest move and, if that is unfinished, the lag of its replica."""
        found = self.tenant(tenant)
        last = self.store.last_move(found.id)
        if last is None:
            return TenantMove(tenant=found, move=None)
        return TenantMove(tenant=found, move=MoveStatus(move=last) if last.finished_at else self._move_status(last))

    # Moves.

    def request_move(self, tenant: TenantId | str, to: ShardId | str) -> MoveRequest:
        """Return the tenant and its newest move, as a request to move to a shard; without effect.

        Raises StateError if the tenant is being moved to another shard.
        """
        found = self.tenant(tenant)
        request = MoveRequest(tenant=found, target=self.shard(to).id, last=self.store.last_move(found.id))
        if request.under_way is not None and request.under_way.target != request.target:
            raise _moving_elsewhere(request.under_way)
        return request

    def plan_move(self, tenant: TenantId | str, to: ShardId | str, *, collects: bool = False) -> MovePlan:
        """Return the plan of a move from its current state, without effect; `collects` includes the
        deletion at the source.
        """
        request = self.request_move(tenant, to)
        phases = [each for each in MovePhase if collects or each is not MovePhase.WAITING_FOR_GC]
        if request.is_fulfilled:
            return MovePlan(request=request, phases=())
        migration = self._migration(request.tenant.id, request.source, request.target)
        if request.under_way is None:
            return MovePlan(request=request, phases=tuple(phases), preflight=migration.preflight())
        order = list(MovePhase)
        first = order.index(_NEXT_PHASE.get(request.state, MovePhase.PREPARING))
        return MovePlan(
            request=request,
            phases=tuple(each for each in phases if order.index(each) >= first),
            under_way=self._move_status(request.under_way),
        )

    def move(
        self,
        tenant: TenantId | str,
        to: ShardId | str,
        *,
        gc_window_s: float | None = None,
        gate_s: float | None = None,
        watcher: Watcher | None = None,
        stop: Stop = _never,
    ) -> MoveReport:
        """Move a tenant while it keeps writing, or continue its move.

        With `gc_window_s`, the source is deleted so many seconds after the switch; otherwise it is
        kept as a replica. `gate_s` is the longest pause of writes at the switch. If the tenant
        lives there already, only an unfinished deletion is completed.
        """
        request = self.request_move(tenant, to)
        if request.is_fulfilled:
            return self._finish(request, collects=gc_window_s is not None)
        migration = self._migration(request.tenant.id, request.source, request.target, gate_s=gate_s)
        return self._run(migration, gc_window_s=gc_window_s, watcher=watcher, stop=stop)

    def abort(self, tenant: TenantId | str) -> UndoneMove:
        """Undo a move that has not switched: the tenant stays, and the target deletes its data."""
        last = self._last_move(tenant)
        erased = retry_step(self._migration_of(last).abort, clock=self._clock)
        return UndoneMove(tenant=self.store.tenant(last.tenant), move=last, outcome="aborted", erased=erased)

    def reverse(self, tenant: TenantId | str) -> UndoneMove:
        """Bring a tenant back after the switch, with everything that was written since."""
        last = self._last_move(tenant)
        erased = retry_step(self._migration_of(last).reverse, clock=self._clock)
        return UndoneMove(tenant=self.store.tenant(last.tenant), move=last, outcome="reversed", erased=erased)

    def verify(self, tenant: TenantId | str) -> MoveComparison:
        """Compare source and target of an unfinished move, table by table, by reading all rows."""
        last = self._last_move(tenant)
        if last.finished_at is not None:
            raise StateError(
                f"{last.tenant} is not being moved: there is nothing to compare.",
                hint=f"`catchment tenant status {last.tenant}` shows the last move.",
            )
        return MoveComparison(move=last, comparison=retry_step(self._migration_of(last).verify, clock=self._clock))

    def gc(
        self,
        tenant: TenantId | str,
        *,
        window_s: float = GC_WINDOW_S,
        wait: bool = False,
        watcher: Watcher | None = None,
        stop: Stop = _never,
    ) -> CollectedSource:
        """Delete a tenant from the source of its move, `window_s` seconds after the switch at the
        earliest.

        Raises NotReadyError while the window has not passed or the source has readers, unless
        `wait` is set.
        """
        last = self._last_move(tenant)
        migration = self._migration_of(last)
        if wait and isinstance(migration.state, Finalizing):
            report = self._run(migration, gc_window_s=window_s, watcher=watcher, stop=stop)
            return CollectedSource(move=last, erased=report.erased, report=report)
        try:
            return CollectedSource(move=last, erased=migration.gc_source(int(window_s * _NS_PER_S)))
        except NotReadyError as error:
            error.hint = f"`catchment tenant gc {last.tenant} --wait` waits; --window sets how long it is kept."
            raise

    # Internals.

    def _open_store(self) -> ControlStore:
        return ControlStore(self._control(), clock=self._clock)

    def _migration(
        self, tenant: TenantId, source: ShardId, target: ShardId, *, gate_s: float | None = None
    ) -> TenantMigration:
        return TenantMigration(
            tenant,
            source,
            target,
            control=self.store,
            connect=self._remotes.connect,
            backfill=self._history(),
            clock=self._clock,
            gate_s=gate_s,
        )

    def _migration_of(self, move: MoveInfo) -> TenantMigration:
        return self._migration(move.tenant, move.source, move.target)

    def _run(
        self, migration: TenantMigration, *, gc_window_s: float | None, watcher: Watcher | None, stop: Stop
    ) -> MoveReport:
        """Run a move; the hint of an error adds the command that continues it."""
        try:
            return run_move(migration, clock=self._clock, watcher=watcher, gc_window_s=gc_window_s, stop=stop)
        except CatchmentError as error:
            resume = f"`catchment tenant move {migration.tenant} --to {migration.target_shard}` continues."
            error.hint = f"{error.hint} {resume}" if error.hint else resume
            raise

    def _finish(self, request: MoveRequest, *, collects: bool) -> MoveReport:
        """Complete the deletion of a move that is over, and report its state."""
        last, erased = request.last, None
        if last is not None and last.outcome == "complete" and collects:
            migration = self._migration_of(last)
            erased = retry_step(lambda: migration.gc_source(0), clock=self._clock)
        return MoveReport(
            tenant=request.tenant.id,
            source=request.source if last is None else last.source,
            target=request.target,
            states=(request.state,),
            rows=None,
            bytes=0,
            seconds={},
            pause_ms=None,
            retries=0,
            stopped=False,
            erased=erased,
        )

    def _last_move(self, tenant: TenantId | str) -> MoveInfo:
        number = self.tenant(tenant).id
        found = self.store.last_move(number)
        if found is None:
            raise InvalidStateError(
                f"{number} was never moved.", hint=f"`catchment tenant move {number} --to SHARD` moves it."
            )
        return found

    def _move_status(self, move: MoveInfo) -> MoveStatus:
        try:
            return MoveStatus(move=move, lag=self._migration_of(move).lag())
        except (RetryableError, InvalidStateError) as error:
            return MoveStatus(move=move, lag_unknown=error.message)

    def _positions(self, tenant: TenantInfo) -> tuple[Positions | None, str | None]:
        """Return the positions of the tenant's tables, or why they are unknown."""
        try:
            shard = self.store.shard(tenant.shard)
            return self._remotes.connect(shard.id, shard.location).positions(tenant.id), None
        except RetryableError as error:
            return None, error.message


def _tenant_id(tenant: TenantId | str) -> TenantId:
    return tenant if isinstance(tenant, TenantId) else TenantId.parse(tenant)


def _shard_id(shard: ShardId | str) -> ShardId:
    return shard if isinstance(shard, ShardId) else ShardId(shard)


def _moving_elsewhere(move: MoveInfo) -> StateError:
    undo = "reverse" if isinstance(move.state, Finalizing) else "abort"
    return StateError(
        f"{move.tenant} is already being moved from {move.source} to {move.target}; the move is in {move.state.name}.",
        hint=f"`catchment tenant move {move.tenant} --to {move.target}` continues it, `tenant {undo}` undoes it.",
        source=str(move.source),
        target=str(move.target),
        state=move.state.name,
    )
