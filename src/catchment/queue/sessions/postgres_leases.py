"""Leases from a PostgreSQL server, for all hosts."""

import hashlib
import threading
from contextlib import suppress

import psycopg

from catchment.errors import LakeUnavailableError
from catchment.foundation.clock import Clock, SystemClock
from catchment.queue.sessions.leases import Lease

_CONNECT_TIMEOUT_S = 5
_RECONNECT_AFTER_S = 5.0
# So that the server detects a lost host within about a minute and releases its leases.
_KEEPALIVE = "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"


class PostgresLeases:
    """Leases by advisory locks of one PostgreSQL connection, which stays open: they end with it.

    The connection must be the server's own, not one that a pooler shares by transaction.
    """

    def __init__(self, conninfo: str, *, clock: Clock | None = None) -> None:
        self._conninfo = conninfo
        self._clock: Clock = clock or SystemClock()
        # While the server does not answer, most callers fail at once, because writes wait for their
        # first lease.
        self._reconnect_at_s = self._clock.monotonic_s()
        self._connection: psycopg.Connection | None = None
        # A connection can take its own advisory lock repeatedly, so the leases held by this process
        # are known only here. Cleared when the connection is lost, because its locks are lost too.
        self._held: dict[str, _PostgresLease] = {}
        # Guards both, and keeps a lost connection from being detected twice.
        self._mutex = threading.Lock()

    def take(self, name: str) -> Lease | None:
        with self._mutex:
            if name in self._held and self._is_connected():
                return None
            if not self._try_lock(name):
                return None
            lease = _PostgresLease(self, name)
            self._held[name] = lease
            return lease

    def forget(self, name: str) -> None:
        """Do nothing: the server stores nothing for a released lock."""

    def close(self) -> None:
        with self._mutex:
            if self._connection is not None:
                # The server ends a closed connection, and with it its locks, only some time later.
                with suppress(psycopg.Error):
                    self._connection.execute("SELECT pg_advisory_unlock_all()")
            self._disconnect()

    def holds(self, lease: "_PostgresLease") -> bool:
        with self._mutex:
            return self._held.get(lease.name) is lease and self._is_connected()

    def release(self, lease: "_PostgresLease") -> None:
        with self._mutex:
            if self._held.get(lease.name) is not lease:
                return
            del self._held[lease.name]
            try:
                self._connect().execute("SELECT pg_advisory_unlock(%s)", (_key(lease.name),))
            except psycopg.Error:
                # The lock was lost with the connection.
                self._disconnect()

    def _try_lock(self, name: str) -> bool:
        if self._connection is not None:
            # A connection that was lost is replaced; if the new one fails too, the caller gets the
            # error.
            with suppress(psycopg.Error):
                return self._try_advisory_lock(self._connection, name)
            self._disconnect()
        if self._clock.monotonic_s() < self._reconnect_at_s:
            raise LakeUnavailableError("The PostgreSQL server that leases segments did not answer a moment ago.")
        try:
            return self._try_advisory_lock(self._connect(), name)
        except psycopg.Error as error:
            self._disconnect()
            self._reconnect_at_s = self._clock.monotonic_s() + _RECONNECT_AFTER_S
            raise LakeUnavailableError(f"The PostgreSQL server that leases segments does not answer: {error}") from None

    def _try_advisory_lock(self, connection: psycopg.Connection, name: str) -> bool:
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (_key(name),)).fetchone()
        return row is not None and bool(row[0])

    def _is_connected(self) -> bool:
        try:
            self._connect().execute("SELECT 1")
        except psycopg.Error:
            self._disconnect()
        return bool(self._held)

    def _connect(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S)
            self._connection.execute(_KEEPALIVE)
        return self._connection

    def _disconnect(self) -> None:
        self._held.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _PostgresLease:
    def __init__(self, leases: PostgresLeases, name: str) -> None:
        self._leases = leases
        self.name = name

    def is_held(self) -> bool:
        return self._leases.holds(self)

    def release(self) -> None:
        self._leases.release(self)


def _key(name: str) -> int:
    """Return the name as a PostgreSQL lock key: a signed 64-bit number."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
