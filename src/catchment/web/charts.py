"""The geometry of charts: pure functions from numbers to what an SVG draws. Templates do the drawing."""

from collections.abc import Sequence
from dataclasses import dataclass

from catchment.meters import Distribution

SPARK_WIDTH = 240.0
SPARK_HEIGHT = 48.0
_SPARK_MARGIN = 2.0
BARS_WIDTH = 480.0
BARS_HEIGHT = 96.0
_BARS_GAP = 4.0
_BAR_HEIGHT_MIN = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """A line over time: `line` and `area` are SVG paths, `top` is the largest value."""

    line: str
    area: str
    top: float
    has_values: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One column: values above `low` and up to `high`, None where there is no bound."""

    x: float
    y: float
    width: float
    height: float
    low: float
    high: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a whole, in hundredths of its width."""

    name: str
    count: int
    x: float
    width: float


def spark(values: Sequence[float | None]) -> Spark:
    """A line from the oldest to the newest value, from 0 at the bottom; it breaks where a value is missing."""
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
    return Spark(
        line=" ".join(_line(run) for run in drawn),
        area=" ".join(_area(run) for run in drawn if len(run) > 1),
        top=top,
        has_values=bool(drawn),
    )


def bars(found: Distribution) -> tuple[Bar, ...]:
    """Columns for the sizes that there were, and those between them."""
    filled = [at for at, count in enumerate(found.counts) if count]
    if not filled:
        return ()
    first, last = filled[0], filled[-1]
    most, width = max(found.counts), BARS_WIDTH / (last - first + 1)
    return tuple(
        Bar(
            x=round((at - first) * width + _BARS_GAP / 2, 2),
            y=round(BARS_HEIGHT - _height(found.counts[at], most), 2),
            width=round(width - _BARS_GAP, 2),
            height=round(_height(found.counts[at], most), 2),
            low=found.bounds[at - 1] if at else 0.0,
            high=found.bounds[at] if at < len(found.bounds) else None,
            count=found.counts[at],
        )
        for at in range(first, last + 1)
    )


def segments(counts: Sequence[tuple[str, int]]) -> tuple[Segment, ...]:
    """Parts of a whole side by side; none where there is nothing."""
    total, x, found = sum(count for _, count in counts), 0.0, []
    for name, count in counts:
        if count > 0:
            width = 100 * count / total
            found.append(Segment(name=name, count=count, x=round(x, 2), width=round(width, 2)))
            x += width
    return tuple(found)


def _line(run: Sequence[tuple[float, float]]) -> str:
    # A value that stands alone is a dot.
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in (run if len(run) > 1 else (*run, *run)))


def _area(run: Sequence[tuple[float, float]]) -> str:
    return f"{_line(run)} L{run[-1][0]:.1f} {SPARK_HEIGHT} L{run[0][0]:.1f} {SPARK_HEIGHT} Z"


def _height(count: int, most: int) -> float:
    # What was seen at all is seen.
    return max(_BAR_HEIGHT_MIN, BARS_HEIGHT * count / most) if count else 0.0
