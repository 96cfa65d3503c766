"""State of scripts, records and models: one value, derived from facts. Pure.

    ERROR ───── by hand ─────┐
    DIVERGED ── restore ─────┤
    PENDING ─── apply ───────┼──▶ check again
    DRIFT ───── generate ────┤
    CURRENT                  ┘

The first match is the state. `Migrate` edits the files. A script and a record are paired by number;
whether they are the same is decided by their text, so a file may be renamed. A deleted file is not
a divergence: `check` writes it back.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from catchment.schema.applied_scripts import AppliedScript
from catchment.schema.diff import ModelDiff
from catchment.schema.scripts import Folder, Script, ScriptName, label, normalised, with_warning, without_warning


class State(Enum):
    """State of a database, by the next step; the most urgent one wins."""

    ERROR = "error"
    DIVERGED = "diverged"
    PENDING = "pending"
    DRIFT = "drift"
    CURRENT = "current"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of a check. The lists contain file names, by number; `errors` contains sentences."""

    pending: list[str]
    applied: list[str]
    divergent: list[str]
    errors: list[str]
    model_diff: ModelDiff
    clashing: list[str] = field(default_factory=list)
    """Files that share a number with another one."""
    differences: dict[str, str] = field(default_factory=dict)
    """For every divergent file, a unified diff from the applied text to the file on disk."""
    missing: list[str] = field(default_factory=list)
    """Applied scripts whose files are missing."""
    written_back: list[str] = field(default_factory=list)
    """Applied scripts whose files were missing and have been written back."""
    has_reference: bool = False
    unmanaged: list[str] = field(default_factory=list)
    """Tables in no model and created by no applied script, in a shared database: not touched."""

    @property
    def state(self) -> State:
        """Primary state for decision-making: the first match wins."""
        if self.errors:
            return State.ERROR
        if self.divergent:
            return State.DIVERGED
        if self.pending:
            return State.PENDING
        if not self.model_diff.is_empty:
            return State.DRIFT
        return State.CURRENT

    @property
    def can_apply(self) -> bool:
        """Whether the first of `pending` may be applied."""
        return self.state is State.PENDING

    def next_step(self) -> str:
        """Return the next step, as a phrase."""
        return _next_step(self)

    def status(self) -> str:
        """Return a summary for the operator, like that of `git status`."""
        return "\n".join(_status(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A script file to be written; `is_new` if it does not exist."""

    filename: str
    text: str
    is_new: bool


def examine(
    folder: Folder,
    history: Iterable[AppliedScript],
    model_diff: ModelDiff,
    *,
    has_reference: bool = False,
    reference: Iterable[AppliedScript] = (),
    unmanaged: Iterable[str] = (),
) -> CheckResult:
    """Derive the result from the facts.

    `reference` are the records of the reference database, `unmanaged` the tables that were not
    compared.
    """
    records = {record.number: record for record in history}
    by_number: dict[int, list[Script]] = {}
    for script in folder.scripts:
        by_number.setdefault(script.number, []).append(script)
    renumbered = _renumbered(folder, records, by_number)
    divergent = [
        script
        for number, scripts in by_number.items()
        if number in records and not any(_same(script, records[number]) for script in scripts)
        for script in scripts
    ]
    clashing = [script for scripts in by_number.values() if len(scripts) > 1 for script in scripts]
    gone = [record for record in records.values() if record.number not in {*folder.numbers, *renumbered.values()}]
    return CheckResult(
        pending=[script.filename for script in folder.scripts if script.number not in records],
        applied=[_applied_name(record, by_number) for record in records.values()],
        divergent=[script.filename for script in divergent],
        errors=[*_errors(folder, records, renumbered), *_conflicts(by_number, () if divergent else reference)],
        model_diff=model_diff,
        clashing=[script.filename for script in clashing],
        differences={script.filename: _difference(script, records[script.number]) for script in divergent},
        missing=[_file_of(record) for record in gone],
        has_reference=has_reference,
        unmanaged=list(unmanaged),
    )


def edits(folder: Folder, history: Iterable[AppliedScript], result: CheckResult) -> Iterator[Edit]:
    """Yield the edits of `check`: deleted scripts written back, warnings added or removed."""
    records = {record.number: record for record in history}
    for record in records.values():
        if _file_of(record) in result.missing:
            yield Edit(filename=_file_of(record), text=record.script, is_new=True)
    for script in folder.scripts:
        warns = script.filename in result.divergent and not result.has_reference
        lines = _warning(script, records[script.number]) if warns else []
        text = with_warning(script.raw, lines)
        if text != script.raw:
            yield Edit(filename=script.filename, text=text, is_new=False)


def _same(script: Script, record: AppliedScript) -> bool:
    return script.text == _recorded(record)


def _recorded(record: AppliedScript) -> str:
    # Normalised again, because a record may come from another tool or from an earlier version.
    return normalised(without_warning(record.script))


def _applied_name(record: AppliedScript, by_number: dict[int, list[Script]]) -> str:
    """Return the current name of the script: it may have been renamed."""
    same = [script.filename for script in by_number.get(record.number, []) if _same(script, record)]
    return same[0] if same else record.filename


def _file_of(record: AppliedScript) -> str:
    """Return the file to write a record back to; only a valid script name is used as it is."""
    name = ScriptName.parse(record.filename)
    return str(name if name and name.number == record.number else ScriptName(number=record.number, slug="restored"))


def _renumbered(
    folder: Folder, records: dict[int, AppliedScript], by_number: dict[int, list[Script]]
) -> dict[str, int]:
    """Return files, with the number under which their text was applied, if that has no file."""
    gone = {_recorded(record): number for number, record in records.items() if number not in by_number}
    return {
        script.filename: gone[script.text]
        for script in folder.scripts
        if script.number not in records and script.text in gone and script.statements()
    }


def _errors(folder: Folder, records: dict[int, AppliedScript], renumbered: dict[str, int]) -> Iterator[str]:
    """Yield errors. Each starts with a word for the fault, on which `_status` relies."""
    for filename in folder.misnamed:
        yield f"Wrong file name {filename}: scripts are named NNN.name.sql, such as 001.create_users.sql"
    for each in folder.unreadable:
        yield f"Unreadable script {each.name}: {each.reason}"
    numbers = folder.numbers
    for number, count in sorted(Counter(numbers).items()):
        if count > 1:
            yield f"Duplicate number {label(number)}"
    if 0 in numbers:
        yield "Wrong number 000: the first script is 001"
    yield from _gaps({*numbers, *records} - {0} - set(renumbered.values()))
    for filename, number in renumbered.items():
        yield f"Renumbered script {filename}: it was applied as {records[number].filename}"
    last = max(records, default=0)
    for number in sorted(set(numbers) - {0} - set(records)):
        if number < last:
            yield f"Late number {label(number)}: {label(last)} is applied already"


def _conflicts(by_number: dict[int, list[Script]], reference: Iterable[AppliedScript]) -> Iterator[str]:
    """Yield scripts whose number belongs to another script in the reference.

    This happens if two developers use the same number. Skipped while a script has diverged: the
    reference is restored first then.
    """
    for record in reference:
        for script in by_number.get(record.number, []):
            if not _same(script, record):
                number = label(record.number)
                yield f"Conflicting script {script.filename}: in the reference, {number} is {record.filename}"


def _gaps(numbers: set[int]) -> Iterator[str]:
    before = 0
    for number in sorted(numbers):
        if number == before + 2:
            yield f"Missing number {label(before + 1)}"
        elif number > before + 2:
            yield f"Missing numbers {label(before + 1)} to {label(number - 1)}"
        before = number


def _difference(script: Script, record: AppliedScript) -> str:
    lines = difflib.unified_diff(
        _recorded(record).splitlines(keepends=True),
        script.text.splitlines(keepends=True),
        fromfile=f"{record.filename} (applied {record.finished_at})",
        tofile=f"{script.filename} (on disk)",
    )
    return "".join(lines)


def _warning(script: Script, record: AppliedScript) -> list[str]:
    return [
        f"This script differs from the applied {record.filename}, and there is no reference database to restore.",
        f"Either restore the file, e.g. with `git checkout -- {script.filename}`,",
        "or delete it: the next check writes it back from the table _migrations, as it was applied.",
        "A schema change belongs in a new script. These lines are not part of this one; check removes them.",
    ]


def _status(result: CheckResult) -> Iterator[str]:
    for error in result.errors:
        # "Duplicate number 003" becomes "duplicate migration number 003".
        kind, _, rest = error.partition(" ")
        yield f"Error: {kind.lower()} migration {rest}"
    yield from (f"  {filename}" for filename in result.clashing)
    if result.divergent:
        yield f"{len(result.divergent)} diverged: {', '.join(result.divergent)}"
        for difference in result.differences.values():
            yield from (f"  {line}" for line in difference.splitlines())
    if result.missing:
        yield f"{len(result.missing)} deleted: {', '.join(result.missing)}"
    if result.written_back:
        yield f"{len(result.written_back)} written back: {', '.join(result.written_back)}"
    if result.pending:
        yield f"{len(result.pending)} pending: {', '.join(result.pending)}"
    if result.state in (State.DRIFT, State.CURRENT):
        yield from _drift(result)
    if result.unmanaged:
        yield f"{len(result.unmanaged)} left alone, in no model and in no script: {', '.join(result.unmanaged)}"
    yield f"  ({result.next_step()})"


def _drift(result: CheckResult) -> Iterator[str]:
    if result.model_diff.is_empty:
        yield f"Current: {len(result.applied)} applied, and the database matches the models"
    else:
        yield "Drift: the database does not match the models"
        yield from (f"  {line}" for line in result.model_diff.describe())


def _next_step(result: CheckResult) -> str:
    match result.state:
        case State.ERROR:
            return "rename or fix the files by hand, then check again"
        case State.DIVERGED if result.has_reference:
            return "restore the reference database; then check, and apply the pending scripts"
        case State.DIVERGED:
            return "restore the file, or delete it, and check writes it back as it was applied"
        case State.PENDING:
            return f"apply {result.pending[0]} next; rehearse shows its effects"
        case State.DRIFT:
            return "generate writes a script for this"
        case State.CURRENT:
            return "nothing to do"
