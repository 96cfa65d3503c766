"""Catchment's own database: shards, tenants and their moves, created and upgraded by scripts."""

from catchment.control.database import ControlDatabase
from catchment.control.models import Move, Shard, Tenant, User

__all__ = ["ControlDatabase", "Move", "Shard", "Tenant", "User"]
