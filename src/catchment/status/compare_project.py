"""Compares a project's database with its models, in a process that `project_schema.py` starts.

    python -m catchment.status.compare_project HOME FOLDER SECONDS_MAX

Prints the state of the database as JSON on stdout, and nothing else, whatever the models print.
"""

import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from catchment.errors import CatchmentError
from catchment.foundation.settings import Settings, load_settings
from catchment.lake import Lake
from catchment.schema import LakeEngine, Migrate, SqliteEngine
from catchment.schema.migratable import Database
from catchment.schema.project_config import Project, is_lake, load_models
from catchment.schema.scripts import read_folder
from catchment.status.model import SchemaDatabase
from catchment.status.project_schema import found_in, name_of, schema_of
from catchment.status.schemas import compared, unclear


def main() -> None:
    """Print the state of the database."""
    home, folder, seconds_max = sys.argv[1:]
    # Ends by itself even if its parent process is gone.
    signal.alarm(math.ceil(float(seconds_max)) + 1)
    answer = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        json.dump(asdict(_look(load_settings(Path(home)), Path(folder))), out)
    # Threads that the models started are not joined.
    os._exit(0)


def _look(settings: Settings, folder: Path) -> SchemaDatabase:
    found = found_in(folder)
    name = name_of(found, settings)
    try:
        models = load_models(str(found.models), path=[folder])
        with _opened(settings, found, folder) as database:
            return compared(name, Migrate(database, models).look(), read_folder(database.scripts))
    except CatchmentError as error:
        return unclear(name, error.message)


@contextmanager
def _opened(settings: Settings, found: Project, folder: Path) -> Iterator[Database]:
    place = str(found.db)
    # Relative paths of the project start at its folder, and this process runs in another one.
    scripts = None if found.scripts is None else folder / found.scripts
    if is_lake(place):
        with closing(Lake.from_settings(settings)) as lake:
            lake.open(create=False)
            yield LakeEngine(lake, schema=schema_of(place), folder=folder, scripts=scripts)
    else:
        with SqliteEngine(folder / place, scripts=scripts) as engine:
            yield engine


if __name__ == "__main__":
    main()
