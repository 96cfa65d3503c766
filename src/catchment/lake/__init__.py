"""The lake: a DuckLake with a delivery ledger in it."""

from catchment.lake.attach import LakeAddress, parse_catalog
from catchment.lake.audit import AuditReport
from catchment.lake.commit import Commit
from catchment.lake.deadletters import DeadLetter
from catchment.lake.lake import Lake, LakeLimits, Standing
from catchment.lake.ledger import Claim, Delivery
from catchment.lake.tables import Table
from catchment.lake.types import Column
from catchment.lake.upkeep import UpkeepReport

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
    "Standing",
    "Table",
    "UpkeepReport",
    "parse_catalog",
]
