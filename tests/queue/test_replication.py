"""A table that moves from one queue to another: each lake has every row once, and audits agree."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from catchment.errors import BackpressureError, NotSupportedError, SeqGapError, StateError, TableMissingError
from catchment.foundation import faults
from catchment.foundation.ids import TableId
from catchment.lake.types import Column
from catchment.queue import coordinator
from catchment.queue.replication import LogRows
from tests.conftest import MakeSettings
from tests.queue.queues import (
    FACTS,
    LAYOUTS,
    Killed,
    MakeQueue,
    QueueScene,
    assert_audited,
    assert_delivered,
    die,
    event_rows,
    once_each,
    watched,
)
from tests.sample_events import EVENT_COLUMNS, EVENTS, create_table, once
from tests.shortcuts.made_lakes import CATALOGS

T7 = TableId("t7", "events")
ALL = 1_000_000
BEGUN = 1_000


@pytest.fixture(params=[layout for layout in LAYOUTS if FACTS[layout].has_replication])
def layout(request: pytest.FixtureRequest) -> str:
    """Those that number rows once and for all, unless a test says otherwise."""
    return str(request.param)


@pytest.fixture
def copy(layout: str, make_settings: MakeSettings) -> Iterator[QueueScene]:
    """A second queue, on a lake of its own."""
    with closing(QueueScene(layout, make_settings("sqlite", queue_layout=layout))) as scene:
        yield scene


@pytest.fixture
def no_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write at the cap does not have the buffer flushed first."""
    monkeypatch.setattr(coordinator, "FULL_WAIT_SECONDS", 0)


def _shipped(first: int, last: int, table: TableId = T7) -> LogRows:
    """Rows whose ids are their numbers."""
    return LogRows(table=table, columns=EVENT_COLUMNS, seq_first=first, rows=event_rows(range(first, last + 1)))


def _ship(home: QueueScene, copy: QueueScene, table: TableId = T7) -> None:
    """Ship what the copy lacks."""
    after = copy.coordinator.replication.log.positions(table.schema).get(table, 0)
    while (found := home.coordinator.replication.log.read_log(table, after, rows_max=7)) is not None:
        copy.coordinator.replication.append_replicated([found])
        after = found.seq_last


@pytest.mark.parametrize("catalog", CATALOGS)
def test_a_table_that_starts_after_its_history_gets_the_remaining_rows_once(
    make_queue: MakeQueue, catalog: str
) -> None:
    queue = make_queue(catalog, queue_flush_chunk_rows=100)
    create_table(queue.lake, T7)
    queue.coordinator.replication.start_after(T7, BEGUN)
    queue.coordinator.replication.append_replicated([_shipped(1_001, 1_250), _shipped(1_251, 1_500)])
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(1_001, 1_501), table=T7)
    queue.reopen()
    queue.coordinator.replication.start_after(T7, BEGUN)
    queue.coordinator.replication.append_replicated([_shipped(1_499, 1_501)])
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(1_001, 1_502), table=T7)


@pytest.mark.parametrize("again", [True, False], ids=["begun again", "left to the flush"])
@pytest.mark.parametrize("point", ["deliver.before_commit", "queue.after_ack", "deliver.after_commit"])
def test_a_crash_while_a_table_begins_loses_nothing(make_queue: MakeQueue, point: str, again: bool) -> None:
    queue = make_queue()
    create_table(queue.lake, T7)
    with faults.armed(point, once(die)), pytest.raises(Killed):
        _begin_receive_and_flush(queue)
    queue.crash()
    if again:
        queue.coordinator.replication.start_after(T7, BEGUN)
    queue.coordinator.replication.append_replicated([_shipped(1_001, 1_500)])
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(1_001, 1_501), table=T7)


def _begin_receive_and_flush(queue: QueueScene) -> None:
    queue.coordinator.replication.start_after(T7, BEGUN)
    queue.coordinator.replication.append_replicated([_shipped(1_001, 1_500)])
    queue.coordinator.force_flush_all()


def test_a_table_that_the_lake_lacks_cannot_be_started(queue: QueueScene) -> None:
    with pytest.raises(TableMissingError):
        queue.coordinator.replication.start_after(T7, BEGUN)
    assert queue.coordinator.replication.log.positions("t7") == {}


def test_a_table_that_returns_continues_after_the_rows_that_another_queue_took(queue: QueueScene) -> None:
    create_table(queue.lake, T7)
    queue.coordinator.replication.append_replicated([_shipped(1, 10)])
    with pytest.raises(StateError):
        queue.coordinator.replication.start_after(T7, 20)
    queue.coordinator.force_flush_all()
    queue.coordinator.replication.start_after(T7, 20)
    queue.coordinator.replication.append_replicated([_shipped(21, 30)])
    queue.coordinator.force_flush_all()
    queue.coordinator.replication.start_after(T7, 40)
    queue.coordinator.replication.append_replicated([_shipped(41, 50)])
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(1, 11), range(21, 31), range(41, 51), table=T7)


def test_a_table_that_began_and_is_gone_from_the_lake_holds_back_no_other(queue: QueueScene) -> None:
    create_table(queue.lake, T7)
    queue.coordinator.replication.start_after(T7, BEGUN)
    queue.coordinator.replication.append_replicated([_shipped(1_001, 1_010)])
    queue.sql("DROP TABLE t7.events")
    queue.reopen()
    queue.write(range(5))
    queue.clock.advance(3_600)
    report = queue.coordinator.flush_stale_buffers()
    assert [(each.table, each.stranded) for each in report.tables if each.stranded] == [(T7, 10)]
    assert queue.lake_rows() == once_each(range(5))


@pytest.mark.parametrize("auto_create", [False, True])
def test_replicated_rows_create_their_table(make_queue: MakeQueue, auto_create: bool) -> None:
    queue = make_queue(queue_auto_create_tables=auto_create)
    columns = (
        Column(name="id", type="BIGINT", nullable=False),
        Column(name="kind", type="VARCHAR", default="'x'", initial="x"),
    )
    queue.coordinator.replication.append_replicated(
        [LogRows(table=T7, columns=columns, seq_first=1, rows=event_rows(range(1, 4)))]
    )
    assert tuple(column.unbound for column in queue.lake.table(T7).columns) == columns
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(1, 4), table=T7)


def test_the_replica_has_the_rows_of_its_primary_whichever_flushes_first(queue: QueueScene, copy: QueueScene) -> None:
    create_table(queue.lake, T7)
    queue.coordinator.replication.retain_log("t7")
    queue.write(range(10), T7)
    queue.coordinator.force_flush_all()
    queue.write(range(10, 15), T7)
    _ship(queue, copy)
    copy.coordinator.force_flush_all()
    queue.coordinator.replication.log.truncate_log(T7, 15)
    queue.write(range(15, 40), T7)
    _ship(queue, copy)
    assert copy.fresh_rows(T7) == queue.fresh_rows(T7) == once_each(range(40))
    for scene in (queue, copy):
        scene.reopen()
        scene.coordinator.force_flush_all()
        assert_delivered(scene, range(40), table=T7)


def test_held_rows_are_flushed_once_and_read_once(queue: QueueScene) -> None:
    queue.coordinator.replication.retain_log("main")
    queue.write(range(10))
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(10))
    queue.clock.advance(86_400)
    assert queue.coordinator.due_tables() == []
    queue.crash()
    assert queue.coordinator.due_tables() == []
    assert queue.coordinator.force_flush_all().rows == 0
    assert_delivered(queue, range(10))
    assert queue.coordinator.replication.log.read_log(EVENTS, 0, rows_max=ALL) is not None


@pytest.mark.parametrize("point", ["deliver.after_commit", "queue.before_retire", "queue.after_retire"])
def test_held_rows_are_flushed_once_through_a_crash(queue: QueueScene, point: str) -> None:
    queue.coordinator.replication.retain_log("main")
    queue.write(range(10))
    with faults.armed(point, once(die)), pytest.raises(Killed):
        queue.coordinator.force_flush_all()
    queue.crash()
    assert queue.fresh_rows() == once_each(range(10))
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(10))
    shipment = queue.coordinator.replication.log.read_log(EVENTS, 0, rows_max=ALL)
    assert shipment is not None
    assert shipment.rows["id"].to_pylist() == list(range(10))


def test_a_dropped_table_that_comes_again_loses_no_row_to_the_old_watermark(queue: QueueScene) -> None:
    create_table(queue.lake, T7)
    queue.coordinator.replication.start_after(T7, 10)
    queue.coordinator.replication.append_replicated([_shipped(11, 30)])
    queue.coordinator.force_flush_all()
    queue.coordinator.replication.append_replicated([_shipped(31, 35)])
    queue.coordinator.replication.drop("t7")
    queue.sql("DROP SCHEMA t7 CASCADE")
    create_table(queue.lake, T7)
    # Its home has flushed less by now than was flushed here in the first life.
    queue.coordinator.replication.start_after(T7, 20)
    queue.coordinator.replication.append_replicated([_shipped(21, 40)])
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(21, 41), table=T7)
    queue.coordinator.replication.drop("t7")
    queue.sql("DROP SCHEMA t7 CASCADE")
    queue.coordinator.replication.append_replicated([_shipped(1, 5)])
    queue.crash()
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(1, 6), table=T7)


def test_a_drop_waits_for_the_flush_of_its_tables_and_clears_their_failures(queue: QueueScene) -> None:
    queue.coordinator.replication.append_replicated([_shipped(1, 5)])
    queue.write(range(5))
    dropping = threading.Thread(target=lambda: queue.coordinator.replication.drop("t7"))
    there: list[bool] = []

    def start_dropping() -> None:
        dropping.start()
        there.append(bool(_t7(queue)))

    with watched("deliver.before_commit", once(start_dropping)):
        queue.coordinator.force_flush_all()
    dropping.join()
    assert there == [True]
    assert _t7(queue) == {}
    assert_audited(queue)
    queue.coordinator.replication.append_replicated([_shipped(1, 5)])
    queue.coordinator.requeue(T7, "for a test")
    queue.coordinator.replication.drop("t7")
    assert queue.coordinator.next_retry_at() is None
    assert queue.coordinator.force_flush_all().rows == 0


def _t7(queue: QueueScene) -> dict[TableId, int]:
    return dict(queue.coordinator.replication.log.positions("t7"))


@pytest.mark.usefixtures("no_wait_for_room")
def test_a_full_buffer_refuses_rows_of_a_retained_schema_and_others_bypass_it(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_max_db_bytes=1, queue_bypass=True)
    create_table(queue.lake, T7)
    queue.write(range(5), T7)
    queue.coordinator.replication.retain_log("t7")
    with pytest.raises(BackpressureError):
        queue.write(range(5, 10), T7)
    with pytest.raises(BackpressureError):
        queue.coordinator.replication.append_replicated([_shipped(1, 5)])
    ack, shipment = queue.coordinator.replication.enqueue(EVENTS, event_rows(range(5)))
    assert (ack.rows, shipment) == (5, None)
    assert queue.lake_rows(T7) == queue.lake_rows() == once_each(range(5))


@pytest.mark.usefixtures("no_wait_for_room")
def test_holding_a_schema_waits_for_writes_that_bypass_the_buffer(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_max_db_bytes=1, queue_bypass=True)
    seen: list[int] = []
    is_held = threading.Event()

    def retain_log() -> None:
        queue.coordinator.replication.retain_log("main")
        is_held.set()
        seen.append(sum(queue.lake_rows().values()))

    holding = threading.Thread(target=retain_log)
    emitted = queue.lake.insert

    def insert(table: TableId, rows: pa.Table) -> None:
        holding.start()
        while not queue.coordinator.replication.log.retained_schemas():
            pass
        assert not is_held.is_set()
        emitted(table, rows)

    queue.lake.insert = insert  # type: ignore[method-assign]
    queue.write(range(5))
    holding.join()
    assert seen == [5]


def test_rows_that_are_kept_as_they_arrived_can_be_shipped_without_a_reading(
    queue: QueueScene, copy: QueueScene
) -> None:
    create_table(queue.lake, T7)
    queue.write(range(3), T7)
    ack, shipment = queue.coordinator.replication.enqueue(T7, event_rows(range(3, 6)).select(["kind", "id"]))
    assert shipment is not None
    assert (ack.seq_first, ack.seq_last) == (shipment.seq_first, shipment.seq_last) == (4, 6)
    with pytest.raises(SeqGapError):
        copy.coordinator.replication.append_replicated([shipment])
    copy.coordinator.replication.append_replicated([_first_of(queue, 3), shipment])
    assert copy.fresh_rows(T7) == once_each(range(6))


def _first_of(queue: QueueScene, rows_max: int) -> LogRows:
    shipment = queue.coordinator.replication.log.read_log(T7, 0, rows_max=rows_max)
    assert shipment is not None
    return shipment


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"id": pa.array([1], pa.int64())}),
        pa.table({"id": pa.array([1], pa.int32()), "kind": ["a"]}),
        pa.table({"id": pa.array([1], pa.int64()), "kind": pa.array(["a"]).dictionary_encode()}),
    ],
    ids=["missing", "narrow", "encoded"],
)
def test_rows_that_are_kept_otherwise_have_to_be_read(queue: QueueScene, rows: pa.Table) -> None:
    ack, shipment = queue.coordinator.replication.enqueue(EVENTS, rows)
    assert shipment is None
    assert ack.rows == 1


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if not FACTS[layout].has_replication])
def test_a_layout_without_a_log_refuses_replication(queue: QueueScene) -> None:
    assert queue.buffer.replication is None
    with pytest.raises(NotSupportedError) as error:
        _ = queue.coordinator.replication
    assert error.value.hint
