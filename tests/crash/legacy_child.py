"""A process that imports, or undoes an import, and is killed; started by the legacy crash tests.

    python -m tests.crash.legacy_child {run|undo} HOME LAKE_HOME CATALOG_URL WHEN NTH

WHEN is a crash point, and the process kills itself when it comes there for the NTH time. With
`marker`, it does so at the first point of all after the database has come to the backup. With
`any`, it dies at the NTH point, whichever that is; with `delay`, NTH milliseconds after the work
has begun, wherever it is then.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pydantic import SecretStr

from catchment.foundation import faults
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline import Deliverer
from catchment.pipeline.legacy.folders import ImportFolders
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.pipeline.legacy.job import LegacyImport
from catchment.testing import InlineRunner

UNITS_PER_COMMIT = 3


def job(home: Path, lake: Lake, settings: Settings) -> LegacyImport:
    """The import as the child does it: several commits, and leaves of both ways."""
    return LegacyImport(
        ImportFolders.tailpipe(home),
        ImportOptions(),
        find_lake=lambda: lake,
        deliverer=lambda: Deliverer(lake, InlineRunner(), settings, units_per_commit_max=UNITS_PER_COMMIT),
        parallelism=2,
        adopt_bytes_min=1 << 40,
        data_path=Path(lake.address.data_path),
        clock=SystemClock(),
    )


def main(act: str, home: str, lake_home: str, catalog: str, when: str, nth: str) -> None:
    settings = Settings(home=Path(lake_home), lake_catalog=SecretStr(catalog))
    with Lake.from_settings(settings) as lake:
        work = job(Path(home), lake, settings)
        _prepare_to_die(when, int(nth), work.folders)
        if act == "undo":
            work.undo()
        else:
            work.run()


def _prepare_to_die(when: str, nth: int, place: ImportFolders) -> None:
    match when:
        case "delay":
            timer = threading.Timer(nth / 1000, faults.kill)
            timer.daemon = True
            timer.start()
        case "any" | "marker":
            arrived = place.migrated / place.marker
            end = _at(nth, lambda: when == "any" or arrived.exists())
            for point in faults.POINTS:
                faults.arm(point, end)
        case _:
            faults.arm(when, _at(nth, lambda: True))


def _at(nth: int, counts: Callable[[], bool]) -> Callable[[], None]:
    """Die when this has been called for the NTH time while it counts."""
    left = [None] * nth

    def end() -> None:
        if counts():
            left.pop()
            if not left:
                faults.kill()

    return end


if __name__ == "__main__":
    main(*sys.argv[1:])
