"""Tasks without enough memory, disk or time: their units fail temporarily, and no row is blamed."""

from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from catchment.foundation.ids import TableId
from catchment.lake.types import Column
from catchment.pipeline import kernel
from catchment.pipeline.work import Input, Mode, OutputShape, Task, TaskResult, UnitPart
from catchment.queue import incoming
from catchment.testing import FakeClock
from tests.conftest import MakeSettings
from tests.pipeline.slow_inputs import slow_unit
from tests.queue.queues import LAYOUTS_ON_DISK, event_rows, ids_in, new_queue, open_queue
from tests.queue.test_full_disk import no_file_beyond
from tests.sample_events import EVENTS, create_table, rows_of

WIDE = TableId("main", "wide")


def _task(folder: Path, query: str, *columns: Column, memory_mb: int = 64) -> Task:
    path = folder / "in.parquet"
    duckdb.execute(f"COPY ({query}) TO '{path}' (COMPRESSION uncompressed)")
    return Task(
        number=1,
        mode=Mode.REWRITE,
        parts=(UnitPart(unit_id="u", input=Input(uri=str(path), bytes=1)),),
        shape=OutputShape(columns=columns),
        folder=str(folder / "out"),
        memory_mb=memory_mb,
        digest=False,
    )


def _reason(result: TaskResult) -> str:
    assert (result.files, result.units) == ((), ())
    (failure,) = result.failures
    assert failure.transient
    assert failure.reason.startswith(f"{failure.path}: ")
    return failure.reason


def test_a_task_that_takes_too_long_is_interrupted_and_the_next_one_is_done(tmp_path: Path) -> None:
    task = _task(tmp_path, "SELECT 1 AS id", Column(name="id", type="INTEGER"))
    result = kernel.run(replace(task, parts=slow_unit(tmp_path, "u")), seconds_max=0.2)
    assert "took longer than 0.2 s (CATCHMENT_SPARK_TASK_SECONDS_MAX)" in _reason(result)
    assert kernel.run(task).failures == ()


def test_a_task_that_needs_more_memory_says_so_and_the_next_one_is_done(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(1_000)]
    columns = [Column(name=name, type="INTEGER") for name in names]
    result = kernel.run(_task(tmp_path, f"SELECT {', '.join(f'1 AS {name}' for name in names)}", *columns))
    assert "needs more memory than 64 MiB (CATCHMENT_DELIVER_TASK_MEMORY_MB)" in _reason(result)
    assert kernel.run(_task(tmp_path, "SELECT 1 AS id", Column(name="id", type="INTEGER"))).failures == ()


def test_a_task_whose_disk_is_full_says_so_and_the_next_one_is_done(tmp_path: Path) -> None:
    task = _task(tmp_path, "SELECT uuid()::VARCHAR AS c FROM range(10_000)", Column(name="c", type="VARCHAR"))
    with no_file_beyond(64 * 1024):
        assert "File too large" in _reason(kernel.run(task))
    assert kernel.run(task).failures == ()


@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_a_table_that_memory_is_too_little_for_backs_off_with_its_rows_and_the_others_are_flushed(
    layout: str, make_settings: MakeSettings
) -> None:
    clock = FakeClock()
    settings = make_settings("sqlite", queue_layout=layout, queue_rotate_interval_seconds=1, deliver_task_memory_mb=64)
    wide = pa.table({f"c{number}": [number] for number in range(1_000)})
    with new_queue(settings, clock=clock) as queue:
        create_table(queue.lake, WIDE, columns=incoming.columns_of(wide.schema))
        queue.enqueue(WIDE, wide)
        queue.enqueue(EVENTS, event_rows(range(3)))
        clock.advance(2)
        queue.buffer.seal()
        queue.flush_stale_buffers()
        assert ids_in(queue.lake) == [0, 1, 2]
        failure = {each.state.table: each.failure for each in queue.status().tables}[WIDE]
        assert failure is not None
        assert "needs more memory than 64 MiB" in failure.reason
        assert queue.due_tables() == []
        assert queue.lake.dead_letters() == []
    roomy = settings.model_copy(update={"deliver_task_memory_mb": 1_024})
    with open_queue(roomy, clock=clock) as queue:
        assert queue.force_flush_all().ok
        assert rows_of(queue.lake, "SELECT c0, c999 FROM wide") == [(0, 999)]
        assert queue.lake.dead_letters() == []
