"""`develop`: take a developer's next step repeatedly until the database matches the models.

    ERROR ───── stop
    DIVERGED ── restore, if there is a reference; otherwise stop
    PENDING ─── apply all; stop at a script with an open decision
    DRIFT ───── generate; stop if that would drop rows, unless this is allowed
    CURRENT ─── done

Deleting applied scripts means that they are to be written again: if there is a reference, it is
restored first, once. Without one, `check` writes them back. No step is repeated in the same state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from catchment.errors import ScriptError
from catchment.schema.check import CheckResult, State
from catchment.schema.migrate import Migrate

ROUNDS_MAX = 20
_LINES_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DevelopmentStep:
    """A completed step: `act` is restore, apply or generate; `subject` is the script."""

    act: str
    subject: str
    why: str

    def __str__(self) -> str:
        return f"{self.act} {self.subject}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Development:
    """The completed steps, the current state, and, if that is not CURRENT, why it stopped."""

    steps: tuple[DevelopmentStep, ...]
    result: CheckResult
    stopped: str | None = None


def develop(
    migrate: Migrate, *, allow_drops: bool = False, on_step: Callable[[DevelopmentStep], None] = lambda _: None
) -> Development:
    """Restore, apply and generate until the database is current or there is no further progress.

    Without `allow_drops`, no script is generated that drops a table or a column of a table with
    rows.
    """
    steps: list[DevelopmentStep] = []

    def note(act: str, subject: str, why: str) -> None:
        steps.append(DevelopmentStep(act=act, subject=subject, why=why))
        on_step(steps[-1])

    seen: list[CheckResult] = []
    stopped: str | None = None
    if _is_to_be_rewritten(migrate):
        _restore(migrate, note, "applied scripts were deleted, to be written again")
    for _ in range(ROUNDS_MAX):
        result = migrate.check()
        stopped = _why_stop(result, seen) or _why_not_drop(migrate, result, allow_drops=allow_drops)
        if stopped is not None or result.state is State.CURRENT:
            break
        seen.append(result)
        stopped = _advance(migrate, result, note)
        if stopped is not None:
            break
    else:
        stopped = f"The database is not current after {ROUNDS_MAX} rounds."
    return Development(steps=tuple(steps), result=migrate.check(), stopped=stopped)


_Note = Callable[[str, str, str], None]


def _why_stop(result: CheckResult, seen: list[CheckResult]) -> str | None:
    if result.state is State.ERROR:
        return "The scripts must be fixed by hand."
    if result.state is State.DIVERGED and not result.has_reference:
        return "A script differs from the applied one, and there is no reference to restore."
    if result in seen:
        return f"No further progress: {result.next_step()} has been done."
    return None


def _why_not_drop(migrate: Migrate, result: CheckResult, *, allow_drops: bool) -> str | None:
    dropped = () if allow_drops or result.state is not State.DRIFT else migrate.drops()
    if not dropped:
        return None
    way = "Pass `--allow-drops`, or generate a script and read it."
    return f"No model has {_abridged(dropped)}: the data would be lost. {way}"


def _advance(migrate: Migrate, result: CheckResult, note: _Note) -> str | None:
    """Do the step for the state; return the reason if it is not possible."""
    match result.state:
        case State.DIVERGED:
            _restore(migrate, note, f"{', '.join(result.divergent)} differs from the applied text")
        case State.PENDING:
            return _apply_all(migrate, result, note)
        case _:
            written = migrate.generate()
            if written is None:
                return "The difference cannot be expressed in a script."
            note("generate", written.name, _abridged(result.model_diff.describe()))
    return None


def _apply_all(migrate: Migrate, result: CheckResult, note: _Note) -> str | None:
    for filename in result.pending:
        try:
            migrate.apply(filename)
        except ScriptError as error:
            if "undecided" not in error.facts:
                raise
            return f"{error.message} {error.hint}"
        note("apply", filename, "it was pending")
    return None


def _abridged(lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - _LINES_MAX} more" if len(lines) > _LINES_MAX else ""
    return "; ".join(lines[:_LINES_MAX]) + more


def _restore(migrate: Migrate, note: _Note, why: str) -> None:
    migrate.restore()
    note("restore", "the reference", f"{why}; the previous content is kept as a backup")


def _is_to_be_rewritten(migrate: Migrate) -> bool:
    result = migrate.look()
    return bool(result.missing) and result.has_reference and result.state is not State.ERROR
