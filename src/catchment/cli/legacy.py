"""`catchment legacy`: import a tree of Parquet in hive folders into tables of the lake.

There are two homes. `--home` is the one to import from, as in Tailpipe's own command; the lake's
home, which other commands call `--home`, is `--lake-home`.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catchment import Catchment
from catchment.cli.context import (
    AsJson,
    RunningCommand,
    agree,
    command,
    named_folder,
    reporting_spark,
    stopping_gently,
)
from catchment.cli.progress import showing_progress
from catchment.cli.shared_options import takes
from catchment.errors import EXIT_FAILED, EXIT_NEEDS_YOU, EXIT_STOPPED, CatchmentError, StateError
from catchment.foundation.ids import DEFAULT_SCHEMA
from catchment.foundation.text import plural
from catchment.pipeline import Mode
from catchment.pipeline.legacy.folders import ImportFolders, ImportPhase
from catchment.pipeline.legacy.import_plan import LegacyPlan, TablePlan
from catchment.pipeline.legacy.report import ImportStatus, LeafFailure, LegacyReport, Verification

if TYPE_CHECKING:
    from catchment.pipeline.legacy.job import LegacyImport

_EXIT_CODES = (
    "Exit codes: 0 done, or nothing to do; 1 failed, or leaves are left, or a mismatch; 2 needs input from you, "
    "such as --yes; 130 stopped by Ctrl-C; `catchment legacy run` continues."
)

group = typer.Typer(
    help=f"Import legacy Parquet in hive folders, such as Tailpipe's, with a backup and a proof.\n\n{_EXIT_CODES}",
    no_args_is_help=True,
)

Yes = Annotated[bool, typer.Option("--yes", help="Confirm in advance; required without a terminal.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of every command here: what to import, and into which lake."""

    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            parser=named_folder,
            metavar="PATH",
            help="Tailpipe's home; default: ~/.tailpipe. The lake's own home is --lake-home.",
        ),
    ] = None
    workspace: Annotated[
        str | None, typer.Option(help="Workspace in `data/`; needed only if there are several.", show_default=False)
    ] = None
    tree: Annotated[
        Path | None,
        typer.Option(
            "--tree",
            parser=named_folder,
            metavar="PATH",
            help="Any folder of hive folders, instead of a Tailpipe home; needs --keys.",
        ),
    ] = None
    keys: Annotated[
        str | None, typer.Option(help="With --tree: keys of the folders from the top, such as `region,day:DATE`.")
    ] = None
    table: Annotated[str | None, typer.Option(help="With --tree: name of the table; default: the folder's name.")] = (
        None
    )
    schema: Annotated[str, typer.Option(help="Schema of the lake that gets the tables.")] = DEFAULT_SCHEMA
    lake_home: Annotated[
        Path | None,
        typer.Option("--lake-home", parser=named_folder, metavar="PATH", help="Data folder; default: CATCHMENT_HOME."),
    ] = None
    as_json: AsJson = False

    def target(self, catchment: Catchment) -> "_Target":
        """Return the import that the options name."""
        return _Target(job=catchment.legacy.job(**self._source()), options=self)

    def next(self, name: str) -> str:
        """Return a command to run next, with the options that lead to the same place."""
        given = {f"--{field.name.replace('_', '-')}": getattr(self, field.name) for field in fields(SourceOptions)}
        given["--schema"] = None if self.schema == DEFAULT_SCHEMA else self.schema
        del given["--as-json"]
        words = "".join(f" {name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None)
        return f"catchment legacy {name}{words}"

    def _source(self) -> dict[str, Any]:
        names = ("home", "workspace", "tree", "keys", "table", "schema")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptionsGiven(SourceOptions):
    """Options of commands that import, or show what they would do."""

    mode: Annotated[
        Mode,
        typer.Option(
            "--mode", help="Adopt files as they are, rewrite them, insert their rows, or choose automatically."
        ),
    ] = Mode.AUTO
    partition_by: Annotated[
        str | None,
        typer.Option(help="Partition columns of new tables, separated by commas; default: the keys, '' for none."),
    ] = None
    quarantine: Annotated[
        bool,
        typer.Option("--quarantine", help="Move unreadable files to the backup and import the rest of their leaf."),
    ] = False
    digests: Annotated[
        bool, typer.Option("--digests/--no-digests", help="Read adopted files to the end and record their digests.")
    ] = True

    def _source(self) -> dict[str, Any]:
        columns = None if self.partition_by is None else _columns(self.partition_by)
        chosen = {"mode": self.mode, "quarantine": self.quarantine, "digests": self.digests}
        return {**super(ImportOptionsGiven, self)._source(), **chosen, "partition_by": columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """An import, and the options that named it."""

    job: "LegacyImport"
    options: SourceOptions

    @property
    def place(self) -> ImportFolders:
        return self.job.folders

    def next(self, name: str) -> str:
        """Return a command to run next, with the options that lead to the same place."""
        return self.options.next(name)


@group.command()
@takes(SourceOptions)
def detect(options: SourceOptions) -> None:
    """Show what can be imported or resumed; exit 2 if both places contain data."""
    with command(options.lake_home, options.as_json) as run:
        target = options.target(run.catchment)
        phase = target.job.detect()
        facts = {"phase": phase, "data": target.place.data, "migration": target.place.migration}
        run.out.value({**facts, "next": _next(target, phase)}, _where(target, phase))


@group.command()
@takes(ImportOptionsGiven)
def plan(options: ImportOptionsGiven) -> None:
    """Show tables, leaves, files, bytes, disk, time and every problem; change nothing; exit 2 if
    `run` would refuse.
    """
    with command(options.lake_home, options.as_json) as run:
        _show_plan(run, options.target(run.catchment))


@group.command(name="run")
@takes(ImportOptionsGiven)
def run_import(options: ImportOptionsGiven, *, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Import, or resume an interrupted import; exit 1 if leaves are left, 130 if stopped by Ctrl-C."""
    with command(options.lake_home, options.as_json) as run:
        target = options.target(run.catchment)
        job = target.job
        if dry_run:
            _show_plan(run, target)
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
        _import(run, target, planned)


@group.command()
@takes(SourceOptions)
def status(options: SourceOptions) -> None:
    """Show the progress of the import, its failures with reasons, and the next command."""
    with command(options.lake_home, options.as_json) as run:
        target = options.target(run.catchment)
        found = target.job.status()
        run.out.value({**asdict(found), "next": _next(target, found.phase)}, _status_lines(target, found))


@group.command()
@takes(ImportOptionsGiven)
def retry(options: ImportOptionsGiven) -> None:
    """Resume an import without asking; exit 1 if leaves are left, 2 if no import is in progress."""
    with command(options.lake_home, options.as_json) as run:
        target = options.target(run.catchment)
        job = target.job
        half_moved = job.is_half_moved
        if job.detect() is not ImportPhase.IMPORTING and not half_moved:
            raise StateError("No import is under way.", hint=f"`{target.next('status')}` shows the state.")
        _import(run, target, None if half_moved else job.plan())


@group.command()
@takes(SourceOptions)
def verify(options: SourceOptions) -> None:
    """Compare backup, ledger and lake again, by reading all rows; exit 1 on a mismatch."""
    with command(options.lake_home, options.as_json) as run:
        target = options.target(run.catchment)
        job = target.job
        if job.detect() is ImportPhase.UNDOING or not target.place.migrated.exists():
            raise StateError("Nothing is imported.", hint=f"`{target.next('status')}` shows the state.")
        found = job.verify()
        run.out.value({"ok": found.ok, **asdict(found)}, _verify_lines(target, found))
        if not found.ok:
            raise typer.Exit(EXIT_FAILED)


@group.command()
@takes(SourceOptions)
def undo(options: SourceOptions, *, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Drop the imported tables and put the tree back; exit 2 if anything else has written to them."""
    with command(options.lake_home, options.as_json) as run:
        target = options.target(run.catchment)
        job = target.job
        if dry_run or job.detect() in (ImportPhase.NOTHING, ImportPhase.READY):
            tables = job.plan_undo()
            run.out.value({"dropped": tables, "done": False}, _undo_lines(target, tables, done=False))
            return
        for line in _undo_lines(target, job.plan_undo(prove=False), done=False):
            run.out.say(line)
        agree(run, "Compare the lake with the backup, and undo the import if they agree?", yes=yes)
        with stopping_gently(run.out, "An undo runs to its end."):
            tables = job.undo()
        facts = {"dropped": tables, "done": True, "next": _next(target, ImportPhase.READY)}
        run.out.value(facts, _undo_lines(target, tables, done=True))


@group.command()
@takes(SourceOptions)
def report(options: SourceOptions) -> None:
    """Show the report of the last run again; exit 2 if there is none."""
    with command(options.lake_home, options.as_json) as run:
        target = options.target(run.catchment)
        last = target.job.last_report()
        if not last:
            raise StateError(
                f"There is no report in {target.place.migration}.",
                hint=f"`{target.next('run')}` writes one when it ends.",
            )
        run.out.value(last, _report_lines(target, LegacyReport.from_facts(last)))


def _columns(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _show_plan(run: RunningCommand, target: _Target) -> None:
    planned = target.job.plan()
    if planned.phase in (ImportPhase.NOTHING, ImportPhase.DONE):
        lines = [*_where(target, planned.phase)]
    else:
        lines = [*_plan_lines(planned), f"Next: {target.next('run')}"]
    run.out.value({**_plan_facts(planned), "next": _next(target, planned.phase)}, lines)
    if planned.refusals:
        raise typer.Exit(EXIT_NEEDS_YOU)


def _import(run: RunningCommand, target: _Target, planned: LegacyPlan | None) -> None:
    """Run the import with its progress on stderr, and exit by its report."""
    answer = "Stopping once the current commit is done."
    try:
        with (
            reporting_spark(run.out),
            showing_progress(run.out, planned, run.catchment.app.clock),
            stopping_gently(run.out, answer) as stop,
        ):
            report = target.job.run(planned, stop=stop)
    except KeyboardInterrupt:
        run.out.say(f"Stopped. Committed rows stay, and nothing is duplicated: `{target.next('run')}` continues.")
        raise typer.Exit(EXIT_STOPPED) from None
    except CatchmentError as error:
        error.hint = error.hint or f"`{target.next('run')}` continues from there."
        raise
    facts = {"ok": report.ok, "leaves": report.leaves, "rows": report.rows, **asdict(report)}
    run.out.value({**facts, "next": _next(target, report.phase)}, _report_lines(target, report))
    if not report.ok:
        raise typer.Exit(EXIT_STOPPED if report.stopped else EXIT_FAILED)


def _next(target: _Target, phase: ImportPhase) -> str | None:
    """Return the command to run next, or None if there is none."""
    names = {
        ImportPhase.READY: "run",
        ImportPhase.IMPORTING: "retry",
        ImportPhase.DONE: "verify",
        ImportPhase.UNDOING: "undo",
    }
    return target.next(names[phase]) if phase in names else None


def _where(target: _Target, phase: ImportPhase, *, left_out: int = 0) -> Iterator[str]:
    """Describe a phase; `left_out` counts Parquet files that are only in the backup."""
    place = target.place
    match phase:
        case ImportPhase.NOTHING:
            yield f"Nothing to do: there is nothing to import in {place.data}, and no import in {place.migration}."
            yield "Is it elsewhere? Use --home HOME --workspace NAME, or --tree DIR --keys a,b,c for any hive folders."
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
        yield "A process is working on it now."
    if found.phase in (ImportPhase.IMPORTING, ImportPhase.DONE):
        left = f"{plural(found.leaves_left, 'leaf', 'leaves')} left ({found.bytes_left / 1e6:,.1f} MB)"
        yield f"{plural(found.leaves_imported, 'leaf', 'leaves')} imported, {left}."
    if found.tables_made:
        yield f"Tables created: {', '.join(found.tables_made)}."
    yield from (f"Quarantined: {path}" for path in found.quarantined)
    yield from _failure_lines(target, found.failures)


def _failure_lines(target: _Target, failures: Sequence[LeafFailure]) -> Iterator[str]:
    for each in failures:
        yield f"Failed: {each.leaf}: {each.reason}"
    if failures:
        yield f"They are in {target.place.migrating}. Repair them there, then: {target.next('retry')}"
    if any(each.unreadable for each in failures):
        yield f"Or quarantine unreadable files and import the rest: {target.next('retry')} --quarantine"


def _report_lines(target: _Target, report: LegacyReport) -> Iterator[str]:
    files = sum(table.files for table in report.tables)
    size = sum(table.bytes for table in report.tables) / 1e6
    yield (
        f"Imported {plural(report.leaves, 'leaf', 'leaves')}, {plural(report.rows, 'row')}, in {plural(files, 'file')} "
        f"({size:,.1f} MB), in {report.seconds:,.1f} s."
    )
    for table in report.tables:
        already = f"; {plural(table.already, 'leaf', 'leaves')} there already" if table.already else ""
        yield f"  {table.table}: {plural(table.leaves, 'leaf', 'leaves')}, {plural(table.rows, 'row')}{already}"
    yield from (f"Quarantined: {path}" for path in report.quarantined)
    if report.strays:
        yield f"{plural(len(report.strays), 'stray')} in the backup, not imported: {target.next('report')} --json"
    yield from _failure_lines(target, report.failures)
    if report.ok:
        yield f"The backup is in {target.place.migrated}."
        yield f"Prove it: {target.next('verify')}"
    elif report.stopped:
        yield f"Stopped before the end; nothing is lost or duplicated. Continue: {target.next('run')}"


def _verify_lines(target: _Target, found: Verification) -> Iterator[str]:
    for each in found.mismatches:
        yield f"MISMATCH {each.table}{f' {each.leaf}' if each.leaf else ''}: {each.reason}"
    verdict = "backup, ledger and lake agree" if found.ok else "they do not agree"
    yield f"{plural(found.leaves, 'leaf', 'leaves')}, {plural(found.rows, 'row')} compared: {verdict}."
    if not found.ok:
        yield f"The log of the import: {target.place.log}. The backup is untouched in {target.place.migrated}."


def _undo_lines(target: _Target, tables: tuple[str, ...], *, done: bool) -> Iterator[str]:
    named = ", ".join(tables) or "no table"
    if done:
        yield f"Undone: {named} dropped from the lake, and the tree is back in {target.place.data}."
        yield f"Next: {target.next('plan')}"
    else:
        yield f"An undo drops {named} from the lake and puts the tree back into {target.place.data}."
