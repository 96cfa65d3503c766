"""Imports known to a home: a small file for each started import, for the status."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from catchment.foundation import files
from catchment.lake.types import Column
from catchment.pipeline.legacy.folders import ImportFolders
from catchment.pipeline.legacy.import_plan import ImportOptions

FOLDER = "imports"
KNOWN_MAX = 20


def remember(home: Path, folders: ImportFolders, options: ImportOptions) -> None:
    """Record that an import was started. Safe to repeat."""
    facts = {
        "data": str(folders.data),
        "migration": str(folders.migration),
        "workspace": folders.workspace,
        "marker": folders.marker,
        "keys": [asdict(key) for key in options.keys],
        "table": options.table,
        "schema": options.schema,
    }
    text = json.dumps(facts, indent=1)
    name = hashlib.sha256(f"{folders.data}\0{folders.migration}".encode()).hexdigest()[:16]
    files.make_folder(home / FOLDER)
    files.replace_text(home / FOLDER / f"{name}.json", text + "\n")


def remembered(home: Path) -> list[tuple[ImportFolders, ImportOptions]]:
    """Return the imports that were started last; unreadable records are left out."""
    notes = sorted((home / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    found = []
    for path in notes[:KNOWN_MAX]:
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            keys = tuple(map(Column.from_json, facts["keys"]))
            folders = ImportFolders(
                data=Path(facts["data"]),
                migration=Path(facts["migration"]),
                workspace=facts["workspace"],
                marker=facts["marker"],
            )
        except (OSError, ValueError, TypeError, KeyError):
            continue
        found.append((folders, ImportOptions(keys=keys, table=facts["table"], schema=facts["schema"])))
    return found
