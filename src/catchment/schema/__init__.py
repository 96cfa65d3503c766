"""Schema migrations: the structure that a database should have, and the scripts that lead to it."""

from catchment.schema.check import CheckResult, State
from catchment.schema.development import Development, develop
from catchment.schema.diff import ModelDiff
from catchment.schema.lake_engine import LakeEngine
from catchment.schema.migratable import Backup
from catchment.schema.migrate import Migrate
from catchment.schema.models import TableRow
from catchment.schema.rehearse import Rehearsal
from catchment.schema.sqlite_engine import SqliteEngine

__all__ = [
    "Backup",
    "CheckResult",
    "Development",
    "LakeEngine",
    "Migrate",
    "ModelDiff",
    "Rehearsal",
    "SqliteEngine",
    "State",
    "TableRow",
    "develop",
]
