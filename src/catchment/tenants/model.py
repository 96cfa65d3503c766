"""Values of tenants and moves: identities, limits, routes, positions, and the states of a move."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Self

from catchment.errors import InputError
from catchment.foundation.ids import DEFAULT_SCHEMA, TableId

_NUMBER_MAX = 2**64 - 1
_SHOWN = re.compile(r"t?([0-9]{1,20})")
_SHARD = re.compile(r"[a-z][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True, order=True)
class TenantId:
    """Tenant id: an unsigned 64-bit number, shown as `t7`; 0 is the default tenant."""

    number: int

    def __post_init__(self) -> None:
        if not 0 <= self.number <= _NUMBER_MAX:
            raise InputError(f"{self.number} is not a tenant number.", hint="Use 0 to 2^64 - 1.")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `t7` or `7`."""
        match = _SHOWN.fullmatch(text)
        if match is None:
            raise InputError(f"{text!r} is not a tenant.", hint="Write `t7`, or `7`.")
        return cls(int(match[1]))

    @property
    def schema(self) -> str:
        """The schema of the tenant's tables."""
        return str(self) if self.number else DEFAULT_SCHEMA

    def __str__(self) -> str:
        return f"t{self.number}"


DEFAULT_TENANT = TenantId(0)


@dataclass(frozen=True, slots=True, order=True)
class ShardId:
    """Shard name."""

    name: str

    def __post_init__(self) -> None:
        if not _SHARD.fullmatch(self.name):
            raise InputError(
                f"{self.name!r} is not a valid shard name.",
                hint="Use 1 to 63 characters of a-z, 0-9 and '-'; begin with a letter.",
            )

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfig:
    """Limits of a tenant; None means unlimited. If `required_regions` is set, only shards there may
    have the tenant.
    """

    rows_per_second_max: int | None = None
    tables_max: int | None = None
    storage_bytes_max: int | None = None
    required_regions: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("rows_per_second_max", "tables_max", "storage_bytes_max"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise InputError(f"{name} is {limit}, but must be at least 1.")

    def allows(self, region: str) -> bool:
        """Return whether the tenant may live in the region."""
        return not self.required_regions or region in self.required_regions

    def to_json(self) -> dict[str, Any]:
        """Return the limits that are set, by name."""
        kept = {
            name: getattr(self, name)
            for name in ("rows_per_second_max", "tables_max", "storage_bytes_max")
            if getattr(self, name) is not None
        }
        return {**kept, **({"required_regions": sorted(self.required_regions)} if self.required_regions else {})}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        unknown = kept.keys() - cls.__dataclass_fields__.keys()
        if unknown:
            raise InputError(f"Unknown limits of a tenant: {', '.join(sorted(unknown))}.")
        return cls(**{**kept, "required_regions": frozenset(kept.get("required_regions", ()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A tenant's primary shard, and the replica that also gets every write.

    `epoch` increases when the primary changes and when the replica is removed.
    """

    tenant: TenantId
    epoch: int
    primary: ShardId
    replica: ShardId | None = None


@dataclass(frozen=True, slots=True)
class Positions:
    """Position of a tenant: the sequence number of each table's last row, without gaps."""

    by_table: Mapping[TableId, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The tenant's sequence number: the number of rows that its tables have accepted."""
        return sum(self.by_table.values())

    def covers(self, other: "Positions") -> bool:
        """Return whether these positions are at or past the other's in every table."""
        return all(self.by_table.get(table, 0) >= seq for table, seq in other.by_table.items())

    def to_json(self) -> dict[str, int]:
        return {f"{table.schema}.{table.name}": seq for table, seq in sorted(self.by_table.items())}

    @classmethod
    def from_json(cls, kept: Mapping[str, int]) -> Self:
        # The schema of a tenant contains no dot; a table name may.
        return cls({TableId(*name.split(".", 1)): seq for name, seq in kept.items()})


class MigrationState:
    """State of a move. Each state has only its own data.

    Idle ──▶ PreparingTarget ──▶ DualWrite ──▶ Finalizing ──▶ Complete
      ◀────────────┴────────────────┘  abort       │
      ◀────────────────────────────────────────────┘  reverse
    """

    name: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """Return the stored data, without the name."""
        return {}


@dataclass(frozen=True, slots=True)
class Idle(MigrationState):
    """Nothing was done, or everything was undone."""

    name: ClassVar[str] = "Idle"


@dataclass(frozen=True, slots=True)
class PreparingTarget(MigrationState):
    """The target gets the tenant's history and then the rows that were written since."""

    last_shipped_seqno: int
    name: ClassVar[str] = "PreparingTarget"

    def to_json(self) -> dict[str, Any]:
        return {"last_shipped_seqno": self.last_shipped_seqno}


@dataclass(frozen=True, slots=True)
class DualWrite(MigrationState):
    """Both shards get every write; the target must reach `cutover` to become the primary.

    `returned` counts how often the deadline of the write barrier passed and the source accepted
    writes again.
    """

    cutover: Positions
    returned: int = 0
    name: ClassVar[str] = "DualWrite"

    @property
    def cutover_seqno(self) -> int:
        return self.cutover.total

    def to_json(self) -> dict[str, Any]:
        return {"cutover_seqno": self.cutover_seqno, "cutover": self.cutover.to_json(), "returned": self.returned}


@dataclass(frozen=True, slots=True)
class Finalizing(MigrationState):
    """The target is the primary; the source is the replica until its data is deleted.

    `pause_ms` is how long writers waited at the switch. It is recorded after the switch and is 0
    until then.
    """

    switched_at_ns: int
    pause_ms: float = 0.0
    name: ClassVar[str] = "Finalizing"

    def to_json(self) -> dict[str, Any]:
        return {"switched_at_ns": self.switched_at_ns, "pause_ms": self.pause_ms}


@dataclass(frozen=True, slots=True)
class Complete(MigrationState):
    """The source has deleted the tenant's data; `pause_ms` is None if it was not recorded."""

    pause_ms: float | None = None
    name: ClassVar[str] = "Complete"

    def to_json(self) -> dict[str, Any]:
        return {"pause_ms": self.pause_ms}


def state_from_json(name: str, data: Mapping[str, Any]) -> MigrationState:
    """Return the state that was stored under `name` with `data`."""
    match name:
        case "Idle":
            return Idle()
        case "PreparingTarget":
            return PreparingTarget(data["last_shipped_seqno"])
        case "DualWrite":
            return DualWrite(Positions.from_json(data["cutover"]), data["returned"])
        case "Finalizing":
            return Finalizing(data["switched_at_ns"], data["pause_ms"])
        case "Complete":
            # Moves that ended under an older version have no recorded pause.
            return Complete(data.get("pause_ms"))
    raise InputError(f"{name!r} is not a state of a move.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """A shard in the control database. `home` is its folder; `catchment.toml` in it names its lake."""

    id: ShardId
    region: str
    location: str
    home: str
    is_draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantInfo:
    """A tenant in the control database."""

    id: TenantId
    name: str
    config: TenantConfig
    shard: ShardId
    epoch: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveInfo:
    """A tenant's move in the control database. A change must name the current `version`.

    `token` identifies the move in ledgers and records; each move of a tenant has its own.
    """

    id: int
    token: str
    tenant: TenantId
    source: ShardId
    target: ShardId
    state: MigrationState
    version: int
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None
    outcome: str | None = None


class RegionHealth(StrEnum):
    """Health of a region."""

    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    OFFLINE = "Offline"
