"""The source of an import: a Tailpipe home, or any tree of hive folders with its keys."""

import re
from dataclasses import dataclass
from pathlib import Path

from catchment.errors import InputError
from catchment.foundation import sql
from catchment.lake import types
from catchment.lake.types import Column
from catchment.pipeline.legacy.folders import ImportFolders
from catchment.pipeline.legacy.tree import TAILPIPE_KEYS

TAILPIPE_HOME = Path("~/.tailpipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSource:
    """The folders of an import, the keys of its hive folders, and its table if it has only one."""

    folders: ImportFolders
    keys: tuple[Column, ...]
    table: str | None


def find(
    *,
    home: str | Path | None = None,
    workspace: str | None = None,
    tree: str | Path | None = None,
    keys: str | None = None,
    table: str | None = None,
) -> ImportSource:
    """Return the source that the arguments name; InputError if they contradict each other."""
    if tree is None:
        if keys is not None or table is not None:
            raise InputError(
                "--keys and --table are valid only with --tree.", hint="Add --tree DIR, or leave them out."
            )
        folders = ImportFolders.tailpipe(Path(home or TAILPIPE_HOME), workspace)
        return ImportSource(folders=folders, keys=TAILPIPE_KEYS, table=None)
    if home is not None or workspace is not None:
        raise InputError(
            "--tree cannot be combined with --home or --workspace.", hint="Leave --home and --workspace out."
        )
    if keys is None:
        raise InputError(
            "A tree needs its keys.", hint="Name its folders from the top: --keys region,day:DATE, or `keys=`."
        )
    folders = ImportFolders.tree(Path(tree))
    if not folders.data.is_dir() and not folders.migration.is_dir():
        raise InputError(f"There is no folder {folders.data}.", hint="Name the folder that contains the hive folders.")
    return ImportSource(folders=folders, keys=parse_keys(keys), table=_table_name(table or folders.data.name))


def parse_keys(text: str) -> tuple[Column, ...]:
    """Read `a,b:DATE,c`: names of folders from the top, each with a type; VARCHAR if none is given."""
    # A comma in parentheses belongs to a type, such as DECIMAL(10,2).
    found = [each.partition(":") for each in re.split(r",(?![^(]*\))", text)]
    keys = tuple(Column(name=name.strip(), type=_key_type(kind) if colon else "VARCHAR") for name, colon, kind in found)
    if any(not key.name or set("=/") & set(key.name) for key in keys):
        raise InputError(f"--keys {text!r} has a key without a name.", hint="Write --keys region,day:DATE.")
    if len({sql.fold(key.name) for key in keys}) < len(keys):
        raise InputError(f"--keys {text!r} names a key twice.", hint="Name every level of folders once.")
    return keys


def _key_type(text: str) -> str:
    try:
        return types.normal(text)
    except InputError as error:
        raise InputError(error.message, hint="Write a type of DuckDB, such as --keys region,day:DATE.") from None


def _table_name(text: str) -> str:
    if not text or "." in text:
        raise InputError(f"{text!r} is not a table name.", hint="Use --table NAME, and --schema for its schema.")
    return text
