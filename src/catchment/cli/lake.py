"""`catchment lake`: deliver files, audit, maintain."""

from collections.abc import Iterator
from typing import Annotated

import typer

from catchment.api.lake import FileDelivery
from catchment.cli.context import AsJson, Home, command
from catchment.cli.output import Output
from catchment.errors import EXIT_FAILED, InputError
from catchment.foundation.ids import TableId
from catchment.foundation.text import plural
from catchment.lake import AuditReport, MaintenanceReport
from catchment.lake.commit import CreateTable
from catchment.pipeline import DeliveryReport, Mode, Plan, Retirement

group = typer.Typer(help="Deliver files into the lake; audit and maintain it.", no_args_is_help=True)


@group.command()
def deliver(
    table: Annotated[str, typer.Argument(help="Table: `table` or `schema.table`.")],
    paths: Annotated[list[str], typer.Argument(help="Parquet files, or folders that contain some.")],
    *,
    mode: Annotated[
        Mode, typer.Option(help="Adopt files as they are, rewrite them, insert their rows, or choose automatically.")
    ] = Mode.AUTO,
    retire: Annotated[Retirement, typer.Option(help="Treatment of delivered files.")] = Retirement.KEEP,
    create: Annotated[bool, typer.Option("--create", help="Create the table from the files if it is missing.")] = False,
    partition_by: Annotated[str, typer.Option(help="With --create: partition columns, separated by commas.")] = "",
    digests: Annotated[
        bool, typer.Option("--digests", help="Read adopted files to the end and record their digests.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Deliver Parquet files into a table, each exactly once, however often this is run."""
    with command(home, as_json) as run:
        delivery = run.catchment.lake.delivery(
            TableId.parse(table), paths, mode=mode, retire=retire, create=create, partition_by=_names(partition_by)
        )
        _remark(run.out, delivery)
        if dry_run:
            plan, change = delivery.preview()
            facts, lines = ({}, []) if change is None else _new_table(change)
            run.out.value({**facts, **_plan_facts(plan)}, [*lines, *plan.explain()])
            return

        def show(plan: Plan) -> None:
            for line in plan.explain():
                run.out.say(line)

        report = delivery.run(digests=digests, on_plan=show)
        run.out.value(report, report_lines(report))
        if not report.ok:
            raise typer.Exit(EXIT_FAILED)


@group.command()
def audit(
    producer: Annotated[str | None, typer.Option(help="Producer to audit; default: all.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Prove that every unit was delivered exactly once; exit 1 on a finding."""
    with command(home, as_json) as run:
        report = run.catchment.lake.audit(producer)
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Merge small files, expire old snapshots, delete unreferenced files; safe during deliveries."""
    with command(home, as_json) as run:
        report = run.catchment.lake.maintain(dry_run=dry_run)
        run.out.value(report, _maintenance_lines(report))
        if not report.ok:
            raise typer.Exit(EXIT_FAILED)


def report_lines(report: DeliveryReport) -> Iterator[str]:
    """Describe a delivery's report."""
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
    """Describe an audit's result."""
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


def _maintenance_lines(report: MaintenanceReport) -> Iterator[str]:
    for step in report.steps:
        yield f"{step.name:8} {step.subject:24} {step.count:6} {step.unit}"
        if step.error is not None:
            yield f"Failed: {step.error}"
    if not report.done:
        yield "Nothing was changed."


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if "" in names:
        raise InputError(f"--partition-by {text!r} contains an empty name.", hint="Write it as `day,kind`.")
    return names


def _remark(out: Output, delivery: FileDelivery) -> None:
    if not delivery.files:
        out.say("There is no Parquet file at the paths given.")
    keys = delivery.hive_keys
    if keys:
        out.say(
            f"Folders such as `{keys[0]}=…` are not read as columns. "
            f"`catchment legacy plan --tree DIR --keys {','.join(keys)}` imports such a tree with them."
        )


def _new_table(change: CreateTable) -> tuple[dict[str, object], list[str]]:
    """Describe the table that a delivery would create first."""
    columns = [f"{column.name} {column.type}" for column in change.columns]
    keys = [key.column for key in change.partition_by]
    split = f", partitioned by {', '.join(keys)}" if keys else ""
    line = f"Table {change.table} would be created: {', '.join(columns)}{split}."
    return {"create": columns, "partition_by": keys}, [line]


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
            {"mode": task.mode, "files": len(task.parts), "bytes": task.bytes}
            for batch in plan.batches
            for task in batch.tasks
        ],
    }
