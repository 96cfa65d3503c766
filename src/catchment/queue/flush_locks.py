"""Turns: one flush at a time works on a table, and a table whose flush failed is left alone for a while.

Troubles are noted in a file beside the buffer, so that whoever asks for the status sees why rows stay, also after the
process that failed is gone.
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


class FlushLocks:
    """Which tables are being flushed, and which are in trouble."""

    def __init__(self, policy: Policy, clock: Clock, *, root: Path) -> None:
        self._policy = policy
        self._clock = clock
        self._notes = root / NOTES_NAME
        self._changed = threading.Condition()
        self._taken: set[TableId] = set()
        self._wanted: Counter[TableId] = Counter()
        self._troubles = read_troubles(root)

    def take_free(self, tables: Iterable[TableId]) -> list[TableId]:
        """Take those of the tables that nobody flushes at this moment."""
        with self._changed:
            free = [table for table in tables if table not in self._taken and not self._wanted[table]]
            self._taken.update(free)
            return free

    def take_all(self, tables: Iterable[TableId], *, timeout_s: float) -> list[TableId]:
        """Take all of them, waiting for flushes that are under way."""
        wanted = list(tables)
        with self._changed:
            # Nobody takes a table that is waited for: under load there might never be a moment when all are free.
            self._wanted.update(wanted)
            try:
                if not self._changed.wait_for(lambda: not self._taken.intersection(wanted), timeout=timeout_s):
                    raise LockTimeoutError(f"Another flush has been under way for {timeout_s:g} s.")
            finally:
                self._wanted.subtract(wanted)
            self._taken.update(wanted)
            return wanted

    def give_back(self, tables: Iterable[TableId]) -> None:
        """The flush of these tables is over."""
        with self._changed:
            self._taken.difference_update(tables)
            self._changed.notify_all()

    def wait_for_change(self, timeout_s: float) -> None:
        """Wait until some flush is over."""
        with self._changed:
            self._changed.wait(timeout_s)

    def succeeded(self, table: TableId) -> None:
        """The table's trouble is over."""
        with self._changed:
            if self._troubles.pop(table, None) is not None:
                self._note()

    def failed(self, table: TableId, reason: str) -> FlushFailure:
        """The table's flush failed once more."""
        with self._changed:
            now = self._clock.now()
            trouble = failed_again(self._troubles.get(table), reason, self._policy, now, random.random())
            self._troubles[table] = trouble
            self._note()
            return trouble

    def trouble(self, table: TableId) -> FlushFailure | None:
        """Why the table's last flush failed, if it did."""
        with self._changed:
            return self._troubles.get(table)

    def next_retry_at(self) -> datetime | None:
        """When the first table in trouble may be tried again."""
        with self._changed:
            waits = [each.retry_at for table, each in self._troubles.items() if table not in self._taken]
            return min(waits, default=None)

    def is_taken(self, table: TableId) -> bool:
        """Whether the table is being flushed."""
        with self._changed:
            return table in self._taken

    def _note(self) -> None:
        noted = [
            {
                "table": [table.schema, table.name],
                "failures": trouble.failures,
                "reason": trouble.reason,
                "retry_at": trouble.retry_at.isoformat(),
            }
            for table, trouble in self._troubles.items()
        ]
        with suppress(StorageFailedError):
            # Only a note: where the disk is full, the flush has failed for that and says so itself.
            files.write_text(self._notes, json.dumps(noted))


def read_troubles(root: Path) -> dict[TableId, FlushFailure]:
    """What the last process noted; nothing where there is no note, or half of one."""
    try:
        noted = json.loads((root / NOTES_NAME).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}
    return {
        TableId(*each["table"]): FlushFailure(
            failures=each["failures"], reason=each["reason"], retry_at=datetime.fromisoformat(each["retry_at"])
        )
        for each in noted
    }
