"""The lake: a DuckLake with a delivery ledger in it."""

from catchment.lake.attach import LakeAddress, parse_catalog
from catchment.lake.audit import AuditReport
from catchment.lake.commit import Commit
from catchment.lake.dead_letters import DeadLetter
from catchment.lake.lake import Lake, LakeLimits, ProducerState
from catchment.lake.ledger import Claim, Delivery
from catchment.lake.maintenance import MaintenanceReport
from catchment.lake.tables import Table
from catchment.lake.types import Column

__all__ = [
    "AuditReport",
    "Claim",
    "Column",
    "Commit",
    "DeadLetter",
    "Delivery",
    "Lake",
    "LakeAddress",
    "LakeLimits",
    "MaintenanceReport",
    "ProducerState",
    "Table",
    "parse_catalog",
]
