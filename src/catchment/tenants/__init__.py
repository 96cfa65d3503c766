"""Tenants: who lives in which shard, and how one moves to another while it keeps writing."""

from catchment.errors import InvalidStateError as InvalidState
from catchment.errors import NotReadyError as NotReady
from catchment.errors import QuotaExceededError as QuotaExceeded
from catchment.errors import StaleRouteError
from catchment.tenants.model import MigrationState, ShardId, TenantConfig, TenantId

__all__ = [
    "InvalidState",
    "MigrationState",
    "NotReady",
    "QuotaExceeded",
    "ShardId",
    "StaleRouteError",
    "TenantConfig",
    "TenantId",
]
