"""Recent activity: samples of the meters, taken periodically, and the differences between them.

Rates and latencies cover the last minute; the trend covers a quarter of an hour.
"""

import threading
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from catchment.foundation.clock import Clock
from catchment.foundation.meters import Distribution, Meters
from catchment.status.model import Totals, Trend

WINDOW_S = 60.0
SAMPLE_S = 5.0
TREND_S = 900.0
_SAMPLES_MAX = int(TREND_S / SAMPLE_S) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    at_s: float
    rows: int
    acks: Distribution
    groups: Distribution
    delivered: int
    buffered: int | None = None


class Window:
    """Samples of the last minutes. Safe for concurrent use."""

    def __init__(self, meters: Meters, clock: Clock) -> None:
        self._meters = meters
        self._clock = clock
        self._mutex = threading.Lock()
        self._samples: deque[_Sample] = deque([self._read()], maxlen=_SAMPLES_MAX)

    def sample(self, *, buffered_rows: int | None = None) -> None:
        """Take a sample; the owner calls it every few seconds, with the buffered rows."""
        with self._mutex:
            self._samples.append(self._read(buffered_rows))

    def trend(self) -> Trend:
        """Return the differences between the samples."""
        with self._mutex:
            samples = tuple(self._samples)
        steps = [(then, now, now.at_s - then.at_s) for then, now in pairwise(samples) if now.at_s > then.at_s]
        return Trend(
            span_s=round(samples[-1].at_s - samples[0].at_s, 3),
            acked_rows_per_s=tuple(round((now.rows - then.rows) / span_s, 3) for then, now, span_s in steps),
            ack_p99_s=tuple(now.acks.minus(then.acks).quantile(0.99) for then, now, _ in steps),
            delivered_rows_per_s=tuple(
                round((now.delivered - then.delivered) / span_s, 3) for then, now, span_s in steps
            ),
            buffered_rows=tuple(now.buffered for _, now, _ in steps),
        )

    def totals(self) -> Totals:
        """Return the totals since the start, and the rates of the last minute."""
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

    def _read(self, buffered_rows: int | None = None) -> _Sample:
        meters = self._meters
        return _Sample(
            at_s=self._clock.monotonic_s(),
            rows=meters.acked_rows.read(),
            acks=meters.ack_seconds.read(),
            groups=meters.group_writes.read(),
            delivered=meters.delivered_rows.read(),
            buffered=buffered_rows,
        )
