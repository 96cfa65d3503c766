"""Catchment's own database: users, shards, tenants and their moves. Scripts of the package create
and upgrade it.
"""

from catchment.control.database import ControlDatabase
from catchment.control.models import Move, Shard, Tenant, User

__all__ = ["ControlDatabase", "Move", "Shard", "Tenant", "User"]
