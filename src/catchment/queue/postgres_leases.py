"""Leases that a PostgreSQL server gives, to any host."""

import hashlib
import threading
from contextlib import suppress

import psycopg

from catchment.errors import LakeUnavailableError
from catchment.foundation.clock import Clock, SystemClock
from catchment.queue.leases import Lease

_CONNECT_TIMEOUT_S = 5
_CONNECT_AGAIN_AFTER_S = 5.0
# So that the server notices within about a minute that a host is gone, and lets go of its leases.
_KEEPALIVE = "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"


class PostgresLeases:
    """Leases by advisory locks of one PostgreSQL connection, which is kept open: they end when it ends.

    The connection must be the server's own, not one that a pooler shares out by transaction.
    """

    def __init__(self, conninfo: str, *, clock: Clock | None = None) -> None:
        self._conninfo = conninfo
        self._clock: Clock = clock or SystemClock()
        # While a server does not answer, most callers are told so at once: writes wait for their first lease.
        self._connect_again_at_s = self._clock.monotonic_s()
        self._connection: psycopg.Connection | None = None
        # Advisory locks of one connection can be taken again and again; what this process holds is known only here.
        # Emptied when the connection is lost, for the locks went with it.
        self._held: dict[str, _PostgresLease] = {}
        # Guards both, and keeps a lost connection from being found lost twice.
        self._mutex = threading.Lock()

    def take(self, name: str) -> Lease | None:
        with self._mutex:
            if name in self._held and self._answers():
                return None
            if not self._try_lock(name):
                return None
            lease = _PostgresLease(self, name)
            self._held[name] = lease
            return lease

    def forget(self, name: str) -> None:
        """The server keeps nothing for a lock that nobody holds."""

    def close(self) -> None:
        with self._mutex:
            self._lose()

    def holds(self, lease: "_PostgresLease") -> bool:
        with self._mutex:
            return self._held.get(lease.name) is lease and self._answers()

    def give_back(self, lease: "_PostgresLease") -> None:
        with self._mutex:
            if self._held.get(lease.name) is not lease:
                return
            del self._held[lease.name]
            try:
                self._connect().execute("SELECT pg_advisory_unlock(%s)", (_key(lease.name),))
            except psycopg.Error:
                # The lock went with the connection.
                self._lose()

    def _try_lock(self, name: str) -> bool:
        if self._connection is not None:
            # One that was lost unnoticed is replaced; that a new one fails too is the caller's to know.
            with suppress(psycopg.Error):
                return self._ask(self._connection, name)
            self._lose()
        if self._clock.monotonic_s() < self._connect_again_at_s:
            raise LakeUnavailableError("The PostgreSQL server that leases segments did not answer a moment ago.")
        try:
            return self._ask(self._connect(), name)
        except psycopg.Error as error:
            self._lose()
            self._connect_again_at_s = self._clock.monotonic_s() + _CONNECT_AGAIN_AFTER_S
            raise LakeUnavailableError(f"The PostgreSQL server that leases segments does not answer: {error}") from None

    def _ask(self, connection: psycopg.Connection, name: str) -> bool:
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (_key(name),)).fetchone()
        return row is not None and bool(row[0])

    def _answers(self) -> bool:
        try:
            self._connect().execute("SELECT 1")
        except psycopg.Error:
            self._lose()
        return bool(self._held)

    def _connect(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S)
            self._connection.execute(_KEEPALIVE)
        return self._connection

    def _lose(self) -> None:
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
        self._leases.give_back(self)


def _key(name: str) -> int:
    """The name as PostgreSQL wants it: a signed number of 64 bits."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
