"""Queues for tests, in every layout, with rows of known ids.

`FACTS` lists what tests expect of each layout beyond the contract; a new layout is described there.
`QueueScene` can be stopped, crashed and started again, in each layout and in the model.
`open_queue` opens a queue as a process does. Both flush in this process, without Spark.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest

from catchment.errors import LakeUnavailableError
from catchment.foundation import faults, sql
from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline import Deliverer
from catchment.pipeline.flush import FILE_BYTES_MIN, FlushPipeline
from catchment.queue import Ack, Buffer, DqCoordinator, buffer_factory, open_buffer
from catchment.testing import FakeClock, InlineRunner, ModelBuffer, ModelDisk
from tests.queue.toy_buffer import ToyBuffer, ToyDisk
from tests.sample_events import EVENTS, rows_of
from tests.shortcuts.made_lakes import CATALOGS, put_lake

LAYOUTS_ON_DISK = tuple(buffer_factory.LAYOUTS)
LAYOUTS = ("model", "toy", *LAYOUTS_ON_DISK)
# Every layout with the default catalog, and every catalog under the default layout: a buffer knows
# nothing of the lake's catalog. All the others have their time in the long campaigns.
LAYOUTS_AND_CATALOGS = [
    pytest.param(layout, catalog, marks=() if layout == "shared" or catalog == "sqlite" else pytest.mark.soak)
    for layout in LAYOUTS
    for catalog in CATALOGS
]
OTHER = TableId("main", "other")

MakeQueue = Callable[..., "QueueScene"]
Row = tuple[Any, ...]


class Cut(Enum):
    """What one payload of a table contains, if its columns do not change."""

    SLICE = "at most `queue_flush_chunk_rows` rows"
    SESSION = "the rows of one session"
    WRITE = "the rows of one write"


class Delivered(Enum):
    """Where the rows of a flush are at a crash point, if another client has written meanwhile."""

    NOT_YET = "the lake has none of them"
    IN_BOTH = "the lake has rows that the buffer still has too"
    RELEASED = "the lake has rows that the buffer has released"
    COMMITTED = "the lake has rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPoint:
    """A crash point that not every layout has.

    `files` counts the files in folders of the buffer after a kill there, with the two clients of
    `tests.crash.queue_child`. If `by_writer`, a write reaches the point too.
    """

    name: str
    rows: Delivered
    by_writer: bool = False
    files: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFacts:
    """What tests expect of a layout beyond the contract of `Buffer`.

    `has_watermark` and `separates_sessions` are as in the contract. If `ready_at_once`, rows can be
    delivered without being sealed. If `several_processes`, they may open one root. Events of a
    flush name the numbers of its rows if the layout has a watermark; otherwise `segment`, or the
    file of the event `segment_sealed` if that is empty.

    The rest is for layouts on disk. `data_file` is a file that the layout looks for, relative to
    the root. If `opens_at_start`, a process opens it before its first write, otherwise a flush
    does. `drained_folders` are empty after everything is flushed. `postgres_point` is the crash
    point before delivery at which a process on a PostgreSQL catalog is killed.
    """

    cut: Cut
    has_watermark: bool = False
    separates_sessions: bool = False
    ready_at_once: bool = False
    has_replication: bool = False
    several_processes: bool = False
    segment: str = ""
    data_file: str = ""
    opens_at_start: bool = False
    drained_folders: tuple[str, ...] = ()
    own_points: tuple[OwnPoint, ...] = ()
    postgres_point: str = "queue.before_ack"

    def own_point(self, name: str) -> OwnPoint | None:
        """Return the layout's own crash point of that name, or None."""
        return next((point for point in self.own_points if point.name == name), None)

    def payloads(self, *, rows: int, chunk_rows: int, sessions: int, writes: int) -> int:
        """Return how many payloads of one table all these rows make."""
        return {Cut.SLICE: -(-rows // chunk_rows), Cut.SESSION: sessions, Cut.WRITE: writes}[self.cut]


FACTS: dict[str, LayoutFacts] = {
    "model": LayoutFacts(cut=Cut.SLICE, has_watermark=True, ready_at_once=True),
    "toy": LayoutFacts(cut=Cut.WRITE, separates_sessions=True, ready_at_once=True, segment="memory"),
    "shared": LayoutFacts(
        cut=Cut.SLICE,
        has_watermark=True,
        ready_at_once=True,
        has_replication=True,
        data_file="buffer.duckdb",
        opens_at_start=True,
        own_points=(
            OwnPoint(name="queue.after_settle", rows=Delivered.NOT_YET, by_writer=True),
            OwnPoint(name="queue.before_retire", rows=Delivered.IN_BOTH),
        ),
    ),
    "sessions": LayoutFacts(
        cut=Cut.SESSION,
        separates_sessions=True,
        several_processes=True,
        data_file="sealed/duckling_queue_01234567-89ab-cdef-0123-456789abcdef_1767225600.db",
        drained_folders=("active", "sealed"),
        own_points=(
            # One file is closed and has no WAL any more, the other is being written.
            OwnPoint(name="queue.before_seal", rows=Delivered.NOT_YET, files={"active": 3, "sealed": 0, "flushed": 0}),
            OwnPoint(name="queue.after_seal", rows=Delivered.NOT_YET, files={"sealed": 1, "flushed": 0}),
            OwnPoint(name="queue.before_flushed", rows=Delivered.RELEASED, files={"sealed": 2, "flushed": 0}),
        ),
        postgres_point="queue.before_seal",
    ),
}
OWN_POINTS = frozenset(point.name for facts in FACTS.values() for point in facts.own_points)


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
    """A queue with its lake and clock; `open` starts it, or starts it again from disk."""

    def __init__(self, layout: str, settings: Settings) -> None:
        self.layout = layout
        self.settings = settings
        self.clock = FakeClock()
        self.lake = FallibleLake.from_settings(settings, clock=self.clock)
        self.lake.open()
        self._disk = ModelDisk()
        self._toy_disk = ToyDisk()
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
        if self.layout == "toy":
            return ToyBuffer(clock=self.clock, disk=self._toy_disk)
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
        """Start again from the files that a power cut would leave, WALs included."""
        if self.layout not in ("model", "toy"):
            self._crashes += 1
            root = self.settings.home / f"queue-after-crash-{self._crashes}"
            shutil.copytree(self.settings.queue_path, root)
            self.settings = self.settings.model_copy(update={"queue_root": root})
        self.open()

    def wipe(self) -> None:
        """Stop, lose everything that is buffered, and start again on an empty disk."""
        self.stop()
        self._disk, self._toy_disk = ModelDisk(), ToyDisk()
        shutil.rmtree(self.settings.queue_path, ignore_errors=True)
        self.open()

    def close(self) -> None:
        for buffer in self._buffers:
            buffer.close()
        self.lake.close()

    def write(self, ids: range, table: TableId = EVENTS, *, session: str = "default") -> Ack:
        """Have events with these ids acknowledged."""
        return self.coordinator.enqueue(table, event_rows(ids), session=session)

    def write_unbound(self, ids: range, table: TableId = EVENTS) -> Ack:
        """Have events acknowledged as before writes were bound to tables: these go by their names."""
        columns = tuple(column.unbound for column in self.coordinator.columns(table))
        return self.buffer.append(table, columns, event_rows(ids), session="default")

    def sql(self, statement: str) -> None:
        """Change the lake without the queue."""
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
        return sum(each.rows.num_rows for each in self.buffer.buffered_rows(table))

    def stop(self) -> None:
        """Stop in good order."""
        self.buffer.close()
        self._buffers.remove(self.buffer)


def once_each(*ids: range) -> Counter[Row]:
    """Those events as they are read, each once."""
    return Counter((number, f"k{number}") for some in ids for number in some)


def arrow(query: str) -> pa.Table:
    """What the query returns, in Arrow that loses nothing of DuckDB's types."""
    with duckdb.connect(config={"arrow_lossless_conversion": "true"}) as connection:
        return connection.execute(query).to_arrow_table()


def difference(connection: duckdb.DuckDBPyConnection, one: str, other: str) -> list[Row]:
    """Rows that only one of two queries returns, as DuckDB compares them: NaN equals NaN."""
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


def coordinator(settings: Settings, lake: Lake, buffer: Buffer, *, clock: Clock | None = None) -> DqCoordinator:
    """A queue whose flushes run in this process."""
    return DqCoordinator(
        buffer=buffer,
        lake=lake,
        flusher=FlushPipeline(Deliverer(lake, InlineRunner(), settings), buffer),
        settings=settings,
        clock=clock or SystemClock(),
    )


@contextmanager
def open_queue(settings: Settings, *, clock: Clock | None = None) -> Iterator[DqCoordinator]:
    """The queue that the settings name, on a lake of its own."""
    with Lake.from_settings(settings, clock=clock) as lake:
        buffer = open_buffer(settings, clock=clock or SystemClock())
        try:
            yield coordinator(settings, lake, buffer, clock=clock)
        finally:
            buffer.close()


@contextmanager
def new_queue(settings: Settings, *, clock: Clock | None = None) -> Iterator[DqCoordinator]:
    """The same on a new lake with a table of events."""
    put_lake(settings, events=True)
    with open_queue(settings, clock=clock) as queue:
        yield queue


def event_rows(ids: Iterable[int]) -> pa.Table:
    """Rows for a table with the columns of an event."""
    numbers = list(ids)
    return pa.table({"id": pa.array(numbers, pa.int64()), "kind": pa.array([f"k{n}" for n in numbers], pa.string())})


def ids_in(lake: Lake, table: TableId = EVENTS) -> list[int]:
    """The ids that the lake has, in order, each as often as it is there."""
    return [int(str(row[0])) for row in rows_of(lake, f"SELECT id FROM {table} ORDER BY id")]


def assert_drained(queue: DqCoordinator) -> None:
    """Check that no row is buffered, quarantined or a dead letter, and that the audit agrees."""
    assert sum(state.rows for state in queue.buffer.tables()) == 0
    assert queue.buffer.payloads() == []
    assert queue.buffer.quarantined() == ()
    assert queue.lake.dead_letters() == []
    report = queue.lake.audit()
    assert report.ok, report.findings


def segments_in(root: Path, *folders: str) -> list[Path]:
    """The files of sessions that lie in these folders, WALs included."""
    return sorted(path for folder in folders for path in (root / folder).glob("duckling_queue_*"))


def advisory_locks(conninfo: str) -> list[int]:
    """Return the keys of all advisory locks of a PostgreSQL database."""
    query = (
        "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks JOIN pg_database d ON d.oid = database "
        "WHERE locktype = 'advisory' AND granted AND d.datname = current_database()"
    )
    with psycopg.connect(conninfo, autocommit=True) as connection:
        return [int(row[0]) for row in connection.execute(query).fetchall()]


def wait_for_locks(conninfo: str) -> None:
    """Wait until the server has noticed that the holder of its locks is dead."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '30s'")
        for key in advisory_locks(conninfo):
            connection.execute("SELECT pg_advisory_lock(%s), pg_advisory_unlock(%s)", (key, key))
