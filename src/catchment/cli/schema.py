"""`catchment schema`: check, generate, rehearse, apply and restore migrations of a database."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catchment.api.schema import SchemaApi
from catchment.cli.context import AsJson, Home, command
from catchment.cli.output import Output
from catchment.cli.shared_options import takes
from catchment.errors import EXIT_NEEDS_YOU, CorruptInputError, InputError, StateError
from catchment.foundation.text import plural
from catchment.schema import CheckResult, Rehearsal, State
from catchment.schema.backups import KEEP
from catchment.schema.migratable import Backup, Database
from catchment.schema.migrate import Preview
from catchment.schema.scripts import ScriptName

if TYPE_CHECKING:
    from catchment.schema import Migrate

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
    "a retry may succeed; 2 wrong input."
)
_BACKUP_NAME = re.compile(r"(pre|manual|replaced)_[0-9]{3,}(\..*)?")

group = typer.Typer(
    help="Change the schema of a SQLite file, or of the lake's tables, by scripts, without losing a row.\n\n"
    "Missing options come from `[tool.catchment.schema]` in the nearest `pyproject.toml`: `db`, `models`, `scripts`, "
    f"`backups_keep`.\n\n{_EXIT_CODES}",
    no_args_is_help=True,
)

BackupsKeep = Annotated[
    int | None,
    typer.Option(help=f"Number of backups to keep of each kind; default: {KEEP}.", min=1, show_default=False),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOptions:
    """Options of every command here: the database and its models."""

    db: Annotated[
        str | None,
        typer.Argument(
            help="Path of a SQLite file, or `lake` or `lake:SCHEMA` for tables of the lake.", show_default=False
        ),
    ] = None
    models: Annotated[
        str | None, typer.Option(help="Module that defines the models, or `pkg.module:LIST`.", show_default=False)
    ] = None
    home: Home = None
    as_json: AsJson = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions(DatabaseOptions):
    """Options of commands that read the scripts."""

    scripts: Annotated[
        Path | None, typer.Option(help="Folder of the scripts; default: `DB.migrations`.", show_default=False)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """An open database, and where to print."""

    out: Output
    migrate: "Migrate"
    schema: SchemaApi

    @property
    def database(self) -> Database:
        return self.migrate.database


@group.command()
@takes(ScriptOptions)
def status(options: ScriptOptions) -> None:
    """Show the state; change nothing. Exit 0 CURRENT, 2 DRIFT or PENDING, 3 DIVERGED or ERROR."""
    with _opened(options) as work:
        _conclude(work, work.migrate.look())


@group.command()
@takes(ScriptOptions)
def check(options: ScriptOptions) -> None:
    """Show the state, restore deleted scripts and add warnings to diverged ones. Same exit codes as
    status.
    """
    with _opened(options) as work:
        _conclude(work, work.migrate.check())


@group.command()
@takes(ScriptOptions)
def generate(
    options: ScriptOptions,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
) -> None:
    """Write the next script from the difference between models and database; only in DRIFT, none in
    CURRENT.
    """
    with _opened(options) as work:
        script = work.migrate.preview() if dry_run else _written(work.migrate.generate())
        result = work.migrate.look()
        for table in result.unmanaged:
            work.out.say(f"Left alone: {table} is in no model, and no script created it. To drop it, write a script.")
        if script is None and result.state is State.CURRENT:
            nothing = {"path": None, "written": False, "undecided": (), "text": ""}
            work.out.value(nothing, ["Nothing to generate: the database matches the models."])
            return
        if script is None:
            raise InputError("The difference cannot be written as a script.", hint="Change the database or the models.")
        path, text = work.database.scripts / script.filename, script.text
        undecided = script.undecided
        for subject in undecided:
            work.out.say(f"It leaves something to decide: {subject}.")
        if dry_run:
            work.out.say(f"{path} would be written:")
        facts = {"path": path, "written": not dry_run, "undecided": undecided, "text": text}
        written = f"Wrote {path}. {'Decide, then apply it.' if undecided else 'Read it, then apply it.'}"
        work.out.value(facts, text.splitlines() if dry_run else [written])


@group.command()
@takes(ScriptOptions)
def apply(
    options: ScriptOptions,
    *,
    filename: Annotated[
        str | None, typer.Argument(help="Script to apply, which must be the next one.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Apply all pending scripts, not only the next.")] = False,
    backups_keep: BackupsKeep = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
) -> None:
    """Run the next script: backup first, then script and record in one transaction; only in
    PENDING. With --dry-run, rehearse it on a copy.
    """
    if filename is None and options.db is not None and ScriptName.parse(options.db):
        options, filename = replace(options, db=None), options.db
    with _opened(options, backups_keep) as work:
        if filename is not None and every:
            raise InputError(f"{filename} and --all cannot be combined.", hint="Name a script, or use --all.")
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
@takes(ScriptOptions)
def rehearse(options: ScriptOptions) -> None:
    """Try all pending scripts on a copy; exit 2 if one fails. Shows effects, time and risks."""
    with _opened(options) as work:
        _show_rehearsal(work.out, work.migrate.rehearse())


@group.command()
@takes(ScriptOptions)
def restore(
    options: ScriptOptions,
    *,
    name: Annotated[
        str | None, typer.Argument(help="Backup, as `backups` shows it; default: the reference.", show_default=False)
    ] = None,
    backups_keep: BackupsKeep = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
) -> None:
    """Restore the reference or a backup, in any state; the replaced database is kept as a backup."""
    if name is None and options.db is not None and _BACKUP_NAME.fullmatch(options.db):
        options, name = replace(options, db=None), options.db
    with _opened(options, backups_keep, needs_models=False) as work:
        source = work.migrate.preview_restore(name)
        replaced = _rows_of(work.database)
        if not dry_run:
            work.migrate.restore(name)
        facts = {"restored": source or "reference", "dry_run": dry_run, "rows_replaced": replaced}
        work.out.value({**facts, "rows": work.database.row_counts()}, _restore_lines(work, source, replaced, dry_run))


@group.command()
@takes(DatabaseOptions)
def backup(
    options: DatabaseOptions,
    *,
    backups_keep: BackupsKeep = None,
    reference: Annotated[
        bool,
        typer.Option("--reference", help="For the lake: make its current state the reference, instead of a backup."),
    ] = False,
) -> None:
    """Make a backup now, in any state."""
    with _opened(options, backups_keep, needs_models=False) as work:
        if reference:
            _mark_reference(work)
            return
        made = work.migrate.backup()
        work.out.value(made, [f"{made.name}: {made.bytes:,} bytes."])


@group.command()
@takes(DatabaseOptions)
def backups(options: DatabaseOptions) -> None:
    """List the backups that can be restored, newest first."""
    with _opened(options, needs_models=False) as work:
        found = work.migrate.backups()
        rows = [(each.name, f"{each.made_at:%Y-%m-%d %H:%M:%S}", f"{each.bytes:,}", each.kind) for each in found]
        if rows:
            work.out.table("Backups", ["name", "made at (UTC)", "bytes", "kind"], rows)
        work.out.value({"backups": found}, [] if found else ["There are no backups."])


@group.command()
@takes(ScriptOptions)
def dev(
    options: ScriptOptions,
    *,
    backups_keep: BackupsKeep = None,
    allow_drops: Annotated[
        bool, typer.Option("--allow-drops", help="Drop tables and columns that are in no model, even with rows.")
    ] = False,
) -> None:
    """Restore, apply and generate until the database matches the models; for development. Same exit
    codes as status.
    """
    with _opened(options, backups_keep) as work:
        done = work.schema.develop(work.migrate, allow_drops=allow_drops, on_step=lambda step: work.out.say(f"{step}."))
        steps = [{"act": step.act, "subject": step.subject, "why": step.why} for step in done.steps]
        lines = [*_lines(work, done.result), *([f"Stopped: {done.stopped}"] if done.stopped else [])]
        work.out.value({"steps": steps, "stopped": done.stopped, **_facts(done.result)}, lines)
        _exit_by(done.result)


@contextmanager
def _opened(options: DatabaseOptions, backups_keep: int | None = None, *, needs_models: bool = True) -> Iterator[_Work]:
    with command(options.home, options.as_json) as run:
        scripts = options.scripts if isinstance(options, ScriptOptions) else None
        schema = run.catchment.schema
        opened = schema.open(
            options.db, options.models, scripts=scripts, backups_keep=backups_keep, needs_models=needs_models
        )
        with opened as migrate:
            try:
                yield _Work(out=run.out, migrate=migrate, schema=schema)
            except StateError as error:
                run.out.error(error)
                raise typer.Exit(_EXIT_OF[State(error.facts["state"])] or EXIT_NEEDS_YOU) from None


def _written(path: Path | None) -> Preview | None:
    name = None if path is None else ScriptName.parse(path.name)
    if path is None or name is None:
        return None
    return Preview(number=name.number, filename=path.name, text=path.read_text(encoding="utf-8"))


def _mark_reference(work: _Work) -> None:
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
    """Return the row count of every table; None if the database is damaged."""
    try:
        return database.row_counts()
    except CorruptInputError:
        return None


def _restore_lines(work: _Work, source: Backup | None, replaced: dict[str, int] | None, dry_run: bool) -> Sequence[str]:
    what = "its reference" if source is None else f"{source.name}, made {source.made_at:%Y-%m-%d %H:%M:%S} UTC"
    said = [f"{table} ({plural(count, 'row')})" for table, count in (replaced or {}).items()]
    tables = "data that cannot be read" if replaced is None else ", ".join(said) or "no table"
    if dry_run:
        return [
            f"{work.database.name} would be replaced by {what}.",
            f"It contains {tables}; that would be kept as a backup.",
        ]
    return [
        f"{work.database.name} is {what} again.",
        f"It contained {tables}; that is kept as a backup.",
    ]
