"""DuckDB's errors about a file of the buffer, as what the caller can do about them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from catchment.errors import BufferDamagedError, BufferHeldError, CatchmentError, InputError, StorageFailedError

# Texts by which DuckDB says that a file is open elsewhere, or that the system refuses something.
_HELD = ("Could not set lock", "Conflicting lock", "Unique file handle conflict", "already attached", "already open")
_FAILING = (
    "No space",
    "Cannot open file",
    "Permission denied",
    "Too many open files",
    "Read-only file system",
    "Cannot allocate memory",
    "Out of Memory",
)


def failure(path: Path, error: duckdb.Error) -> CatchmentError:
    """DuckDB's error about a file, as what the caller can do about it."""
    text = " ".join(str(error).split())
    if any(words in text for words in _HELD):
        return BufferHeldError(f"{path} is open elsewhere.", path=str(path))
    if isinstance(error, duckdb.TransactionException) or any(words in text for words in _FAILING):
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
