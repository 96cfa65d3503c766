"""`TenantRouter`: caches which shards a tenant is read from and written to.

The control database decides where a tenant lives. A stale route is harmless: writes carry the epoch
of their route, and a shard refuses any epoch but its own.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from catchment.errors import ControlUnavailableError, InvalidStateError, InvariantError
from catchment.foundation.clock import Clock, SystemClock
from catchment.tenants.control import no_shard_error
from catchment.tenants.control_store import ControlStore, Placement, refuse_foreign
from catchment.tenants.model import DualWrite, MoveInfo, Route, ShardId, ShardInfo, TenantConfig, TenantId, TenantInfo
from catchment.tenants.placement import place

# Epoch of a tenant that was not created: its placement is known, but no shard is its primary.
EPOCH_UNASSIGNED = 0
# Age at which a cached route is read again. A shard refuses a wrong route anyway, which replaces
# it.
ROUTE_SECONDS_MAX = 30
# Routes in memory, a few hundred bytes each.
ROUTES_MAX = 100_000


class Access(StrEnum):
    """Kind of access to a tenant."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A route with its shards and the tenant's limits, read together."""

    route: Route
    config: TenantConfig
    primary: ShardInfo
    replica: ShardInfo | None = None

    def shards(self, access: Access) -> tuple[ShardInfo, ...]:
        """Return the primary and, for writes, the replica if there is one."""
        if access is Access.READ or self.replica is None:
            return (self.primary,)
        return (self.primary, self.replica)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    routed: Routed
    read_at_s: float
    # When the control database was last queried for it, successfully or not.
    asked_at_s: float


class TenantRouter:
    """Routes of tenants: at most `routes_max`, none older than `route_seconds_max`. Thread-safe."""

    def __init__(
        self,
        store: ControlStore,
        *,
        route_seconds_max: float = ROUTE_SECONDS_MAX,
        routes_max: int = ROUTES_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._route_seconds_max = route_seconds_max
        self._routes_max = routes_max
        self._clock: Clock = clock or SystemClock()
        # By tenant, the most recently used last.
        self._kept: OrderedDict[TenantId, _Kept] = OrderedDict()
        # Guards the dictionary; never held during a query of the control database.
        self._mutex = threading.Lock()

    def route(self, tenant: TenantId, access: Access) -> tuple[ShardInfo, ...]:
        """Return the shards for that access, the primary first. Raises StateError if no shard is in
        the tenant's regions.
        """
        return self.routed(tenant, access).shards(access)

    def routed(self, tenant: TenantId, access: Access = Access.READ) -> Routed:
        """Return the route. While the control database is unavailable, writes use a stale one:
        shards refuse a wrong one.
        """
        with self._mutex:
            kept = self._kept.get(tenant)
            if kept is not None:
                self._kept.move_to_end(tenant)
        now_s = self._clock.monotonic_s()
        if kept is not None:
            known_at_s = kept.read_at_s if access is Access.READ else kept.asked_at_s
            if now_s - known_at_s < self._route_seconds_max:
                return kept.routed
            if access is Access.WRITE:
                # One thread queries, and may wait long; the others use the old route.
                self._note_asked(tenant, kept, now_s)
        try:
            return self.refresh(tenant)
        except ControlUnavailableError:
            if kept is None or access is Access.READ:
                raise
            return kept.routed

    def _note_asked(self, tenant: TenantId, kept: _Kept, now_s: float) -> None:
        with self._mutex:
            if self._kept.get(tenant) is kept:
                self._kept[tenant] = replace(kept, asked_at_s=now_s)

    def epoch(self, tenant: TenantId) -> int:
        """Return the epoch that a write by this route carries; 0 for a tenant that was not created."""
        return self.routed(tenant, Access.WRITE).route.epoch

    def refresh(self, tenant: TenantId) -> Routed:
        """Read the tenant's route from the control database."""
        # Read before the query, so that a route never seems younger than it is.
        now_s = self._clock.monotonic_s()
        routed = routed_by(tenant, self._store.placement(tenant))
        with self._mutex:
            kept = self._kept.get(tenant)
            # Of two concurrent reads, the older one may finish last.
            if kept is not None and kept.routed.route.epoch > routed.route.epoch:
                return kept.routed
            self._kept[tenant] = _Kept(routed=routed, read_at_s=now_s, asked_at_s=now_s)
            self._kept.move_to_end(tenant)
            while len(self._kept) > self._routes_max:
                self._kept.popitem(last=False)
        return routed

    def set_dual_write(self, tenant: TenantId, source: ShardId, target: ShardId) -> Route:
        """Write to both shards from now on. The control database must have this route already."""
        return self._expect(tenant, primary=source, replica=target)

    def finalize_migration(self, tenant: TenantId, target: ShardId) -> Route:
        """Use the target alone from now on. The control database must have this route already."""
        return self._expect(tenant, primary=target, replica=None)

    def _expect(self, tenant: TenantId, *, primary: ShardId, replica: ShardId | None) -> Route:
        route = self.refresh(tenant).route
        if (route.primary, route.replica) != (primary, replica):
            raise InvalidStateError(
                f"{tenant} lives in {route.primary} with {route.replica or 'no shard'} as its replica, "
                f"not in {primary} with {replica or 'no shard'}.",
                home=str(route.primary),
                copy=route.replica and str(route.replica),
                epoch=route.epoch,
            )
        return route


def routed_by(tenant: TenantId, placement: Placement) -> Routed:
    """Return the tenant's route: by its assignment, or by hash if it was not created. Pure."""
    known = placement.tenant
    if known is None:
        return _by_hash(tenant, placement.shards)
    resident = [shard for shard in placement.shards if known.config.allows(shard.region)]
    if not resident:
        raise no_shard_error(tenant, known.config)
    replica = _replica(known, placement.move)
    route = Route(tenant=tenant, epoch=known.epoch, primary=known.shard, replica=replica)
    return Routed(
        route=route,
        config=known.config,
        primary=_resident(known, known.shard, placement.shards),
        replica=_resident(known, replica, placement.shards) if replica else None,
    )


def _by_hash(tenant: TenantId, shards: Iterable[ShardInfo]) -> Routed:
    config = TenantConfig()
    primary = place(tenant, config, shards)
    if primary is None:
        raise no_shard_error(tenant, config)
    return Routed(
        route=Route(tenant=tenant, epoch=EPOCH_UNASSIGNED, primary=primary.id), config=config, primary=primary
    )


def _replica(tenant: TenantInfo, move: MoveInfo | None) -> ShardId | None:
    """Return the shard that also gets the writes: only during dual-write."""
    if move is None or not isinstance(move.state, DualWrite):
        return None
    return move.target if tenant.shard == move.source else move.source


def _resident(tenant: TenantInfo, shard: ShardId, shards: Iterable[ShardInfo]) -> ShardInfo:
    found = next((each for each in shards if each.id == shard), None)
    if found is None:
        raise InvariantError(f"{tenant.id} is assigned to {shard}, which does not exist.")
    refuse_foreign(tenant.id, tenant.config, found)
    return found
