"""A clock that only a test advances."""

from datetime import UTC, datetime, timedelta


class FakeClock:
    """A clock that stands still until `advance`; sleeping advances it at once and is recorded."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = now
        self._monotonic_s = 0.0
        self.slept_s: list[float] = []

    def now(self) -> datetime:
        return self._now

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self._now += timedelta(seconds=seconds)
        self._monotonic_s += seconds
