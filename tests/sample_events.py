"""Sample events: files with known rows, a table for them, a deliverer, and checks of the result."""

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path

import duckdb

from catchment.foundation import sql
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.settings import Settings
from catchment.lake import Commit, Lake
from catchment.lake.commit import CreateTable
from catchment.lake.maintenance import Ages
from catchment.lake.tables import PartitionKey
from catchment.lake.types import Column
from catchment.pipeline import Deliverer, ParquetFiles, Unit
from catchment.pipeline.runner import Runner
from catchment.testing import InlineRunner

EVENTS = TableId("main", "events")
EVENT_COLUMNS = (Column(name="id", type="BIGINT"), Column(name="kind", type="VARCHAR"))
PRODUCER = ProducerId("test", "scene", "1")
NOW = Ages(snapshot=timedelta(0), orphan=timedelta(0))


class Units:
    """A source of units that the test has made itself."""

    producer = ProducerId("test", "units", "1")

    def __init__(self, *units: Unit, table: TableId = EVENTS) -> None:
        self._units = units
        self.table = table

    def units(self) -> tuple[Unit, ...]:
        return self._units

    def retire(self, unit: Unit) -> None:
        """Sources stay."""


def write_parquet(path: Path, query: str) -> Path:
    """A Parquet file with what the query returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _writer().cursor() as connection:
        connection.execute(f"COPY ({query}) TO {sql.literal(str(path))} (FORMAT parquet)")
    return path


@cache
def _writer() -> duckdb.DuckDBPyConnection:
    """One for all files: opening it takes longer than writing a small one."""
    return duckdb.connect(config={"threads": 1})


def event_files(folder: Path, count: int, rows: int = 10) -> list[Path]:
    """Files that together hold the ids 0 to count × rows - 1, each once."""
    return [
        write_parquet(
            folder / f"{n:05d}.parquet", f"SELECT {n * rows} + i AS id, 'k' || i AS kind FROM range({rows}) r(i)"
        )
        for n in range(count)
    ]


def create_table(
    lake: Lake, table: TableId = EVENTS, columns: tuple[Column, ...] = EVENT_COLUMNS, partition_by: tuple[str, ...] = ()
) -> None:
    keys = tuple(PartitionKey(column=name) for name in partition_by)
    change = CreateTable(table=table, columns=columns, partition_by=keys)
    lake.commit(Commit(message="create", changes=(change,)))


def deliverer(lake: Lake, settings: Settings, runner: Runner | None = None) -> Deliverer:
    return Deliverer(lake, runner or InlineRunner(), settings)


def rows_of(lake: Lake, query: str = f"SELECT id FROM {EVENTS} ORDER BY id") -> list[tuple[object, ...]]:
    with lake.cursor() as cursor:
        return cursor.execute(query).fetchall()


def assert_exactly_once(lake: Lake, count: int, rows: int = 10) -> None:
    """The lake holds the rows of `event_files(…, count, rows)`, each once, and the audit agrees."""
    assert rows_of(lake) == [(n,) for n in range(count * rows)]
    report = lake.audit()
    assert report.ok, report.findings
    assert not report.notes


def source_of(files: list[Path], table: TableId = EVENTS) -> ParquetFiles:
    return ParquetFiles(files, table)


def once(action: Callable[[], None]) -> Callable[[], None]:
    """An action for a crash point that is reached again by what the action does."""
    left = [action]
    return lambda: left.pop()() if left else None
