"""What is counted in this process, at a cost that a write does not feel.

Each thread counts in cells of its own, so that writers never wait for each other here; whoever reads adds them up. What
is read is therefore a moment old, and never goes backwards.
"""

import threading
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SECONDS = (0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
# The parts of a flush: rows are read from the buffer, files are written, and both are committed with the ledger.
FLUSH_STEPS = ("read", "write", "commit")
# Labels come from what happens, and what happens must not take up memory without end.
_LABELS_MAX = 1_000
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values that were observed: `counts[i]` are those up to `bounds[i]`, the last one those beyond all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Their mean; None where there were none."""
        return self.sum / self.count if self.count else None

    def minus(self, earlier: "Distribution") -> "Distribution":
        """What came after the earlier reading."""
        counts = tuple(now - before for now, before in zip(self.counts, earlier.counts, strict=True))
        return Distribution(self.bounds, counts, self.sum - earlier.sum)

    def quantile(self, share: float) -> float | None:
        """The value below which that share of them lies, as exact as the bounds are; None where there were none."""
        wanted, seen = share * self.count, 0
        if not self.count:
            return None
        for at, count in enumerate(self.counts[:-1]):
            if count and seen + count >= wanted:
                low = self.bounds[at - 1] if at else 0.0
                return low + (self.bounds[at] - low) * (wanted - seen) / count
            seen += count
        return self.bounds[-1]


class _Cells(threading.local):
    """The calling thread's own cells; made, and enrolled, when the thread first asks."""

    def __init__(self, meter: "_Meter") -> None:
        self.values: list[float] = [0] * meter.width
        meter.enroll(self.values)


class _Meter:
    def __init__(self, width: int) -> None:
        self.width = width
        self._mutex = threading.Lock()
        self._enrolled: list[tuple[threading.Thread, list[float]]] = []
        # What threads counted that are gone.
        self._kept: list[float] = [0] * width
        self._cells = _Cells(self)

    def enroll(self, values: list[float]) -> None:
        """Have a new thread's cells count."""
        with self._mutex:
            gone = [cells for thread, cells in self._enrolled if not thread.is_alive()]
            for cells in gone:
                self._kept = [one + other for one, other in zip(self._kept, cells, strict=True)]
            self._enrolled = [(thread, cells) for thread, cells in self._enrolled if thread.is_alive()]
            self._enrolled.append((threading.current_thread(), values))

    def sums(self) -> list[float]:
        """What all threads have counted."""
        with self._mutex:
            return [sum(each) for each in zip(self._kept, *(cells for _, cells in self._enrolled), strict=True)]


class Counter(_Meter):
    """A number that grows."""

    def __init__(self) -> None:
        super().__init__(1)

    def add(self, amount: int = 1) -> None:
        """Count something."""
        self._cells.values[0] += amount

    def read(self) -> int:
        """What was counted."""
        return int(self.sums()[0])


class Histogram(_Meter):
    """Values by size."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        super().__init__(len(self._bounds) + 2)

    def observe(self, value: float) -> None:
        """Take a value in."""
        values = self._cells.values
        values[bisect_left(self._bounds, value)] += 1
        values[-1] += value

    def read(self) -> Distribution:
        """What was observed."""
        *counts, total = self.sums()
        return Distribution(self._bounds, tuple(int(each) for each in counts), total)


class Labelled:
    """Numbers that grow, by a label; for what happens seldom. Labels beyond the most it keeps are counted together."""

    def __init__(self, *labels: str) -> None:
        """`labels` are there from the start, at 0: a rate needs a first value."""
        self._mutex = threading.Lock()
        self._counts: Tally[str] = Tally(dict.fromkeys(labels, 0))

    def add(self, label: str, amount: int = 1) -> None:
        """Count something."""
        with self._mutex:
            known = label in self._counts or len(self._counts) < _LABELS_MAX
            self._counts[label if known else OTHER] += amount

    def read(self) -> Mapping[str, int]:
        """What was counted, by label."""
        with self._mutex:
            return dict(self._counts)


class Meters:
    """Everything that a process counts. Any thread may count and read."""

    def __init__(self) -> None:
        self.acked_rows = Counter()
        self.acked_bytes = Counter()
        self.ack_seconds = Histogram(_SECONDS)
        self.group_writes = Histogram(_SIZES)
        self.statement_seconds = Histogram(_SECONDS)
        self.statements_failed = Counter()
        self.flush_seconds = {step: Histogram(_LONG_SECONDS) for step in FLUSH_STEPS}
        self.flushes = Labelled("done", "failed")
        self.commit_retries = Labelled("conflict", "unknown")
        self.delivered_units = Counter()
        self.delivered_rows = Counter()
        self.delivered_files = Counter()
        self.replays_skipped = Labelled("rows", "units")
        self.rows_buried = Counter()
        self.rows_bypassed = Counter()
        self.logins_failed = Counter()
        self.engines_replaced = Counter()

    def acked(self, *, rows: int, size: int, seconds: float) -> None:
        """Rows are durable, and their writer is told so."""
        self.acked_rows.add(rows)
        self.acked_bytes.add(size)
        self.ack_seconds.observe(seconds)
