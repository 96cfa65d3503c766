"""A process that migrates a database and is killed; started by the crash tests of migrations.

python -m tests.crash.schema_child {apply|restore|generate|check} SCENARIO DATABASE POINT
"""

import importlib
import sys

from catchment.foundation import faults
from catchment.schema.migrate import Migrate
from catchment.schema.sqlite_engine import SqliteEngine


def main(act: str, scenario: str, database: str, point: str) -> None:
    models = importlib.import_module(f"tests.schema.scenarios.{scenario}.models").MODELS
    migrate = Migrate(SqliteEngine(database), models)
    pending = migrate.look().pending
    faults.arm(point, faults.kill)
    match act:
        case "apply":
            migrate.apply(pending[0])
        case "restore":
            migrate.restore()
        case "generate":
            migrate.generate()
        case "check":
            migrate.check()
    sys.exit(f"{point} was not reached")


if __name__ == "__main__":
    main(*sys.argv[1:])
