"""The commit lock of a lake whose catalog is in PostgreSQL."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg_errors

from catchment.errors import LakeUnavailableError, LockTimeoutError
from catchment.foundation.clock import Clock
from catchment.lake.locks import CommitLock, LockHolder, held_by

# Arbitrary; unique within the advisory locks of the catalog's PostgreSQL database.
_ADVISORY_KEY = 0x43415443484D
# The last statement of the holder's connection acquired the lock.
_HOLDER = """
SELECT application_name, host(client_addr), state_change AT TIME ZONE 'UTC'
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND datname = current_database()
AND (classid::bigint << 32 | objid::bigint) = %s
"""


class AdvisoryLock(CommitLock):
    """Excludes other clients of a PostgreSQL catalog by an advisory lock of its connection.

    The holder is the connection's application name, of which PostgreSQL keeps 63 characters.
    """

    def __init__(self, conninfo: str, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._conninfo = conninfo
        self._connection: psycopg.Connection | None = None

    @contextmanager
    def _across_processes(self, timeout_s: float, holder: LockHolder) -> Iterator[None]:
        try:
            connection = self._connect()
            connection.execute(
                "SELECT set_config('lock_timeout', %s, false), set_config('application_name', %s, false)",
                (f"{int(timeout_s * 1000)}ms", holder.purpose),
            )
            connection.execute("SELECT pg_advisory_lock(%s)", (_ADVISORY_KEY,))
        except pg_errors.LockNotAvailable:
            raise self._held() from None
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

    def _held(self) -> LockTimeoutError:
        try:
            found = self._connect().execute(_HOLDER, (_ADVISORY_KEY,)).fetchone()
        except psycopg.Error:
            found = None
        if found is None:
            return held_by("another client of the catalog")
        name, host, since = found
        return held_by(str(LockHolder(f"{name or 'another client'}{'' if host is None else f' on {host}'}", since)))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=10)
        return self._connection
