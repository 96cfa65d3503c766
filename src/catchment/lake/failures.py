"""DuckDB's errors of a lake's transactions, as errors that tell the caller what to do."""

import duckdb

from catchment.errors import (
    CatchmentError,
    CommitUnknownError,
    ConflictError,
    InputError,
    InvariantError,
    LakeUnavailableError,
)
from catchment.lake.attach import LakeAddress, error_text

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


def _is_conflict(text: str) -> bool:
    return any(word in text.lower() for word in _CONFLICT_WORDS)
