"""The commit lock of a lake whose catalog is in PostgreSQL."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg_errors

from catchment.errors import LakeUnavailableError, LockTimeoutError
from catchment.lake.locks import CommitLock

# Arbitrary; unique within the advisory locks of the catalog's PostgreSQL database.
_ADVISORY_KEY = 0x43415443484D


class AdvisoryLock(CommitLock):
    """Excludes other clients of a PostgreSQL catalog by an advisory lock of its connection."""

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
                # The lock was released with the connection.
                self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=10)
        return self._connection
