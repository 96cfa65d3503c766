"""What happened in the last minute: readings of the meters, taken now and then, and the difference to the newest."""

import threading
from collections import deque
from dataclasses import dataclass

from catchment.clock import Clock
from catchment.meters import Distribution, Meters
from catchment.status.model import Totals

WINDOW_S = 60.0
SAMPLE_S = 5.0
_SAMPLES_MAX = int(WINDOW_S / SAMPLE_S) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    at_s: float
    rows: int
    acks: Distribution
    groups: Distribution


class Window:
    """Readings of the last minute. Any thread may ask."""

    def __init__(self, meters: Meters, clock: Clock) -> None:
        self._meters = meters
        self._clock = clock
        self._mutex = threading.Lock()
        self._samples: deque[_Sample] = deque([self._read()], maxlen=_SAMPLES_MAX)

    def sample(self) -> None:
        """Take a reading; whoever owns the window does so every few seconds."""
        with self._mutex:
            self._samples.append(self._read())

    def totals(self) -> Totals:
        """What was acknowledged since the start, and how it went in the last minute."""
        now = self._read()
        with self._mutex:
            recent = [each for each in self._samples if now.at_s - each.at_s <= WINDOW_S]
            then = recent[0] if recent else self._samples[-1]
        span_s = now.at_s - then.at_s
        acks = now.acks.minus(then.acks)
        return Totals(
            acked_rows=now.rows,
            acked_bytes=self._meters.acked_bytes.read(),
            window_s=round(span_s, 3),
            acked_rows_per_s=round((now.rows - then.rows) / span_s, 3) if span_s > 0 else 0.0,
            ack_p50_s=acks.quantile(0.5),
            ack_p99_s=acks.quantile(0.99),
            group_writes_mean=now.groups.minus(then.groups).mean,
        )

    def _read(self) -> _Sample:
        meters = self._meters
        return _Sample(
            at_s=self._clock.monotonic_s(),
            rows=meters.acked_rows.read(),
            acks=meters.ack_seconds.read(),
            groups=meters.group_writes.read(),
        )
