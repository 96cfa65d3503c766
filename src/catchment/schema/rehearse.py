"""Rehearsals: pending scripts tried on a copy, by the same code that applies them to the database."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from catchment.errors import ScriptError
from catchment.foundation.clock import Clock
from catchment.schema.check import CheckResult
from catchment.schema.diff import ModelDiff, diff
from catchment.schema.lint import Effect, LintFinding, lint
from catchment.schema.migratable import Database
from catchment.schema.scripts import Script


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Result of one script on the copy; a failed script has changed nothing, and has an `error`."""

    filename: str
    seconds: float
    change: ModelDiff
    """Differences between the tables after it and those before it."""
    rows_before: dict[str, int]
    rows_after: dict[str, int]
    findings: tuple[LintFinding, ...] = ()
    error: str | None = None

    def lines(self) -> list[str]:
        """Return the result as lines for the operator."""
        lines = [f"{self.filename}: {'failed' if self.error else 'runs'}, {self.seconds:.3f} s"]
        lines += [f"  error: {self.error}"] if self.error else []
        lines += [f"  {line}" for line in self.change_lines()]
        for table in dict.fromkeys((*self.rows_before, *self.rows_after)):
            before, after = self.rows_before.get(table), self.rows_after.get(table)
            if before != after:
                lines.append(f"  rows of {table}: {_count(before)} → {_count(after)}")
        for finding in self.findings:
            where = f"line {finding.line}: " if finding.line else ""
            lines.append(f"  {finding.risk}: {where}{finding.message}")
        return lines

    def change_lines(self) -> list[str]:
        """Return the changes of the tables, a line each."""
        return _structure_lines(self.change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Results of pending scripts, up to the first failure; `after` is the copy's final state."""

    trials: tuple[Trial, ...] = field(default_factory=tuple)
    after: CheckResult | None = None

    @property
    def ok(self) -> bool:
        """Whether every script succeeded; findings do not matter."""
        return all(trial.error is None for trial in self.trials)

    @property
    def findings(self) -> tuple[LintFinding, ...]:
        return tuple(finding for trial in self.trials for finding in trial.findings)

    def report(self) -> str:
        """Return the results as text for the operator."""
        lines = [line for trial in self.trials for line in trial.lines()]
        lines += [f"Afterwards: {self.after.state.name}"] if self.after else []
        return "\n".join(lines)


def rehearse(copy: Database, scripts: Iterable[Script], *, clock: Clock) -> Rehearsal:
    """Apply the scripts to the copy, one after the other, until one fails."""
    trials: list[Trial] = []
    for script in scripts:
        trials.append(_try(copy, script, clock))
        if trials[-1].error is not None:
            break
    return Rehearsal(trials=tuple(trials))


def _try(copy: Database, script: Script, clock: Clock) -> Trial:
    before, rows_before = copy.observe().structure, copy.row_counts()
    started_s = clock.monotonic_s()
    try:
        script.refuse_undecided()
        acts = copy.apply(script)
    except ScriptError as error:
        return Trial(
            filename=script.filename,
            seconds=clock.monotonic_s() - started_s,
            change=ModelDiff(),
            rows_before=rows_before,
            rows_after=rows_before,
            error=error.message,
        )
    seconds = clock.monotonic_s() - started_s
    after, rows_after = copy.observe().structure, copy.row_counts()
    effect = Effect(acts=acts, before=before, after=after, rows_before=rows_before, rows_after=rows_after)
    return Trial(
        filename=script.filename,
        seconds=seconds,
        change=diff(after, before),
        rows_before=rows_before,
        rows_after=rows_after,
        findings=lint(effect),
    )


def _structure_lines(change: ModelDiff) -> list[str]:
    lines = [f"+ {table.name} ({', '.join(column.name for column in table.columns)})" for table in change.missing]
    lines += [f"- {table.name}" for table in change.extra]
    for table in change.tables:
        lines += [f"+ {table.table}.{column.name} {column.type}" for column in table.added]
        lines += [f"- {table.table}.{column.name}" for column in table.dropped]
        lines += [f"~ {table.table}.{each.actual.name}: {', '.join(sorted(each.aspects))}" for each in table.changed]
    return lines


def _count(rows: int | None) -> str:
    return "none" if rows is None else f"{rows:,}"
