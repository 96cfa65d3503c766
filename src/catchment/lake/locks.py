"""The commit lock: one write transaction on a lake at a time.

It keeps writers from wasting work on conflicts, and keeps maintenance from changing the ledger
during a write. It does not make deliveries exactly-once: the ledger's fence does, and it holds
without any lock.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from catchment.errors import LockTimeoutError
from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.files import FileLock


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The holder of the commit lock, as waiting writers see it."""

    purpose: str
    since: datetime

    def __str__(self) -> str:
        return f"{self.purpose} since {self.since:%Y-%m-%d %H:%M:%S} UTC"


class CommitLock:
    """Excludes other threads of this process; subclasses exclude other processes too.

    The lock is released if its holder dies. While it is held, waiting writers can see the holder:
    what it does, in which process, and since when.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._mutex = threading.Lock()
        # The thread that has the mutex may still wait for another process.
        self._holder: LockHolder | None = None

    @contextmanager
    def held(self, timeout_s: float, purpose: str = "a commit") -> Iterator[None]:
        """Hold the lock, waiting at most `timeout_s` for each of its parts.

        LockTimeoutError names the holder. `purpose` is shown to waiting writers of any tenant, so
        it contains no names of users or tables.
        """
        if not self._mutex.acquire(timeout=timeout_s):
            raise held_by(str(self._holder or "a process for which another writer of this one waits"))
        try:
            holder = LockHolder(f"{purpose} in process {os.getpid()}", self._clock.now())
            with self._across_processes(timeout_s, holder):
                self._holder = holder
                yield
        finally:
            self._holder = None
            self._mutex.release()

    @contextmanager
    def _across_processes(self, timeout_s: float, holder: LockHolder) -> Iterator[None]:
        del timeout_s, holder
        yield

    def close(self) -> None:
        """Release resources that the lock keeps between uses."""


class SharedFileLock(CommitLock):
    """Excludes the other processes of this host, by a file next to the catalog."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._file = FileLock(path, clock=clock)

    @contextmanager
    def _across_processes(self, timeout_s: float, holder: LockHolder) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(self._file.held(timeout_s=timeout_s, note=str(holder)))
            except LockTimeoutError as error:
                raise held_by(self._file.note() or "another process", path=error.facts["path"]) from None
            yield


def held_by(holder: str, **facts: str) -> LockTimeoutError:
    """Return the error of a writer that waited for the holder in vain."""
    return LockTimeoutError(
        f"The lake's commit lock is held by {holder}.",
        hint="Try again when it has finished; it is released if that process or session ends.",
        **facts,
    )
