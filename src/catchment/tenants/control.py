"""`ControlPlane`: which shards there are and how they are, which tenant lives where, and what is on its way."""

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
    """How everything stands at one moment. Of the moves, those that are not finished."""

    shards: tuple[ShardInfo, ...]
    reports: Mapping[ShardId, ShardReport]
    assignments: tuple[TenantInfo, ...]
    moves: tuple[MoveInfo, ...]
    regions: Mapping[str, RegionHealth]
    at: datetime

    def to_json(self) -> dict[str, Any]:
        """The topology for programs; the keys are kept from version to version.

        `at`, `regions` {region: health}, `shards` {name: region, location, home, is_draining, tenants, stats, seen_at},
        `tenants` {t7: name, shard, epoch, config}, `moves` {t7: token, source, target, state, data, version,
        created_at, updated_at}. Times are in ISO 8601 and UTC.
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
    """What is known of all shards and tenants; every answer is read from the control database anew."""

    def __init__(self, store: ControlStore, clock: Clock | None = None) -> None:
        self.store = store
        self._clock: Clock = clock or SystemClock()

    def topology(self) -> Topology:
        """How everything stands."""
        return topology_of(self.store.facts(), now=self._clock.now())

    def shard_stats(self, shard: ShardId) -> ShardReport:
        """What the shard last said of itself, and when; InputError where there is none of that name."""
        report = self.store.facts().reports.get(shard)
        if report is None:
            raise InputError(f"There is no shard {shard}.", hint="`catchment shard list` shows those that there are.")
        return report

    def report(self, shard: ShardId, stats: Mapping[str, Any]) -> None:
        """A shard says how it is; it does so every few seconds."""
        self.store.report(shard, stats)

    def region_health(self, region: str) -> RegionHealth:
        """How the region is; InputError where no shard is in it."""
        health = self.topology().regions.get(region)
        if health is None:
            raise InputError(f"No shard is in {region}.", hint="`catchment shard list` shows every shard's region.")
        return health

    def update_topology(self, shard: ShardInfo) -> None:
        """Have the shard be known as this: taken in, or changed where it is known already."""
        try:
            self.store.add_shard(shard)
        except AlreadyExistsError:
            self.store.change_shard(shard)

    def create_tenant(
        self, tenant: TenantId, *, name: str, config: TenantConfig, shard: ShardId | None = None
    ) -> TenantInfo:
        """Take a tenant in; without a shard, where its hash says."""
        if shard is None:
            found = place(tenant, config, self.store.shards())
            if found is None:
                raise nowhere(tenant, config)
            shard = found.id
        return self.store.create_tenant(tenant, name, config, shard)

    def to_json(self) -> dict[str, Any]:
        """The topology for programs, as `Topology.to_json` describes it."""
        return self.topology().to_json()


def topology_of(facts: ControlFacts, *, now: datetime) -> Topology:
    """The topology that the facts make. Pure."""
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
    """How a region is, from what its shards last said. Pure.

    Offline when none of them has said anything for 30 s; Degraded when one of them has not, or is more than 5 s behind.
    """
    known = list(reports)
    heard = [report for report in known if not _is_silent(report, now=now)]
    if not heard:
        return RegionHealth.OFFLINE
    if len(heard) < len(known) or any(report.replication_lag_s > LAG_DEGRADED_S for report in heard):
        return RegionHealth.DEGRADED
    return RegionHealth.HEALTHY


def nowhere(tenant: TenantId, config: TenantConfig) -> StateError:
    """The error that no shard can have the tenant."""
    regions = sorted(config.required_regions)
    where = f" in {', '.join(regions)}, where it must live," if regions else ""
    return StateError(
        f"No shard{where} can take {tenant}.",
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
