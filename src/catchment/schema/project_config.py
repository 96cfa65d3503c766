"""A project's settings for its database, `[tool.catchment.schema]` in `pyproject.toml`.

    [tool.catchment.schema]
    db = "app.sqlite"             # or "lake", or "lake:SCHEMA"
    models = "app.models"         # or "app.models:MODELS", a list
    scripts = "migrations"        # if they are not next to the database
    backups_keep = 10             # of each kind

Paths are relative to the folder of the `pyproject.toml`.
"""

import difflib
import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from catchment.errors import InputError, SettingsError
from catchment.foundation.settings import read_toml
from catchment.schema.models import TableRow

PROJECT_FILE_NAME = "pyproject.toml"
TABLE = ("tool", "catchment", "schema")
LAKE = "lake"
_KINDS: dict[str, type] = {"db": str, "models": str, "scripts": str, "backups_keep": int}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project's settings; None if not set. `folder` may contain its modules."""

    folder: Path | None = None
    db: str | None = None
    models: str | None = None
    scripts: Path | None = None
    backups_keep: int | None = None


def find_project(folder: Path) -> Project:
    """Return the settings of the project that this folder belongs to; empty if there is none."""
    here = folder.absolute()
    root = next((each for each in (here, *here.parents) if (each / PROJECT_FILE_NAME).is_file()), None)
    if root is None:
        return Project()
    values = _read_table(root / PROJECT_FILE_NAME)
    known = [field.name for field in fields(Project) if field.name != "folder"]
    for name, value in values.items():
        _refuse_wrong(f"{root / PROJECT_FILE_NAME}: [{'.'.join(TABLE)}]", name, value, known)
    if "db" in values and not is_lake(values["db"]):
        values["db"] = str(_shown(root / values["db"], here))
    if "scripts" in values:
        values["scripts"] = _shown(root / values["scripts"], here)
    return Project(folder=root, **values)


def is_lake(db: str) -> bool:
    """Return whether this names the lake's tables rather than a file."""
    return db == LAKE or db.startswith(f"{LAKE}:")


def load_models(name: str, *, path: Iterable[Path] = ()) -> list[type[TableRow]]:
    """Return the models that `pkg.module` defines, or the list `pkg.module:attribute`.

    Modules are searched in the folders of `path` first. Only classes that the module defines
    itself, and whose names do not start with `_`, are models.
    """
    module_name, _, attribute = name.partition(":")
    module = _import(module_name, [str(each) for each in path])
    found: Any = vars(module).get(attribute) if attribute else _defined(module_name, vars(module))
    if attribute and not _is_list_of_models(found):
        raise InputError(
            f"{name} is {'not defined' if found is None else 'not a list of models'}.",
            hint=f"`{attribute}` must be a list of TableRow classes in {module_name}.",
        )
    if not found and not attribute:
        raise InputError(
            f"{module_name} defines no models.",
            hint=f"Name a list of them: `{module_name}:MODELS`, which may be empty.",
        )
    return list(found)


def _read_table(path: Path) -> dict[str, Any]:
    values: Any = read_toml(path)
    for name in TABLE:
        values = values.get(name, {})
        if not isinstance(values, dict):
            raise SettingsError(f"{path}: [{'.'.join(TABLE)}] is not a table.")
    return dict(values)


def _shown(path: Path, here: Path) -> Path:
    """Return the path relative to this folder if it is inside, as it appears in messages."""
    return path.relative_to(here) if path.is_relative_to(here) else path


def _import(name: str, path: list[str]) -> Any:
    # In front, as with `python -m`: the current folder takes precedence.
    sys.path[:0] = [each for each in path if each not in sys.path]
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _unusable(name, error) from error
        raise InputError(
            f"There is no module {error.name} to load models from.",
            hint=f"It was searched in {' and '.join(path) or 'the installed packages'}, and on Python's own path.",
        ) from error
    except Exception as error:
        # The module is the user's, and may fail in any way.
        raise _unusable(name, error) from error


def _unusable(name: str, error: Exception) -> InputError:
    return InputError(
        f"The models cannot be imported: {name}: {type(error).__name__}: {error}.",
        hint=f"`python -c 'import {name}'` shows why.",
    )


def _defined(module_name: str, names: dict[str, Any]) -> list[type[TableRow]]:
    return [
        value
        for name, value in names.items()
        if _is_model(value) and value.__module__ == module_name and not name.startswith("_")
    ]


def _is_list_of_models(value: object) -> bool:
    return isinstance(value, list | tuple) and all(_is_model(each) for each in value)


def _is_model(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, TableRow) and value is not TableRow


def _refuse_wrong(where: str, name: str, value: object, known: list[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise SettingsError(
            f"{where} sets {name!r}, which is not a setting.",
            hint=f"Did you mean {near[0]}?" if near else f"Settings: {', '.join(known)}.",
        )
    is_fine = type(value) is _KINDS[name] and (not isinstance(value, int) or value >= 1)
    if not is_fine:
        kind = "a number from 1" if _KINDS[name] is int else "a text"
        raise SettingsError(f"{where} sets {name} to {value!r}; it must be {kind}.")
