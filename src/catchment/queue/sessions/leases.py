"""Leases: the exclusive right to use a segment, among the processes of this host or of all hosts.

A session holds the lease of the segment that it writes, a flusher that of the file that it
delivers. A lease ends with its holder's process, so an active segment whose lease can be taken has
no owner. Leases only keep processes from interfering. Exactly-once delivery is ensured by the
ledger, even if a lease is lost.

A lease is identified by the segment's name, not its path, so it stays valid while the file moves
from folder to folder.
"""

import threading
from pathlib import Path
from typing import Protocol

from catchment.foundation import files
from catchment.foundation.clock import Clock
from catchment.foundation.files import FileLock, HeldLock

FOLDER = "leases"


class Lease(Protocol):
    """The exclusive right to use one segment."""

    def is_held(self) -> bool:
        """Return whether the lease is still held: a disconnected holder has lost it."""
        ...

    def release(self) -> None:
        """Release the lease; may be repeated."""
        ...


class Leases(Protocol):
    """The leases under one root."""

    def take(self, name: str) -> Lease | None:
        """Take the lease of that name without waiting; None if it is taken, even by the caller."""
        ...

    def forget(self, name: str) -> None:
        """Delete the lease's stored state, after its segment was deleted."""
        ...

    def close(self) -> None:
        """Release all leases."""
        ...


class FileLeases:
    """Leases by locks of the operating system, on files under `<root>/leases/`."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._folder = root / FOLDER
        self._clock = clock
        self._held: set[_FileLease] = set()
        # Guards the set, and makes release happen once: closing a descriptor twice could close
        # another file.
        self._mutex = threading.Lock()

    def take(self, name: str) -> Lease | None:
        with self._mutex:
            # The lock belongs to the open file, not to the process: it also excludes other threads.
            lock = FileLock(self._path(name), clock=self._clock).take()
            if lock is None:
                return None
            lease = _FileLease(self, lock)
            self._held.add(lease)
            return lease

    def forget(self, name: str) -> None:
        # Two processes could now hold locks on two files of this name. Each checks after taking a
        # lease that the segment is still there, and finds that it is not; its name is never used
        # again.
        files.remove(self._path(name))

    def close(self) -> None:
        for lease in tuple(self._held):
            lease.release()

    def holds(self, lease: "_FileLease") -> bool:
        with self._mutex:
            return lease in self._held

    def release(self, lease: "_FileLease") -> None:
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
        self._leases.release(self)
