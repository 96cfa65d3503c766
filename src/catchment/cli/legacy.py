"""`catchment legacy`: a tree of Parquet in hive folders becomes tables of the lake, and then a backup.

Two homes meet here. `--home` is the one that is imported from, as Tailpipe's own command has it; the lake's home, which
other commands call `--home`, is `--lake-home`.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.context import (
    AsJson,
    RunningCommand,
    agree,
    command,
    named_folder,
    stopping_gently,
    telling_of_spark,
)
from catchment.cli.progress import showing_progress
from catchment.errors import EXIT_FAILED, EXIT_NEEDS_YOU, EXIT_STOPPED, CatchmentError, InputError, StateError
from catchment.foundation import sql
from catchment.foundation.ids import DEFAULT_SCHEMA
from catchment.lake import types
from catchment.lake.types import Column
from catchment.pipeline import Mode
from catchment.pipeline.legacy.folders import ImportFolders, ImportPhase
from catchment.pipeline.legacy.import_plan import ImportOptions, LegacyPlan, TablePlan, leaves_counted
from catchment.pipeline.legacy.job import LegacyImport
from catchment.pipeline.legacy.report import ImportStatus, LeafFailure, LegacyReport, Verification
from catchment.pipeline.legacy.tree import TAILPIPE_KEYS
from catchment.pipeline.plan import plural

TAILPIPE_HOME = Path("~/.tailpipe")
_EXIT_CODES = (
    "Exit codes: 0 done, or nothing to do; 1 failed, or leaves are left, or a mismatch; 2 needs something from you, "
    "such as --yes; 130 stopped by Ctrl-C, and `catchment legacy run` goes on."
)

group = typer.Typer(
    help=f"Import legacy Parquet in hive folders, such as Tailpipe's, with a backup and a proof.\n\n{_EXIT_CODES}",
    no_args_is_help=True,
)

Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        parser=named_folder,
        metavar="PATH",
        help="Tailpipe's home; default ~/.tailpipe. The lake's own home is --lake-home.",
    ),
]
Workspace = Annotated[
    str | None, typer.Option(help="The workspace in `data/`; needed only where there are several.", show_default=False)
]
TreeFolder = Annotated[
    Path | None,
    typer.Option(
        "--tree",
        parser=named_folder,
        metavar="PATH",
        help="Any folder of hive folders, instead of a Tailpipe home; needs --keys.",
    ),
]
Keys = Annotated[
    str | None, typer.Option(help="With --tree: the folders' keys from the top, such as `region,day:DATE`.")
]
TableName = Annotated[str | None, typer.Option(help="With --tree: the table; default the folder's name.")]
Schema = Annotated[str, typer.Option(help="Schema of the lake that the tables are in.")]
LakeHome = Annotated[
    Path | None,
    typer.Option(
        "--lake-home",
        parser=named_folder,
        metavar="PATH",
        help="Folder that holds everything of Catchment; default CATCHMENT_HOME.",
    ),
]
ModeOption = Annotated[
    Mode,
    typer.Option("--mode", help="Adopt files as they are, rewrite them, insert their rows, or judge."),
]
PartitionBy = Annotated[
    str | None, typer.Option(help="Columns to partition new tables by, with commas; default the keys, '' for none.")
]
Quarantine = Annotated[
    bool,
    typer.Option("--quarantine", help="Set unreadable files aside in the backup and import the rest of their leaf."),
]
Digests = Annotated[
    bool, typer.Option("--digests/--no-digests", help="Read adopted files to the end and record their digest.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """What is imported from where, into which schema; `words` are the options that say so in the next command."""

    place: ImportFolders
    keys: tuple[Column, ...]
    table: str | None
    schema: str
    words: str

    def options(self, choice: "_Choice | None" = None) -> ImportOptions:
        chosen = {} if choice is None else asdict(choice)
        return ImportOptions(keys=self.keys, table=self.table, schema=self.schema, **chosen)

    def next(self, name: str) -> str:
        """A command to run next, with the options that lead to the same place."""
        return f"catchment legacy {name}{self.words}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """How to import; only commands that do, or show what they would do, take it."""

    mode: Mode
    partition_by: tuple[str, ...] | None
    quarantine: bool
    digests: bool


@group.command()
def detect(
    *,
    home: Home = None,
    workspace: Workspace = None,
    tree: TreeFolder = None,
    keys: Keys = None,
    table: TableName = None,
    schema: Schema = DEFAULT_SCHEMA,
    lake_home: LakeHome = None,
    as_json: AsJson = False,
) -> None:
    """Say whether there is something to import, or an import to go on with; exit 2 where both places hold data."""
    with command(lake_home, as_json) as run:
        target = _target(home, workspace, tree=tree, keys=keys, table=table, schema=schema, lake_home=lake_home)
        phase = run.app.legacy_import(target.place, target.options()).detect()
        facts = {"phase": phase, "data": target.place.data, "migration": target.place.migration}
        run.out.value({**facts, "next": _next(target, phase)}, _where(target, phase))


@group.command()
def plan(
    *,
    home: Home = None,
    workspace: Workspace = None,
    tree: TreeFolder = None,
    keys: Keys = None,
    table: TableName = None,
    schema: Schema = DEFAULT_SCHEMA,
    mode: ModeOption = Mode.AUTO,
    partition_by: PartitionBy = None,
    quarantine: Quarantine = False,
    digests: Digests = True,
    lake_home: LakeHome = None,
    as_json: AsJson = False,
) -> None:
    """Show tables, leaves, files, bytes, disk, time and every problem; change nothing; exit 2 if `run` would refuse."""
    with command(lake_home, as_json) as run:
        target = _target(home, workspace, tree=tree, keys=keys, table=table, schema=schema, lake_home=lake_home)
        choice = _Choice(mode=mode, partition_by=_columns(partition_by), quarantine=quarantine, digests=digests)
        _show_plan(run, target, run.app.legacy_import(target.place, target.options(choice)))


@group.command(name="run")
def run_import(
    *,
    home: Home = None,
    workspace: Workspace = None,
    tree: TreeFolder = None,
    keys: Keys = None,
    table: TableName = None,
    schema: Schema = DEFAULT_SCHEMA,
    mode: ModeOption = Mode.AUTO,
    partition_by: PartitionBy = None,
    quarantine: Quarantine = False,
    digests: Digests = True,
    yes: Yes = False,
    dry_run: DryRun = False,
    lake_home: LakeHome = None,
    as_json: AsJson = False,
) -> None:
    """Import, or go on with an import that was stopped; exit 1 when leaves are left, 130 when stopped by Ctrl-C."""
    with command(lake_home, as_json) as run:
        target = _target(home, workspace, tree=tree, keys=keys, table=table, schema=schema, lake_home=lake_home)
        choice = _Choice(mode=mode, partition_by=_columns(partition_by), quarantine=quarantine, digests=digests)
        job = run.app.legacy_import(target.place, target.options(choice))
        if dry_run:
            _show_plan(run, target, job)
            return
        phase = job.detect()
        if phase is ImportPhase.NOTHING or job.is_finished:
            facts = {"phase": phase, "ok": True, "leaves": 0, "rows": 0, "next": _next(target, phase)}
            run.out.value(facts, _where(target, phase))
            return
        planned = None if job.is_half_moved else job.plan()
        if planned is None:
            run.out.say(f"The move of {target.place.data} was interrupted; it is finished first.")
        else:
            for line in _plan_lines(planned):
                run.out.say(line)
        if planned is None or not planned.refusals:
            agree(run, f"Move {target.place.data} away and import it?", yes=yes)
        _import(run, target, job, planned)


@group.command()
def status(
    *,
    home: Home = None,
    workspace: Workspace = None,
    tree: TreeFolder = None,
    keys: Keys = None,
    table: TableName = None,
    schema: Schema = DEFAULT_SCHEMA,
    lake_home: LakeHome = None,
    as_json: AsJson = False,
) -> None:
    """Show how far the import has come, what failed and why, and what to do next."""
    with command(lake_home, as_json) as run:
        target = _target(home, workspace, tree=tree, keys=keys, table=table, schema=schema, lake_home=lake_home)
        found = run.app.legacy_import(target.place, target.options()).status()
        run.out.value({**asdict(found), "next": _next(target, found.phase)}, _status_lines(target, found))


@group.command()
def retry(
    *,
    home: Home = None,
    workspace: Workspace = None,
    tree: TreeFolder = None,
    keys: Keys = None,
    table: TableName = None,
    schema: Schema = DEFAULT_SCHEMA,
    mode: ModeOption = Mode.AUTO,
    partition_by: PartitionBy = None,
    quarantine: Quarantine = False,
    digests: Digests = True,
    lake_home: LakeHome = None,
    as_json: AsJson = False,
) -> None:
    """Go on with what is left of an import, without asking; exit 1 when leaves are left, 2 where none is under way."""
    with command(lake_home, as_json) as run:
        target = _target(home, workspace, tree=tree, keys=keys, table=table, schema=schema, lake_home=lake_home)
        choice = _Choice(mode=mode, partition_by=_columns(partition_by), quarantine=quarantine, digests=digests)
        job = run.app.legacy_import(target.place, target.options(choice))
        half_moved = job.is_half_moved
        if job.detect() is not ImportPhase.IMPORTING and not half_moved:
            raise StateError("No import is under way.", hint=f"`{target.next('status')}` says what there is.")
        _import(run, target, job, None if half_moved else job.plan())


@group.command()
def verify(
    *,
    home: Home = None,
    workspace: Workspace = None,
    tree: TreeFolder = None,
    keys: Keys = None,
    table: TableName = None,
    schema: Schema = DEFAULT_SCHEMA,
    lake_home: LakeHome = None,
    as_json: AsJson = False,
) -> None:
    """Prove again that backup, ledger and lake have the same rows, by reading them all; exit 1 on a mismatch."""
    with command(lake_home, as_json) as run:
        target = _target(home, workspace, tree=tree, keys=keys, table=table, schema=schema, lake_home=lake_home)
        job = run.app.legacy_import(target.place, target.options())
        if job.detect() is ImportPhase.UNDOING or not target.place.migrated.exists():
            raise StateError("Nothing is imported.", hint=f"`{target.next('status')}` says what there is.")
        found = job.verify()
        run.out.value({"ok": found.ok, **asdict(found)}, _verify_lines(target, found))
        if not found.ok:
            raise typer.Exit(EXIT_FAILED)


@group.command()
def undo(
    *,
    home: Home = None,
    workspace: Workspace = None,
    tree: TreeFolder = None,
    keys: Keys = None,
    table: TableName = None,
    schema: Schema = DEFAULT_SCHEMA,
    yes: Yes = False,
    dry_run: DryRun = False,
    lake_home: LakeHome = None,
    as_json: AsJson = False,
) -> None:
    """Drop the imported tables and put the tree back; exit 2 where something else has written to them."""
    with command(lake_home, as_json) as run:
        target = _target(home, workspace, tree=tree, keys=keys, table=table, schema=schema, lake_home=lake_home)
        job = run.app.legacy_import(target.place, target.options())
        if dry_run or job.detect() in (ImportPhase.NOTHING, ImportPhase.READY):
            tables = job.plan_undo()
            run.out.value({"dropped": tables, "done": False}, _undo_lines(target, tables, done=False))
            return
        for line in _undo_lines(target, job.plan_undo(prove=False), done=False):
            run.out.say(line)
        agree(run, "Compare the lake with the backup, and undo the import if they agree?", yes=yes)
        with stopping_gently(run.out, "An undo goes on to its end."):
            tables = job.undo()
        facts = {"dropped": tables, "done": True, "next": _next(target, ImportPhase.READY)}
        run.out.value(facts, _undo_lines(target, tables, done=True))


@group.command()
def report(
    *,
    home: Home = None,
    workspace: Workspace = None,
    tree: TreeFolder = None,
    keys: Keys = None,
    table: TableName = None,
    schema: Schema = DEFAULT_SCHEMA,
    lake_home: LakeHome = None,
    as_json: AsJson = False,
) -> None:
    """Show the report of the last run again; exit 2 where there is none."""
    with command(lake_home, as_json) as run:
        target = _target(home, workspace, tree=tree, keys=keys, table=table, schema=schema, lake_home=lake_home)
        last = run.app.legacy_import(target.place, target.options()).last_report()
        if not last:
            raise StateError(
                f"There is no report in {target.place.migration}.",
                hint=f"`{target.next('run')}` writes one when it ends.",
            )
        run.out.value(last, _report_lines(target, LegacyReport.from_facts(last)))


def _target(
    home: Path | None,
    workspace: str | None,
    *,
    tree: Path | None,
    keys: str | None,
    table: str | None,
    schema: str,
    lake_home: Path | None,
) -> _Target:
    """What the options name, checked for what they say together."""
    given = {
        "--home": home,
        "--workspace": workspace,
        "--tree": tree,
        "--keys": keys,
        "--table": table,
        "--schema": None if schema == DEFAULT_SCHEMA else schema,
        "--lake-home": lake_home,
    }
    words = "".join(f" {name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None)
    if tree is None:
        if keys is not None or table is not None:
            raise InputError("--keys and --table say how a --tree is read.", hint="Add --tree DIR, or leave them out.")
        place = ImportFolders.tailpipe(home or TAILPIPE_HOME, workspace)
        return _Target(place=place, keys=TAILPIPE_KEYS, table=None, schema=schema, words=words)
    if home is not None or workspace is not None:
        raise InputError("--tree is imported instead of a Tailpipe home.", hint="Leave --home and --workspace out.")
    if keys is None:
        raise InputError(
            "--tree needs to know its keys.", hint="Name its folders from the top, such as --keys region,day:DATE."
        )
    place = ImportFolders.tree(tree)
    if not place.data.is_dir() and not place.migration.is_dir():
        raise InputError(f"There is no folder {place.data}.", hint="Name the folder that holds the hive folders.")
    name = _table_name(table or place.data.name)
    return _Target(place=place, keys=parse_keys(keys), table=name, schema=schema, words=words)


def parse_keys(text: str) -> tuple[Column, ...]:
    """Read `a,b:DATE,c`: names of folders from the top, each with a type, VARCHAR where none is given."""
    # A comma in parentheses belongs to a type, such as DECIMAL(10,2).
    found = [each.partition(":") for each in re.split(r",(?![^(]*\))", text)]
    keys = tuple(Column(name=name.strip(), type=_key_type(kind) if colon else "VARCHAR") for name, colon, kind in found)
    if any(not key.name or set("=/") & set(key.name) for key in keys):
        raise InputError(f"--keys {text!r} has a key without a name.", hint="Write --keys region,day:DATE.")
    if len({sql.fold(key.name) for key in keys}) < len(keys):
        raise InputError(f"--keys {text!r} names a key twice.", hint="Name every level of folders once.")
    return keys


def _key_type(text: str) -> str:
    try:
        return types.normal(text)
    except InputError as error:
        raise InputError(error.message, hint="Write a type of DuckDB, such as --keys region,day:DATE.") from None


def _table_name(text: str) -> str:
    if not text or "." in text:
        raise InputError(f"{text!r} is no name for a table.", hint="Say --table NAME, and --schema for its schema.")
    return text


def _columns(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(each.strip() for each in text.split(",") if each.strip())


def _show_plan(run: RunningCommand, target: _Target, job: LegacyImport) -> None:
    planned = job.plan()
    if planned.phase in (ImportPhase.NOTHING, ImportPhase.DONE):
        lines = [*_where(target, planned.phase)]
    else:
        lines = [*_plan_lines(planned), f"Next: {target.next('run')}"]
    run.out.value({**_plan_facts(planned), "next": _next(target, planned.phase)}, lines)
    if planned.refusals:
        raise typer.Exit(EXIT_NEEDS_YOU)


def _import(run: RunningCommand, target: _Target, job: LegacyImport, planned: LegacyPlan | None) -> None:
    """Run the job, telling how it goes, and end with the exit code that its report deserves."""
    answer = "Stopping once the current commit is done."
    try:
        with (
            telling_of_spark(run.out),
            showing_progress(run.out, planned, run.app.clock),
            stopping_gently(run.out, answer) as stop,
        ):
            report = job.run(planned, stop=stop)
    except KeyboardInterrupt:
        run.out.say(f"Stopped. What is committed stays, and nothing is doubled: `{target.next('run')}` goes on.")
        raise typer.Exit(EXIT_STOPPED) from None
    except CatchmentError as error:
        error.hint = error.hint or f"`{target.next('run')}` goes on from where it was."
        raise
    facts = {"ok": report.ok, "leaves": report.leaves, "rows": report.rows, **asdict(report)}
    run.out.value({**facts, "next": _next(target, report.phase)}, _report_lines(target, report))
    if not report.ok:
        raise typer.Exit(EXIT_STOPPED if report.stopped else EXIT_FAILED)


def _next(target: _Target, phase: ImportPhase) -> str | None:
    """The command to run next, where there is one."""
    names = {
        ImportPhase.READY: "run",
        ImportPhase.IMPORTING: "retry",
        ImportPhase.DONE: "verify",
        ImportPhase.UNDOING: "undo",
    }
    return target.next(names[phase]) if phase in names else None


def _where(target: _Target, phase: ImportPhase, *, left_out: int = 0) -> Iterator[str]:
    """A phase in sentences; `left_out` are Parquet files of a finished import that are in the backup only."""
    place = target.place
    match phase:
        case ImportPhase.NOTHING:
            yield f"Nothing to do: there is nothing to import in {place.data}, and no import in {place.migration}."
            yield "Is it elsewhere? Say --home HOME --workspace NAME, or --tree DIR --keys a,b,c for any hive folders."
        case ImportPhase.READY:
            yield f"{place.data} is there to be imported."
            yield f"Next: {target.next('plan')}"
        case ImportPhase.IMPORTING:
            yield f"An import is under way in {place.migrating}."
            yield f"Next: {target.next('run')}"
        case ImportPhase.DONE if left_out:
            yield f"Imported, but for {plural(left_out, 'Parquet file')} in no table, kept in {place.migrated}."
            yield f"Which: {target.next('report')} --json. Import them with --tree, or move them out of the backup."
            yield f"Prove the rest: {target.next('verify')}"
        case ImportPhase.DONE:
            yield f"Nothing to do: everything is imported, and the backup is in {place.migrated}."
            yield f"Prove it: {target.next('verify')}"
        case ImportPhase.UNDOING:
            yield f"An undo was begun and not finished. Next: {target.next('undo')}"


def _plan_lines(planned: LegacyPlan) -> Iterator[str]:
    yield from planned.explain()
    problems = planned.problems
    yield f"{plural(len(problems), 'problem')}:" if problems else "No problems."
    yield from (f"  {problem}" for problem in problems)


def _plan_facts(planned: LegacyPlan) -> dict[str, Any]:
    return {
        "phase": planned.phase,
        "leaves": planned.leaves,
        "files": sum(table.files for table in planned.tables),
        "bytes": sum(table.bytes for table in planned.tables),
        "rows": sum(table.row_count for table in planned.tables),
        "tables": [_table_facts(table) for table in planned.tables],
        "empty": planned.empty,
        "strays": planned.strays,
        "unreadable": planned.bad,
        "quarantined": planned.quarantined,
        "views_without_data": planned.views_without_data,
        "disk_needed_bytes": planned.disk_needed_bytes,
        "disk_free_bytes": planned.disk_free_bytes,
        "seconds": round(planned.seconds, 1),
        "refusals": planned.refusals,
        "problems": planned.problems,
    }


def _table_facts(table: TablePlan) -> dict[str, Any]:
    adopted = len(table.adopted)
    return {
        "table": table.id,
        "exists": table.exists,
        "partition_by": table.partition_by,
        "leaves": len(table.leaves),
        "files": table.files,
        "bytes": table.bytes,
        "rows": table.row_count,
        "mode": table.mode,
        "insert_reason": table.insert_reason,
        "adopted": adopted,
        "rewritten": len(table.leaves) - adopted,
        "columns": [{"name": column.name, "type": column.type} for column in table.columns],
        "blocked": table.blocked,
        "findings": table.findings,
    }


def _status_lines(target: _Target, found: ImportStatus) -> Iterator[str]:
    yield from _where(target, found.phase, left_out=found.files_left_out)
    if found.running:
        yield "A process is at work on it now."
    if found.phase in (ImportPhase.IMPORTING, ImportPhase.DONE):
        left = f"{leaves_counted(found.leaves_left)} left ({found.bytes_left / 1e6:,.1f} MB)"
        yield f"{leaves_counted(found.leaves_imported)} imported, {left}."
    if found.tables_made:
        yield f"Tables made: {', '.join(found.tables_made)}."
    yield from (f"Set aside: {path}" for path in found.quarantined)
    yield from _failure_lines(target, found.failures)


def _failure_lines(target: _Target, failures: Sequence[LeafFailure]) -> Iterator[str]:
    for each in failures:
        yield f"Failed: {each.leaf}: {each.reason}"
    if failures:
        yield f"They lie in {target.place.migrating}. Mend them there, then: {target.next('retry')}"
    if any(each.unreadable for each in failures):
        yield f"Or set unreadable files aside and import the rest: {target.next('retry')} --quarantine"


def _report_lines(target: _Target, report: LegacyReport) -> Iterator[str]:
    files = sum(table.files for table in report.tables)
    size = sum(table.bytes for table in report.tables) / 1e6
    yield (
        f"Imported {leaves_counted(report.leaves)}, {plural(report.rows, 'row')}, in {plural(files, 'file')} "
        f"({size:,.1f} MB), in {report.seconds:,.1f} s."
    )
    for table in report.tables:
        already = f"; {leaves_counted(table.already)} there already" if table.already else ""
        yield f"  {table.table}: {leaves_counted(table.leaves)}, {plural(table.rows, 'row')}{already}"
    yield from (f"Set aside: {path}" for path in report.quarantined)
    if report.strays:
        yield f"{plural(len(report.strays), 'stray')} in the backup, not imported: {target.next('report')} --json"
    yield from _failure_lines(target, report.failures)
    if report.ok:
        yield f"The backup is in {target.place.migrated}."
        yield f"Prove it: {target.next('verify')}"
    elif report.stopped:
        yield f"Stopped before the end; nothing is lost or doubled. Go on: {target.next('run')}"


def _verify_lines(target: _Target, found: Verification) -> Iterator[str]:
    for each in found.mismatches:
        yield f"MISMATCH {each.table}{f' {each.leaf}' if each.leaf else ''}: {each.reason}"
    verdict = "backup, ledger and lake agree" if found.ok else "they do not agree"
    yield f"{leaves_counted(found.leaves)}, {plural(found.rows, 'row')} compared: {verdict}."
    if not found.ok:
        yield f"What was imported when: {target.place.log}. The backup is untouched in {target.place.migrated}."


def _undo_lines(target: _Target, tables: tuple[str, ...], *, done: bool) -> Iterator[str]:
    named = ", ".join(tables) or "no table"
    if done:
        yield f"Undone: {named} dropped from the lake, and the tree is back in {target.place.data}."
        yield f"Next: {target.next('plan')}"
    else:
        yield f"An undo drops {named} from the lake and puts the tree back into {target.place.data}."
