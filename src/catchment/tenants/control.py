"""`ControlPlane`: shards and their health, tenants and their placement, and moves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from catchment.errors import AlreadyExistsError, InputError, StateError
from catchment.foundation.clock import Clock, SystemClock
from catchment.tenants.control_store import ControlFacts, ControlStore, ShardReport
from catchment.tenants.model import MoveInfo, RegionHealth, ShardId, ShardInfo, TenantConfig, TenantId, TenantInfo
from catchment.tenants.placement import place

LAG_DEGRADED_S = 5.0
SILENT_OFFLINE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All shards, tenants and unfinished moves at one moment."""

    shards: tuple[ShardInfo, ...]
    reports: Mapping[ShardId, ShardReport]
    assignments: tuple[TenantInfo, ...]
    moves: tuple[MoveInfo, ...]
    regions: Mapping[str, RegionHealth]
    at: datetime

    def to_json(self) -> dict[str, Any]:
        """Return the topology as JSON; its keys are stable across versions.

        `at`, `regions` {region: health}, `shards` {name: region, location, home, is_draining,
        tenants, stats, seen_at}, `tenants` {t7: name, shard, epoch, config}, `moves` {t7: token,
        source, target, state, data, version, created_at, updated_at}. Times are ISO 8601 in UTC.
        """
        return {
            "at": self.at.isoformat(),
            "regions": {region: health.value for region, health in sorted(self.regions.items())},
            "shards": {str(shard.id): self._shard_json(shard) for shard in self.shards},
            "tenants": {str(tenant.id): _tenant_json(tenant) for tenant in self.assignments},
            "moves": {str(move.tenant): _move_json(move) for move in sorted(self.moves, key=lambda each: each.tenant)},
        }

    def _shard_json(self, shard: ShardInfo) -> dict[str, Any]:
        report = self.reports[shard.id]
        return {
            "region": shard.region,
            "location": shard.location,
            "home": shard.home,
            "is_draining": shard.is_draining,
            "tenants": sum(tenant.shard == shard.id for tenant in self.assignments),
            "stats": dict(report.stats),
            "seen_at": report.seen_at and report.seen_at.isoformat(),
        }


class ControlPlane:
    """View of all shards and tenants; every call reads the control database."""

    def __init__(self, store: ControlStore, clock: Clock | None = None) -> None:
        self.store = store
        self._clock: Clock = clock or SystemClock()

    def topology(self) -> Topology:
        """Return the current topology."""
        return topology_of(self.store.facts(), now=self._clock.now())

    def shard_stats(self, shard: ShardId) -> ShardReport:
        """Return the last report of a shard. Raises InputError if there is no such shard."""
        report = self.store.facts().reports.get(shard)
        if report is None:
            raise InputError(f"There is no shard {shard}.", hint="`catchment shard list` shows all shards.")
        return report

    def report(self, shard: ShardId, stats: Mapping[str, Any]) -> None:
        """Store the report of a shard; shards send one every few seconds."""
        self.store.report(shard, stats)

    def region_health(self, region: str) -> RegionHealth:
        """Return the health of a region. Raises InputError if no shard is in it."""
        health = self.topology().regions.get(region)
        if health is None:
            raise InputError(f"No shard is in {region}.", hint="`catchment shard list` shows every shard's region.")
        return health

    def update_topology(self, shard: ShardInfo) -> None:
        """Add the shard, or change it if it exists."""
        try:
            self.store.add_shard(shard)
        except AlreadyExistsError:
            self.store.change_shard(shard)

    def create_tenant(
        self, tenant: TenantId, *, name: str, config: TenantConfig, shard: ShardId | None = None
    ) -> TenantInfo:
        """Create a tenant; without a shard, on the one that its hash selects."""
        if shard is None:
            found = place(tenant, config, self.store.shards())
            if found is None:
                raise no_shard_error(tenant, config)
            shard = found.id
        return self.store.create_tenant(tenant, name, config, shard)

    def to_json(self) -> dict[str, Any]:
        """Return the topology as JSON; see `Topology.to_json`."""
        return self.topology().to_json()


def topology_of(facts: ControlFacts, *, now: datetime) -> Topology:
    """Return the topology of these facts. Pure."""
    by_region: dict[str, list[ShardReport]] = {}
    for shard in facts.shards:
        by_region.setdefault(shard.region, []).append(facts.reports[shard.id])
    return Topology(
        shards=facts.shards,
        reports=facts.reports,
        assignments=facts.tenants,
        moves=tuple(move for move in facts.moves if move.finished_at is None),
        regions={region: health_of(reports, now=now) for region, reports in by_region.items()},
        at=now,
    )


def health_of(reports: Iterable[ShardReport], *, now: datetime) -> RegionHealth:
    """Return the health of a region from the last reports of its shards. Pure.

    Offline if none has reported for 30 s; Degraded if one has not, or if its replication is more
    than 5 s late.
    """
    known = list(reports)
    heard = [report for report in known if not _is_silent(report, now=now)]
    if not heard:
        return RegionHealth.OFFLINE
    if len(heard) < len(known) or any(report.replication_lag_s > LAG_DEGRADED_S for report in heard):
        return RegionHealth.DEGRADED
    return RegionHealth.HEALTHY


def no_shard_error(tenant: TenantId, config: TenantConfig) -> StateError:
    """Return the error for a tenant that no shard can accept."""
    regions = sorted(config.required_regions)
    where = f" in {', '.join(regions)}, where it must live," if regions else ""
    return StateError(
        f"No shard{where} can accept {tenant}.",
        hint="`catchment shard list` shows every shard's region, and which are being drained; `shard add` adds one.",
        required_regions=regions,
    )


def _is_silent(report: ShardReport, *, now: datetime) -> bool:
    return report.seen_at is None or (now - report.seen_at).total_seconds() >= SILENT_OFFLINE_S


def _tenant_json(tenant: TenantInfo) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "shard": str(tenant.shard),
        "epoch": tenant.epoch,
        "config": tenant.config.to_json(),
    }


def _move_json(move: MoveInfo) -> dict[str, Any]:
    return {
        "token": move.token,
        "source": str(move.source),
        "target": str(move.target),
        "state": move.state.name,
        "data": move.state.to_json(),
        "version": move.version,
        "created_at": move.created_at.isoformat(),
        "updated_at": move.updated_at.isoformat(),
    }
