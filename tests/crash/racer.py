"""One of two processes that deliver the same units at once; started by the race test.

    python -m tests.crash.racer HOME CATALOG_URL {locked|unlocked} FILE…

For every line on stdin it delivers the next file and answers how many units it delivered, 0 or 1.
"""

import sys
from pathlib import Path

from pydantic import SecretStr

from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake import lake as lake_module
from catchment.lake.locks import CommitLock
from catchment.pipeline import Deliverer, ParquetFiles
from catchment.testing import InlineRunner
from tests.sample_events import EVENTS


def main(home: str, catalog: str, lock: str, *paths: str) -> None:
    settings = Settings(home=Path(home), lake_catalog=SecretStr(catalog))
    # Without the lock, many commits conflict.
    lake_module.COMMIT_ATTEMPTS_MAX = 100
    lake = Lake.from_settings(settings)
    if lock == "unlocked":
        lake = Lake(lake.address, limits=lake.limits, commit_lock=CommitLock())
    with lake:
        deliverer = Deliverer(lake, InlineRunner(), settings)
        for _, path in zip(sys.stdin, paths, strict=False):
            report = deliverer.run(ParquetFiles([Path(path)], EVENTS))
            sys.stdout.write(f"{report.delivered}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
