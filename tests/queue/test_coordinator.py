"""The queue on every layout and the model: every acknowledged row arrives once."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise

import pyarrow as pa
import pytest

from catchment.errors import (
    BackpressureError,
    FlushFailedError,
    InputError,
    LakeUnavailableError,
    RetryableError,
)
from catchment.foundation import events, faults
from catchment.foundation.events import Event
from catchment.foundation.ids import TableId
from catchment.pipeline.flush import FlushPipeline
from catchment.queue import coordinator, policy
from catchment.queue.buffer import TableFlush
from catchment.queue.policy import Trigger
from catchment.queue.queue_writer import DIRECT
from tests.queue.queues import (
    FACTS,
    LAYOUTS,
    LAYOUTS_AND_CATALOGS,
    LAYOUTS_ON_DISK,
    OTHER,
    Killed,
    MakeQueue,
    QueueScene,
    assert_audited,
    assert_delivered,
    die,
    event_rows,
    once_each,
)
from tests.sample_events import EVENT_COLUMNS, EVENTS, create_table, once

NUMBERED = pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if FACTS[layout].has_watermark])
ON_DISK = pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)


def _batches(ids: range) -> Iterator[pa.RecordBatch]:
    yield from event_rows(ids).to_batches(max_chunksize=2)


def _wide_rows(first: int, count: int) -> pa.Table:
    """Rows of about ten kilobytes each, which do not compress to nothing before they are in a file."""
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "kind": [f"{number:08d}" * 1_250 for number in ids]})


def test_numbers_of_acknowledged_rows_follow_each_other_without_a_gap(queue: QueueScene) -> None:
    acks = [queue.write(some) for some in (range(3), range(3, 4), range(4, 9))]
    assert [(ack.seq_first, ack.seq_last, ack.rows) for ack in acks] == [(1, 3, 3), (4, 4, 1), (5, 9, 5)]
    assert len({ack.source for ack in acks}) == 1
    assert {ack.table for ack in acks} == {EVENTS}


def test_every_table_has_numbers_of_its_own(queue: QueueScene) -> None:
    create_table(queue.lake, OTHER)
    acks = [queue.write(range(2)), queue.write(range(3), OTHER), queue.write(range(2, 4))]
    assert [(ack.seq_first, ack.seq_last) for ack in acks] == [(1, 2), (1, 3), (3, 4)]


@pytest.mark.parametrize(
    "form",
    [
        lambda ids: event_rows(ids),
        lambda ids: event_rows(ids).combine_chunks().to_batches()[0],
        lambda ids: list(_batches(ids)),
        lambda ids: _batches(ids),
        lambda ids: pa.RecordBatchReader.from_batches(event_rows(ids).schema, _batches(ids)),
    ],
    ids=["table", "batch", "batches", "generator", "reader"],
)
def test_rows_are_taken_in_every_form_of_arrow(form: Callable[[range], pa.Table], queue: QueueScene) -> None:
    assert queue.coordinator.enqueue(EVENTS, form(range(5))).rows == 5
    assert queue.fresh_rows() == once_each(range(5))


@pytest.mark.parametrize("nothing", [event_rows(range(0)), event_rows(range(0)).to_batches()], ids=["table", "batches"])
def test_an_empty_write_is_acknowledged_as_zero_rows_and_buffers_nothing(nothing: pa.Table, queue: QueueScene) -> None:
    if isinstance(nothing, list) and not nothing:
        nothing = [pa.RecordBatch.from_pylist([], schema=event_rows(range(0)).schema)]
    assert queue.coordinator.enqueue(EVENTS, nothing).rows == 0
    assert queue.coordinator.force_flush_all().tables == ()
    assert queue.write(range(4)).seq_first == 1
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(4))


def test_input_that_is_not_arrow_data_is_refused(queue: QueueScene) -> None:
    (one,) = event_rows(range(1)).to_batches()
    for rows in ([], [one, one.select(["id"])]):
        with pytest.raises(InputError):
            queue.coordinator.enqueue(EVENTS, rows)
    assert queue.held_rows() == 0


@pytest.mark.parametrize(("layout", "catalog"), LAYOUTS_AND_CATALOGS)
def test_a_flush_delivers_every_acknowledged_row_once(catalog: str, make_queue: MakeQueue) -> None:
    queue = make_queue(catalog)
    queue.write(range(10))
    queue.write(range(10, 15), session="another")
    assert (queue.held_rows(), queue.lake_rows()) == (15, {})
    report = queue.coordinator.force_flush_all()
    assert (report.rows, report.ok) == (15, True)
    assert_delivered(queue, range(15))
    assert queue.coordinator.force_flush_all().rows == 0
    queue.write(range(15, 20))
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(20))


def test_nothing_is_flushed_before_it_is_due(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_rotate_interval_seconds=300)
    queue.write(range(10))
    queue.clock.advance(299)
    assert queue.coordinator.flush_stale_buffers().tables == ()
    assert not queue.coordinator.due.is_set()
    assert (queue.held_rows(), queue.lake_rows()) == (10, {})


@NUMBERED
def test_a_table_is_due_at_its_number_of_rows(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_buffer_max_rows=10)
    create_table(queue.lake, OTHER)
    queue.write(range(9))
    queue.write(range(3), OTHER)
    assert queue.coordinator.due_tables() == []
    assert not queue.coordinator.due.is_set()
    queue.write(range(9, 10))
    assert queue.coordinator.due.is_set()
    assert [each.trigger for each in queue.coordinator.status().tables] == [Trigger.ROWS, None]
    assert queue.coordinator.flush_stale_buffers().rows == 10
    assert_delivered(queue, range(10))
    assert queue.held_rows(OTHER) == 3


def test_a_table_is_due_at_its_number_of_bytes(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_rotate_size_bytes=500_000)
    queue.coordinator.enqueue(EVENTS, _wide_rows(0, 5))
    assert queue.coordinator.flush_stale_buffers().rows == 0
    queue.coordinator.enqueue(EVENTS, _wide_rows(5, 60))
    assert queue.coordinator.due.is_set()
    assert queue.coordinator.flush_stale_buffers().rows == 65
    assert queue.held_rows() == 0


@pytest.mark.parametrize("pause_s", [0.5, 4])
def test_a_trickle_that_never_stops_is_due_when_its_oldest_row_is(pause_s: float, make_queue: MakeQueue) -> None:
    queue = make_queue(queue_rotate_interval_seconds=12)
    rows = int(12 / pause_s)
    for number in range(rows):
        assert queue.coordinator.flush_stale_buffers().rows == 0
        queue.write(range(number, number + 1))
        queue.clock.advance(pause_s)
    assert queue.coordinator.flush_stale_buffers().rows == rows
    assert_delivered(queue, range(rows))
    # The age starts again with the first row after the flush.
    queue.write(range(rows, rows + 1))
    queue.clock.advance(11)
    assert queue.coordinator.flush_stale_buffers().rows == 0
    queue.clock.advance(1)
    assert queue.coordinator.flush_stale_buffers().rows == 1


@NUMBERED
def test_a_restart_makes_rows_no_younger(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_rotate_interval_seconds=300)
    queue.write(range(3))
    queue.clock.advance(200)
    queue.reopen()
    queue.clock.advance(100)
    assert queue.coordinator.flush_stale_buffers().rows == 3


def test_a_forced_flush_drains_as_many_slices_as_there_are_and_says_what_it_did(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_flush_chunk_rows=3)
    for number in range(5):
        queue.write(range(number * 2, number * 2 + 2))
    report = queue.coordinator.force_flush_all(progress=lambda _: queue.clock.advance(2))
    (done,) = report.tables
    assert (report.rows, report.files, report.seconds, report.errors) == (10, 1, 2, ())
    assert done.parcels == FACTS[queue.layout].payloads(rows=10, chunk_rows=3, sessions=1, writes=5)
    assert_delivered(queue, range(10))


def test_a_forced_flush_that_fails_says_what_arrived_and_what_did_not(make_queue: MakeQueue) -> None:
    queue = make_queue()
    create_table(queue.lake, OTHER)
    queue.write(range(10))
    queue.write_unbound(range(5), OTHER)
    queue.sql("DROP TABLE other")
    with pytest.raises(FlushFailedError, match=r"main\.other") as failed:
        queue.coordinator.force_flush_all()
    assert failed.value.facts == {
        "rows": 10,
        "files": 1,
        "seconds": 0,
        "errors": ["main.other: The lake has no table main.other."],
    }
    # The table that failed has not held back the other one, and nothing of it is lost.
    assert_delivered(queue, range(10))
    assert queue.held_rows(OTHER) == 5
    create_table(queue.lake, OTHER)
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(5), table=OTHER)


def test_a_sweep_goes_past_a_table_that_fails(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_rotate_interval_seconds=10)
    create_table(queue.lake, OTHER)
    queue.write_unbound(range(5), EVENTS)
    queue.write(range(5), OTHER)
    queue.sql("DROP TABLE events")
    queue.clock.advance(10)
    report = queue.coordinator.flush_stale_buffers()
    assert report.errors == ("main.events: The lake has no table main.events.",)
    assert_delivered(queue, range(5), table=OTHER)
    (failure,) = [each.failure for each in queue.coordinator.status().tables if each.state.rows]
    assert failure is not None
    assert "no table" in failure.reason


@pytest.mark.parametrize("start_again", [QueueScene.reopen, QueueScene.crash], ids=["in order", "after a power cut"])
def test_acknowledged_rows_are_there_after_a_restart(
    start_again: Callable[[QueueScene], None], queue: QueueScene
) -> None:
    queue.write(range(5))
    start_again(queue)
    assert queue.fresh_rows() == once_each(range(5))
    queue.write(range(5, 8))
    start_again(queue)
    queue.write(range(8, 9))
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(9))
    start_again(queue)
    assert queue.coordinator.force_flush_all().rows == 0
    assert_delivered(queue, range(9))


@NUMBERED
@pytest.mark.parametrize("start_again", [QueueScene.reopen, QueueScene.crash], ids=["in order", "after a power cut"])
def test_numbers_go_on_after_a_restart(start_again: Callable[[QueueScene], None], queue: QueueScene) -> None:
    before = queue.write(range(5))
    start_again(queue)
    after = queue.write(range(5, 8))
    assert (after.source, after.seq_first) == (before.source, 6)
    queue.coordinator.force_flush_all()
    start_again(queue)
    # Also when nothing is left that the numbers could be read from.
    assert queue.write(range(8, 9)).seq_first == 9


def test_the_lake_takes_nothing_for_old_that_a_wiped_queue_is_given(queue: QueueScene) -> None:
    queue.write(range(5))
    queue.coordinator.force_flush_all()
    before = queue.buffer.generation
    queue.wipe()
    assert queue.buffer.generation != before
    queue.write(range(5, 8))
    assert queue.fresh_rows() == once_each(range(8))
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(8))


# The same by SIGKILL, at more points and with writers, is `tests/crash/test_queue_kill.py`.
@pytest.mark.soak
@ON_DISK
@pytest.mark.parametrize("point", ["deliver.after_commit", *(name for name in faults.POINTS if "queue." in name)])
def test_a_queue_that_dies_anywhere_has_every_acknowledged_row_once_when_it_is_started_again(
    point: str, make_queue: MakeQueue
) -> None:
    queue = make_queue(queue_flush_chunk_rows=4)
    create_table(queue.lake, OTHER)
    queue.write(range(10))
    queue.write(range(3), OTHER)
    acked = 10
    try:
        with faults.armed(point, die):
            queue.write(range(10, 12))
            acked = 12
            queue.coordinator.force_flush_all()
    except Killed:
        queue.crash()
    assert_audited(queue)
    # A writer without an answer may find all of its rows there, or none.
    found = queue.fresh_rows()
    assert found in (once_each(range(acked)), once_each(range(12)))
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(found.total()))
    assert_delivered(queue, range(3), table=OTHER)


def test_rows_that_were_delivered_and_not_retired_are_only_retired(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_flush_chunk_rows=4)
    queue.write(range(6))
    with faults.armed("retire.before_unit", die), pytest.raises(Killed):
        queue.coordinator.force_flush_all()
    assert queue.lake_rows() == once_each(range(6))
    queue.crash()
    # One row more, and the last slice would be another one.
    queue.write(range(6, 7))
    assert queue.fresh_rows() == once_each(range(7))
    assert queue.coordinator.force_flush_all().rows == 1
    assert_delivered(queue, range(7))


@NUMBERED
def test_chosen_rows_that_another_process_delivers_first_are_not_delivered_again(queue: QueueScene) -> None:
    queue.write(range(4))
    queue.coordinator.force_flush_all()
    queue.write(range(4, 9))
    pipeline, buffer = queue.coordinator.flusher, queue.coordinator.buffer
    assert isinstance(pipeline, FlushPipeline)
    other = FlushPipeline(pipeline._deliverer, buffer)
    delivered: list[TableFlush] = []
    with faults.armed("queue.after_stage", once(lambda: delivered.extend(other.flush(buffer.payloads([EVENTS]))))):
        assert queue.coordinator.force_flush_all().rows == 0
    assert [each.rows for each in delivered] == [5]
    assert_delivered(queue, range(9))


@pytest.fixture
def no_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write at the cap does not have the buffer flushed first."""
    monkeypatch.setattr(coordinator, "FULL_WAIT_SECONDS", 0)


@pytest.mark.usefixtures("no_wait_for_room")
def test_at_the_cap_writes_are_pushed_back_whole_and_there_is_room_after_a_flush(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_max_db_bytes=3_000_000)
    taken: list[int] = []

    with pytest.raises(BackpressureError) as pushed_back:
        taken.extend(queue.coordinator.enqueue(EVENTS, _wide_rows(start, 50)).rows for start in range(0, 2_000, 50))
    assert isinstance(pushed_back.value, RetryableError)
    assert 0 < sum(taken) == queue.held_rows()
    queue.coordinator.force_flush_all()
    again = queue.coordinator.enqueue(EVENTS, _wide_rows(sum(taken), 50))
    taken.append(again.rows)
    queue.coordinator.force_flush_all()
    with queue.lake.cursor() as cursor:
        found = cursor.execute("SELECT count(*), count(DISTINCT id), max(id) FROM events").fetchone()
    assert found == (sum(taken), sum(taken), sum(taken) - 1)
    assert_audited(queue)


def test_at_the_cap_a_write_first_has_what_is_there_flushed(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_max_db_bytes=3_000_000)
    for start in range(0, 1_000, 50):
        assert queue.coordinator.enqueue(EVENTS, _wide_rows(start, 50)).source != DIRECT
    assert queue.lake_rows()
    queue.coordinator.force_flush_all()
    assert queue.lake_rows().total() == len(queue.lake_rows()) == 1_000
    assert_audited(queue)


@pytest.mark.usefixtures("no_wait_for_room")
def test_at_the_cap_rows_may_go_past_the_queue(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_max_db_bytes=1, queue_bypass=True)
    heard: list[Event] = []
    with events.listening(heard.append):
        ack = queue.write(range(5))
    assert (ack.source, ack.rows) == (DIRECT, 5)
    assert Event("bypassed", {"table": "main.events", "rows": 5}) in heard
    assert queue.held_rows() == 0
    assert queue.lake_rows() == once_each(range(5))


@pytest.mark.usefixtures("no_wait_for_room")
def test_rows_that_go_past_the_queue_are_brought_into_the_tables_columns_too(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_max_db_bytes=1, queue_bypass=True)
    queue.sql("ALTER TABLE events ADD COLUMN note VARCHAR DEFAULT 'none'")
    queue.coordinator.enqueue(EVENTS, pa.table({"KIND": ["k1"], "Id": pa.array([1], pa.int32())}))
    assert queue.lake_rows() == {(1, "k1", "none"): 1}


def test_while_the_lake_is_away_writes_are_acknowledged_and_afterwards_everything_drains_once(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "RETRY_SECONDS_MAX", 60)
    queue = make_queue(queue_rotate_interval_seconds=10)
    queue.write(range(5))
    queue.lake.down = True
    queue.write(range(5, 10))
    queue.write(range(10, 12), session="another")
    with pytest.raises(LakeUnavailableError):
        queue.write(range(1), TableId("main", "never_seen"))
    with pytest.raises(FlushFailedError, match="The lake is down"):
        queue.coordinator.force_flush_all()
    waits: list[timedelta] = []
    for _ in range(12):
        retry_at = queue.coordinator.next_retry_at()
        assert retry_at is not None
        waits.append(retry_at - queue.clock.now())
        # Left alone until then.
        assert queue.coordinator.flush_stale_buffers().tables == ()
        queue.clock.advance(max(10, waits[-1].total_seconds()))
        assert queue.coordinator.flush_stale_buffers().errors == ("main.events: The lake is down.",)
    # Each wait is drawn between the half and the whole of a span that doubles.
    assert all(one <= other for one, other in pairwise(waits[:6]))
    assert timedelta(seconds=30) <= waits[-1] <= timedelta(seconds=60)
    queue.lake.down = False
    assert queue.coordinator.force_flush_all().rows == 12
    assert_delivered(queue, range(12))
    assert queue.coordinator.next_retry_at() is None


def test_a_queue_starts_while_the_lake_is_away_and_drains_once_it_is_back(queue: QueueScene) -> None:
    queue.write(range(5))
    queue.lake.down = True
    queue.reopen()
    with pytest.raises(FlushFailedError):
        queue.coordinator.force_flush_all()
    queue.lake.down = False
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(5))


@ON_DISK
def test_a_queue_that_starts_while_the_lake_is_away_takes_rows_for_tables_it_has_known(queue: QueueScene) -> None:
    queue.write(range(5))
    queue.coordinator.force_flush_all()
    queue.lake.down = True
    queue.reopen()
    queue.write(range(5, 8), session="new")
    with pytest.raises(LakeUnavailableError):
        queue.coordinator.enqueue(EVENTS, pa.table({"id": [9], "another": [1]}))
    queue.lake.down = False
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(8))


def test_a_table_that_is_requeued_keeps_its_rows_and_waits_for_its_turn(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_rotate_interval_seconds=10)
    queue.write(range(5))
    queue.clock.advance(10)
    queue.coordinator.requeue(EVENTS, "a test said so")
    (status,) = queue.coordinator.status().tables
    assert status.failure is not None
    assert (status.failure.failures, status.failure.reason) == (1, "a test said so")
    assert queue.coordinator.flush_stale_buffers().tables == ()
    assert queue.held_rows() == 5
    queue.clock.advance(1)
    assert queue.coordinator.flush_stale_buffers().rows == 5
    assert_delivered(queue, range(5))
    assert all(each.failure is None for each in queue.coordinator.status().tables)


def test_rows_of_a_session_are_delivered_after_its_end(queue: QueueScene) -> None:
    queue.write(range(5), session="short")
    queue.write(range(5, 7), session="long")
    queue.coordinator.end_session("short")
    queue.coordinator.end_session("never there")
    assert queue.fresh_rows() == once_each(range(7))
    queue.write(range(7, 9), session="short")
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(9))


def test_the_status_shows_buffered_and_flushed_rows(make_queue: MakeQueue) -> None:
    queue = make_queue()
    create_table(queue.lake, OTHER, columns=EVENT_COLUMNS)
    queue.write(range(4))
    queue.coordinator.force_flush_all()
    queue.write(range(4, 9))
    queue.write(range(2), OTHER)
    queue.clock.advance(7)
    status = queue.coordinator.status()
    found = {each.state.table: each.state for each in status.tables}
    assert {table: state.rows for table, state in found.items()} == {EVENTS: 5, OTHER: 2}
    assert {state.oldest_at for state in found.values()} == {queue.clock.now() - timedelta(seconds=7)}
    assert all(state.bytes > 0 for state in found.values())
    assert all(not each.flushing for each in status.tables)
    assert (status.generation, status.quarantined) == (queue.buffer.generation, ())


@ON_DISK
def test_a_file_that_cannot_be_opened_is_quarantined_with_its_wal_and_the_queue_goes_on(queue: QueueScene) -> None:
    queue.write(range(5))
    queue.buffer.seal()
    queue.stop()
    (path,) = [path for path in queue.settings.queue_path.rglob("*d*b*") if path.is_file() and path.suffix != ".lock"]
    path.write_bytes(b"garbage" * 10_000)
    path.with_name(path.name + ".wal").write_bytes(b"more garbage")
    queue.open()
    assert queue.write(range(5, 8)).rows == 3
    assert queue.coordinator.force_flush_all().rows == 3
    assert_delivered(queue, range(5, 8))
    (aside,) = queue.coordinator.status().quarantined
    assert aside.reason
    assert aside.path.read_bytes() == b"garbage" * 10_000
    assert aside.path.with_name(aside.path.name + ".wal").read_bytes() == b"more garbage"
    # It is still known after the next start.
    queue.reopen()
    assert queue.coordinator.status().quarantined == (aside,)
