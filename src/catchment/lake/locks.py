"""The commit lock: one write transaction on a lake at a time.

It keeps writers from wasting work on conflicts, and keeps maintenance from changing the ledger
during a write. It does not make deliveries exactly-once: the ledger's fence does, and it holds
without any lock.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import assert_never

from catchment.errors import LockTimeoutError
from catchment.foundation.clock import Clock
from catchment.foundation.files import FileLock
from catchment.lake.attach import Catalog, DuckDbCatalog, PostgresCatalog, SqliteCatalog


def lock_for(catalog: Catalog, *, clock: Clock) -> "CommitLock":
    """Return the lock that fits the catalog."""
    match catalog:
        case DuckDbCatalog():
            # No other process can have the file open.
            return CommitLock()
        case SqliteCatalog(path=path):
            return SharedFileLock(path.with_name(path.name + ".lock"), clock=clock)
        case PostgresCatalog(conninfo=conninfo):
            # Imported here, because it imports the PostgreSQL client.
            from catchment.lake.advisory import AdvisoryLock

            return AdvisoryLock(conninfo)
        case _ as unreachable:
            assert_never(unreachable)


class CommitLock:
    """Excludes other threads of this process; subclasses exclude other processes too.

    The lock is released if its holder dies.
    """

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
        """Release resources that the lock keeps between uses."""


class SharedFileLock(CommitLock):
    """Excludes the other processes of this host, by a file next to the catalog."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        super().__init__()
        self._file = FileLock(path, clock=clock)

    @contextmanager
    def _across_processes(self, timeout_s: float) -> Iterator[None]:
        with self._file.held(timeout_s=timeout_s):
            yield
