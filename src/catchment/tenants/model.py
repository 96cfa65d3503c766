"""What the parts of tenant moves share: identities, limits, routes, positions, the states of a move. Pure values."""

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
    """A tenant by its number, unsigned and of 64 bits; 0 is the default one. Shown as `t7`."""

    number: int

    def __post_init__(self) -> None:
        if not 0 <= self.number <= _NUMBER_MAX:
            raise InputError(f"{self.number} is no tenant's number.", hint="Take 0 to 2^64 - 1.")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `t7` or `7`."""
        match = _SHOWN.fullmatch(text)
        if match is None:
            raise InputError(f"{text!r} is no tenant.", hint="Write `t7`, or `7`.")
        return cls(int(match[1]))

    @property
    def schema(self) -> str:
        """The schema that the tenant's tables are in."""
        return str(self) if self.number else DEFAULT_SCHEMA

    def __str__(self) -> str:
        return f"t{self.number}"


DEFAULT_TENANT = TenantId(0)


@dataclass(frozen=True, slots=True, order=True)
class ShardId:
    """A shard by its name."""

    name: str

    def __post_init__(self) -> None:
        if not _SHARD.fullmatch(self.name):
            raise InputError(
                f"{self.name!r} cannot be a shard's name.",
                hint="Take 1 to 63 of a-z, 0-9 and '-'; begin with a letter.",
            )

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfig:
    """What a tenant may use; None is no limit. With `required_regions`, it lives in no other."""

    rows_per_second_max: int | None = None
    tables_max: int | None = None
    storage_bytes_max: int | None = None
    required_regions: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("rows_per_second_max", "tables_max", "storage_bytes_max"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise InputError(f"{name} is {limit}, and must be 1 or more.")

    def allows(self, region: str) -> bool:
        """Whether the tenant may live in the region."""
        return not self.required_regions or region in self.required_regions

    def to_json(self) -> dict[str, Any]:
        """As it is kept: limits that are set, by name."""
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
            raise InputError(f"No limit of a tenant is called {', '.join(sorted(unknown))}.")
        return cls(**{**kept, "required_regions": frozenset(kept.get("required_regions", ()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a tenant lives, and which shard gets its writes as well.

    `epoch` grows when the home changes, and when the copy is let go.
    """

    tenant: TenantId
    epoch: int
    primary: ShardId
    replica: ShardId | None = None


@dataclass(frozen=True, slots=True)
class Positions:
    """How far a tenant's tables are: by table, the number of its last row. Numbers have no gaps."""

    by_table: Mapping[TableId, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The tenant's own number: the rows that its tables have taken."""
        return sum(self.by_table.values())

    def covers(self, other: "Positions") -> bool:
        """Whether everything that the other has is here too."""
        return all(self.by_table.get(table, 0) >= seq for table, seq in other.by_table.items())

    def to_json(self) -> dict[str, int]:
        return {f"{table.schema}.{table.name}": seq for table, seq in sorted(self.by_table.items())}

    @classmethod
    def from_json(cls, kept: Mapping[str, int]) -> Self:
        # A schema of a tenant holds no dot; a table may.
        return cls({TableId(*name.split(".", 1)): seq for name, seq in kept.items()})


class MigrationState:
    """A state of a move. Each holds only its own data.

    Idle ──▶ PreparingTarget ──▶ DualWrite ──▶ Finalizing ──▶ Complete
      ◀────────────┴────────────────┘  abort       │
      ◀────────────────────────────────────────────┘  reverse
    """

    name: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """What is kept of it beside its name."""
        return {}


@dataclass(frozen=True, slots=True)
class Idle(MigrationState):
    """Nothing has been done, or all of it was undone."""

    name: ClassVar[str] = "Idle"


@dataclass(frozen=True, slots=True)
class PreparingTarget(MigrationState):
    """The target gets the tenant's history, and then what was written since."""

    last_shipped_seqno: int
    name: ClassVar[str] = "PreparingTarget"

    def to_json(self) -> dict[str, Any]:
        return {"last_shipped_seqno": self.last_shipped_seqno}


@dataclass(frozen=True, slots=True)
class DualWrite(MigrationState):
    """Both shards get every write; the target must reach `cutover` before it can become the home.

    `returned` counts the times that the gate's deadline passed and the source took its writers back.
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
    """The target is the home; the source is a copy until it is collected.

    `pause_ms` is how long writers waited at the switch. It is noted behind the switch, and is 0 until then.
    """

    switched_at_ns: int
    pause_ms: float = 0.0
    name: ClassVar[str] = "Finalizing"

    def to_json(self) -> dict[str, Any]:
        return {"switched_at_ns": self.switched_at_ns, "pause_ms": self.pause_ms}


@dataclass(frozen=True, slots=True)
class Complete(MigrationState):
    """The source has nothing of the tenant any more; `pause_ms` is None where nobody has noted it."""

    pause_ms: float | None = None
    name: ClassVar[str] = "Complete"

    def to_json(self) -> dict[str, Any]:
        return {"pause_ms": self.pause_ms}


def state_from_json(name: str, data: Mapping[str, Any]) -> MigrationState:
    """The state as it was kept."""
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
            # Moves that ended under an older version kept no pause.
            return Complete(data.get("pause_ms"))
    raise InputError(f"{name!r} is no state of a move.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """A shard as the control plane knows it. `home` is its folder, whose `catchment.toml` says where its lake is."""

    id: ShardId
    region: str
    location: str
    home: str
    is_draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantInfo:
    """A tenant as the control plane knows it."""

    id: TenantId
    name: str
    config: TenantConfig
    shard: ShardId
    epoch: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveInfo:
    """A tenant's move as the control plane knows it; `version` is what a change of it must name.

    `token` is the move's own name in ledgers and records: another move of the same tenant has another.
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
    """How a region is."""

    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    OFFLINE = "Offline"
