"""`catchment lake`: deliver into the lake, prove it, keep it in shape."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from catchment.cli.context import AsJson, Home, command
from catchment.cli.output import Output
from catchment.errors import EXIT_FAILED, InputError
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake import AuditReport, MaintenanceReport
from catchment.lake.commit import CreateTable, refuse_ledger
from catchment.pipeline import DeliveryReport, Mode, ParquetFiles, Plan, Retirement, target_table
from catchment.pipeline.parquet_source import find_files, hive_keys
from catchment.pipeline.plan import plural

group = typer.Typer(help="Deliver into the lake, audit it, keep it in shape.", no_args_is_help=True)


@group.command()
def deliver(
    table: Annotated[str, typer.Argument(help="`table` or `schema.table`.")],
    paths: Annotated[list[str], typer.Argument(help="Parquet files, or folders that hold some.")],
    *,
    mode: Annotated[
        Mode, typer.Option(help="Adopt files as they are, rewrite them, insert their rows, or judge.")
    ] = Mode.AUTO,
    retire: Annotated[Retirement, typer.Option(help="What becomes of a delivered file.")] = Retirement.KEEP,
    create: Annotated[bool, typer.Option("--create", help="Create the table from the files if it is missing.")] = False,
    partition_by: Annotated[str, typer.Option(help="With --create: columns to partition by, with commas.")] = "",
    digests: Annotated[bool, typer.Option("--digests", help="Read adopted files to the end and digest them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; change nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Deliver Parquet files into a table, each exactly once, however often this is run."""
    with command(home, as_json) as run:
        files, wanted, keys = find_files(paths), TableId.parse(table), _names(partition_by)
        refuse_ledger(wanted)
        _remark(run.out, files)
        lake = run.app.find_lake()
        found = None if lake is None else target_table.find_table(lake, wanted)
        if found is not None:
            target_table.require_partitioning(found, keys)
        else:
            change = _draft(wanted, files, keys, create=create)
            # Planned before it is made: what the plan refuses leaves no table behind.
            drafted = target_table.drafted(change, encrypted=lake is not None and lake.is_encrypted())
            plan = run.app.planner().plan_new(ParquetFiles(files, wanted), drafted, mode)
            if dry_run:
                _show_new(run.out, change, plan)
                return
            found = target_table.make_table(run.app.lake, change)
        source = ParquetFiles(files, found.id, retirement=retire)
        # Preparing a lake that another program made would be a change.
        deliverer = run.app.planner() if dry_run else run.app.deliverer()
        plan = deliverer.plan(source, mode)
        if dry_run:
            run.out.value(_plan_facts(plan), plan.explain())
            return
        for line in plan.explain():
            run.out.say(line)
        report = deliverer.deliver(plan, source.retire, digests=digests)
        run.out.value(report, report_lines(report))
        if not report.ok:
            raise typer.Exit(EXIT_FAILED)


@group.command()
def audit(
    producer: Annotated[str | None, typer.Option(help="Only this producer.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Prove that every unit was delivered exactly once; exit 1 on a finding."""
    with command(home, as_json) as run:
        report = run.app.audit(None if producer is None else ProducerId.parse(producer))
        run.out.table(
            "Producers",
            ["producer", "epoch", "seq", "units", "rows", "tables"],
            [(p.producer, p.epoch, p.seq, p.units, f"{p.rows:,}", ", ".join(p.tables)) for p in report.producers],
        )
        run.out.value({"ok": report.ok, **_fields(report)}, audit_lines(report))
        if not report.ok:
            raise typer.Exit(EXIT_FAILED)


@group.command()
def maintain(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the same steps; change nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Merge small files, expire old snapshots, delete what nothing refers to; safe beside running deliveries."""
    with command(home, as_json) as run:
        report = run.app.maintain(dry_run=dry_run)
        run.out.value(report, _upkeep_lines(report))
        if not report.ok:
            raise typer.Exit(EXIT_FAILED)


def report_lines(report: DeliveryReport) -> Iterator[str]:
    """A delivery's report, for a person."""
    yield (
        f"Delivered {plural(report.delivered, 'unit')}, {plural(report.rows, 'row')}, in "
        f"{plural(report.files, 'file')} ({report.bytes / 1e6:,.1f} MB) to {report.table}; "
        f"{plural(report.skipped, 'unit')} there already."
    )
    if report.insert_reason is not None:
        yield f"The rows were inserted, because {report.insert_reason}."
    for failure in report.failures:
        yield f"Failed: {failure.reason}"


def audit_lines(report: AuditReport) -> Iterator[str]:
    """An audit's result, for a person."""
    for finding in report.findings:
        yield f"FINDING {finding.kind}: {finding.producer}: {finding.detail}"
    for note in report.notes:
        yield f"note: {note}"
    units = sum(producer.units for producer in report.producers)
    rows = sum(producer.rows for producer in report.producers)
    verdict = "every one exactly once" if report.ok else plural(len(report.findings), "finding")
    yield f"{plural(units, 'unit')}, {plural(rows, 'row')}: {verdict}."


def _fields(report: AuditReport) -> dict[str, object]:
    return {"producers": report.producers, "findings": report.findings, "notes": report.notes}


def _upkeep_lines(report: MaintenanceReport) -> Iterator[str]:
    for step in report.steps:
        yield f"{step.name:8} {step.subject:24} {step.count:6} {step.unit}"
        if step.error is not None:
            yield f"Failed: {step.error}"
    if not report.done:
        yield "Nothing was changed."


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if "" in names:
        raise InputError(f"--partition-by {text!r} has an empty name in it.", hint="Write it as `day,kind`.")
    return names


def _remark(out: Output, files: Sequence[Path]) -> None:
    if not files:
        out.say("There is no Parquet file at the paths given.")
    keys = hive_keys(files)
    if keys:
        out.say(
            f"Folders such as `{keys[0]}=…` are not read as columns. "
            f"`catchment legacy plan --tree DIR --keys {','.join(keys)}` imports such a tree with them."
        )


def _draft(wanted: TableId, files: Sequence[Path], keys: tuple[str, ...], *, create: bool) -> CreateTable:
    if not create:
        raise InputError(f"The lake has no table {wanted}.", hint="Add --create to make it from the files.")
    if not files:
        raise InputError(
            f"The lake has no table {wanted}, and there is no Parquet file to make it from.",
            hint="Name files, or folders that hold some.",
        )
    return target_table.draft(ParquetFiles(files, wanted), keys)


def _show_new(out: Output, change: CreateTable, plan: Plan) -> None:
    """The plan of a delivery into a table that is not there yet."""
    columns = [f"{column.name} {column.type}" for column in change.columns]
    keys = [key.column for key in change.partition_by]
    split = f", partitioned by {', '.join(keys)}" if keys else ""
    out.value(
        {"create": columns, "partition_by": keys, **_plan_facts(plan)},
        [f"Table {change.table} would be created: {', '.join(columns)}{split}.", *plan.explain()],
    )


def _plan_facts(plan: Plan) -> dict[str, object]:
    return {
        "table": plan.target.id,
        "mode": plan.mode,
        "insert_reason": plan.insert_reason,
        "units": sum(len(batch.units) for batch in plan.batches),
        "delivered_already": len(plan.delivered),
        "bytes": sum(unit.bytes for batch in plan.batches for unit in batch.units),
        "commits": len(plan.batches),
        "tasks": [
            {"mode": stint.mode, "files": len(stint.parts), "bytes": stint.bytes}
            for batch in plan.batches
            for stint in batch.stints
        ],
    }
