"""Failures of buffer files: DuckDB's errors translated for the caller, and quarantine.

A file that cannot be opened is quarantined: it is kept, with its logs, in a new folder under
`<root>/set_aside`.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from catchment.errors import (
    BufferDamagedError,
    BufferHeldError,
    CatchmentError,
    CommitUnknownError,
    DiskFullError,
    InputError,
    StorageFailedError,
)
from catchment.foundation import events, faults, files
from catchment.foundation.clock import Clock
from catchment.queue.buffer import QuarantinedFile
from catchment.queue.store import journal

_QUARANTINE = "set_aside"
_REASON = "reason.json"
# Texts by which DuckDB reports that a file is open elsewhere, or that the system refuses an
# operation.
_HELD = ("Could not set lock", "Conflicting lock", "Unique file handle conflict", "already attached", "already open")
_FULL = ("No space", "Disk quota exceeded", "File too large")
_FAILING = (
    "Cannot open file",
    "Permission denied",
    "Too many open files",
    "Read-only file system",
    "Cannot allocate memory",
    "Out of Memory",
)
# Texts by which DuckDB reports that it has invalidated or closed a database.
_INVALIDATED = ("database has been invalidated", "Failed to create checkpoint", "Connection already closed")


def translated(path: Path, error: duckdb.Error) -> CatchmentError:
    """Translate DuckDB's error about a file."""
    text = " ".join(str(error).split())
    if any(words in text for words in _HELD):
        return BufferHeldError(f"{path} is open elsewhere.", path=str(path))
    if any(words in text for words in _FULL):
        return DiskFullError(f"{path}: {text}", path=str(path))
    gone = isinstance(error, duckdb.TransactionException | duckdb.ConnectionException)
    if gone or any(words in text for words in _FAILING):
        return StorageFailedError(f"{path}: {text}", path=str(path))
    if isinstance(error, duckdb.DataError):
        return InputError(f"The rows cannot be stored: {text}")
    # When a file is opened, any other error is damage, and the file is quarantined. For an open
    # file, this is how DuckDB invalidates it.
    return BufferDamagedError(f"{path}: {text}", path=str(path))


@contextmanager
def translating(path: Path) -> Iterator[None]:
    """Translate DuckDB's errors that are raised inside."""
    try:
        yield
    except duckdb.Error as error:
        raise translated(path, error) from error


def is_invalidated(error: CatchmentError) -> bool:
    """Return whether DuckDB refuses to use the file until it is opened again."""
    return isinstance(error, BufferDamagedError | CommitUnknownError) or any(
        words in error.message for words in _INVALIDATED
    )


def refusal(folder: Path, error: CatchmentError) -> StorageFailedError:
    """Translate an error of the buffer in that folder to an error about the disk."""
    if any(words in error.message for words in _FULL):
        return DiskFullError(f"No space is left on the device that contains {folder}.", path=str(folder))
    # The text of an unknown commit does not apply here: the outcome is known by now.
    unknown = isinstance(error, CommitUnknownError)
    return StorageFailedError(
        f"The disk that contains {folder} failed." if unknown else error.message, path=str(folder)
    )


def quarantine(path: Path, *, root: Path, reason: str, clock: Clock) -> Path:
    """Move the file, its WAL and its journal into a new folder; return the file's new path."""
    stamp = clock.now().strftime("%Y%m%dT%H%M%S.%fZ")
    folder = root / _QUARANTINE / f"{path.name}.{stamp}"
    files.make_folder(folder)
    files.write_text(folder / _REASON, json.dumps({"file": path.name, "reason": reason}))
    # Link all of them first, so that they are never separated. Then remove the file before its
    # logs, because a file without them would open and lack rows.
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


def quarantined(root: Path) -> tuple[QuarantinedFile, ...]:
    """Return everything that was ever quarantined under this root."""
    reasons = sorted((root / _QUARANTINE).glob(f"*/{_REASON}"))
    facts = [(path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in reasons]
    return tuple(QuarantinedFile(path=folder / each["file"], reason=each["reason"]) for folder, each in facts)
