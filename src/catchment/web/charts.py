"""Geometry of charts: pure functions from numbers to SVG coordinates. Templates draw them."""

from collections.abc import Sequence
from dataclasses import dataclass

from catchment.foundation.meters import Distribution

SPARK_WIDTH = 240.0
SPARK_HEIGHT = 48.0
_SPARK_MARGIN = 2.0
COLUMN_WIDTH = 8.0
COLUMNS_HEIGHT = 20.0
_COLUMN_GAP = 2.0
_COLUMN_HEIGHT_MIN = 1.0
# Minimum visible size, in hundredths of the whole.
_SEGMENT_MIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparkline:
    """A line over time: `line` and `area` are SVG paths, `low` and `top` the smallest and the
    largest value.
    """

    line: str
    area: str
    low: float
    top: float
    has_values: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBucket:
    """Values above `low`, up to `high` (None: unbounded); `part` is relative to the largest bucket."""

    low: float
    high: float | None
    count: int
    share: float
    part: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a small chart."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BarSegment:
    """A part of a whole, in hundredths of its width."""

    name: str
    count: int
    x: float
    width: float


def spark(values: Sequence[float | None]) -> Sparkline:
    """Draw a line from the oldest to the newest value, from 0 up; missing values break it."""
    known = [value for value in values if value is not None]
    top = max(known, default=0.0)
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        x = SPARK_WIDTH * at / max(1, len(values) - 1)
        high = 0.0 if top <= 0 else max(0.0, value) / top
        runs[-1].append((x, SPARK_HEIGHT - _SPARK_MARGIN - high * (SPARK_HEIGHT - 2 * _SPARK_MARGIN)))
    drawn = [run for run in runs if run] if len(values) > 1 else []
    return Sparkline(
        line=" ".join(_line(run) for run in drawn),
        area=" ".join(_area(run) for run in drawn if len(run) > 1),
        low=min(known, default=0.0),
        top=top,
        has_values=bool(drawn),
    )


def buckets(found: Distribution) -> tuple[HistogramBucket, ...]:
    """Return the buckets from the first to the last non-empty one."""
    filled = [at for at, count in enumerate(found.counts) if count]
    if not filled:
        return ()
    most, total = max(found.counts), sum(found.counts)
    return tuple(
        HistogramBucket(
            low=found.bounds[at - 1] if at else 0.0,
            high=found.bounds[at] if at < len(found.bounds) else None,
            count=found.counts[at],
            share=found.counts[at] / total,
            part=found.counts[at] / most,
        )
        for at in range(filled[0], filled[-1] + 1)
    )


def columns(values: Sequence[float]) -> tuple[Bar, ...]:
    """Return a bar for each value, oldest first."""
    top = max(values, default=0.0)
    heights = [
        max(_COLUMN_HEIGHT_MIN, COLUMNS_HEIGHT * value / top) if top > 0 else _COLUMN_HEIGHT_MIN for value in values
    ]
    return tuple(
        Bar(
            x=round(at * COLUMN_WIDTH, 2),
            y=round(COLUMNS_HEIGHT - height, 2),
            width=COLUMN_WIDTH - _COLUMN_GAP,
            height=round(height, 2),
        )
        for at, height in enumerate(heights)
    )


def segments(counts: Sequence[tuple[str, int]]) -> tuple[BarSegment, ...]:
    """Divide a whole into adjacent segments; none if it is empty, and small parts stay visible."""
    total, x, found = sum(count for _, count in counts), 0.0, []
    shown = [(name, count, max(_SEGMENT_MIN, 100 * count / total)) for name, count in counts if count > 0]
    whole = sum(width for _, _, width in shown)
    for name, count, width in shown:
        found.append(BarSegment(name=name, count=count, x=round(x, 2), width=round(100 * width / whole, 2)))
        x += 100 * width / whole
    return tuple(found)


def _line(run: Sequence[tuple[float, float]]) -> str:
    # An isolated value is drawn as a dot.
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in (run if len(run) > 1 else (*run, *run)))


def _area(run: Sequence[tuple[float, float]]) -> str:
    return f"{_line(run)} L{run[-1][0]:.1f} {SPARK_HEIGHT} L{run[0][0]:.1f} {SPARK_HEIGHT} Z"
