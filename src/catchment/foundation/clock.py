"""Clock: the only module that reads the time or waits."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for durations, and sleeping; tests pass a fake one."""

    def now(self) -> datetime:
        """Return the current UTC time, timezone-aware."""
        ...

    def monotonic_s(self) -> float:
        """Return monotonic seconds; only differences have a meaning."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for that long."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
