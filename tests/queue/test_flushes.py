"""Flushes deliver every row once: around checkpoints, WALs, endless writers, failures and drops."""

import shutil
import threading
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from catchment.errors import BufferHeldError, CommitUnknownError, StorageFailedError
from catchment.foundation import faults
from catchment.foundation.clock import SystemClock
from catchment.foundation.ids import TableId
from catchment.lake import Lake
from catchment.pipeline import deliver
from catchment.queue import Buffer, DqCoordinator, FlushPayload, QueueRuntime, TableFlush, open_buffer
from catchment.queue.buffer import Progress
from catchment.queue.policy import RETRY_SECONDS_MAX, Trigger
from catchment.queue.shared.buffer_file import BufferFile
from catchment.queue.shared.shared_buffer import SharedBuffer
from catchment.queue.store.file_tables import BufferIdentity
from catchment.queue.store.store import Store
from catchment.queue.store.table_log import Write
from catchment.testing import FakeClock
from tests.conftest import MakeSettings
from tests.queue.queues import (
    FACTS,
    LAYOUTS_ON_DISK,
    assert_drained,
    event_rows,
    ids_in,
    new_queue,
    open_queue,
    segments_in,
)
from tests.sample_events import EVENT_COLUMNS, EVENTS, create_table, once
from tests.waiting import wait_until

PATIENCE_S = 30.0
TOO_MANY_S = 0.1

# A checkpoint drops deleted rows by whole groups of 122,880, and renumbers those after.
GROUP_ROWS = 122_880


def _store(path: Path) -> Store:
    clock = SystemClock()
    fresh = BufferIdentity.new("1", "", clock)
    return Store.open(path, identity_table="dq_buffer", fresh=fresh)


def _many(first: int, count: int) -> pa.Table:
    ids = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": ids, "kind": pa.nulls(count, pa.string())})


def test_a_checkpoint_between_slice_and_retire_takes_no_other_rows_along(tmp_path: Path) -> None:
    """Acknowledged by `rowid`, 50,000 delivered rows took 172,880 with them."""
    store = _store(tmp_path / "buffer.duckdb")
    clock = SystemClock()
    for number in range(4):
        rows = _many(number * GROUP_ROWS, GROUP_ROWS)
        store.write([Write(table=EVENTS, columns=EVENT_COLUMNS, rows=rows)], clock.now())
    store.checkpoint()
    # Deletes come first; so the rowids of what is left will change at the next checkpoint.
    store.retire(EVENTS, GROUP_ROWS)
    log = store.log(EVENTS)
    assert log is not None
    ((version, first, _),) = log.ranges()
    last = first + 49_999
    rowids = f"SELECT min(rowid) FROM {version.staging}"
    slice_ids = store.read(version, first, last).read_all()["id"].to_pylist()
    before = store._connection.execute(rowids).fetchall()
    store.checkpoint()
    assert store._connection.execute(rowids).fetchall() != before, "the checkpoint renumbered nothing: no proof"
    store.retire(EVENTS, last)
    log = store.log(EVENTS)
    assert log is not None
    left = [n for each, low, high in log.ranges() for n in store.read(each, low, high).read_all()["id"].to_pylist()]
    assert slice_ids == list(range(GROUP_ROWS, GROUP_ROWS + 50_000))
    assert left == list(range(GROUP_ROWS + 50_000, 4 * GROUP_ROWS))
    store.close()
    # What the file says, not only what this process thinks.
    reopened = _store(tmp_path / "buffer.duckdb")
    log = reopened.log(EVENTS)
    assert log is not None
    assert (log.seq_flushed, log.seq_last) == (last, 4 * GROUP_ROWS)
    assert reopened._connection.execute(f"SELECT min(id), count(*) FROM {version.staging}").fetchall() == [
        (GROUP_ROWS + 50_000, 3 * GROUP_ROWS - 50_000)
    ]
    reopened.close()


def test_rows_written_around_a_checkpoint_during_a_flush_are_all_delivered(make_settings: MakeSettings) -> None:
    settings = make_settings("sqlite", queue_flush_chunk_rows=40)
    with open_queue(settings) as queue:
        buffer = queue.buffer
        assert isinstance(buffer, SharedBuffer)
        create_table(queue.lake)
        queue.enqueue(EVENTS, event_rows(range(100)))
        queue.force_flush_all()
        queue.enqueue(EVENTS, event_rows(range(100, 200)))

        def write_and_checkpoint() -> None:
            queue.enqueue(EVENTS, event_rows(range(200, 300)))
            buffer._file.store.checkpoint()

        with faults.armed("deliver.after_commit", once(write_and_checkpoint)):
            assert queue.force_flush_all().rows == 100
        assert ids_in(queue.lake) == list(range(200))
        assert [state.rows for state in queue.buffer.tables()] == [100]
        queue.force_flush_all()
        assert ids_in(queue.lake) == list(range(300))
        assert_drained(queue)


def test_a_sessions_file_is_sealed_with_the_rows_that_are_only_in_its_wal(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    """Moved without its `.wal`, a file opens, and is short of acknowledged rows."""
    settings = make_settings("sqlite", queue_layout="sessions")
    with new_queue(settings) as queue:
        queue.enqueue(EVENTS, event_rows(range(10)))
        active = segments_in(settings.queue_path, "active")
        assert [path.suffix for path in active] == [".db", ".wal"]
        alone = Path(shutil.copy(active[0], tmp_path / "alone.db"))
        with duckdb.connect(str(alone), read_only=True) as connection:
            tables = {row[0] for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
        assert "dq_events" not in tables, "the rows are in the file already: no proof"
        queue.buffer.seal()
        (sealed,) = segments_in(settings.queue_path, "sealed")
        with duckdb.connect(str(shutil.copy(sealed, tmp_path / "sealed.db")), read_only=True) as connection:
            assert connection.execute("SELECT id FROM dq_events ORDER BY id").fetchall() == [(n,) for n in range(10)]
        queue.force_flush_all()
        assert ids_in(queue.lake) == list(range(10))


def test_an_orphan_is_sealed_with_the_rows_that_are_only_in_its_wal(make_settings: MakeSettings) -> None:
    settings = make_settings("sqlite", queue_layout="sessions")
    left = settings.queue_path.with_name("left")
    with new_queue(settings) as queue:
        queue.enqueue(EVENTS, event_rows(range(10)))
        # The files after a kill.
        shutil.copytree(settings.queue_path, left)
        queue.lake.close()
    orphaned = settings.model_copy(update={"queue_root": left})
    assert [path.suffix for path in segments_in(left, "active")] == [".db", ".wal"]
    with open_queue(orphaned) as queue:
        assert [path.suffix for path in segments_in(left, "active", "sealed")] == [".db"]
        queue.force_flush_all()
        assert ids_in(queue.lake) == list(range(10))
        assert_drained(queue)


@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_a_force_flush_drains_all_slices_and_segments_and_ends_though_writers_go_on(
    layout: str, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver, "UNITS_PER_COMMIT_MAX", 3)
    settings = make_settings("sqlite", queue_layout=layout, queue_flush_chunk_rows=10)
    with new_queue(settings) as queue:
        for number in range(9):
            queue.enqueue(EVENTS, event_rows(range(number * 11, number * 11 + 11)), session=f"session {number}")
        later = iter(range(1_000, 2_000))
        # Another client writes during the flush, which must not follow those rows forever.
        with faults.armed("deliver.after_commit", lambda: _enqueue_one(queue, next(later))):
            report = queue.force_flush_all()
        assert report.rows == 99
        payloads = FACTS[layout].payloads(rows=99, chunk_rows=10, sessions=9, writes=9)
        assert sum(each.parcels for each in report.tables) == payloads
        assert ids_in(queue.lake) == list(range(99))
        assert sum(state.rows for state in queue.buffer.tables()) == next(later) - 1_000


def _enqueue_one(queue: DqCoordinator, number: int) -> None:
    queue.enqueue(EVENTS, event_rows([number]), session="late")


class FailingFlusher:
    """Never gets anything to the lake, and counts how often it was asked."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.calls = 0

    def catch_up(self, tables: Sequence[TableId]) -> dict[TableId, str]:
        """The lake has nothing."""
        return {}

    def flush(
        self, payloads: Sequence[FlushPayload], progress: Progress | None = None, *, into: TableId | None = None
    ) -> tuple[TableFlush, ...]:
        self.calls += 1
        for payload in payloads:
            self._buffer.release(payload)
        return tuple(TableFlush(table=table, errors=("the lake is away",)) for table in {p.table for p in payloads})


@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_a_flush_that_keeps_failing_is_tried_ever_less_often(layout: str, make_settings: MakeSettings) -> None:
    clock = FakeClock()
    settings = make_settings("sqlite", queue_layout=layout, queue_buffer_max_rows=1, queue_rotate_interval_seconds=1)
    with Lake.from_settings(settings, clock=clock) as lake:
        create_table(lake)
        buffer = open_buffer(settings, clock=clock)
        flusher = FailingFlusher(buffer)
        queue = DqCoordinator(buffer=buffer, lake=lake, flusher=flusher, settings=settings, clock=clock)
        queue.enqueue(EVENTS, event_rows(range(10)))
        for second in range(3_600):
            clock.advance(1)
            queue.flush_stale_buffers()
            if second % 600 == 0:
                # Nor does a writer hurry it.
                queue.due.clear()
                queue.enqueue(EVENTS, event_rows([second]))
                assert not queue.due.is_set()
        # Eight tries until the wait is five minutes, and with luck every wait is half as long.
        assert 12 <= flusher.calls <= 8 + 3_600 // 150
        failure = queue.status().tables[0].failure
        assert failure is not None
        assert failure.failures == flusher.calls
        assert failure.retry_at - clock.now() <= timedelta(seconds=RETRY_SECONDS_MAX)
        buffer.close()


def test_a_flush_that_fails_for_a_bug_is_named_by_the_status_and_backs_off(make_settings: MakeSettings) -> None:
    class Broken(FailingFlusher):
        def flush(
            self, payloads: Sequence[FlushPayload], progress: Progress | None = None, *, into: TableId | None = None
        ) -> tuple[TableFlush, ...]:
            super().flush(payloads, progress)
            raise ZeroDivisionError("a bug")

    clock = FakeClock()
    settings = make_settings("sqlite", queue_buffer_max_rows=1)
    with Lake.from_settings(settings, clock=clock) as lake, closing(open_buffer(settings, clock=clock)) as buffer:
        create_table(lake)
        flusher = Broken(buffer)
        queue = DqCoordinator(buffer=buffer, lake=lake, flusher=flusher, settings=settings, clock=clock)
        queue.enqueue(EVENTS, event_rows(range(10)))
        with pytest.raises(ZeroDivisionError):
            queue.flush_stale_buffers()
        queue.flush_stale_buffers()
        assert flusher.calls == 1
        failure = queue.status().tables[0].failure
        assert failure is not None
        assert failure.reason == "ZeroDivisionError: a bug"


@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_a_trickle_that_never_stops_is_flushed_by_the_age_of_its_oldest_row(
    layout: str, make_settings: MakeSettings
) -> None:
    clock = FakeClock()
    settings = make_settings("sqlite", queue_layout=layout, queue_rotate_interval_seconds=300)
    with new_queue(settings, clock=clock) as queue:
        for number in range(30):
            queue.enqueue(EVENTS, event_rows([number]))
            queue.flush_stale_buffers()
            assert ids_in(queue.lake) == []
            clock.advance(10)
        assert ids_in(queue.lake) == []
        if FACTS[layout].ready_at_once:
            assert [table.trigger for table in queue.status().tables] == [Trigger.AGE]
        # Its last row is ten seconds old, its first one five minutes.
        assert queue.flush_stale_buffers().rows == 30
        assert ids_in(queue.lake) == list(range(30))
        # And the age starts again with the next row.
        queue.enqueue(EVENTS, event_rows([30]))
        clock.advance(299)
        assert queue.flush_stale_buffers().rows == 0
        clock.advance(1)
        assert queue.flush_stale_buffers().rows == 1


def test_rows_of_a_table_that_was_dropped_and_created_again_stay_buffered_and_delay_no_other_table(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings("duckdb")
    other = TableId("main", "other")
    with new_queue(settings) as queue:
        create_table(queue.lake, other)
        queue.enqueue(EVENTS, event_rows(range(3)))
        queue.enqueue(other, event_rows(range(10, 12)))
        with queue.lake.write() as connection:
            connection.execute("DROP TABLE events")
            connection.execute("CREATE TABLE events (something VARCHAR, else_too BIGINT)")
        report = queue.force_flush_all()
        assert [(each.table, each.rows, each.stranded) for each in report.tables] == [(EVENTS, 0, 3), (other, 2, 0)]
        assert queue.lake.dead_letters() == []


def test_a_buffer_whose_commit_and_reopening_fail_says_that_the_rows_may_be_there(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings("duckdb")
    with new_queue(settings) as queue:
        queue.enqueue(EVENTS, event_rows(range(3)))
        buffer = queue.buffer
        assert isinstance(buffer, SharedBuffer)

        def unknown(*_: object) -> None:
            raise CommitUnknownError

        def fails(*_: object) -> None:
            raise StorageFailedError

        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", unknown)
            patch.setattr(BufferFile, "_open_file", fails)
            with pytest.raises(CommitUnknownError):
                queue.enqueue(EVENTS, event_rows(range(3, 6)))
        # The next write finds the file closed, opens it again, and is kept.
        assert queue.enqueue(EVENTS, event_rows(range(7, 8))).seq_first == 4
        buffer.close()
        with pytest.raises(BufferHeldError, match="was closed"):
            queue.enqueue(EVENTS, event_rows(range(8, 9)))


@pytest.mark.parametrize("most", [1, 2])
def test_at_most_the_configured_number_of_flushes_run_at_once(make_settings: MakeSettings, most: int) -> None:
    settings = make_settings("sqlite", queue_max_parallel_flushes=most, queue_buffer_max_rows=1)
    tables = [TableId("main", f"table_{number}") for number in range(4)]
    waiting, changed = list(tables), threading.Condition()
    under_way: set[int] = set()
    peak = 0

    def begun() -> None:
        nonlocal peak
        with changed:
            under_way.add(threading.get_ident())
            peak = max(peak, len(under_way))
            following = waiting.pop() if waiting else None
            changed.notify_all()
        if following is not None:
            # It is due while this flush is under way.
            queue.enqueue(following, event_rows([1]))
        with changed:
            assert changed.wait_for(lambda: peak >= most, PATIENCE_S)
            # One too many would come now.
            changed.wait_for(lambda: peak > most, TOO_MANY_S)

    def ended() -> None:
        with changed:
            under_way.discard(threading.get_ident())

    with new_queue(settings) as queue:
        for table in tables:
            create_table(queue.lake, table)
        runtime = QueueRuntime(queue, settings, SystemClock())
        with faults.armed("deliver.before_write", begun), faults.armed("queue.after_retire", ended):
            queue.enqueue(waiting.pop(), event_rows([1]))
            runtime.start()
            wait_until(lambda: all(ids_in(queue.lake, table) for table in tables), "all tables are flushed")
            runtime.stop()
    assert peak == most
