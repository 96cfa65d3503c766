"""Schema migrations: what a database is to look like, and the scripts that bring it there."""

from catchment.schema.check import CheckResult, State
from catchment.schema.database import Backup
from catchment.schema.development import Development, develop
from catchment.schema.diff import ModelDiff
from catchment.schema.engine import Engine
from catchment.schema.lake import LakeEngine
from catchment.schema.migrate import Migrate
from catchment.schema.models import TableRow
from catchment.schema.rehearse import Rehearsal

__all__ = [
    "Backup",
    "CheckResult",
    "Development",
    "Engine",
    "LakeEngine",
    "Migrate",
    "ModelDiff",
    "Rehearsal",
    "State",
    "TableRow",
    "develop",
]
