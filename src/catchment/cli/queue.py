"""`catchment queue`: what the buffer holds, getting it into the lake, and the rows that the lake refused."""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from catchment.app import App
from catchment.cli.context import AsJson, Home, RunningCommand, command, telling_of_spark, whoami
from catchment.cli.lake import audit_lines
from catchment.errors import EXIT_FAILED, EXIT_NEEDS_YOU, BufferHeldError, FlushFailedError, InputError
from catchment.foundation import events, sql
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake import AuditReport, DeadLetter
from catchment.lake.audit import AuditFinding
from catchment.pipeline.plan import plural
from catchment.queue import (
    DqCoordinator,
    FlushReport,
    QueueStatus,
    TableFlush,
    TableState,
    dead_letter_actions,
    quarantine,
)
from catchment.queue.buffer import KIND, QuarantinedFile
from catchment.queue.coordinator import TableStatus
from catchment.queue.segment_files import SegmentFolders, SegmentState
from catchment.queue.shared_buffer import FILE_NAME
from catchment.queue.stranded import Stranded, StrandedRows

group = typer.Typer(
    help="What the queue buffers, flushing it, and the rows that the lake refused.", no_args_is_help=True
)
letters = typer.Typer(help="Rows that their table refused, kept in the lake with the reason.", no_args_is_help=True)
group.add_typer(letters, name="dead-letters")

StrandedTable = Annotated[str, typer.Argument(help="The name that `catchment queue status` lists the rows under.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Ids = Annotated[list[str], typer.Argument(help="Ids of dead letters, as `list` shows them.")]
SomeIds = Annotated[list[str] | None, typer.Argument(help="Ids of dead letters, as `list` shows them.")]


@group.command()
def status(home: Home = None, as_json: AsJson = False) -> None:
    """Show what is buffered, what is due, what failed last, and what was set aside."""
    with command(home, as_json) as run:
        queue, found = _status(run.app)
        notes = tuple(_notes(run.app, found))
        rows = [_status_row(each, queue.at) for each in queue.tables]
        if rows:
            columns = ["table", "rows", "MB", "oldest", "flushed through", "due", "last error", "next try"]
            run.out.table("Buffered", columns, rows)
        run.out.value({**_status_facts(queue), "notes": notes}, _status_lines(queue, notes))


@group.command()
def flush(home: Home = None, as_json: AsJson = False) -> None:
    """Flush everything that is buffered into the lake; exit 1 when something is left."""
    with command(home, as_json) as run, telling_of_spark(run.out):
        try:
            report, found = _flush(run)
        except FlushFailedError as error:
            if "rows" in error.facts:
                run.out.say(f"Flushed {plural(error.facts['rows'], 'row')} in {error.facts['seconds']:.1f} s.")
            raise
        notes = tuple(_notes(run.app, found))
        facts = {"rows": report.rows, "files": report.files, "seconds": round(report.seconds, 3)}
        run.out.value({**facts, "tables": report.tables, "notes": notes}, _flush_lines(report, notes))


@group.command()
def audit(home: Home = None, as_json: AsJson = False) -> None:
    """Prove that everything flushed is in the lake once, and nothing left the buffer too early.

    Exit 1 on a finding, 2 where files of the buffer were set aside: they may hold rows that are nowhere else.
    """
    with command(home, as_json) as run:
        notes = list(_notes(run.app, None))
        states: Sequence[TableState] | None = ()
        found = None
        lake = run.app.existing_lake
        try:
            # The buffer first and the lake second: what is flushed in between is then in the lake, and not missed.
            found = run.app.find_queue()
            states = found.buffer.tables() if found else ()
        except BufferHeldError as error:
            states = None
            notes.append(f"{error.message} What it holds was not compared.")
        report = _of_queue(lake.audit(), notes)
        waiting, findings = _compared(report, found, states or ())
        report = AuditReport(
            producers=report.producers, findings=(*report.findings, *findings), notes=report.notes
        )  # fmt: skip
        run.out.table(
            "Producers",
            ["producer", "seq", "units", "rows", "tables"],
            [(p.producer, p.seq, p.units, f"{p.rows:,}", ", ".join(p.tables)) for p in report.producers],
        )
        buffered = None if states is None else {str(table): rows for table, rows in waiting.items()}
        # Opening the buffer may have set one aside.
        put_aside = quarantine.found(run.app.settings.queue_path)
        facts = {
            "ok": report.ok and not put_aside,
            "producers": report.producers,
            "findings": report.findings,
            "notes": report.notes,
            "buffered": buffered,
            "set_aside": _aside_facts(put_aside),
        }
        run.out.value(facts, _audit_lines(report, buffered, put_aside))
        if not report.ok or put_aside:
            raise typer.Exit(EXIT_NEEDS_YOU if report.ok else EXIT_FAILED)


@group.command()
def export(table: StrandedTable, home: Home = None, as_json: AsJson = False) -> None:
    """Write rows whose table was dropped to Parquet files; they stay buffered until `redirect` or `discard`."""
    with command(home, as_json) as run:
        found = _rescue(run, table, "export", lambda rows, _: rows.export())
        facts = {"table": found.table, "rows": found.rows, "files": found.files}
        heading = f"{plural(found.rows, 'row')} of {found.table}:"
        run.out.value(facts, [heading, *(f"  {each}" for each in found.files)])


@group.command()
def redirect(
    table: StrandedTable,
    into: Annotated[str, typer.Argument(help="Table of the lake that gets the rows; columns are matched by name.")],
    *,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, these rows belong there.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Deliver rows whose table was dropped to another table, exactly once; needs --yes."""
    with command(home, as_json) as run, telling_of_spark(run.out):
        target = TableId.parse(into)
        if dry_run or not yes:
            found = _rescue(run, table, "stranded", lambda rows, _: rows.facts)
            would = f"{plural(found.rows, 'row')} of {found.table} would go into {target}."
            if not dry_run:
                raise InputError(would, hint="Say the same with --yes.")
            run.out.value({**_rescued(found), "into": target}, [would])
            return
        found = _rescue(run, table, "redirect", lambda rows, queue: rows.redirect(queue.flusher, target), target)
        lines = [f"{plural(found.rows, 'row')} delivered to {target}."]
        if found.buried:
            lines.append(f"{plural(found.buried, 'row')} refused: `catchment queue dead-letters list`.")
        run.out.value({**_rescued(found), "into": target}, lines)


@group.command()
def discard(
    table: StrandedTable,
    *,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, these rows are given up for good.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Give rows up whose table was dropped; needs --yes, because nothing keeps them afterwards."""
    with command(home, as_json) as run:
        if dry_run or not yes:
            found = _rescue(run, table, "stranded", lambda rows, _: rows.facts)
            if not dry_run:
                raise InputError(
                    f"{plural(found.rows, 'row')} of {found.table} would be gone for good.",
                    hint=f"Keep them with `catchment queue export {found.table}`, or say the same with --yes.",
                )
            run.out.value(_rescued(found), [f"{plural(found.rows, 'row')} of {found.table} would be gone for good."])
            return
        found = _rescue(run, table, "discard", lambda rows, _: rows.discard())
        run.out.value(_rescued(found), [f"{plural(found.rows, 'row')} of {found.table} discarded."])


def _rescue(
    run: RunningCommand,
    table: str,
    action: str,
    act: Callable[[StrandedRows, DqCoordinator], Stranded],
    into: TableId | None = None,
) -> Stranded:
    """Do something with stranded rows, by ourselves or by the server that has the buffer open."""
    name = TableId.parse(table)
    with events.context(user=whoami()):
        try:
            queue = run.app.find_queue()
        except BufferHeldError as error:
            from catchment.cli import running_server

            given = ", ".join(sql.literal(str(each)) for each in (name, into) if each is not None)
            return running_server.rescue(run.app, error, f"{action}({given})")
        if queue is None:
            raise InputError("Nothing is buffered.")
        with queue.stranded(name) as rows:
            return act(rows, queue)


def _rescued(found: Stranded) -> dict[str, object]:
    return {"table": found.table, "rows": found.rows, "buried": found.buried}


@letters.command(name="list")
def list_letters(
    table: Annotated[str | None, typer.Option(help="Only those of this table.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """List the rows that their tables refused, oldest first."""
    with command(home, as_json) as run:
        found = run.app.existing_lake.dead_letters(table=None if table is None else TableId.parse(table))
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
        found = run.app.existing_lake.dead_letters([letter_id])
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
    all_letters: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Put rows into their tables after all, say once a table has been changed; exit 1 when some are refused again."""
    with command(home, as_json) as run:
        if bool(ids) == all_letters:
            raise InputError("Which dead letters?", hint="Name ids, or say --all.")
        with events.context(user=whoami()):
            done = dead_letter_actions.retry(run.app.existing_lake, ids or None)
        lines = [f"Delivered {plural(len(done.delivered), 'row')}."]
        run.out.value(done, [*lines, *(f"Refused: {each}: {reason}" for each, reason in done.refused.items())])
        if done.refused:
            raise typer.Exit(EXIT_FAILED)


@letters.command()
def drop(
    ids: Ids,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, these rows are given up for good.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Give rows up for good; needs --yes, because nothing keeps them afterwards."""
    with command(home, as_json) as run:
        if not yes:
            raise InputError(
                f"{plural(len(set(ids)), 'dead letter')} would be gone for good.",
                hint="Look with `catchment queue dead-letters show ID`, then say the same with --yes.",
            )
        with events.context(user=whoami()):
            dropped = dead_letter_actions.drop(run.app.existing_lake, ids)
        run.out.value({"dropped": dropped}, [f"{plural(dropped, 'dead letter')} dropped."])


def _status(app: App) -> tuple[QueueStatus, DqCoordinator | None]:
    """The queue as it stands, by ourselves or by the server that has it open."""
    try:
        found = app.find_queue()
    except BufferHeldError as error:
        # Imported here, because it brings gRPC along.
        from catchment.cli import running_server

        return running_server.status(app, error), None
    return (_empty(app) if found is None else found.status()), found


def _flush(run: RunningCommand) -> tuple[FlushReport, DqCoordinator | None]:
    """Flush by ourselves, or have the server do so that has the buffer open."""

    def tell(done: TableFlush) -> None:
        run.out.say(f"  {_progress(done)}")

    try:
        found = run.app.find_queue()
    except BufferHeldError as error:
        from catchment.cli import running_server

        report = running_server.flush(run.app, error)
        for done in report.tables:
            tell(done)
        return report, None
    if found is None:
        return FlushReport(tables=(), seconds=0.0), None
    # Not made: with the wrong catalog, an empty lake would refuse every table.
    _ = run.app.existing_lake
    return found.force_flush_all(tell), found


def flush_lines(report: FlushReport) -> Iterator[str]:
    """A flush's report, for a person."""
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


def _empty(app: App) -> QueueStatus:
    """The status of a queue that has no buffer yet."""
    return QueueStatus(
        layout=app.settings.queue_layout,
        root=str(app.settings.queue_path),
        incarnation="",
        bytes=0,
        bytes_max=app.settings.queue_max_db_bytes,
        tables=(),
        set_aside=quarantine.found(app.settings.queue_path),
        at=app.clock.now(),
    )


def _notes(app: App, queue: DqCoordinator | None) -> Iterator[str]:
    """What else lies under the root, and is not counted."""
    root = app.settings.queue_path
    if app.settings.queue_layout == "sessions":
        active = SegmentFolders(root).names(SegmentState.ACTIVE) if queue else []
        if active:
            yield f"{plural(len(active), 'file')} being written by other processes, whose rows are not counted."
        if (root / FILE_NAME).exists():
            yield f"{root / FILE_NAME} is of the layout `shared`: to flush it, set DUCKLING_QUEUE_LAYOUT=shared."
    elif any(
        path.suffix == ".db"
        for state in (SegmentState.ACTIVE, SegmentState.SEALED)
        for path in (root / state).glob("*")
    ):
        yield f"{root} holds files of the layout `sessions`: to flush them, set DUCKLING_QUEUE_LAYOUT=sessions."


def _status_facts(queue: QueueStatus) -> dict[str, object]:
    return {
        "layout": queue.layout,
        "root": queue.root,
        "incarnation": queue.incarnation or None,
        "at": queue.at,
        "bytes": queue.bytes,
        "bytes_max": queue.bytes_max or None,
        "tables": [_table_facts(each, queue.at) for each in queue.tables],
        "set_aside": _aside_facts(queue.set_aside),
    }


def _aside_facts(found: Sequence[QuarantinedFile]) -> list[dict[str, object]]:
    return [{"path": each.path, "reason": each.reason, "inspect": _inspect(each)} for each in found]


def _aside_lines(found: Sequence[QuarantinedFile]) -> Iterator[str]:
    for each in found:
        yield f"SET ASIDE {each.path}: {each.reason}"
        yield f"  look into a copy of it: {_inspect(each)}"


def _table_facts(each: TableStatus, now: datetime) -> dict[str, object]:
    state, trouble = each.state, each.trouble
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
        "failures": trouble.failures if trouble else 0,
        "last_error": trouble.reason if trouble else None,
        "retry_at": trouble.retry_at if trouble else None,
    }


def _status_row(each: TableStatus, now: datetime) -> tuple[object, ...]:
    state, trouble = each.state, each.trouble
    return (
        state.table,
        f"{state.rows:,}",
        f"{state.bytes / 1e6:,.1f}",
        "-" if state.oldest_at is None else _age(now - state.oldest_at),
        # Segments are known to the ledger one by one; only a shared buffer is flushed up to a number.
        f"{state.seq_flushed:,} of {state.seq_last:,}" if state.sealed_rows is None else "-",
        "being flushed" if each.flushing else each.trigger or "-",
        trouble.reason if trouble else "-",
        f"{trouble.retry_at:%H:%M:%S} UTC" if trouble else "-",
    )


def _status_lines(queue: QueueStatus, notes: Sequence[str]) -> Iterator[str]:
    cap = f" of at most {queue.bytes_max / 1e6:,.1f} MB" if queue.bytes_max else ", without a cap"
    rows = sum(each.state.rows for each in queue.tables)
    yield f"Layout {queue.layout}, in {queue.root}: {plural(rows, 'row')} buffered, {queue.bytes / 1e6:,.1f} MB{cap}."
    if not queue.incarnation:
        yield "There is no buffer yet; the first write makes it."
    elif rows:
        yield "They are durable on this machine's disk, and not in the lake yet: `catchment queue flush`."
    yield from _aside_lines(queue.set_aside)
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


def _of_queue(report: AuditReport, notes: Sequence[str]) -> AuditReport:
    """The part of the lake's audit that is about the queue."""
    mine = tuple(each for each in report.producers if ProducerId.parse(each.producer).kind == KIND)
    tables = {f"{table} " for each in mine for table in each.tables}
    return AuditReport(
        producers=mine,
        findings=tuple(each for each in report.findings if ProducerId.parse(each.producer).kind == KIND),
        notes=(*(note for note in report.notes if note.startswith(tuple(tables))), *notes),
    )


def _compared(
    report: AuditReport, queue: DqCoordinator | None, states: Sequence[TableState]
) -> tuple[dict[TableId, int], list[AuditFinding]]:
    """What only the buffer has, by table; and what it has let go of although the lake does not have it."""
    watermarks = {each.producer: each.seq for each in report.producers}
    waiting: dict[TableId, int] = {}
    findings: list[AuditFinding] = []
    for state in states:
        rows = state.rows
        if queue is not None and state.sealed_rows is None:
            producer = str(queue.buffer.producer(state.table))
            seq = watermarks.get(producer, 0)
            rows = state.seq_last - max(seq, state.seq_flushed)
            if not state.seq_flushed <= seq <= state.seq_last:
                detail = (
                    f"the lake has {state.table} up to seq {seq}, the buffer has let go of it up to "
                    f"{state.seq_flushed} and ends at {state.seq_last}"
                )
                findings.append(AuditFinding(kind="buffer", producer=producer, detail=detail))
        if rows > 0:
            waiting[state.table] = rows
    return waiting, findings


def _audit_lines(
    report: AuditReport, buffered: Mapping[str, int] | None, put_aside: Sequence[QuarantinedFile]
) -> Iterator[str]:
    yield from audit_lines(report)
    if buffered is not None:
        for table, rows in buffered.items():
            yield f"{table}: {plural(rows, 'row')} still buffered."
        if not buffered:
            yield "Nothing is buffered."
    yield from _aside_lines(put_aside)
    if put_aside:
        yield "Acknowledged rows may be there and nowhere else. Remove the folder once you have seen to them."


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
    """A value of a row as JSON can hold it."""
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
