"""Flush locks: one flush at a time per table, and backoff for tables whose flush failed.

Failures are saved in a file next to the buffer, so that the status shows why rows stay buffered,
even after the process that failed has ended.
"""

import json
import random
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from catchment.errors import LockTimeoutError, StorageFailedError
from catchment.foundation import files
from catchment.foundation.clock import Clock
from catchment.foundation.ids import TableId
from catchment.queue.policy import FlushFailure, Policy, failed_again

NOTES_NAME = "troubles.json"
FLUSH_WAIT_S_MAX = 3_600.0


class FlushLocks:
    """Tracks which tables are being flushed, and which failed."""

    def __init__(self, policy: Policy, clock: Clock, *, root: Path) -> None:
        self._policy = policy
        self._clock = clock
        self._path = root / NOTES_NAME
        self._changed = threading.Condition()
        self._locked: set[TableId] = set()
        self._wanted: Counter[TableId] = Counter()
        self._failures = read_failures(root)

    def lock_free(self, tables: Iterable[TableId]) -> list[TableId]:
        """Lock and return the tables that no flush has locked or is waiting for."""
        with self._changed:
            free = [table for table in tables if table not in self._locked and not self._wanted[table]]
            self._locked.update(free)
            return free

    def lock_all(self, tables: Iterable[TableId], *, timeout_s: float) -> list[TableId]:
        """Lock all of the tables, waiting for flushes under way."""
        wanted = list(tables)
        with self._changed:
            # `lock_free` skips these: under load there might never be a moment when all are free.
            self._wanted.update(wanted)
            try:
                if not self._changed.wait_for(lambda: not self._locked.intersection(wanted), timeout=timeout_s):
                    raise LockTimeoutError(f"Another flush has been under way for {timeout_s:g} s.")
            finally:
                self._wanted.subtract(wanted)
            self._locked.update(wanted)
            return wanted

    def release(self, tables: Iterable[TableId]) -> None:
        """Release the tables' locks."""
        with self._changed:
            self._locked.difference_update(tables)
            self._changed.notify_all()

    def wait_for_change(self, timeout_s: float) -> None:
        """Wait until some flush has ended."""
        with self._changed:
            self._changed.wait(timeout_s)

    def succeeded(self, table: TableId) -> None:
        """Forget the table's failure."""
        with self._changed:
            if self._failures.pop(table, None) is not None:
                self._save()

    def failed(self, table: TableId, reason: str) -> FlushFailure:
        """Record that the table's flush failed once more."""
        with self._changed:
            now = self._clock.now()
            failure = failed_again(self._failures.get(table), reason, self._policy, now, random.random())
            self._failures[table] = failure
            self._save()
            return failure

    def failure(self, table: TableId) -> FlushFailure | None:
        """Return why the table's last flush failed, or None."""
        with self._changed:
            return self._failures.get(table)

    def next_retry_at(self) -> datetime | None:
        """Return when the first failed table may be retried."""
        with self._changed:
            waits = [each.retry_at for table, each in self._failures.items() if table not in self._locked]
            return min(waits, default=None)

    def is_locked(self, table: TableId) -> bool:
        """Return whether the table is being flushed."""
        with self._changed:
            return table in self._locked

    def _save(self) -> None:
        saved = [
            {
                "table": [table.schema, table.name],
                "failures": failure.failures,
                "reason": failure.reason,
                "retry_at": failure.retry_at.isoformat(),
            }
            for table, failure in self._failures.items()
        ]
        with suppress(StorageFailedError):
            # Losing the file loses no rows. If the disk is full, the flush has failed for that
            # reason too.
            files.write_text(self._path, json.dumps(saved))


def read_failures(root: Path) -> dict[TableId, FlushFailure]:
    """Return the failures that the last process saved; none if the file is missing or incomplete."""
    try:
        saved = json.loads((root / NOTES_NAME).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}
    return {
        TableId(*each["table"]): FlushFailure(
            failures=each["failures"], reason=each["reason"], retry_at=datetime.fromisoformat(each["retry_at"])
        )
        for each in saved
    }
