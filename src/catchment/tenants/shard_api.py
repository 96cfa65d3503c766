"""`ShardNode`: the contract of a shard, whether it is in this process or on another server.

Every call may be repeated, and is repeated after a lost answer. ShardUnreachableError means that
the shard cannot be reached; it is then unknown whether the call had an effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, Self

import pyarrow as pa

from catchment.foundation.ids import TableId
from catchment.lake.erase import Erased
from catchment.queue.buffer import Ack
from catchment.queue.replication import LogRows
from catchment.tenants.model import Positions, ShardId, TenantId


class ShardRole(StrEnum):
    """Role of a shard for a tenant; the values are stored and sent."""

    PRIMARY = "home"
    REPLICA = "copy"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Replica:
    """The shard that also gets every write; with `sync`, before the writer gets its answer."""

    shard: ShardId
    location: str
    sync: bool

    def to_json(self) -> dict[str, Any]:
        """Return the replica as stored and sent."""
        return {"shard": self.shard.name, "location": self.location, "sync": self.sync}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        """Return the replica that was stored or sent."""
        return cls(ShardId(kept["shard"]), kept["location"], kept["sync"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRecord:
    """Record that a shard keeps of a tenant, durable and independent of the control plane.

    `closed_for` is the version of the move for which the write barrier is closed: the next change
    of that move decides whether this shard stays the primary.
    """

    tenant: TenantId
    role: ShardRole
    epoch: int
    replica: Replica | None = None
    move: str | None = None
    closed_for: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the record as stored and sent."""
        return {
            "tenant": self.tenant.number,
            "role": self.role.value,
            "epoch": self.epoch,
            "copy": None if self.replica is None else self.replica.to_json(),
            "move": self.move,
            "closed_for": self.closed_for,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        """Return the record that was stored or sent."""
        return cls(
            tenant=TenantId(kept["tenant"]),
            role=ShardRole(kept["role"]),
            epoch=kept["epoch"],
            replica=None if kept["copy"] is None else Replica.from_json(kept["copy"]),
            move=kept["move"],
            closed_for=kept["closed_for"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedHistory:
    """A tenant's history in its shard's lake at one snapshot, from which the log is retained.

    `watermarks` are the last rows of each table that were flushed from the queue into the lake at
    the snapshot. Later rows are in the log.
    """

    snapshot: int
    watermarks: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDigest:
    """Row count of a table, and a digest of its rows that does not depend on their order."""

    rows: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Lag of a replica behind its primary."""

    primary: Positions
    replica: Positions
    is_sync: bool
    seconds: float = 0.0
    error: str | None = None

    @property
    def rows(self) -> int:
        return max(0, self.primary.total - self.replica.total)


class ShardNode(Protocol):
    """A shard, local or remote."""

    @property
    def id(self) -> ShardId: ...

    def facts(self) -> Mapping[str, Any]:
        """Return its layout, free disk space, tenants, buffered rows, and the identity of its lake."""
        ...

    def record(self, tenant: TenantId) -> TenantRecord | None:
        """Return its record of the tenant, if there is one."""
        ...

    def write(self, tenant: TenantId, table: str, rows: pa.Table, *, epoch: int, session: str = "default") -> Ack:
        """Accept rows as the primary. Raises StaleRouteError if it is not, or in another epoch."""
        ...

    def append_replicated(self, tenant: TenantId, shipments: Sequence[LogRows], *, epoch: int) -> Positions:
        """Append rows as the tenant's replica, skipping rows that it has, and return its positions."""
        ...

    def positions(self, tenant: TenantId) -> Positions:
        """Return the positions of the tenant's tables."""
        ...

    def welcome(self, tenant: TenantId, *, epoch: int, move: str) -> None:
        """Become a replica without rows."""
        ...

    def retain_log(self, tenant: TenantId, *, epoch: int, move: str) -> RetainedHistory:
        """As the primary, retain the tenant's log from a snapshot on; repeated calls of a move
        return the same snapshot.
        """
        ...

    def start_after(self, tenant: TenantId, positions: Positions, *, move: str) -> None:
        """Start the sequences of the tenant's tables after these positions; the rows up to them are
        in the lake.
        """
        ...

    def replicate(self, tenant: TenantId, replica: Replica, *, epoch: int) -> Positions:
        """As the primary, replicate to this shard from now on, and return the current positions.

        This happens under the write barrier: earlier writes are included in the returned positions,
        and all later ones go to the replica.
        """
        ...

    def lag(self, tenant: TenantId) -> Lag:
        """Return the lag of the replica."""
        ...

    def close_barrier(self, tenant: TenantId, *, move: str, version: int, deadline_s: float) -> Positions:
        """Close the write barrier, and wait until the replica has every row. Raises NotReadyError,
        and opens again, if it has not.

        If no decision arrives within `deadline_s`, the shard revokes the switch in the control
        database and accepts writes again.
        """
        ...

    def settle(self, record: TenantRecord) -> None:
        """Adopt the role that was decided: primary, replica or gone. Ignores older epochs."""
        ...

    def digests(self, tenant: TenantId, at: Positions) -> Mapping[TableId, TableDigest]:
        """Return the digest of each table up to these positions. Raises NotReadyError if the lake
        already has later rows.
        """
        ...

    def readers(self, tenant: TenantId) -> int:
        """Return how many readers the tenant's tables have here now."""
        ...

    def drop(self, tenant: TenantId, *, epoch: int) -> Erased:
        """Delete the tenant's log, tables and files; requires that this shard has no role."""
        ...
