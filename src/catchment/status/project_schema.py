"""State of a project's database, compared with its models, if a setting names the project's folder.

Models are foreign code. They run in a separate process with a time limit: they are loaded again
each time, and whatever they print, raise or wait for cannot harm this process.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from catchment.errors import CatchmentError, InputError, StateError
from catchment.foundation.ids import DEFAULT_SCHEMA
from catchment.foundation.settings import Settings
from catchment.schema.project_config import PROJECT_FILE_NAME, Project, find_project, is_lake
from catchment.status.model import SchemaDatabase, ScriptFacts
from catchment.status.schemas import unclear

SECONDS_MAX = 20.0
_CHILD = "catchment.status.compare_project"
_MORE = "`catchment schema status`, run there, shows more."


def look(settings: Settings, *, seconds_max: float = SECONDS_MAX) -> SchemaDatabase | None:
    """Return the state of the configured project's database, or None if none is configured."""
    if settings.status_schema_project is None:
        return None
    folder = settings.status_schema_project.absolute()
    name = "project"
    try:
        name = name_of(found_in(folder), settings)
        return _parsed(_compared(settings, folder, seconds_max), folder)
    except CatchmentError as error:
        return unclear(name, error.message)


def found_in(folder: Path) -> Project:
    """Return the project of exactly this folder, with database and models; InputError if none."""
    if not (folder / PROJECT_FILE_NAME).is_file():
        raise InputError(f"There is no {PROJECT_FILE_NAME} in {folder}, which status_schema_project names.")
    found = find_project(folder)
    if found.db is None or found.models is None:
        raise InputError(f"{folder / PROJECT_FILE_NAME} does not set `db` and `models` in [tool.catchment.schema].")
    return found


def name_of(found: Project, settings: Settings) -> str:
    """Name of the project's database in the status."""
    place = str(found.db)
    return f"{settings.lake_name}:{schema_of(place)}" if is_lake(place) else place


def schema_of(place: str) -> str:
    """The lake schema that `lake` or `lake:SCHEMA` refers to."""
    return place.partition(":")[2] or DEFAULT_SCHEMA


def _compared(settings: Settings, folder: Path, seconds_max: float) -> bytes:
    """Run the comparing process and return its answer."""
    # In this process's folder, because relative paths in settings start there, and with nothing
    # imported from it; in its own process group, so that child processes of the models end with it.
    with subprocess.Popen(
        [sys.executable, "-P", "-B", "-m", _CHILD, str(settings.home.absolute()), str(folder), str(seconds_max)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            answer, _ = process.communicate(timeout=seconds_max)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise StateError(
                f"Reading the models in {folder} took longer than {seconds_max:g} s, and was ended. {_MORE}"
            ) from None
    return answer


def _parsed(answer: bytes, folder: Path) -> SchemaDatabase:
    try:
        facts: dict[str, Any] = json.loads(answer)
        lists = {key: None if facts[key] is None else tuple(facts[key]) for key in ("pending", "differences", "errors")}
        scripts = tuple(ScriptFacts(**each) for each in facts["scripts"])
        return SchemaDatabase(**{**facts, **lists, "scripts": scripts})
    except (ValueError, TypeError, KeyError):
        raise StateError(f"Reading the models in {folder} ended without an answer. {_MORE}") from None
