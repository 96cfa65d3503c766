"""Writes a batch's files on Spark, until no written file contains a row of a failed unit.

A unit whose files are spread over several tasks can fail in just one of them. Files into which
other tasks coalesced its rows are then useless, and those tasks are repeated without it. Every
round removes a unit, so the rounds end.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from catchment.errors import InvariantError
from catchment.lake import digest
from catchment.pipeline.plan import Bounds, TaskSpec, Unit, task_specs
from catchment.pipeline.runner import Runner
from catchment.pipeline.work import FileFacts, Mode, Task, TaskResult, UnitFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenUnit:
    """A unit whose rows are all in written files."""

    rows: int
    digest: str | None
    mode: Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFiles:
    """The files to register, and the units in them."""

    files: tuple[FileFacts, ...]
    units: Mapping[str, WrittenUnit]
    failures: tuple[UnitFailure, ...]

    @property
    def adopted(self) -> bool:
        return any(unit.mode is Mode.ADOPT for unit in self.units.values())

    def of(self, unit_ids: Iterable[str]) -> "WrittenFiles":
        """Return the part of these units. Only units of one plan share files, never those of two."""
        wanted = frozenset(unit_ids)
        return WrittenFiles(
            files=tuple(each for each in self.files if wanted.issuperset(each.unit_ids)),
            units={unit_id: facts for unit_id, facts in self.units.items() if unit_id in wanted},
            failures=tuple(each for each in self.failures if each.unit_id in wanted),
        )


def write(
    units_by_plan: Sequence[Sequence[Unit]],
    work: Sequence[TaskSpec],
    *,
    mode: Mode,
    bounds: Bounds,
    runner: Runner,
    make_task: Callable[[TaskSpec], Task],
) -> WrittenFiles:
    """Run the tasks. In mode `auto`, files that cannot be adopted are rewritten instead.

    `units_by_plan` are the units of each plan: a file never contains rows of two plans, whose
    tables differ.
    """
    units = [unit for plan_units in units_by_plan for unit in plan_units]
    kept: dict[int, tuple[Task, TaskResult]] = {}
    failed: dict[str, UnitFailure] = {}
    rewritten: set[str] = set()
    todo = list(work)
    while todo:
        tasks = {task.number: task for task in map(make_task, todo)}
        results = runner.run(list(tasks.values()))
        if {result.number for result in results} != tasks.keys():
            raise InvariantError(f"{len(tasks)} tasks were run, but {len(results)} results were returned.")
        kept |= {result.number: (tasks[result.number], result) for result in results}
        to_rewrite: set[str] = set()
        for failure in (failure for result in results for failure in result.failures):
            if failure.rewritable and mode is Mode.AUTO:
                to_rewrite.add(failure.unit_id)
            else:
                failed.setdefault(failure.unit_id, failure)
        rewritten |= to_rewrite
        invalid = [number for number, (task, result) in kept.items() if _is_invalid(task, result, failed)]
        repeated = [_without(kept.pop(number)[0], failed) for number in invalid]
        todo = [spec for spec in repeated if spec.parts]
        for plan_units in units_by_plan:
            todo += task_specs(
                [unit for unit in plan_units if unit.id in to_rewrite - failed.keys()], Mode.REWRITE, bounds
            )
    wanted = {unit.id: Mode.REWRITE if unit.id in rewritten else None for unit in units if unit.id not in failed}
    written = _collect(kept.values(), wanted, tuple(failed.values()))
    empty = {unit.id: WrittenUnit(rows=0, digest=None, mode=Mode.REWRITE) for unit in units if not unit.inputs}
    written = replace(written, units={**written.units, **empty})
    if written.units.keys() != wanted.keys():
        raise InvariantError(f"{len(wanted.keys() - written.units.keys())} units were neither written nor failed.")
    return written


def _is_invalid(task: Task, result: TaskResult, failed: Mapping[str, UnitFailure]) -> bool:
    return task.mode is Mode.REWRITE and any(unit.unit_id in failed for unit in result.units)


def _without(task: Task, failed: Mapping[str, UnitFailure]) -> TaskSpec:
    return TaskSpec(mode=task.mode, parts=tuple(part for part in task.parts if part.unit_id not in failed))


def _collect(
    kept: Iterable[tuple[Task, TaskResult]], wanted: Mapping[str, Mode | None], failures: tuple[UnitFailure, ...]
) -> WrittenFiles:
    """Combine the results that count: adopted files of failed or rewritten units do not."""
    found: list[FileFacts] = []
    rows: defaultdict[str, int] = defaultdict(int)
    digests: defaultdict[str, list[str | None]] = defaultdict(list)
    modes: dict[str, Mode] = {}
    for task, result in kept:
        included = {unit_id for unit_id, only in wanted.items() if only in (None, task.mode)}
        found.extend(each for each in result.files if included.issuperset(each.unit_ids))
        for unit in result.units:
            if unit.unit_id in included:
                rows[unit.unit_id] += unit.rows
                digests[unit.unit_id].append(unit.digest)
                modes[unit.unit_id] = task.mode
    units = {
        unit_id: WrittenUnit(rows=count, digest=digest.add(digests[unit_id]), mode=modes[unit_id])
        for unit_id, count in rows.items()
    }
    return WrittenFiles(files=tuple(found), units=units, failures=failures)
