"""DuckDB's errors about a file of the buffer, as what the caller can do about them."""

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

# Texts by which DuckDB says that a file is open elsewhere, or that the system refuses something.
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
# Texts by which DuckDB says that it has given up a database, or that it is closed.
_GIVEN_UP = ("database has been invalidated", "Failed to create checkpoint", "Connection already closed")


def failure(path: Path, error: duckdb.Error) -> CatchmentError:
    """DuckDB's error about a file, as what the caller can do about it."""
    text = " ".join(str(error).split())
    if any(words in text for words in _HELD):
        return BufferHeldError(f"{path} is open elsewhere.", path=str(path))
    if any(words in text for words in _FULL):
        return DiskFullError(f"{path}: {text}", path=str(path))
    gone = isinstance(error, duckdb.TransactionException | duckdb.ConnectionException)
    if gone or any(words in text for words in _FAILING):
        return StorageFailedError(f"{path}: {text}", path=str(path))
    if isinstance(error, duckdb.DataError):
        return InputError(f"The rows cannot be kept: {text}")
    # What is left at opening is damage, and moves the file out of the way; an open one DuckDB gives up like this.
    return BufferDamagedError(f"{path}: {text}", path=str(path))


@contextmanager
def failing(path: Path) -> Iterator[None]:
    """Raise them so."""
    try:
        yield
    except duckdb.Error as error:
        raise failure(path, error) from error


def is_given_up(error: CatchmentError) -> bool:
    """Whether DuckDB does nothing more with the file until it is opened anew."""
    return isinstance(error, BufferDamagedError | CommitUnknownError) or any(
        words in error.message for words in _GIVEN_UP
    )


def refusal(folder: Path, error: CatchmentError) -> StorageFailedError:
    """What is the matter with the disk, where an error of the buffer in that folder is about it."""
    if any(words in error.message for words in _FULL):
        return DiskFullError(f"No space is left on the device that holds {folder}.", path=str(folder))
    # What an unknown commit says is not so where it is known by now.
    unknown = isinstance(error, CommitUnknownError)
    return StorageFailedError(f"The disk that holds {folder} failed." if unknown else error.message, path=str(folder))
