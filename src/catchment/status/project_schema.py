"""The database of a project, compared with its models where a setting names the project's folder.

Models are code of others. They are run by a process of their own, which ends after a while whatever they do: so they
are read anew each time, and what they print, raise or wait for harms nobody.
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
from catchment.foundation.settings import PROJECT_FILE_NAME, Settings
from catchment.schema.project_config import Project, find_project, is_lake
from catchment.status.model import SchemaDatabase, ScriptFacts
from catchment.status.schemas import unclear

SECONDS_MAX = 20.0
_CHILD = "catchment.status.compare_project"
_MORE = "`catchment schema status`, run there, shows more."


def look(settings: Settings, *, seconds_max: float = SECONDS_MAX) -> SchemaDatabase | None:
    """The database of the project that the settings name; None where they name none."""
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
    """The project of this very folder, which says a database and models; InputError where there is none."""
    if not (folder / PROJECT_FILE_NAME).is_file():
        raise InputError(f"There is no {PROJECT_FILE_NAME} in {folder}, which status_schema_project names.")
    found = find_project(folder)
    if found.db is None or found.models is None:
        raise InputError(f"{folder / PROJECT_FILE_NAME} does not say `db` and `models` in [tool.catchment.schema].")
    return found


def name_of(found: Project, settings: Settings) -> str:
    """What the status calls the project's database."""
    place = str(found.db)
    return f"{settings.lake_name}:{schema_of(place)}" if is_lake(place) else place


def schema_of(place: str) -> str:
    """The schema of the lake that `lake` or `lake:SCHEMA` means."""
    return place.partition(":")[2] or DEFAULT_SCHEMA


def _compared(settings: Settings, folder: Path, seconds_max: float) -> bytes:
    """What the process says that compares."""
    # In the folder that this process is in, because paths in settings count from it, and with nothing imported from
    # there; in a group of its own, so that what the models start ends with it.
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
