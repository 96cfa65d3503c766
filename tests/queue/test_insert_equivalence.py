"""INSERT INTO duckling_queue.t has the effect of INSERT INTO t on a twin, or fails as it does.

Every case of `tests.queue.insert_cases` is written in every way through the driver, in both
layouts, then read before the flush, after a restart, and after the flush.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as flight
import pytest

from catchment.errors import LakeUnavailableError
from catchment.foundation import faults
from catchment.foundation.settings import load_settings
from tests.queue.insert_cases import CHANGES, SHAPES, TYPES, WAYS, Case, write
from tests.queue.queues import LAYOUTS_ON_DISK
from tests.server import raw_client

STAGES = ("before the flush", "after a restart", "after the flush")
FIRST_WRITE, SECOND_WRITE = 0, 50


@dataclass(slots=True)
class Found:
    """The result of a case: errors by way, of queue and twin, and the rows of each stage."""

    errors: dict[tuple[str, int], tuple[str | None, str | None]] = field(default_factory=dict)
    rows: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)


def _away() -> None:
    raise LakeUnavailableError("The lake is away.")


class Matrix:
    """Several cases in one server, written in every way and read at every stage."""

    def __init__(self, home: Path, layout: str, cases: Sequence[Case]) -> None:
        self._cases = cases
        self._settings = load_settings(
            home=home, server_port=0, server_web_port=0, queue_layout=layout, queue_flush_interval_seconds=3_600,
            queue_rotate_interval_seconds=3_600, lake_threads_max=1,
        )  # fmt: skip
        self.found = {case.name: Found() for case in cases}
        # A server that ends flushes what it has; this one cannot, so that the next one finds it in
        # the buffer.
        with faults.armed("deliver.before_write", _away), self._cursor() as cursor:
            for number, case in enumerate(self._cases):
                self._make(cursor, case, number)
            self._read_all(cursor, STAGES[0])
        with self._cursor() as cursor:
            buffered = cursor.execute("CALL duckling_queue_status()").fetch_arrow_table()
            assert sum(buffered["rows"].to_pylist()) > 0
            self._read_all(cursor, STAGES[1])
            cursor.execute("CALL duckling_queue_flush()").fetchall()
            self._read_all(cursor, STAGES[2], fresh=False)

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with (
            raw_client.server(self._settings) as running,
            flight.connect(running.uri, autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            self._lake = running.app.lake
            yield cursor

    def _alter(self, statements: tuple[str, ...], names: tuple[str, str]) -> None:
        for statement in statements:
            for name in names:
                with self._lake.write() as connection:
                    connection.execute(statement.replace("{}", name))

    def _make(self, cursor: Any, case: Case, number: int) -> None:
        names = (f"t{number}", f"twin{number}")
        created = f"CREATE TABLE {{}} (k INTEGER, {case.column} {case.type}{case.more})"
        self._alter((created, *case.after_create), names)
        self._write_both(cursor, case, names, FIRST_WRITE)
        if case.between:
            self._alter(case.between, names)
            self._write_both(cursor, case, names, SECOND_WRITE)

    def _write_both(self, cursor: Any, case: Case, names: tuple[str, str], first: int) -> None:
        for at, way in enumerate(WAYS):
            errors = tuple(
                write(cursor, case, way, queue=queue, table=table, first=100 * at + first)
                for queue, table in zip(("duckling_queue", ""), names, strict=True)
            )
            self.found[case.name].errors[way, first] = (errors[0], errors[1])

    def _read_all(self, cursor: Any, stage: str, *, fresh: bool = True) -> None:
        for number, case in enumerate(self._cases):
            place = "catchment_fresh." if fresh else ""
            self.found[case.name].rows[stage] = (
                self._rows(cursor, f"{place}t{number}"),
                self._rows(cursor, f"twin{number}"),
            )

    @staticmethod
    def _rows(cursor: Any, table: str) -> list[str]:
        # As text: Python has no value for some dates, and NaN is not itself.
        found = cursor.execute(f"SELECT t::VARCHAR FROM {table} t").fetch_arrow_table()
        return sorted(str(row) for row in found.column(0).to_pylist())


# Each is made once, in a server of its own, and tells of all that differs.
@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
@pytest.mark.parametrize("cases", [TYPES, SHAPES, CHANGES], ids=["types", "shapes", "changes"])
def test_an_insert_into_the_queue_gives_the_table_what_an_insert_into_the_table_gives_its_twin(
    cases: Sequence[Case], layout: str, tmp_path: Path
) -> None:
    matrix = Matrix(tmp_path, layout, cases)
    wrong = {
        (case.name, way, first): errors
        for case in cases
        for (way, first), errors in matrix.found[case.name].errors.items()
        if (errors[0] is None) != (errors[1] is None)
    }
    assert not wrong
    different = {
        (case.name, stage): rows
        for case in cases
        for stage, rows in matrix.found[case.name].rows.items()
        if rows[0] != rows[1]
    }
    assert not different
    assert all(set(matrix.found[case.name].rows) == set(STAGES) for case in cases)
