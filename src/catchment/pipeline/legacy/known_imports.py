"""Imports that a home knows of: a small file for each place that one was begun at, so that a status finds it again."""

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


def remember(home: Path, place: ImportFolders, options: ImportOptions) -> None:
    """Note that an import was begun; may be repeated."""
    facts = {
        "data": str(place.data),
        "migration": str(place.migration),
        "workspace": place.workspace,
        "marker": place.marker,
        "keys": [asdict(key) for key in options.keys],
        "table": options.table,
        "schema": options.schema,
    }
    text = json.dumps(facts, indent=1)
    name = hashlib.sha256(f"{place.data}\0{place.migration}".encode()).hexdigest()[:16]
    files.make_folder(home / FOLDER)
    files.replace_text(home / FOLDER / f"{name}.json", text + "\n")


def remembered(home: Path) -> list[tuple[ImportFolders, ImportOptions]]:
    """Those that were begun last; a note that cannot be read is left out."""
    notes = sorted((home / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    found = []
    for path in notes[:KNOWN_MAX]:
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            keys = tuple(map(Column.from_json, facts["keys"]))
            place = ImportFolders(
                data=Path(facts["data"]),
                migration=Path(facts["migration"]),
                workspace=facts["workspace"],
                marker=facts["marker"],
            )
        except (OSError, ValueError, TypeError, KeyError):
            continue
        found.append((place, ImportOptions(keys=keys, table=facts["table"], schema=facts["schema"])))
    return found
