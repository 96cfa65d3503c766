"""State of schemas: the control database, the lake's migration records, and a project's database.

A database's scripts and models are in its project. If a setting names the project,
`project_schema.py` compares them; for other databases only the records are known.
"""

from collections.abc import Iterable, Iterator

from catchment.app import App
from catchment.control import ControlDatabase
from catchment.control.database import SCRIPTS, SCRIPTS_POSTGRES
from catchment.lake.overview import Migrated
from catchment.schema import CheckResult, State
from catchment.schema.scripts import Folder, Script, read_folder
from catchment.status.model import SchemaDatabase, ScriptFacts

UNCLEAR = "UNCLEAR"
TEXT_CHARACTERS_MAX = 8_000
_SUMMARY_CHARACTERS_MAX = 200
_APPLIED = "APPLIED"
# Comments that are meant for programs.
_MARKS = ("catchment-check:", "keeps-rows:", "undecided:")


def control(app: App) -> SchemaDatabase | None:
    """State of the control database; None if it does not exist. Creates nothing."""
    found = ControlDatabase.examine(app.settings)
    if not found.exists:
        return None
    # A database that differs in another way is refused, and its scripts are part of the package.
    is_file = app.settings.control_url.get_secret_value().startswith("sqlite:")
    folder = read_folder(SCRIPTS if is_file else SCRIPTS_POSTGRES)
    return SchemaDatabase(
        name="control",
        state=(State.PENDING if found.pending else State.CURRENT).name,
        applied=len(found.applied),
        pending=found.pending,
        last=found.applied[-1] if found.applied else None,
        differences=None if found.pending else (),
        scripts=tuple(_pending(folder, found.pending)),
        next="the next `catchment serve` applies them" if found.pending else None,
    )


def recorded(lake_name: str, migrated: Iterable[Migrated]) -> tuple[SchemaDatabase, ...]:
    """Lake schemas that have migrations, from their records alone."""
    return tuple(
        SchemaDatabase(
            name=f"{lake_name}:{each.schema}", state=_APPLIED, applied=each.applied, pending=None, last=each.last
        )
        for each in migrated
    )


def compared(name: str, result: CheckResult, folder: Folder) -> SchemaDatabase:
    """State of a database that was compared with its scripts and models."""
    diverged = (
        _facts(script, kind="diverged", text=result.differences[script.filename])
        for script in folder.scripts
        if script.filename in result.differences
    )
    return SchemaDatabase(
        name=name,
        state=result.state.name,
        applied=len(result.applied),
        pending=tuple(result.pending),
        last=result.applied[-1] if result.applied else None,
        differences=result.model_diff.describe(),
        scripts=(*diverged, *_pending(folder, result.pending)),
        errors=tuple(result.errors),
        next=None if result.state is State.CURRENT else result.next_step(),
    )


def unclear(name: str, reason: str) -> SchemaDatabase:
    """State of a database that cannot be compared; it must not hide the others."""
    return SchemaDatabase(name=name, state=UNCLEAR, applied=0, pending=None, last=None, errors=(reason,))


def merged(
    own: SchemaDatabase | None, of_project: SchemaDatabase | None, of_lake: Iterable[SchemaDatabase]
) -> tuple[SchemaDatabase, ...]:
    """Merge all; a project's comparison replaces the lake's records of the same schema."""
    known = [each for each in (own, of_project) if each is not None]
    return (*known, *(each for each in of_lake if each.name not in {one.name for one in known}))


def _pending(folder: Folder, names: Iterable[str]) -> Iterator[ScriptFacts]:
    wanted = set(names)
    for script in folder.scripts:
        if script.filename in wanted:
            yield _facts(script, kind="pending", text=script.text)


def _facts(script: Script, *, kind: str, text: str) -> ScriptFacts:
    return ScriptFacts(
        script=script.filename,
        kind=kind,
        summary=_summary(script.text),
        statements=len(script.statements()),
        text=text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}…",
    )


def _summary(text: str) -> str:
    """The leading comment of a script, on one line."""
    said = []
    for line in text.strip().splitlines():
        words = line.removeprefix("--").strip()
        if not line.startswith("--") or words.startswith(_MARKS):
            break
        said.append(words)
    summary = " ".join(said)
    return summary if len(summary) <= _SUMMARY_CHARACTERS_MAX else f"{summary[: _SUMMARY_CHARACTERS_MAX - 1]}…"
