"""Leases: who may touch a segment, on this host or on any.

A session holds the lease of the segment it writes, a flusher that of the file it delivers. A lease dies with its
holder; so a segment among the active ones whose lease can be taken belongs to nobody. Leases keep processes out of
each other's way; that rows are delivered once is the ledger's doing, which holds even if a lease is lost.

A lease goes by the segment's name, not by its path: it stays the same while the file moves from folder to folder.
"""

import threading
from pathlib import Path
from typing import Protocol

from catchment.errors import SettingsError
from catchment.foundation import files
from catchment.foundation.clock import Clock
from catchment.foundation.files import FileLock, HeldLock
from catchment.foundation.settings import Settings
from catchment.lake.attach import PostgresCatalog, parse_catalog

FOLDER = "leases"


class Lease(Protocol):
    """The sole right to touch one segment."""

    def is_held(self) -> bool:
        """Whether the right still stands: a holder that was cut off has lost it."""
        ...

    def release(self) -> None:
        """Give it back; may be repeated."""
        ...


class Leases(Protocol):
    """Everybody's leases under one root."""

    def take(self, name: str) -> Lease | None:
        """The lease of that name, or None where somebody has it, be it the caller; does not wait."""
        ...

    def forget(self, name: str) -> None:
        """Clear away what is kept for a name whose segment is gone for good."""
        ...

    def close(self) -> None:
        """Give all back."""
        ...


def leases_for(settings: Settings, root: Path, clock: Clock) -> Leases:
    """The leases that fit the settings: of a PostgreSQL server where there is one, else of this host."""
    conninfo = _server(settings)
    if conninfo is None:
        return FileLeases(root, clock)
    # Imported here and below, because only leases of a server need the client of PostgreSQL.
    from catchment.queue.postgres_leases import PostgresLeases

    return PostgresLeases(conninfo, clock=clock)


class FileLeases:
    """Leases by locks of the operating system, on files under `<root>/leases/`."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._folder = root / FOLDER
        self._clock = clock
        self._held: set[_FileLease] = set()
        # Guards the set, and makes release happen once: closing a descriptor twice could close somebody else's.
        self._mutex = threading.Lock()

    def take(self, name: str) -> Lease | None:
        with self._mutex:
            # The lock belongs to the opened file, not to the process: it keeps this process's other threads out too.
            lock = FileLock(self._path(name), clock=self._clock).take()
            if lock is None:
                return None
            lease = _FileLease(self, lock)
            self._held.add(lease)
            return lease

    def forget(self, name: str) -> None:
        # Two processes could now hold locks on two files of this name. Both find, as each does after it took a lease,
        # that the segment is not where they saw it; and its name is never given again.
        files.remove(self._path(name))

    def close(self) -> None:
        for lease in tuple(self._held):
            lease.release()

    def holds(self, lease: "_FileLease") -> bool:
        with self._mutex:
            return lease in self._held

    def give_back(self, lease: "_FileLease") -> None:
        with self._mutex:
            if lease in self._held:
                self._held.remove(lease)
                lease.lock.release()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.lock"


class _FileLease:
    def __init__(self, leases: FileLeases, lock: HeldLock) -> None:
        self._leases = leases
        self.lock = lock

    def is_held(self) -> bool:
        return self._leases.holds(self)

    def release(self) -> None:
        self._leases.give_back(self)


def _server(settings: Settings) -> str | None:
    """How to reach the PostgreSQL server that leases segments, where there is one."""
    if settings.queue_lease_postgres is not None:
        return _checked(settings.queue_lease_postgres.get_secret_value())
    catalog = parse_catalog(settings.catalog_url.get_secret_value())
    return catalog.conninfo if isinstance(catalog, PostgresCatalog) else None


def _checked(text: str) -> str:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    conninfo = text if "://" in text else text.removeprefix("postgres:").removeprefix("postgresql:")
    try:
        conninfo_to_dict(conninfo)
    except psycopg.Error:
        # What is wrong with it is not said: the message would quote it, password and all.
        raise SettingsError(
            "The PostgreSQL connection string of the queue's leases cannot be read.",
            hint="DUCKLING_QUEUE_LEASE_POSTGRES is `host=… dbname=…`, as for the lake's catalog.",
        ) from None
    return conninfo
