"""The queue on Spark: its workers read slices and segments in background flushes."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from catchment.foundation import events
from catchment.foundation.clock import SystemClock
from catchment.foundation.events import Event
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline import Deliverer, SparkRunner
from catchment.pipeline.flush import FILE_BYTES_MIN, FlushPipeline
from catchment.queue import DqCoordinator, QueueRuntime, open_buffer
from tests.conftest import MakeSettings
from tests.queue.queues import LAYOUTS_ON_DISK
from tests.sample_events import EVENT_COLUMNS, EVENTS, create_table, rows_of

PARTS = TableId("main", "parts")
FLUSHED_S_MAX = 60


@pytest.fixture(params=LAYOUTS_ON_DISK)
def settings(request: pytest.FixtureRequest, make_settings: MakeSettings) -> Settings:
    return make_settings("sqlite", queue_layout=request.param, queue_flush_chunk_rows=20)


@pytest.fixture
def queue(settings: Settings, spark_runner: SparkRunner) -> Iterator[DqCoordinator]:
    clock = SystemClock()
    with Lake.from_settings(settings) as lake, closing(open_buffer(settings, clock=clock)) as buffer:
        create_table(lake)
        create_table(lake, PARTS, EVENT_COLUMNS, partition_by=("kind",))
        with lake.write() as connection:
            connection.execute("ALTER TABLE parts SET SORTED BY (id DESC)")
        deliverer = Deliverer(lake, spark_runner, settings, file_bytes_min=FILE_BYTES_MIN)
        flusher = FlushPipeline(deliverer, buffer)
        yield DqCoordinator(buffer=buffer, lake=lake, flusher=flusher, settings=settings, clock=clock)


def _rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"id": numbers, "kind": [f"k{number % 2}" for number in numbers]})


def test_several_tables_and_slices_are_flushed_by_one_job(queue: DqCoordinator) -> None:
    seen: list[Event] = []
    for at in range(0, 100, 10):
        for table in (EVENTS, PARTS):
            queue.enqueue(table, _rows(at, 10), session=f"s{at % 20}")
    with events.listening(seen.append):
        report = queue.force_flush_all()
    assert (report.rows, report.ok) == (200, True)
    jobs = {event.facts["job"] for event in seen if event.verb == "delivered"}
    assert len(jobs) == 1
    for table in (EVENTS, PARTS):
        assert rows_of(queue.lake, f"SELECT id FROM {table} ORDER BY id") == [(n,) for n in range(100)]
    # Split by the partition's value, and each file in the table's order.
    paths = rows_of(queue.lake, "SELECT data_file FROM ducklake_list_files('lake', 'parts')")
    assert sorted(str(path).count("kind=k0") for (path,) in paths) == [0, 1]
    for (path,) in paths:
        ids = [int(str(row[0])) for row in rows_of(queue.lake, f"SELECT id FROM read_parquet('{path}')")]
        assert ids == sorted(ids, reverse=True)
    assert queue.lake.audit().ok


def test_the_runtime_flushes_what_is_due_and_stops_with_an_empty_buffer(
    queue: DqCoordinator, settings: Settings
) -> None:
    delivered = threading.Event()

    def hear(event: Event) -> None:
        if event.verb == "delivered":
            delivered.set()

    quick = settings.model_copy(
        update={
            "queue_buffer_max_rows": 30,
            "queue_rotate_size_bytes": 1,
            "queue_flush_interval_seconds": 0.05,
        }
    )
    coordinator = DqCoordinator(
        buffer=queue.buffer, lake=queue.lake, flusher=queue.flusher, settings=quick, clock=SystemClock()
    )
    runtime = QueueRuntime(coordinator, quick, SystemClock())
    with events.listening(hear):
        runtime.start()
        coordinator.enqueue(EVENTS, _rows(0, 50), session="one")
        coordinator.end_session("one")
        assert delivered.wait(FLUSHED_S_MAX)
    coordinator.enqueue(EVENTS, _rows(50, 7), session="two")
    runtime.stop(flush=True)
    assert rows_of(queue.lake) == [(n,) for n in range(57)]
    assert not any(state.rows for state in coordinator.buffer.tables())
    assert queue.lake.audit().ok
