"""Translates DuckDB's errors in a lake's transactions into errors that tell the caller what to do."""

from typing import assert_never

import duckdb

from catchment.errors import (
    CatchmentError,
    CommitUnknownError,
    ConflictError,
    EngineFailedError,
    InputError,
    InvariantError,
    LakeUnavailableError,
)
from catchment.lake.attach import DuckDbCatalog, LakeAddress, PostgresCatalog, SqliteCatalog, error_text

# Texts by which DuckLake, SQLite and PostgreSQL report that a transaction lost a race and was
# rolled back.
_CONFLICT_WORDS = ("conflict", "database is locked", "primary key", "unique", "concurrent", "serialize", "deadlock")


def before_commit(error: duckdb.Error, address: LakeAddress) -> CatchmentError:
    """Translate the error of a statement before COMMIT: nothing was committed."""
    text = error_text(error, address)
    if isinstance(error, duckdb.InternalException | duckdb.FatalException):
        return InvariantError(f"DuckDB failed: {text}")
    if isinstance(error, duckdb.DataError | duckdb.IntegrityError | duckdb.ProgrammingError | duckdb.NotSupportedError):
        return InputError(f"The lake refuses the change: {text}")
    if _is_conflict(text):
        return ConflictError(text)
    return LakeUnavailableError(f"The lake does not answer: {text}")


def during_commit(error: duckdb.Error, address: LakeAddress) -> CatchmentError:
    """Translate a COMMIT's error: a conflict, or, with any other error, an unknown result."""
    text = error_text(error, address)
    return ConflictError(text) if _is_conflict(text) else CommitUnknownError(f"COMMIT failed: {text}")


def of_engine(error: EngineFailedError) -> CatchmentError:
    """Translate the end of an engine during COMMIT: an unknown result, if it may have run."""
    return CommitUnknownError(f"COMMIT failed: {error.message}") if error.may_have_run else error


def spoils_instance(error: duckdb.Error, address: LakeAddress) -> bool:
    """Return whether the DuckDB instance must be replaced after a failed COMMIT.

    Readers keep the old instance until they finish. SQLite: yes, it would crash later. PostgreSQL:
    not after a conflict, because DuckLake keeps a server connection open for every instance that
    had one. DuckDB: no, because one process cannot open the file twice.
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
