"""Small scenes of the queue: one that flushes without Spark, rows with known ids, and the proof that none is twice."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pyarrow as pa

from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline import Deliverer
from catchment.pipeline.flush import FlushPipeline
from catchment.queue import Buffer, DqCoordinator, open_buffer
from catchment.testing import InlineRunner
from tests.sample_events import EVENTS, rows_of
from tests.shortcuts.made_lakes import put_lake

LAYOUTS = ("shared", "sessions")


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
    return pa.table({"id": pa.array(numbers, pa.int64()), "kind": pa.array([f"k{n}" for n in numbers])})


def ids_in(lake: Lake, table: TableId = EVENTS) -> list[int]:
    """The ids that the lake has, in order, each as often as it is there."""
    return [int(str(row[0])) for row in rows_of(lake, f"SELECT id FROM {table} ORDER BY id")]


def assert_drained(queue: DqCoordinator) -> None:
    """Nothing is left in the buffer, nothing was set aside or buried, and the ledger agrees with the tables."""
    assert sum(state.rows for state in queue.buffer.tables()) == 0
    assert queue.buffer.parcels() == []
    assert queue.buffer.set_aside() == ()
    assert queue.lake.dead_letters() == []
    report = queue.lake.audit()
    assert report.ok, report.findings


def segments_in(root: Path, *folders: str) -> list[Path]:
    """The files of sessions that lie in these folders, WALs included."""
    return sorted(path for folder in folders for path in (root / folder).glob("duckling_queue_*"))


def advisory_locks(conninfo: str) -> list[int]:
    """The advisory locks that anybody holds in a PostgreSQL database, by their keys."""
    query = (
        "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks JOIN pg_database d ON d.oid = database "
        "WHERE locktype = 'advisory' AND granted AND d.datname = current_database()"
    )
    with psycopg.connect(conninfo, autocommit=True) as connection:
        return [int(row[0]) for row in connection.execute(query).fetchall()]


def wait_for_locks(conninfo: str) -> None:
    """Wait until the server has noticed that whoever held locks is dead: it takes a moment."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '30s'")
        for key in advisory_locks(conninfo):
            connection.execute("SELECT pg_advisory_lock(%s), pg_advisory_unlock(%s)", (key, key))
