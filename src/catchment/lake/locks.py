"""The commit lock: one write transaction on a lake at a time.

It keeps writers from wasting work on conflicts, and upkeep from touching the ledger under a writer's feet. It is not
what makes deliveries exactly-once: that is the ledger's fence, which holds without any lock.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import assert_never

import psycopg
from psycopg import errors as pg_errors

from catchment.clock import Clock
from catchment.errors import LakeUnavailableError, LockTimeoutError
from catchment.files import FileLock
from catchment.lake.attach import Catalog, DuckDbCatalog, PostgresCatalog, SqliteCatalog

# An arbitrary constant in the lock space of one PostgreSQL database: the catalog's.
_ADVISORY_KEY = 0x43415443484D


def lock_for(catalog: Catalog, *, clock: Clock) -> "CommitLock":
    """The lock that fits the catalog."""
    match catalog:
        case DuckDbCatalog():
            # Nobody else can have the file open.
            return CommitLock()
        case SqliteCatalog(path=path):
            return SharedFileLock(path.with_name(path.name + ".lock"), clock=clock)
        case PostgresCatalog(conninfo=conninfo):
            return AdvisoryLock(conninfo)
        case _ as unreachable:
            assert_never(unreachable)


class CommitLock:
    """Excludes the other threads of this process; subclasses exclude other processes too. Dies with its holder."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        """Hold the lock, waiting at most `timeout_s` for each of its parts."""
        if not self._mutex.acquire(timeout=timeout_s):
            raise LockTimeoutError(f"Another thread has been writing to the lake for {timeout_s:g} s.")
        try:
            with self._across_processes(timeout_s):
                yield
        finally:
            self._mutex.release()

    @contextmanager
    def _across_processes(self, timeout_s: float) -> Iterator[None]:
        yield

    def close(self) -> None:
        """Give back what the lock holds on to between uses."""


class SharedFileLock(CommitLock):
    """Excludes the other processes of this host, by a file beside the catalog."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        super().__init__()
        self._file = FileLock(path, clock=clock)

    @contextmanager
    def _across_processes(self, timeout_s: float) -> Iterator[None]:
        with self._file.held(timeout_s=timeout_s):
            yield


class AdvisoryLock(CommitLock):
    """Excludes the other clients of a PostgreSQL catalog, by an advisory lock that ends with the connection."""

    def __init__(self, conninfo: str) -> None:
        super().__init__()
        self._conninfo = conninfo
        self._connection: psycopg.Connection | None = None

    @contextmanager
    def _across_processes(self, timeout_s: float) -> Iterator[None]:
        try:
            connection = self._connect()
            connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{int(timeout_s * 1000)}ms",))
            connection.execute("SELECT pg_advisory_lock(%s)", (_ADVISORY_KEY,))
        except pg_errors.LockNotAvailable:
            raise LockTimeoutError(f"Another client has been writing to the lake for {timeout_s:g} s.") from None
        except psycopg.Error as error:
            self.close()
            raise LakeUnavailableError(f"The lake's PostgreSQL catalog does not answer: {error}") from None
        try:
            yield
        finally:
            try:
                connection.execute("SELECT pg_advisory_unlock(%s)", (_ADVISORY_KEY,))
            except psycopg.Error:
                # The lock went with the connection.
                self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=10)
        return self._connection
