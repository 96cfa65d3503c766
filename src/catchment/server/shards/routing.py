"""The contract of routing: which shard a tenant's calls go to."""

from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from catchment.foundation.ids import TableId
from catchment.server.shards.peers import PeerSession
from catchment.server.values import Principal
from catchment.tenants.model import ShardInfo, TenantId
from catchment.tenants.records import Residents


class TenantRouting(Protocol):
    """Routes tenants' calls if tenants are spread over several shards. Thread-safe."""

    def write(self, tenant: TenantId, table: TableId, rows: pa.Table, session: str) -> int:
        """Write rows to the tenant's queue, on its primary; return their number once durable."""

    def reading(self, tenant: TenantId) -> AbstractContextManager[None]:
        """Hold while a result is read; another thread may release it. StaleRouteError if the
        primary is elsewhere.
        """

    def changing(self, tenant: TenantId) -> AbstractContextManager[None]:
        """Hold while the tenant's tables here change; StaleRouteError if its primary is elsewhere."""

    def residents(self) -> Residents:
        """Return the schemas of the shard's tenants, and of those whose primary is elsewhere."""

    def owner(self, schema: str) -> TenantId | None:
        """Return the tenant whose tables are in the schema; None if it belongs to no tenant."""

    def remote_primary(self, tenant: TenantId, *, refresh: bool = False) -> ShardInfo | None:
        """Return the shard of the tenant's primary, None if it is this one; `refresh` skips caches."""

    def peer(self, shard: ShardInfo, principal: Principal) -> PeerSession:
        """Return a session of a tenant's user on another shard's server."""
        ...
