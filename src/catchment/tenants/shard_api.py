"""What can be asked of a shard, whether it is in this process or behind a network. The contract that both keep.

Every call may be repeated: a lost answer is asked for again. A shard that cannot be reached is ShardUnreachableError,
and whether the call had its effect is then not known.
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
    """What a shard is to a tenant."""

    PRIMARY = "home"
    REPLICA = "copy"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Replica:
    """The shard that gets every write as well: with `sync`, before the writer has its answer."""

    shard: ShardId
    location: str
    sync: bool

    def to_json(self) -> dict[str, Any]:
        """As it is kept and sent."""
        return {"shard": self.shard.name, "location": self.location, "sync": self.sync}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        """What was kept."""
        return cls(ShardId(kept["shard"]), kept["location"], kept["sync"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRecord:
    """What a shard keeps of a tenant, durably, whatever becomes of the control plane.

    `closed_for` is the version of the move for which the gate is closed: the next change of that move decides whether
    this shard goes on as the home.
    """

    tenant: TenantId
    role: ShardRole
    epoch: int
    replica: Replica | None = None
    move: str | None = None
    closed_for: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is kept and sent."""
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
        """What was kept."""
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
    """A tenant as it is in its shard's lake at one snapshot, with its log kept from there on.

    `watermarks` are the rows of each table that came out of the queue and are in the lake at the snapshot: the log has
    those behind.
    """

    snapshot: int
    watermarks: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDigest:
    """What a table holds: the number of its rows, and their digest, in any order."""

    rows: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a copy is behind its home."""

    primary: Positions
    replica: Positions
    is_sync: bool
    seconds: float = 0.0
    error: str | None = None

    @property
    def rows(self) -> int:
        return max(0, self.primary.total - self.replica.total)


class ShardNode(Protocol):
    """A shard, near or far."""

    @property
    def id(self) -> ShardId: ...

    def facts(self) -> Mapping[str, Any]:
        """How it is: layout, free disk, tenants, buffered rows, what its lake is."""
        ...

    def record(self, tenant: TenantId) -> TenantRecord | None:
        """What it keeps of the tenant."""
        ...

    def write(self, tenant: TenantId, table: str, rows: pa.Table, *, epoch: int, session: str = "default") -> Ack:
        """Take rows as the tenant's home; StaleRouteError where it is not, or where the epoch is another."""
        ...

    def append_replicated(self, tenant: TenantId, shipments: Sequence[LogRows], *, epoch: int) -> Positions:
        """Take rows as the tenant's copy; those that are here are passed over. Returns how far it is then."""
        ...

    def positions(self, tenant: TenantId) -> Positions:
        """How far it is."""
        ...

    def welcome(self, tenant: TenantId, *, epoch: int, move: str) -> None:
        """Become a copy that has nothing yet."""
        ...

    def retain_log(self, tenant: TenantId, *, epoch: int, move: str) -> RetainedHistory:
        """As the home, keep the tenant's log from a snapshot on; the same one however often the move asks."""
        ...

    def start_after(self, tenant: TenantId, positions: Positions, *, move: str) -> None:
        """Have the tenant's tables, whose history is in the lake, go on behind these numbers."""
        ...

    def replicate(self, tenant: TenantId, replica: Replica, *, epoch: int) -> Positions:
        """As the home, ship to this copy from now on. Returns how far it is.

        It is done under the gate: writes before it are in what is returned, all after it know of the copy.
        """
        ...

    def lag(self, tenant: TenantId) -> Lag:
        """How far the copy is."""
        ...

    def close_barrier(self, tenant: TenantId, *, move: str, version: int, deadline_s: float) -> Positions:
        """Let no write in, and see that the copy has everything; NotReadyError, and open again, where it has not.

        With nothing heard for `deadline_s`, the shard asks the control plane to take the writers back.
        """
        ...

    def settle(self, record: TenantRecord) -> None:
        """Become what the control plane has decided: home, copy or gone; older epochs are passed over."""
        ...

    def digests(self, tenant: TenantId, at: Positions) -> Mapping[TableId, TableDigest]:
        """What each table holds up to these numbers; NotReadyError where the lake has rows behind them already."""
        ...

    def readers(self, tenant: TenantId) -> int:
        """How many read the tenant's tables here at this moment."""
        ...

    def drop(self, tenant: TenantId, *, epoch: int) -> Erased:
        """Delete the tenant's log, its tables and their files, once this shard is nothing to the tenant any more."""
        ...
