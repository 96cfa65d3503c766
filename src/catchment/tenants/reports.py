"""Answers of `TenantService`: shards, tenants and their moves, as values."""

from dataclasses import dataclass

from catchment.lake.erase import Erased
from catchment.tenants.control_store import ShardReport
from catchment.tenants.migration import Comparison, Preflight
from catchment.tenants.model import MoveInfo, Positions, RegionHealth, ShardId, ShardInfo, TenantId, TenantInfo
from catchment.tenants.run_move import MovePhase, MoveReport
from catchment.tenants.shard_api import Lag


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedShard:
    """A shard that was added or changed. `unreachable` is the reason if its server could not be
    checked, otherwise None.
    """

    shard: ShardInfo
    is_new: bool
    # Address of the control database, which all shards must share.
    control: str
    unreachable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStatus:
    """A shard, its last report, and the tenants whose primary it is."""

    shard: ShardInfo
    report: ShardReport
    health: RegionHealth
    tenants: tuple[TenantId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantEntry:
    """A tenant and its unfinished move, if there is one."""

    tenant: TenantInfo
    move: MoveInfo | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveStatus:
    """A move, and how far its replica is; `lag_unknown` is the reason if the lag is unknown."""

    move: MoveInfo
    lag: Lag | None = None
    lag_unknown: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantDetails:
    """A tenant, the positions of its tables, and its unfinished move.

    `positions` is None if the tenant's shard cannot be reached; `positions_unknown` is the reason.
    """

    tenant: TenantInfo
    positions: Positions | None
    positions_unknown: str | None
    move: MoveStatus | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantMove:
    """A tenant and its newest move, finished or not; None if it was never moved."""

    tenant: TenantInfo
    move: MoveStatus | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRequest:
    """A tenant that is to live in `target`; `last` is its newest move."""

    tenant: TenantInfo
    target: ShardId
    last: MoveInfo | None

    @property
    def under_way(self) -> MoveInfo | None:
        """The unfinished move that the request continues, or None if it starts one."""
        return self.last if self.last is not None and self.last.finished_at is None else None

    @property
    def source(self) -> ShardId:
        return self.tenant.shard if self.under_way is None else self.under_way.source

    @property
    def is_fulfilled(self) -> bool:
        """Whether the tenant lives in `target` already, and is not being moved."""
        return self.under_way is None and self.tenant.shard == self.target

    @property
    def state(self) -> str:
        """The name of the newest move's state."""
        return "Idle" if self.last is None else self.last.state.name


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePlan:
    """Dry run of a move: its remaining phases, and either the checks of a new move or the status of
    the one under way.
    """

    request: MoveRequest
    phases: tuple[MovePhase, ...]
    preflight: Preflight | None = None
    under_way: MoveStatus | None = None

    @property
    def ok(self) -> bool:
        return self.preflight is None or self.preflight.ok


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneMove:
    """A move that was aborted or reversed, the tenant after it, and the target's deleted data."""

    tenant: TenantInfo
    move: MoveInfo
    outcome: str
    erased: Erased


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveComparison:
    """Source and target of a move, compared."""

    move: MoveInfo
    comparison: Comparison

    @property
    def ok(self) -> bool:
        return self.comparison.ok


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedSource:
    """A move whose source was deleted. `report` is that of the wait, if there was one; if it was
    stopped, nothing is deleted yet.
    """

    move: MoveInfo
    erased: Erased | None
    report: MoveReport | None = None
