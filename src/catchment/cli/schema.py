"""`catchment schema`: where a database stands between its scripts and its models, and every step from there."""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.context import AsJson, Home, Started, started
from catchment.cli.output import Output
from catchment.errors import EXIT_NEEDS_YOU, CorruptInputError, InputError, StateError
from catchment.foundation.ids import DEFAULT_SCHEMA
from catchment.lake import Lake
from catchment.schema import CheckResult, LakeEngine, Migrate, Rehearsal, SqliteEngine, State, develop
from catchment.schema.backups import KEEP
from catchment.schema.migratable import Backup, Database
from catchment.schema.migrate import Preview
from catchment.schema.project_config import Project, find_project, is_lake, load_models
from catchment.schema.scripts import ScriptName, undecided_in

EXIT_DIVERGED = 3
_EXIT_OF = {
    State.CURRENT: 0,
    State.DRIFT: EXIT_NEEDS_YOU,
    State.PENDING: EXIT_NEEDS_YOU,
    State.DIVERGED: EXIT_DIVERGED,
    State.ERROR: EXIT_DIVERGED,
}
_EXIT_CODES = (
    "Exit codes of status, check and dev: 0 CURRENT; 2 DRIFT or PENDING; 3 DIVERGED or ERROR. Of the others: 0 done; "
    "2 not allowed now, or a script must be changed; 3 not allowed while DIVERGED or ERROR. Of all: 1 failed, and "
    "the same again may work; 2 wrong input."
)
_BACKUP_NAME = re.compile(r"(pre|manual|replaced)_[0-9]{3,}(\..*)?")

group = typer.Typer(
    help="Change the schema of a SQLite file, or of the lake's tables, by scripts, without losing a row.\n\n"
    "What is left out comes from `[tool.catchment.schema]` in the nearest `pyproject.toml`: `db`, `models`, `scripts`, "
    f"`backups_keep`.\n\n{_EXIT_CODES}",
    no_args_is_help=True,
)

Db = Annotated[
    str | None,
    typer.Argument(
        help="Path of a SQLite file, or `lake` or `lake:SCHEMA` for tables of the lake.", show_default=False
    ),
]
Models = Annotated[
    str | None, typer.Option(help="Module that defines the models, or `pkg.module:LIST`.", show_default=False)
]
Scripts = Annotated[
    Path | None, typer.Option(help="Folder of the scripts; default `DB.migrations`.", show_default=False)
]
BackupsKeep = Annotated[
    int | None, typer.Option(help=f"Backups to keep of each kind; default {KEEP}.", min=1, show_default=False)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What the command line says; the project fills in the rest."""

    db: str | None
    models: str | None
    scripts: Path | None = None
    backups_keep: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A database, what it is to become, and where to tell about it."""

    out: Output
    database: Database
    migrate: Migrate


@group.command()
def status(
    *,
    db: Db = None,
    models: Models = None,
    scripts: Scripts = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Say how things stand; change nothing. Exit 0 CURRENT, 2 DRIFT or PENDING, 3 DIVERGED or ERROR."""
    with _begun(_Given(db=db, models=models, scripts=scripts), home, as_json) as work:
        _conclude(work, work.migrate.look())


@group.command()
def check(
    *,
    db: Db = None,
    models: Models = None,
    scripts: Scripts = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Say how things stand, and put deleted scripts back and warnings into diverged ones. Exits as status."""
    with _begun(_Given(db=db, models=models, scripts=scripts), home, as_json) as work:
        _conclude(work, work.migrate.check())


@group.command()
def generate(
    *,
    db: Db = None,
    models: Models = None,
    scripts: Scripts = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script; write nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Write the next script, from what differs between the models and the database; only in DRIFT, none in CURRENT."""
    with _begun(_Given(db=db, models=models, scripts=scripts), home, as_json) as work:
        script = work.migrate.preview() if dry_run else work.migrate.generate()
        result = work.migrate.look()
        for table in result.unmanaged:
            work.out.say(f"Left alone: {table} is in no model, and no script made it. To drop it, write a script.")
        if script is None and result.state is State.CURRENT:
            nothing = {"path": None, "written": False, "undecided": (), "text": ""}
            work.out.value(nothing, ["Nothing to generate: the database is what the models say."])
            return
        if script is None:
            raise InputError("What differs cannot be said in a script.", hint="Change the database or the models.")
        text = script.text if isinstance(script, Preview) else script.read_text(encoding="utf-8")
        path = work.database.scripts / (script.filename if isinstance(script, Preview) else script.name)
        undecided = undecided_in(text)
        for subject in undecided:
            work.out.say(f"It leaves something to decide: {subject}.")
        if dry_run:
            work.out.say(f"{path} would be written:")
        facts = {"path": path, "written": not dry_run, "undecided": undecided, "text": text}
        written = f"Wrote {path}. {'Decide, then apply it.' if undecided else 'Read it, then apply it.'}"
        work.out.value(facts, text.splitlines() if dry_run else [written])


@group.command()
def apply(
    *,
    db: Db = None,
    filename: Annotated[
        str | None, typer.Argument(help="The script, which must be the next one.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Apply all that are pending, not only the next.")] = False,
    models: Models = None,
    scripts: Scripts = None,
    backups_keep: BackupsKeep = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Rehearse instead; change nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Run the next script: backup first, then script and record in one transaction; only in PENDING."""
    if filename is None and db is not None and ScriptName.parse(db):
        db, filename = None, db
    given = _Given(db=db, models=models, scripts=scripts, backups_keep=backups_keep)
    with _begun(given, home, as_json) as work:
        if filename is not None and every:
            raise InputError(f"{filename} and --all do not go together.", hint="Name a script, or say --all.")
        if every and work.migrate.look().state is State.CURRENT:
            pending: list[str] = []
        else:
            pending = work.migrate.next_scripts(filename)
        if dry_run and pending:
            _show_rehearsal(work.out, work.migrate.rehearse())
            return
        done = pending if every else pending[:1]
        for each in done if not dry_run else ():
            work.migrate.apply(each)
            work.out.say(f"Applied {each}.")
        result = work.migrate.look()
        lines = [f"{len(done)} applied." if done else "Nothing to apply.", *_lines(work, result)]
        work.out.value({"done": done, **_facts(result)}, lines)


@group.command()
def rehearse(
    *,
    db: Db = None,
    models: Models = None,
    scripts: Scripts = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Try all scripts that are pending on a copy; exit 2 where one fails. Shows effects, time and what may go wrong."""
    with _begun(_Given(db=db, models=models, scripts=scripts), home, as_json) as work:
        _show_rehearsal(work.out, work.migrate.rehearse())


@group.command()
def restore(
    *,
    db: Db = None,
    name: Annotated[
        str | None, typer.Argument(help="A backup, as `backups` shows it; default the reference.", show_default=False)
    ] = None,
    models: Models = None,
    scripts: Scripts = None,
    backups_keep: BackupsKeep = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be replaced; change nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Put the reference back, or a backup, in whatever state; what was there is kept as a backup."""
    if name is None and db is not None and _BACKUP_NAME.fullmatch(db):
        db, name = None, db
    given = _Given(db=db, models=models, scripts=scripts, backups_keep=backups_keep)
    with _begun(given, home, as_json, needs_models=False) as work:
        source = work.migrate.preview_restore(name)
        replaced = _rows_of(work.database)
        if not dry_run:
            work.migrate.restore(name)
        facts = {"restored": source or "reference", "dry_run": dry_run, "rows_replaced": replaced}
        work.out.value({**facts, "rows": work.database.row_counts()}, _restore_lines(work, source, replaced, dry_run))


@group.command()
def backup(
    *,
    db: Db = None,
    models: Models = None,
    backups_keep: BackupsKeep = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Of the lake: make what it is now the reference, instead.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Make a backup now, whatever the state."""
    with _begun(_Given(db=db, models=models, backups_keep=backups_keep), home, as_json, needs_models=False) as work:
        if reference:
            _mark_reference(work)
            return
        made = work.migrate.backup()
        work.out.value(made, [f"{made.name}: {made.bytes:,} bytes."])


@group.command()
def backups(*, db: Db = None, models: Models = None, home: Home = None, as_json: AsJson = False) -> None:
    """List the backups that can be restored, newest first."""
    with _begun(_Given(db=db, models=models), home, as_json, needs_models=False) as work:
        found = work.migrate.backups()
        rows = [(each.name, f"{each.made_at:%Y-%m-%d %H:%M:%S}", f"{each.bytes:,}", each.kind) for each in found]
        if rows:
            work.out.table("Backups", ["name", "made at (UTC)", "bytes", "kind"], rows)
        work.out.value({"backups": found}, [] if found else ["There are no backups."])


@group.command()
def dev(
    *,
    db: Db = None,
    models: Models = None,
    scripts: Scripts = None,
    backups_keep: BackupsKeep = None,
    allow_drops: Annotated[
        bool, typer.Option("--allow-drops", help="Drop tables and columns that are in no model, even with rows.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Restore, apply and generate until the database is what the models say; for development. Exits as status."""
    given = _Given(db=db, models=models, scripts=scripts, backups_keep=backups_keep)
    with _begun(given, home, as_json) as work:
        done = develop(work.migrate, allow_drops=allow_drops, on_step=lambda step: work.out.say(f"{step}."))
        steps = [{"act": step.act, "subject": step.subject, "why": step.why} for step in done.steps]
        lines = [*_lines(work, done.result), *([f"Stopped: {done.stopped}"] if done.stopped else [])]
        work.out.value({"steps": steps, "stopped": done.stopped, **_facts(done.result)}, lines)
        _exit_by(done.result)


@contextmanager
def _begun(given: _Given, home: Path | None, as_json: bool, *, needs_models: bool = True) -> Iterator[_Work]:
    with started(home, as_json) as run:
        here = Path.cwd()
        project = find_project(here)
        name = given.models or project.models
        if name is None and needs_models:
            raise InputError("Which models?", hint="Say `--models pkg.module`, or set `models` in the project's file.")
        folders = dict.fromkeys([here, project.folder or here])
        models = load_models(name, path=folders) if name and needs_models else []
        with _database(run, given, project) as database:
            try:
                yield _Work(out=run.out, database=database, migrate=Migrate(database, models))
            except StateError as error:
                run.out.error(error)
                raise typer.Exit(_EXIT_OF[State(error.facts["state"])] or EXIT_NEEDS_YOU) from None


@contextmanager
def _database(run: Started, given: _Given, project: Project) -> Iterator[Database]:
    db = given.db or project.db
    if db is None:
        raise InputError("Which database?", hint="Say its path, or set `db` in [tool.catchment.schema].")
    keep = given.backups_keep or project.backups_keep or KEEP
    # What the project says of its own database's scripts is not true of another one's.
    is_own = project.db is not None and (db == project.db or Path(db).absolute() == Path(project.db).absolute())
    scripts = given.scripts or (project.scripts if is_own else None)
    if is_lake(db):
        schema = db.partition(":")[2] or DEFAULT_SCHEMA
        folder = Path() if project.folder in (None, Path.cwd()) else project.folder
        # Not entered, which would make a lake: only a script does.
        with closing(Lake.from_settings(run.settings)) as lake:
            yield LakeEngine(lake, schema=schema, folder=folder, scripts=scripts, backups_keep=keep)
    else:
        with SqliteEngine(db, scripts=scripts, backups_keep=keep) as engine:
            yield engine


def _mark_reference(work: _Work) -> None:
    if not isinstance(work.database, LakeEngine):
        raise InputError(
            "The reference of a SQLite file is a copy of the production database.",
            hint=f"Copy it to {work.database.name}.ref.",
        )
    snapshot = work.database.mark_reference()
    facts = {"reference": work.database.reference, "snapshot": snapshot}
    work.out.value(facts, [f"{work.database.reference} names snapshot {snapshot}, which `restore` goes back to."])


def _conclude(work: _Work, result: CheckResult) -> None:
    work.out.value(_facts(result), _lines(work, result))
    _exit_by(result)


def _exit_by(result: CheckResult) -> None:
    if _EXIT_OF[result.state]:
        raise typer.Exit(_EXIT_OF[result.state])


def _lines(work: _Work, result: CheckResult) -> list[str]:
    return [f"{work.database.name}: {result.state.name}", *result.status().splitlines()]


def _facts(result: CheckResult) -> dict[str, Any]:
    difference = result.model_diff
    shown = {field.name: getattr(difference, field.name) for field in fields(difference)}
    return {
        "state": result.state,
        "next": result.next_step(),
        **{field.name: getattr(result, field.name) for field in fields(result)},
        "model_diff": {"is_empty": difference.is_empty, "lines": difference.describe(), **shown},
    }


def _show_rehearsal(out: Output, rehearsal: Rehearsal) -> None:
    out.say("Tried on a copy; the database is as it was.")
    trials = [{"change": {"lines": trial.change_lines()}, **_without(trial, "change")} for trial in rehearsal.trials]
    after = rehearsal.after.state if rehearsal.after else None
    out.value({"ok": rehearsal.ok, "trials": trials, "after": after}, rehearsal.report().splitlines())
    if not rehearsal.ok:
        raise typer.Exit(EXIT_NEEDS_YOU)


def _without(value: Any, name: str) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name != name}


def _rows_of(database: Database) -> dict[str, int] | None:
    """The rows of every table; None where the database is damaged, which a restore puts right."""
    try:
        return database.row_counts()
    except CorruptInputError:
        return None


def _restore_lines(work: _Work, source: Backup | None, replaced: dict[str, int] | None, dry_run: bool) -> Sequence[str]:
    what = "its reference" if source is None else f"{source.name}, made {source.made_at:%Y-%m-%d %H:%M:%S} UTC"
    said = [f"{table} ({count:,} {'row' if count == 1 else 'rows'})" for table, count in (replaced or {}).items()]
    tables = "what cannot be read" if replaced is None else ", ".join(said) or "no table"
    if dry_run:
        return [
            f"{work.database.name} would be replaced by {what}.",
            f"It holds {tables}; that would be kept as a backup.",
        ]
    return [
        f"{work.database.name} is {what} again.",
        f"It held {tables}; that is kept as a backup.",
    ]
