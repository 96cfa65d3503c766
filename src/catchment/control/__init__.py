"""Catchment's own database: users, shards, tenants and their moves, created and upgraded by scripts of the package."""

from catchment.control.database import ControlDatabase
from catchment.control.models import Move, Shard, Tenant, User

__all__ = ["ControlDatabase", "Move", "Shard", "Tenant", "User"]
