"""An older copy of the buffer is restored: no new row is taken for one that the lake has."""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from catchment.errors import BufferOutdatedError, FlushFailedError
from catchment.foundation import faults
from catchment.foundation.clock import SystemClock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake.types import Column
from catchment.queue import DqCoordinator
from catchment.queue.shared.buffer_file import FILE_NAME
from catchment.queue.shared.shared_buffer import SharedBuffer
from catchment.queue.store.table_log import Write
from tests.conftest import MakeSettings
from tests.queue.queues import Killed, assert_drained, die, event_rows, ids_in, new_queue, open_queue
from tests.sample_events import EVENT_COLUMNS, EVENTS, create_table
from tests.shortcuts.made_lakes import put_lake

OTHER = TableId("main", "others")
Restore = Callable[[], None]


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    return make_settings("duckdb")


@pytest.fixture
def restore(settings: Settings, tmp_path: Path) -> Restore:
    """A lake with rows 1 to 30, and an older buffer of rows 1 to 15, of which 10 were flushed."""
    copy = tmp_path / "copy"
    with new_queue(settings) as queue:
        create_table(queue.lake, OTHER)
        write(queue, 1, 10)
        queue.force_flush_all()
        write(queue, 11, 15)
    shutil.copytree(settings.queue_path, copy)
    with open_queue(settings) as queue:
        queue.force_flush_all()
        write(queue, 16, 30)
        write(queue, 101, 110, OTHER)
        queue.force_flush_all()

    def put_back() -> None:
        shutil.rmtree(settings.queue_path)
        shutil.copytree(copy, settings.queue_path)

    put_back()
    return put_back


def write(queue: DqCoordinator, first: int, last: int, table: TableId = EVENTS) -> None:
    queue.enqueue(table, event_rows(range(first, last + 1)))


def put_back_unflushed(settings: Settings, copy: Path) -> None:
    """Restore a copy that had flushed none of its ten rows; the lake has them and ten more."""
    with new_queue(settings) as queue:
        write(queue, 1, 10)
    shutil.copytree(settings.queue_path, copy)
    with open_queue(settings) as queue:
        write(queue, 11, 20)
        queue.force_flush_all()
    shutil.rmtree(settings.queue_path)
    shutil.copytree(copy, settings.queue_path)


def fresh_ids(queue: DqCoordinator, table: TableId = EVENTS) -> list[int]:
    with queue.fresh(table) as fresh:
        return sorted(fresh.rows()["id"].to_pylist())


def assert_refused(queue: DqCoordinator, seq_lake: int, seq_buffer: int, table: TableId = EVENTS) -> None:
    """Check that no row of the table is flushed, read, or released."""
    rows = rows_in(queue, table)
    said = f"The lake has {table} up to seq {seq_lake}, and the buffer was opened at {seq_buffer}"
    with pytest.raises(FlushFailedError, match=said):
        queue.force_flush_all()
    with pytest.raises(BufferOutdatedError, match=said), queue.fresh(table):
        pass
    assert rows_in(queue, table) == rows


def assert_whole(queue: DqCoordinator, last: int) -> None:
    assert fresh_ids(queue) == list(range(1, last + 1))
    queue.force_flush_all()
    assert ids_in(queue.lake) == list(range(1, last + 1))
    assert_drained(queue)


def rows_in(queue: DqCoordinator, table: TableId = EVENTS) -> int:
    return sum(each.rows.num_rows for each in queue.buffer.buffered_rows(table))


def test_rows_written_to_a_restored_buffer_are_kept_and_nothing_is_flushed(
    settings: Settings, restore: Restore
) -> None:
    with open_queue(settings) as queue:
        write(queue, 31, 70)
        assert_refused(queue, 30, 15)
        assert rows_in(queue) == 45
        write(queue, 71, 72)
        assert_refused(queue, 30, 15)
        assert ids_in(queue.lake) == list(range(1, 31))


def test_a_restored_buffer_is_noticed_after_restarts_too(settings: Settings, restore: Restore) -> None:
    for last in (40, 50, 60):
        with open_queue(settings) as queue:
            write(queue, last - 9, last)
    with open_queue(settings) as queue:
        assert_refused(queue, 30, 15)


def test_a_restored_buffer_is_noticed_even_if_it_had_flushed_nothing(settings: Settings, tmp_path: Path) -> None:
    put_back_unflushed(settings, tmp_path / "copy")
    with open_queue(settings) as queue:
        write(queue, 21, 60)
        assert_refused(queue, 20, 0)
        assert rows_in(queue) == 50


def test_a_table_that_a_restored_buffer_did_not_know_is_noticed_and_others_are_flushed(
    settings: Settings, restore: Restore
) -> None:
    with open_queue(settings) as queue:
        write(queue, 111, 112, OTHER)
    with open_queue(settings) as queue:
        write(queue, 113, 140, OTHER)
        assert_refused(queue, 10, 0, OTHER)
        third = TableId("main", "third")
        create_table(queue.lake, third)
        write(queue, 1, 5, third)
        with pytest.raises(FlushFailedError):
            queue.force_flush_all()
        assert ids_in(queue.lake, third) == [1, 2, 3, 4, 5]


def test_two_shapes_in_the_first_write_of_a_table_do_not_hide_a_restored_buffer(
    settings: Settings, restore: Restore
) -> None:
    buffer = SharedBuffer.from_settings(settings, clock=SystemClock())
    wider = (*EVENT_COLUMNS, Column(name="extra", type="INTEGER"))
    rows = event_rows(range(111, 123))
    with closing(buffer):
        buffer._file._commit(
            [
                (Write(table=OTHER, columns=EVENT_COLUMNS, rows=rows),),
                (Write(table=OTHER, columns=wider, rows=rows.append_column("extra", pa.nulls(12, pa.int32()))),),
            ]
        )
    with open_queue(settings) as queue:
        assert_refused(queue, 10, 0, OTHER)


@pytest.mark.parametrize("point", ["deliver.after_commit", "queue.before_retire", "queue.after_retire"])
def test_a_buffer_that_is_the_newest_goes_on_after_a_flush_that_dies(settings: Settings, point: str) -> None:
    with new_queue(settings) as queue:
        write(queue, 1, 40)
        with faults.armed(point, die), pytest.raises(Killed):
            queue.force_flush_all()
    with open_queue(settings) as queue:
        write(queue, 41, 50)
        assert_whole(queue, 50)


def test_a_buffer_that_is_the_newest_goes_on_whenever_it_was_stopped(settings: Settings) -> None:
    put_lake(settings, events=True)
    for last in (10, 20, 30, 40):
        with open_queue(settings) as queue:
            write(queue, last - 9, last)
            if last != 20:
                assert_whole(queue, last)


def test_a_proven_buffer_stays_proven_when_its_file_is_reopened(settings: Settings) -> None:
    with new_queue(settings) as queue:
        write(queue, 1, 10)
        queue.force_flush_all()
        write(queue, 11, 20)
        buffer = queue.buffer
        assert isinstance(buffer, SharedBuffer)
        buffer._file._is_invalidated = True
        write(queue, 21, 30)
        assert buffer._file.store.unproven_from(EVENTS) is None
        assert_whole(queue, 30)


def test_rows_that_the_file_has_recorded_as_flushed_need_no_proof(settings: Settings) -> None:
    """A version that knows nothing of doubts may have flushed meanwhile."""
    with new_queue(settings) as queue:
        write(queue, 1, 10)
        queue.force_flush_all()
        write(queue, 11, 20)
    path = settings.queue_path / FILE_NAME
    with open_queue(settings) as queue:
        queue.force_flush_all()
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO unproven_tables VALUES ('main', 'events', 10)")
    with open_queue(settings) as queue:
        write(queue, 21, 30)
        assert_whole(queue, 30)


def test_segments_have_names_that_never_come_again_so_nothing_has_to_be_refused(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings("duckdb", queue_layout="sessions")
    put_back_unflushed(settings, tmp_path / "copy")
    with open_queue(settings) as queue:
        write(queue, 21, 60)
        assert_whole(queue, 60)
