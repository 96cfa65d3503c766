"""`catchment demo`: the main jobs on embedded defaults, small enough to watch."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from catchment import files, sql
from catchment.app import App
from catchment.cli.context import AsJson, Command, Home, command, telling_of_spark
from catchment.cli.lake import audit_lines, create_table, report_lines
from catchment.cli.queue import flush_lines
from catchment.ids import TableId, new_job_id
from catchment.lake import Commit, extensions
from catchment.lake.commit import CreateTable
from catchment.lake.types import Column
from catchment.pipeline import ParquetFiles

_TABLE = TableId("demo", "events")
_QUEUED = TableId("demo", "readings")
_QUEUED_COLUMNS = (
    Column(name="writer", type="VARCHAR"),
    Column(name="reading", type="BIGINT"),
    Column(name="celsius", type="DOUBLE"),
)
_WRITERS = ("kitchen", "cellar")
_ROWS_A_WRITE = 5
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
    writes: Annotated[
        int, typer.Option(help="Small writes to the queue by each of two threads.", min=1, max=100_000)
    ] = 200,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Make a lake, deliver small Parquet files and small writes through Spark, and look at them there."""
    with command(home, as_json) as run, telling_of_spark(run.out):
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
        queued = _queue(run, writes)
        audit = lake.audit()
        run.out.step(f"The audit: {' '.join(audit_lines(audit))}")
        with lake.cursor() as cursor:
            query = (
                f"SELECT kind, count(*) AS n, round(sum(amount), 2) AS total FROM {_TABLE} GROUP BY ALL ORDER BY kind"
            )
            found = cursor.execute(query).fetchall()
        run.out.table(f"{query};", ["kind", "n", "total"], found)
        run.out.value(
            {"table": _TABLE, "first": first, "again": again, "queue": queued, "audit_ok": audit.ok, "rows": found},
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


def _queue(run: Command, writes: int) -> dict[str, object]:
    """Small writes through the queue: seen at once, and in the lake as one file after the flush."""
    app, clock = run.app, run.app.clock
    if app.lake.find_table(_QUEUED) is None:
        change = CreateTable(table=_QUEUED, columns=_QUEUED_COLUMNS)
        app.lake.commit(Commit(message=f"create {_QUEUED}", changes=(change,)))
    # Flushes what an earlier demo may have left, so that this one's numbers are its own.
    app.queue.force_flush_all()
    before = _count(app)
    started_s = clock.monotonic_s()
    with ThreadPoolExecutor(len(_WRITERS)) as threads:
        rows = sum(threads.map(lambda writer: _write(app, writer, writes), _WRITERS))
    seconds = clock.monotonic_s() - started_s
    run.out.step(
        f"The queue: {len(_WRITERS) * writes:,} writes of {_ROWS_A_WRITE} rows by {len(_WRITERS)} threads in "
        f"{seconds:.2f} s, each on the disk when it returned"
    )
    with app.queue.fresh(_QUEUED) as fresh:
        seen = fresh.rows().num_rows - before
    in_lake = _count(app) - before
    run.out.step(f"A fresh read, before any flush: {seen:,} rows are seen, {in_lake:,} of them in the lake")
    report = app.queue.force_flush_all()
    run.out.step(f"The flush: {' '.join(flush_lines(report))}")
    return {
        "table": _QUEUED,
        "rows": rows,
        "seconds": round(seconds, 3),
        "fresh": seen,
        "flushed": report.rows,
        "files": report.files,
        "in_lake": _count(app) - before,
    }


def _write(app: App, writer: str, writes: int) -> int:
    """One writer's share; returns the rows that were acknowledged."""
    first = range(0, writes * _ROWS_A_WRITE, _ROWS_A_WRITE)
    return sum(app.queue.enqueue(_QUEUED, _readings(writer, start), session=writer).rows for start in first)


def _readings(writer: str, start: int) -> pa.Table:
    numbers = range(start, start + _ROWS_A_WRITE)
    return pa.table(
        {"writer": [writer] * len(numbers), "reading": list(numbers), "celsius": [n % 100 / 4 for n in numbers]}
    )


def _count(app: App) -> int:
    with app.lake.cursor() as cursor:
        return int(cursor.execute(f"SELECT count(*) FROM {_QUEUED}").fetchall()[0][0])


def _where_to_look(run: Command, table_folder: str) -> Iterator[str]:
    yield f"Parquet files of {_TABLE}: {table_folder}"
    yield f"Prove it again:           catchment lake audit --home {run.app.settings.home}"
    yield f"See what is buffered:     catchment queue status --home {run.app.settings.home}"
    yield f"Keep it in shape:         catchment lake maintain --dry-run --home {run.app.settings.home}"
    yield "Deliver files of yours:   catchment lake deliver TABLE FILES… --create"
