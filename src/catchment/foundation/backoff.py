"""Bounded retries with exponential backoff."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from catchment.errors import CatchmentError, RetryableError
from catchment.foundation.clock import Clock

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """At most `attempts_max` attempts; waits grow by `factor` from `first_ms` to `wait_ms_max`."""

    attempts_max: int
    first_ms: float
    factor: float = 2.0
    wait_ms_max: float = 5_000.0

    def wait_ms(self, attempt: int, luck: float) -> float:
        """Return the wait after failed attempt `attempt`, from 1; `luck` in [0, 1) is jitter."""
        full = min(self.first_ms * self.factor ** (attempt - 1), self.wait_ms_max)
        return full * (0.5 + luck / 2)


def retry(
    operation: Callable[[], T],
    *,
    policy: Backoff,
    clock: Clock,
    on: type[CatchmentError] | tuple[type[CatchmentError], ...] = RetryableError,
) -> T:
    """Run `operation` until it succeeds, raises another error, or has no attempts left."""
    attempt = 1
    while True:
        try:
            return operation()
        except on:
            if attempt >= policy.attempts_max:
                raise
        clock.sleep(policy.wait_ms(attempt, random.random()) / 1000)
        attempt += 1
