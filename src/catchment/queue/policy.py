"""When to flush: pure decisions from facts and the time."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from catchment.foundation.backoff import Backoff
from catchment.foundation.settings import Settings
from catchment.queue.buffer import TableState

# Maximum wait between two attempts of a failing flush.
RETRY_SECONDS_MAX = 300


class Trigger(StrEnum):
    """Why a table is flushed."""

    ROWS = "rows"
    BYTES = "bytes"
    AGE = "age"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The thresholds, and how long a table backs off after a failure."""

    rows_max: int
    bytes_max: int
    age_max: timedelta
    retry: Backoff

    @classmethod
    def from_settings(cls, settings: Settings) -> "Policy":
        return cls(
            rows_max=settings.queue_buffer_max_rows,
            bytes_max=settings.queue_rotate_size_bytes,
            age_max=timedelta(seconds=settings.queue_rotate_interval_seconds),
            retry=Backoff(attempts_max=1, first_ms=1_000, wait_ms_max=RETRY_SECONDS_MAX * 1_000),
        )

    def trigger(self, state: TableState, now: datetime) -> Trigger | None:
        """Return why the table is due, or None."""
        if state.sealed_rows:
            # The layout decided to seal them.
            return Trigger.SEALED
        if not state.ready_rows:
            return None
        if state.ready_rows >= self.rows_max:
            return Trigger.ROWS
        if state.bytes >= self.bytes_max:
            return Trigger.BYTES
        # The oldest row counts: a trickle that never stops must age out too.
        if state.oldest_at is not None and now - state.oldest_at >= self.age_max:
            return Trigger.AGE
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushFailure:
    """A table whose flush failed: how often in a row, why, and when to retry."""

    failures: int
    reason: str
    retry_at: datetime

    def is_over(self, now: datetime) -> bool:
        return now >= self.retry_at


def failed_again(before: FlushFailure | None, reason: str, policy: Policy, now: datetime, luck: float) -> FlushFailure:
    """Return the failure after one more failed flush."""
    failures = before.failures + 1 if before else 1
    wait = timedelta(milliseconds=policy.retry.wait_ms(min(failures, 60), luck))
    return FlushFailure(failures=failures, reason=reason, retry_at=now + wait)
