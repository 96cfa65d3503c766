"""Tenants: their placement in shards, and moves between shards while they keep writing."""

from catchment.errors import InvalidStateError as InvalidState
from catchment.errors import NotReadyError as NotReady
from catchment.errors import QuotaExceededError as QuotaExceeded
from catchment.errors import StaleRouteError
from catchment.tenants.control import ControlPlane
from catchment.tenants.gateway import TenantGateway
from catchment.tenants.migration import TenantMigration
from catchment.tenants.model import MigrationState, ShardId, TenantConfig, TenantId
from catchment.tenants.router import TenantRouter

__all__ = [
    "ControlPlane",
    "InvalidState",
    "MigrationState",
    "NotReady",
    "QuotaExceeded",
    "ShardId",
    "StaleRouteError",
    "TenantConfig",
    "TenantGateway",
    "TenantId",
    "TenantMigration",
    "TenantRouter",
]
