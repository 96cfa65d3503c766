"""Progress of an import on stderr: a bar per table on a terminal, plain lines elsewhere."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from catchment.cli.output import Output
from catchment.foundation import events
from catchment.foundation.clock import Clock
from catchment.foundation.events import Event
from catchment.foundation.text import plural
from catchment.pipeline.legacy.import_plan import LegacyPlan, TablePlan


@dataclass(slots=True)
class _Row:
    """One table's line of the display."""

    plan: TablePlan
    task: TaskID
    leaves: int = 0
    rows: int = 0


@contextmanager
def showing_progress(out: Output, plan: LegacyPlan | None, clock: Clock) -> Iterator[None]:
    """Show an import's progress; without a plan or a terminal, as one line for each commit."""
    if out.screen is None or plan is None:
        with events.listening(lambda event: _report(out, event)):
            yield
        return
    bars = _Bars(out.screen, plan.tables, clock, seconds_expected=plan.seconds)
    with bars.progress, events.listening(bars.on_event):
        yield


def eta_s(*, rows_done: int, rows_total: int, elapsed_s: float, seconds_expected: float) -> float:
    """Return the remaining seconds: extrapolated from the rows so far, or from the plan's estimate."""
    if not rows_done:
        return max(seconds_expected - elapsed_s, 0.0)
    return elapsed_s * (rows_total - rows_done) / rows_done


class _Bars:
    """A bar for each table; it moves when a leaf is in the lake and in the backup."""

    def __init__(self, screen: Console, tables: Sequence[TablePlan], clock: Clock, *, seconds_expected: float) -> None:
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} leaves"),
            TextColumn("{task.fields[pace]}"),
            TimeElapsedColumn(),
            console=screen,
        )
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._seconds_expected = seconds_expected
        shown = [table for table in tables if table.leaves]
        self._rows = [_Row(table, self._add(table)) for table in shown]
        self._by_leaf = {leaf.path: row for row in self._rows for leaf in row.plan.leaves}
        self._rows_total = sum(table.row_count for table in shown)
        self._show()

    def on_event(self, event: Event) -> None:
        """Move the bar of the leaf's table."""
        row = self._by_leaf.get(event.facts["leaf"]) if event.verb == "legacy_leaf_imported" else None
        if row is not None:
            row.leaves += 1
            row.rows += row.plan.rows.get(event.facts["leaf"], 0)
            self._show()

    def _add(self, table: TablePlan) -> TaskID:
        return self.progress.add_task(escape(str(table.id)), total=len(table.leaves), pace="")

    def _show(self) -> None:
        elapsed_s = max(self._clock.monotonic_s() - self._started_s, 0.001)
        done = sum(row.rows for row in self._rows)
        left_s = eta_s(
            rows_done=done,
            rows_total=self._rows_total,
            elapsed_s=elapsed_s,
            seconds_expected=self._seconds_expected,
        )
        for row in self._rows:
            pace = f"{row.rows / elapsed_s:,.0f} rows/s, about {left_s:,.0f} s left"
            self.progress.update(row.task, completed=row.leaves, pace=pace)


def _report(out: Output, event: Event) -> None:
    match event.verb:
        case "legacy_moved":
            out.say(f"  The tree has moved to {event.facts['to']}.")
        case "delivered":
            units, rows, files = (event.facts[name] for name in ("units", "rows", "files"))
            done = f"{plural(units, 'leaf', 'leaves')}, {plural(rows, 'row')} in {plural(files, 'file')}"
            out.say(f"  {event.facts['table']}: {done}")
