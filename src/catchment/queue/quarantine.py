"""Setting aside: a buffer file that cannot be opened keeps its content, with its logs, under a name that says so."""

import json
import logging
from pathlib import Path

from catchment.foundation import events, faults, files
from catchment.foundation.clock import Clock
from catchment.queue import journal
from catchment.queue.buffer import QuarantinedFile

FOLDER = "set_aside"
_REASON = "reason.json"


def put(path: Path, *, reason: str, clock: Clock) -> Path:
    """Move the file, its WAL and its journal into a folder of their own; returns where the file is now."""
    stamp = clock.now().strftime("%Y%m%dT%H%M%S.%fZ")
    folder = _root_of(path) / FOLDER / f"{path.name}.{stamp}"
    files.make_folder(folder)
    files.write_text(folder / _REASON, json.dumps({"file": path.name, "reason": reason}))
    # Second names first, so that they are never apart; then the file goes before its logs, because a file without
    # them would open, and be short of rows.
    named = [path.with_name(path.name + suffix) for suffix in ("", ".wal", journal.SUFFIX)]
    there = [each for each in named if each.exists()]
    for each in there:
        files.link_or_copy(each, folder / each.name)
    files.sync_folder(folder)
    for each in there:
        faults.reach("queue.between_aside")
        files.remove(each)
    files.sync_folder(path.parent)
    events.emit("buffer_set_aside", level=logging.ERROR, path=str(folder / path.name), reason=reason)
    return folder / path.name


def found(root: Path) -> tuple[QuarantinedFile, ...]:
    """Everything that was ever set aside under this root."""
    reasons = sorted((root / FOLDER).glob(f"*/{_REASON}"))
    facts = [(path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in reasons]
    return tuple(QuarantinedFile(path=folder / each["file"], reason=each["reason"]) for folder, each in facts)


def _root_of(path: Path) -> Path:
    return path.parent.parent if path.parent.name in ("active", "sealed") else path.parent
