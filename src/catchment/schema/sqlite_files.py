"""Opens SQLite files for reading without side effects, and for writing; translates errors."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from catchment.errors import CatchmentError, CorruptInputError, LockTimeoutError, StorageFailedError
from catchment.foundation.backoff import Backoff, retry
from catchment.foundation.clock import Clock

T = TypeVar("T")

BUSY = Backoff(attempts_max=12, first_ms=50, wait_ms_max=2_000)
# How long SQLite itself waits for a lock, in every attempt.
_WAIT_S = 0.5
JOURNALS = ("-journal", "-wal")
# A writer was killed during a transaction, and a read-only connection may not roll it back.
_KILLED_WRITER = (sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY)
_PRIMARY_CODE = 0xFF
_TRANSLATED: dict[int, tuple[type[CatchmentError], str]] = {
    sqlite3.SQLITE_BUSY: (LockTimeoutError, "is in use by another connection"),
    sqlite3.SQLITE_LOCKED: (LockTimeoutError, "is in use by another connection"),
    sqlite3.SQLITE_CORRUPT: (CorruptInputError, "is damaged"),
    sqlite3.SQLITE_NOTADB: (CorruptInputError, "is not a SQLite database"),
    sqlite3.SQLITE_IOERR: (StorageFailedError, "cannot be read or written"),
    sqlite3.SQLITE_FULL: (StorageFailedError, "has no room left"),
    sqlite3.SQLITE_CANTOPEN: (StorageFailedError, "cannot be opened"),
    sqlite3.SQLITE_READONLY: (StorageFailedError, "cannot be written"),
    sqlite3.SQLITE_PERM: (StorageFailedError, "cannot be written"),
}


def retry_busy(operation: Callable[[], T], *, policy: Backoff, clock: Clock) -> T:
    """Run the operation, and retry it a bounded number of times while the database is busy."""
    return retry(operation, policy=policy, clock=clock, on=LockTimeoutError)


@contextmanager
def reading(path: Path, *, is_frozen: bool = False) -> Iterator[sqlite3.Connection]:
    """Yield a connection in a read transaction; a missing file is empty, and not created.

    If `is_frozen`, no process writes the file, and not even SQLite's own files are created next to
    it.
    """
    with _translating_errors(path):
        if not path.exists():
            with closing(sqlite3.connect(":memory:")) as nothing:
                yield nothing
            return
        plain = is_frozen and not any(path.with_name(path.name + suffix).exists() for suffix in JOURNALS)
        with closing(_begin_reading(path, "mode=ro&immutable=1" if plain else "mode=ro")) as connection:
            yield connection


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection outside a transaction, without foreign keys. Creates the file."""
    with _translating_errors(path), closing(_connect(path, "mode=rwc")) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        yield connection


def is_about_storage(error: sqlite3.Error) -> bool:
    """Return whether the error concerns the file and not the statement."""
    return _primary(error) in _TRANSLATED


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # No statement is cached: each is prepared, and so authorized, every time. The sqlite3 module
    # begins no transaction by itself.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None, timeout=_WAIT_S, cached_statements=0
    )


def _begin_reading(path: Path, mode: str) -> sqlite3.Connection:
    try:
        return _open_transaction(path, mode)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode not in _KILLED_WRITER:
            raise
    _recover(path)
    return _open_transaction(path, mode)


def _open_transaction(path: Path, mode: str) -> sqlite3.Connection:
    connection = _connect(path, mode)
    try:
        connection.execute("BEGIN")
        # A transaction begins with its first read.
        connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _recover(path: Path) -> None:
    """Make SQLite roll back the killed transaction, as the next writer would."""
    with closing(_connect(path, "mode=rw")) as connection:
        connection.execute("SELECT 1 FROM sqlite_schema").fetchone()


def _primary(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or sqlite3.SQLITE_ERROR) & _PRIMARY_CODE


@contextmanager
def _translating_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if not is_about_storage(error):
            raise
        kind, what = _TRANSLATED[_primary(error)]
        raise kind(f"{path} {what}: {error}.", path=str(path)) from error
