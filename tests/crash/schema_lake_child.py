"""A process that migrates a schema of a lake and is killed; started by the crash tests.

python -m tests.crash.schema_lake_child {apply|restore} HOME CATALOG POINT
"""

import sys
from pathlib import Path

from catchment.foundation import faults
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.schema.lake_engine import LakeEngine
from catchment.schema.migrate import Migrate


def main(act: str, home: str, catalog: str, point: str) -> None:
    settings = Settings(home=Path(home), lake_catalog=catalog)  # type: ignore[arg-type]
    with Lake.from_settings(settings) as lake:
        engine = LakeEngine(lake, folder=Path(home))
        migrate = Migrate(engine, [])
        pending = migrate.look().pending
        faults.arm(point, faults.kill)
        match act:
            case "apply":
                migrate.apply(pending[0])
            case "restore":
                migrate.restore("manual_001")
    sys.exit(f"{point} was not reached")


if __name__ == "__main__":
    main(*sys.argv[1:])
