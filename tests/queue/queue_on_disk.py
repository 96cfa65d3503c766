"""Scenes for every layout of the buffer and the model: a lake, a coordinator, and a clock that stands still."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from catchment.errors import LakeUnavailableError
from catchment.foundation import faults, sql
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline import Deliverer
from catchment.pipeline.flush import FILE_BYTES_MIN, FlushPipeline
from catchment.queue import Ack, Buffer, DqCoordinator, open_buffer
from catchment.testing import FakeClock, InlineRunner, ModelBuffer, ModelDisk
from tests.sample_events import EVENTS
from tests.shortcuts.made_lakes import CATALOGS

LAYOUTS = ("model", "shared", "sessions")
# Every layout with the default catalog, and every catalog under the default layout: a buffer knows nothing of the
# lake's catalog. All the others have their time in the long campaigns.
LAYOUTS_AND_CATALOGS = [
    pytest.param(layout, catalog, marks=() if layout == "shared" or catalog == "sqlite" else pytest.mark.soak)
    for layout in LAYOUTS
    for catalog in CATALOGS
]
OTHER = TableId("main", "other")

MakeQueue = Callable[..., "QueueScene"]
Row = tuple[Any, ...]


class Killed(BaseException):
    """What a test raises where a power cut would end the process."""


def die() -> None:
    raise Killed


class FallibleLake(Lake):
    """A lake that can be cut off: while it is `down`, nothing of it can be reached."""

    down = False

    def _bare_cursor(self) -> duckdb.DuckDBPyConnection:
        if self.down:
            raise LakeUnavailableError("The lake is down.")
        return super()._bare_cursor()


class QueueScene:
    """A queue with everything around it; `open` starts it, and starts it again from what is on the disk."""

    def __init__(self, layout: str, settings: Settings) -> None:
        self.layout = layout
        self.settings = settings
        self.clock = FakeClock()
        self.lake = FallibleLake.from_settings(settings, clock=self.clock)
        self.lake.open()
        self._disk = ModelDisk()
        self._buffers: list[Buffer] = []
        self._crashes = 0
        self.buffer: Buffer
        self.coordinator: DqCoordinator
        self.open()

    def open(self) -> None:
        """Open the buffer, and put a coordinator that knows nothing in front of it."""
        self.buffer = self.open_buffer()
        self._buffers.append(self.buffer)
        self.coordinator = DqCoordinator(
            buffer=self.buffer,
            lake=self.lake,
            flusher=self.pipeline(self.buffer),
            settings=self.settings,
            clock=self.clock,
        )

    def open_buffer(self) -> Buffer:
        if self.layout == "model":
            return ModelBuffer(clock=self.clock, chunk_rows=self.settings.queue_flush_chunk_rows, disk=self._disk)
        return open_buffer(self.settings, clock=self.clock)

    def pipeline(self, buffer: Buffer) -> FlushPipeline:
        return FlushPipeline(
            Deliverer(self.lake, InlineRunner(), self.settings, file_bytes_min=FILE_BYTES_MIN),
            buffer,
        )

    def reopen(self) -> None:
        """Stop in good order, and start again."""
        self.stop()
        self.open()

    def crash(self) -> None:
        """Start again from what a power cut at this moment would leave: the files as they lie there, WALs included."""
        if self.layout != "model":
            self._crashes += 1
            root = self.settings.home / f"queue-after-crash-{self._crashes}"
            shutil.copytree(self.settings.queue_path, root)
            self.settings = self.settings.model_copy(update={"queue_root": root})
        self.open()

    def wipe(self) -> None:
        """Stop, lose everything that is buffered, and start again on an empty disk."""
        self.stop()
        self._disk = ModelDisk()
        shutil.rmtree(self.settings.queue_path, ignore_errors=True)
        self.open()

    def close(self) -> None:
        for buffer in self._buffers:
            buffer.close()
        self.lake.close()

    def write(self, ids: range, table: TableId = EVENTS, *, session: str = "default") -> Ack:
        """Have events with these ids acknowledged."""
        return self.coordinator.enqueue(table, events_of(ids), session=session)

    def write_unbound(self, ids: range, table: TableId = EVENTS) -> Ack:
        """Have events acknowledged as before writes were bound to tables: these go by their names."""
        columns = tuple(column.unbound for column in self.coordinator.columns(table))
        return self.buffer.append(table, columns, events_of(ids), session="default")

    def sql(self, statement: str) -> None:
        """Change the lake behind the queue's back."""
        with self.lake.write() as connection:
            connection.execute(statement)

    def lake_rows(self, table: TableId = EVENTS) -> Counter[Row]:
        """What the lake has, each row with how often it is there."""
        with self.lake.cursor() as cursor:
            return Counter(cursor.execute(f"FROM {sql.qualified(table.schema, table.name)}").fetchall())

    def fresh_rows(self, table: TableId = EVENTS) -> Counter[Row]:
        """What a fresh read gives, each row with how often it is there."""
        with self.coordinator.fresh(table) as fresh:
            return Counter(fresh.connection.execute(fresh.queries[table]).fetchall())

    def held_rows(self, table: TableId = EVENTS) -> int:
        """How many rows are buffered."""
        return sum(each.rows.num_rows for each in self.buffer.held(table))

    def stop(self) -> None:
        """Stop in good order."""
        self.buffer.close()
        self._buffers.remove(self.buffer)


def events_of(ids: range) -> pa.Table:
    """Rows for the table of events."""
    return pa.table({"id": pa.array(ids, pa.int64()), "kind": pa.array([f"k{number}" for number in ids], pa.string())})


def once_each(*ids: range) -> Counter[Row]:
    """Those events as they are read, each once."""
    return Counter((number, f"k{number}") for some in ids for number in some)


def arrow(query: str) -> pa.Table:
    """What the query returns, in Arrow that loses nothing of DuckDB's types."""
    with duckdb.connect(config={"arrow_lossless_conversion": "true"}) as connection:
        return connection.execute(query).to_arrow_table()


def difference(connection: duckdb.DuckDBPyConnection, one: str, other: str) -> list[Row]:
    """Rows that one of two queries returns and the other does not, as DuckDB compares them: NaN equals NaN."""
    return [
        row
        for left, right in ((one, other), (other, one))
        for row in connection.execute(f"({left}) EXCEPT ALL ({right})").fetchall()
    ]


def assert_delivered(queue: QueueScene, *ids: range, table: TableId = EVENTS) -> None:
    """The lake has those events, each once, nothing is buffered any more, and the audit agrees."""
    assert queue.lake_rows(table) == once_each(*ids)
    assert queue.fresh_rows(table) == once_each(*ids)
    assert queue.held_rows(table) == 0
    assert_audited(queue)


def assert_audited(queue: QueueScene) -> None:
    report = queue.lake.audit()
    assert report.ok, report.findings


@contextmanager
def watched(point: str, look: Callable[[], None]) -> Iterator[list[str]]:
    """Run `look` whenever the point is reached; the list that it gives tells how often that was."""
    reached: list[str] = []

    def action() -> None:
        reached.append(point)
        look()

    with faults.armed(point, action):
        yield reached
