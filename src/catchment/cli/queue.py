"""`catchment queue`: inspect and flush the queue; manage dead letters and stranded rows."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from catchment.cli.context import AsJson, Home, command, reporting_spark, whoami
from catchment.cli.lake import audit_lines
from catchment.errors import EXIT_FAILED, EXIT_NEEDS_YOU, FlushFailedError, InputError
from catchment.foundation import events
from catchment.foundation.ids import TableId
from catchment.foundation.text import plural
from catchment.lake import AuditReport, DeadLetter
from catchment.queue import FlushReport, QueueStatus, TableFlush
from catchment.queue.buffer import QuarantinedFile
from catchment.queue.coordinator import TableStatus
from catchment.queue.stranded import Stranded

group = typer.Typer(help="Inspect and flush the queue; manage dead letters and stranded rows.", no_args_is_help=True)
letters = typer.Typer(
    help="List, retry and drop dead letters: rows that their table refused, kept with the reason.", no_args_is_help=True
)
group.add_typer(letters, name="dead-letters")

StrandedTable = Annotated[str, typer.Argument(help="Name under which `catchment queue status` lists the rows.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
Ids = Annotated[list[str], typer.Argument(help="Ids of dead letters, as `list` shows them.")]
SomeIds = Annotated[list[str] | None, typer.Argument(help="Ids of dead letters, as `list` shows them.")]


@group.command()
def status(home: Home = None, as_json: AsJson = False) -> None:
    """Show buffered rows, due flushes, the last failures and quarantined files."""
    with command(home, as_json) as run:
        queue = run.catchment.queue.status()
        notes = run.catchment.queue.notes()
        rows = [_status_row(each, queue.at) for each in queue.tables]
        if rows:
            columns = ["table", "rows", "MB", "oldest", "flushed through", "due", "last error", "next try"]
            run.out.table("Buffered", columns, rows)
        run.out.value({**_status_facts(queue), "notes": notes}, _status_lines(queue, notes))


@group.command()
def flush(home: Home = None, as_json: AsJson = False) -> None:
    """Flush everything that is buffered into the lake; exit 1 if something is left."""
    with command(home, as_json) as run, reporting_spark(run.out):
        try:
            report = run.catchment.queue.flush(lambda done: run.out.say(f"  {_progress(done)}"))
        except FlushFailedError as error:
            if "rows" in error.facts:
                run.out.say(f"Flushed {plural(error.facts['rows'], 'row')} in {error.facts['seconds']:.1f} s.")
            raise
        notes = run.catchment.queue.notes()
        facts = {"rows": report.rows, "files": report.files, "seconds": round(report.seconds, 3)}
        run.out.value({**facts, "tables": report.tables, "notes": notes}, _flush_lines(report, notes))


@group.command()
def audit(home: Home = None, as_json: AsJson = False) -> None:
    """Prove that everything flushed is in the lake once, and nothing left the buffer too early.

    Exit 1 on a finding, 2 if buffer files are quarantined: they may have rows that exist nowhere
    else.
    """
    with command(home, as_json) as run:
        found = run.catchment.queue.audit()
        report = found.report
        run.out.table(
            "Producers",
            ["producer", "seq", "units", "rows", "tables"],
            [(p.producer, p.seq, p.units, f"{p.rows:,}", ", ".join(p.tables)) for p in report.producers],
        )
        buffered = None if found.buffered is None else {str(table): rows for table, rows in found.buffered.items()}
        facts = {
            "ok": found.ok,
            "producers": report.producers,
            "findings": report.findings,
            "notes": report.notes,
            "buffered": buffered,
            "set_aside": _quarantine_facts(found.quarantined),
        }
        run.out.value(facts, _audit_lines(report, buffered, found.quarantined))
        if not found.ok:
            raise typer.Exit(EXIT_NEEDS_YOU if report.ok else EXIT_FAILED)


@group.command()
def export(table: StrandedTable, home: Home = None, as_json: AsJson = False) -> None:
    """Write rows whose table was dropped to Parquet files; they stay buffered until `redirect` or
    `discard`.
    """
    with command(home, as_json) as run, events.context(user=whoami()):
        found = run.catchment.queue.export(table)
        facts = {"table": found.table, "rows": found.rows, "files": found.files}
        heading = f"{plural(found.rows, 'row')} of {found.table}:"
        run.out.value(facts, [heading, *(f"  {each}" for each in found.files)])


@group.command()
def redirect(
    table: StrandedTable,
    into: Annotated[str, typer.Argument(help="Table of the lake that gets the rows; columns are matched by name.")],
    *,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm in advance; required without a terminal.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Deliver rows whose table was dropped to another table, exactly once; needs --yes."""
    with command(home, as_json) as run, reporting_spark(run.out), events.context(user=whoami()):
        target = TableId.parse(into)
        if dry_run or not yes:
            found = run.catchment.queue.stranded(table)
            would = f"{plural(found.rows, 'row')} of {found.table} would be delivered to {target}."
            if not dry_run:
                raise InputError(would, hint="Confirm with --yes.")
            run.out.value({**_stranded_facts(found), "into": target}, [would])
            return
        found = run.catchment.queue.redirect(table, target)
        lines = [f"{plural(found.rows, 'row')} delivered to {target}."]
        if found.buried:
            lines.append(f"{plural(found.buried, 'row')} refused: `catchment queue dead-letters list`.")
        run.out.value({**_stranded_facts(found), "into": target}, lines)


@group.command()
def discard(
    table: StrandedTable,
    *,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm in advance; required without a terminal.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Delete rows whose table was dropped; needs --yes, because they cannot be recovered."""
    with command(home, as_json) as run, events.context(user=whoami()):
        if dry_run or not yes:
            found = run.catchment.queue.stranded(table)
            would = f"{plural(found.rows, 'row')} of {found.table} would be deleted permanently."
            if not dry_run:
                hint = f"Keep them with `catchment queue export {found.table}`, or confirm with --yes."
                raise InputError(would, hint=hint)
            run.out.value(_stranded_facts(found), [would])
            return
        found = run.catchment.queue.discard(table)
        run.out.value(_stranded_facts(found), [f"{plural(found.rows, 'row')} of {found.table} discarded."])


def _stranded_facts(found: Stranded) -> dict[str, object]:
    return {"table": found.table, "rows": found.rows, "buried": found.buried}


@letters.command(name="list")
def list_letters(
    table: Annotated[str | None, typer.Option(help="Table of the dead letters; default: all.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """List the rows that their tables refused, oldest first."""
    with command(home, as_json) as run:
        found = run.catchment.queue.dead_letters(table=table)
        if found:
            rows = [
                (each.id, each.table, each.seq, f"{each.buried_at:%Y-%m-%d %H:%M:%S}", each.reason) for each in found
            ]
            run.out.table("Dead letters", ["id", "table", "seq", "buried at (UTC)", "reason"], rows)
        lines = [f"{plural(len(found), 'dead letter')}." if found else "There are no dead letters."]
        run.out.value({"dead_letters": [_letter_facts(each) for each in found]}, lines)


@letters.command()
def show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a dead letter, as `list` shows it.")],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter with its row."""
    with command(home, as_json) as run:
        found = run.catchment.queue.dead_letters([letter_id])
        if not found:
            raise InputError(
                f"There is no dead letter {letter_id}.", hint="`catchment queue dead-letters list` shows them."
            )
        facts = _letter_facts(found[0])
        row = {name: _plain(value) for name, value in found[0].content().to_pylist()[0].items()}
        lines = [*(f"{name + ':':10} {value}" for name, value in facts.items()), "row:"]
        run.out.value({**facts, "row": row}, [*lines, *(f"  {name} = {value!r}" for name, value in row.items())])


@letters.command()
def retry(
    ids: SomeIds = None,
    *,
    all_letters: Annotated[bool, typer.Option("--all", help="Retry all dead letters.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Insert refused rows again, such as after a schema change; exit 1 if some are refused again."""
    with command(home, as_json) as run:
        if bool(ids) == all_letters:
            raise InputError("Which dead letters?", hint="Give ids, or --all.")
        with events.context(user=whoami()):
            done = run.catchment.queue.retry_dead_letters(ids or None)
        lines = [f"Delivered {plural(len(done.delivered), 'row')}."]
        run.out.value(done, [*lines, *(f"Refused: {each}: {reason}" for each, reason in done.refused.items())])
        if done.refused:
            raise typer.Exit(EXIT_FAILED)


@letters.command()
def drop(
    ids: Ids,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm in advance; required without a terminal.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Delete refused rows; needs --yes, because they cannot be recovered."""
    with command(home, as_json) as run:
        if not yes:
            raise InputError(
                f"{plural(len(set(ids)), 'dead letter')} would be deleted permanently.",
                hint="Look with `catchment queue dead-letters show ID`, then confirm with --yes.",
            )
        with events.context(user=whoami()):
            dropped = run.catchment.queue.drop_dead_letters(ids)
        run.out.value({"dropped": dropped}, [f"{plural(dropped, 'dead letter')} dropped."])


def flush_lines(report: FlushReport) -> Iterator[str]:
    """Describe a flush's report."""
    yield (
        f"Flushed {plural(report.rows, 'row')} of {plural(len(report.tables), 'table')} in "
        f"{plural(report.files, 'file')}, in {report.seconds:.1f} s."
    )


def _flush_lines(report: FlushReport, notes: Sequence[str]) -> Iterator[str]:
    if report.tables:
        yield from flush_lines(report)
    else:
        yield "Nothing is buffered."
    for each in report.tables:
        if each.stranded:
            yield (
                f"{plural(each.stranded, 'row')} of {each.table} stay buffered, because their table was dropped: "
                f"`catchment queue export|redirect|discard {each.table}`."
            )
    buried = sum(each.buried for each in report.tables)
    if buried:
        yield f"{plural(buried, 'row')} refused by their tables: `catchment queue dead-letters list`."
    yield from (f"note: {note}" for note in notes)


def _progress(done: TableFlush) -> str:
    size = f"{plural(done.rows, 'row')} in {plural(done.files, 'file')} ({done.bytes / 1e6:,.1f} MB)"
    refused = f", {plural(done.buried, 'row')} refused" if done.buried else ""
    failed = f"; failed: {'; '.join(done.errors)}" if done.errors else ""
    return f"{done.table}: {size}{refused}{failed}"


def _status_facts(queue: QueueStatus) -> dict[str, object]:
    return {
        "layout": queue.layout,
        "root": queue.root,
        "incarnation": queue.generation or None,
        "at": queue.at,
        "bytes": queue.bytes,
        "bytes_max": queue.bytes_max or None,
        "tables": [_table_facts(each, queue.at) for each in queue.tables],
        "set_aside": _quarantine_facts(queue.quarantined),
    }


def _quarantine_facts(found: Sequence[QuarantinedFile]) -> list[dict[str, object]]:
    return [{"path": each.path, "reason": each.reason, "inspect": _inspect(each)} for each in found]


def _quarantine_lines(found: Sequence[QuarantinedFile]) -> Iterator[str]:
    for each in found:
        yield f"QUARANTINED {each.path}: {each.reason}"
        yield f"  inspect a copy of it: {_inspect(each)}"


def _table_facts(each: TableStatus, now: datetime) -> dict[str, object]:
    state, failure = each.state, each.failure
    return {
        "table": state.table,
        "rows": state.rows,
        "bytes": state.bytes,
        "oldest_at": state.oldest_at,
        "oldest_age_seconds": None if state.oldest_at is None else (now - state.oldest_at).total_seconds(),
        "seq_last": state.seq_last,
        "seq_flushed": state.seq_flushed,
        "sealed_rows": state.sealed_rows,
        "due": each.trigger,
        "flushing": each.flushing,
        "failures": failure.failures if failure else 0,
        "last_error": failure.reason if failure else None,
        "retry_at": failure.retry_at if failure else None,
    }


def _status_row(each: TableStatus, now: datetime) -> tuple[object, ...]:
    state, failure = each.state, each.failure
    return (
        state.table,
        f"{state.rows:,}",
        f"{state.bytes / 1e6:,.1f}",
        "-" if state.oldest_at is None else _age(now - state.oldest_at),
        f"{state.seq_flushed:,} of {state.seq_last:,}" if state.has_watermark else "-",
        "being flushed" if each.flushing else each.trigger or "-",
        failure.reason if failure else "-",
        f"{failure.retry_at:%H:%M:%S} UTC" if failure else "-",
    )


def _status_lines(queue: QueueStatus, notes: Sequence[str]) -> Iterator[str]:
    cap = f" of at most {queue.bytes_max / 1e6:,.1f} MB" if queue.bytes_max else ", without a cap"
    rows = sum(each.state.rows for each in queue.tables)
    yield f"Layout {queue.layout}, in {queue.root}: {plural(rows, 'row')} buffered, {queue.bytes / 1e6:,.1f} MB{cap}."
    if not queue.generation:
        yield "There is no buffer yet; the first write creates it."
    elif rows:
        yield "They are durable on this machine's disk, and not in the lake yet: `catchment queue flush`."
    yield from _quarantine_lines(queue.quarantined)
    yield from (f"note: {note}" for note in notes)


def _inspect(each: QuarantinedFile) -> str:
    folder = Path("/tmp") / each.path.parent.name
    copied = f"cp -r {shlex.quote(str(each.path.parent))} {shlex.quote(str(folder))}"
    return f"{copied} && duckdb {shlex.quote(str(folder / each.path.name))}"


def _age(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _audit_lines(
    report: AuditReport, buffered: Mapping[str, int] | None, quarantined: Sequence[QuarantinedFile]
) -> Iterator[str]:
    yield from audit_lines(report)
    if buffered is not None:
        for table, rows in buffered.items():
            yield f"{table}: {plural(rows, 'row')} still buffered."
        if not buffered:
            yield "Nothing is buffered."
    yield from _quarantine_lines(quarantined)
    if quarantined:
        yield "Acknowledged rows may be there and nowhere else. Remove the folder once they are dealt with."


def _letter_facts(letter: DeadLetter) -> dict[str, object]:
    return {
        "id": letter.id,
        "table": letter.table,
        "seq": letter.seq,
        "reason": letter.reason,
        "buried_at": letter.buried_at,
        "unit_id": letter.unit_id,
        "producer": letter.producer,
    }


def _plain(value: object) -> object:
    """Return a value of a row in a form that JSON has."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return str(value)
