"""DuckDB's errors of a lake's transactions, as errors that tell the caller what to do."""

from typing import assert_never

import duckdb

from catchment.errors import (
    CatchmentError,
    CommitUnknownError,
    ConflictError,
    InputError,
    InvariantError,
    LakeUnavailableError,
)
from catchment.lake.attach import DuckDbCatalog, LakeAddress, PostgresCatalog, SqliteCatalog, error_text

# Texts by which DuckLake, SQLite and PostgreSQL say that a transaction lost a race and left nothing behind.
_CONFLICT_WORDS = ("conflict", "database is locked", "primary key", "unique", "concurrent", "serialize", "deadlock")


def before_commit(error: duckdb.Error, address: LakeAddress) -> CatchmentError:
    """What a statement before COMMIT failed with; nothing has landed."""
    text = error_text(error, address)
    if isinstance(error, duckdb.InternalException | duckdb.FatalException):
        return InvariantError(f"DuckDB failed: {text}")
    if isinstance(error, duckdb.DataError | duckdb.IntegrityError | duckdb.ProgrammingError | duckdb.NotSupportedError):
        return InputError(f"The lake refuses the change: {text}")
    if _is_conflict(text):
        return ConflictError(text)
    return LakeUnavailableError(f"The lake does not answer: {text}")


def during_commit(error: duckdb.Error, address: LakeAddress) -> CatchmentError:
    """What COMMIT failed with: a conflict has left nothing, and of anything else it is unknown."""
    text = error_text(error, address)
    return ConflictError(text) if _is_conflict(text) else CommitUnknownError(f"COMMIT failed: {text}")


def spoils_instance(error: duckdb.Error, address: LakeAddress) -> bool:
    """Whether a failed COMMIT takes the whole DuckDB instance with it; readers keep it until they are done.

    SQLite: it would crash later. PostgreSQL: only after anything but a conflict, since DuckLake holds on to a server
    connection of every instance that saw a conflict. A DuckDB file cannot be opened twice by one process: it stays.
    """
    match address.catalog:
        case SqliteCatalog():
            return True
        case PostgresCatalog():
            return not isinstance(during_commit(error, address), ConflictError)
        case DuckDbCatalog():
            return False
        case _ as unreachable:
            assert_never(unreachable)


def _is_conflict(text: str) -> bool:
    return any(word in text.lower() for word in _CONFLICT_WORDS)
