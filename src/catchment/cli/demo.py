"""`catchment demo`: the main job on embedded defaults, small enough to watch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from catchment import events, files, sql
from catchment.cli.context import AsJson, Command, Home, command
from catchment.cli.lake import audit_lines, create_table, report_lines
from catchment.events import Event
from catchment.ids import TableId, new_job_id
from catchment.lake import extensions
from catchment.pipeline import ParquetFiles

_TABLE = TableId("demo", "events")
_EVENTS = """
SELECT {n} * {rows} + i AS id,
       TIMESTAMP '2026-01-01' + to_seconds({n} * 600 + i) AS at,
       ['click', 'view', 'buy', 'leave'][1 + (hash(i) % 4)::INT] AS kind,
       (hash(i * 31 + {n}) % 10000) / 100 AS amount
FROM range({rows}) r(i)
"""


def demo(
    *,
    count: Annotated[int, typer.Option(help="Small Parquet files to make.", min=1, max=10_000)] = 60,
    rows: Annotated[int, typer.Option(help="Rows in each.", min=1, max=1_000_000)] = 100,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Make a lake, deliver small Parquet files through Spark, and look at them there."""
    with command(home, as_json) as run, events.listening(lambda event: _tell(run, event)):
        lake, settings = run.app.lake, run.app.settings
        run.out.step(f"A lake: catalog {lake.address.catalog}, data in {lake.address.data_path}")
        folder = settings.home / "demo" / new_job_id(run.app.clock)
        source = ParquetFiles(list(_make(folder, count, rows)), _TABLE)
        run.out.step(f"{count} small Parquet files with {rows} rows each, in {folder}")
        if lake.find_table(_TABLE) is None:
            create_table(run.app, source)
        deliverer = run.app.deliverer()
        plan = deliverer.plan(source)
        run.out.step("The plan: " + " ".join(plan.explain()))
        first = deliverer.deliver(plan, source.retire)
        run.out.step(f"The delivery: {' '.join(report_lines(first))}")
        again = deliverer.run(source)
        run.out.step(f"The same again, as after a crash: {' '.join(report_lines(again))}")
        audit = lake.audit()
        run.out.step(f"The audit: {' '.join(audit_lines(audit))}")
        with lake.cursor() as cursor:
            query = (
                f"SELECT kind, count(*) AS n, round(sum(amount), 2) AS total FROM {_TABLE} GROUP BY ALL ORDER BY kind"
            )
            found = cursor.execute(query).fetchall()
        run.out.table(f"{query};", ["kind", "n", "total"], found)
        run.out.value(
            {"table": _TABLE, "first": first, "again": again, "audit_ok": audit.ok, "rows": found},
            _where_to_look(run, plan.target.folder),
        )


def _make(folder: Path, count: int, rows: int) -> Iterator[Path]:
    files.make_folder(folder)
    with extensions.connect() as connection:
        for n in range(count):
            path = folder / f"{n:04d}.parquet"
            query = _EVENTS.format(n=n, rows=rows)
            connection.execute(f"COPY ({query}) TO {sql.literal(str(path))} (FORMAT parquet)")
            yield path


def _tell(run: Command, event: Event) -> None:
    match event.verb:
        case "spark_starting":
            run.out.say(f"  Spark starts on {event.facts['master']} (its log: {event.facts['log']}) …")
        case "spark_started":
            run.out.say(f"  Spark {event.facts['version']} is up.")


def _where_to_look(run: Command, table_folder: str) -> Iterator[str]:
    yield f"Parquet files of {_TABLE}: {table_folder}"
    yield f"Prove it again:           catchment lake audit --home {run.app.settings.home}"
    yield f"Keep it in shape:         catchment lake maintain --dry-run --home {run.app.settings.home}"
    yield "Deliver files of yours:   catchment lake deliver TABLE FILES… --create"
