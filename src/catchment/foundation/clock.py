"""The only place that asks what time it is, or waits."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for durations, and waiting; tests pass a fake one."""

    def now(self) -> datetime:
        """The wall clock, in UTC and aware of it."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never run backwards; only differences mean anything."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
