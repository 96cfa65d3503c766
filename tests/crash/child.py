"""A process that delivers and is killed on the way; started by the crash tests, never imported.

python -m tests.crash.child {deliver|maintain} HOME CATALOG_URL POINT MODE FILE…
"""

import sys
from pathlib import Path

from pydantic import SecretStr

from catchment.foundation import faults
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.maintenance import maintain
from catchment.pipeline import Deliverer, Mode, ParquetFiles, Retirement, SparkRunner
from catchment.testing import InlineRunner
from tests.sample_events import EVENTS, NOW


def main(act: str, home: str, catalog: str, point: str, mode: str, *paths: str) -> None:
    settings = Settings(home=Path(home), lake_catalog=SecretStr(catalog), spark_master="local[2]")
    faults.arm(point, faults.kill)
    with Lake.from_settings(settings) as lake:
        if act == "maintain":
            maintain(lake, NOW)
            return
        source = ParquetFiles([Path(path) for path in paths], EVENTS, retirement=Retirement.REMOVE)
        runner = SparkRunner(settings) if act == "spark" else InlineRunner()
        Deliverer(lake, runner, settings).run(source, mode=Mode(mode))


if __name__ == "__main__":
    main(*sys.argv[1:])
