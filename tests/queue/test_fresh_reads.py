"""Fresh reads and dead letters on every layout: each acknowledged row is in exactly one place."""

from collections import Counter

import pyarrow as pa
import pytest

from catchment.errors import InputError, TypeConflictError
from catchment.foundation import faults
from catchment.queue import dead_letter_actions
from tests.queue.queues import (
    LAYOUTS_AND_CATALOGS,
    OTHER,
    MakeQueue,
    QueueScene,
    assert_audited,
    assert_delivered,
    once_each,
    watched,
)
from tests.sample_events import EVENTS, create_table, once


def _nullable(ids: range, *bad: int) -> pa.Table:
    """Events of which some have no kind."""
    kinds = [None if number in bad else f"k{number}" for number in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "kind": pa.array(kinds, pa.string())})


def _tightened(queue: QueueScene) -> None:
    """Make a column required with rows buffered, of which 12 and 19 are bad."""
    queue.write(range(10))
    queue.coordinator.force_flush_all()
    queue.coordinator.enqueue(EVENTS, _nullable(range(10, 16), 12))
    queue.coordinator.enqueue(EVENTS, _nullable(range(16, 22), 19), session="another")
    queue.sql("ALTER TABLE events ALTER COLUMN kind SET NOT NULL")


@pytest.mark.parametrize(("layout", "catalog"), LAYOUTS_AND_CATALOGS)
@pytest.mark.parametrize("point", ["deliver.after_commit", "retire.before_unit", "queue.after_retire"])
def test_a_fresh_read_during_a_flush_has_every_row_once(point: str, catalog: str, make_queue: MakeQueue) -> None:
    queue = make_queue(catalog, queue_flush_chunk_rows=4)
    queue.write(range(10))
    queue.coordinator.force_flush_all()
    queue.write(range(10, 20))
    seen: list[Counter[tuple[object, ...]]] = []
    with watched(point, lambda: seen.append(queue.fresh_rows())) as reached:
        queue.coordinator.force_flush_all()
    assert reached
    assert all(rows == once_each(range(20)) for rows in seen)
    assert_delivered(queue, range(20))


@pytest.mark.parametrize("layout", ["shared"])
def test_a_fresh_read_while_rows_are_deleted_from_the_buffer_has_every_row_once(queue: QueueScene) -> None:
    queue.write(range(10))
    seen: list[Counter[tuple[object, ...]]] = []
    with watched("queue.before_retire", lambda: seen.append(queue.fresh_rows())) as reached:
        queue.coordinator.force_flush_all()
    assert reached
    assert all(rows == once_each(range(10)) for rows in seen)


def test_rows_written_during_a_flush_are_fresh_at_once_and_wait_for_the_next(queue: QueueScene) -> None:
    queue.write(range(5))
    with faults.armed("deliver.after_write", once(lambda: _write_more(queue))):
        assert queue.coordinator.force_flush_all().rows == 5
    assert queue.fresh_rows() == once_each(range(8))
    assert queue.lake_rows() == once_each(range(5))
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(8))


def _write_more(queue: QueueScene) -> None:
    queue.write(range(5, 8))
    assert queue.fresh_rows() == once_each(range(8))


def test_a_fresh_read_is_open_as_long_as_its_block_and_sees_one_moment(queue: QueueScene) -> None:
    queue.write(range(5))
    with queue.coordinator.fresh(EVENTS) as fresh:
        queue.write(range(5, 8))
        queue.coordinator.force_flush_all()
        assert fresh.rows().num_rows == 5
        assert fresh.rows().column_names == ["id", "kind"]
    assert queue.fresh_rows() == once_each(range(8))


def test_a_fresh_read_says_up_to_which_number_it_is_complete(queue: QueueScene) -> None:
    acks = [queue.write(range(3)), queue.write(range(3, 8))]
    with queue.coordinator.fresh(EVENTS) as fresh:
        assert fresh.complete_through[EVENTS] == {acks[-1].source: 8}
    other = queue.write(range(8, 10), session="another")
    with queue.coordinator.fresh(EVENTS) as fresh:
        assert fresh.complete_through[EVENTS][other.source] == other.seq_last


def test_a_table_without_buffered_rows_is_read_fresh_too(queue: QueueScene) -> None:
    create_table(queue.lake, OTHER)
    queue.write(range(5))
    assert queue.fresh_rows(OTHER) == Counter()
    queue.sql("INSERT INTO other VALUES (1, 'k1')")
    assert queue.fresh_rows(OTHER) == once_each(range(1, 2))


def test_a_fresh_read_of_rows_that_fit_no_more_says_so(queue: QueueScene) -> None:
    queue.write_unbound(range(3))
    queue.sql("ALTER TABLE events DROP COLUMN kind")
    with pytest.raises(TypeConflictError, match="no column 'kind'"):
        queue.fresh_rows()


@pytest.mark.parametrize(("layout", "catalog"), LAYOUTS_AND_CATALOGS)
def test_only_bad_rows_become_dead_letters_and_all_others_are_delivered(catalog: str, make_queue: MakeQueue) -> None:
    queue = make_queue(catalog, queue_flush_chunk_rows=3)
    _tightened(queue)
    report = queue.coordinator.force_flush_all()
    (done,) = report.tables
    assert (report.ok, report.rows, done.buried) == (True, 10, 2)
    expected = once_each(range(12), range(13, 19), range(20, 22))
    assert queue.lake_rows() == queue.fresh_rows() == expected
    assert queue.held_rows() == 0
    letters = queue.lake.dead_letters()
    # Sessions may number their rows apart, so the letters' order is the layout's.
    rows = [row for letter in letters for row in letter.content().to_pylist()]
    assert sorted(rows, key=lambda row: row["id"]) == [{"id": 12, "kind": None}, {"id": 19, "kind": None}]
    assert {letter.reason for letter in letters} == {"column 'kind' is NULL and must not be"}
    assert {letter.table for letter in letters} == {EVENTS}
    assert_audited(queue)
    # The queue goes on as if nothing had been.
    queue.write(range(30, 33))
    assert queue.coordinator.force_flush_all().rows == 3
    assert_audited(queue)


def test_unbound_rows_that_used_a_column_that_is_gone_are_buried_and_the_others_delivered(queue: QueueScene) -> None:
    columns = tuple(column.unbound for column in queue.coordinator.columns(EVENTS))
    queue.buffer.append(EVENTS, columns, _nullable(range(6), 0, 1, 2, 3), session="default")
    queue.sql("ALTER TABLE events DROP COLUMN kind")
    (done,) = queue.coordinator.force_flush_all().tables
    assert (done.rows, done.buried) == (4, 2)
    assert queue.lake_rows() == Counter((number,) for number in range(4))
    assert [letter.content().to_pylist() for letter in queue.lake.dead_letters()] == [
        [{"id": 4, "kind": "k4"}],
        [{"id": 5, "kind": "k5"}],
    ]
    assert queue.held_rows() == 0
    assert_audited(queue)


def test_a_flush_of_bad_rows_only_makes_all_of_them_dead_letters(queue: QueueScene) -> None:
    queue.write_unbound(range(3))
    queue.sql("ALTER TABLE events DROP COLUMN kind")
    report = queue.coordinator.force_flush_all()
    assert (report.rows, report.tables[0].buried, queue.held_rows()) == (0, 3, 0)
    assert len(queue.lake.dead_letters()) == 3
    assert queue.lake_rows() == Counter()
    assert_audited(queue)


def test_dead_letters_are_delivered_once_when_they_are_tried_again_and_fit(queue: QueueScene) -> None:
    _tightened(queue)
    queue.coordinator.force_flush_all()
    (first, second) = queue.lake.dead_letters()
    refused = dead_letter_actions.retry(queue.lake, [first.id])
    assert (refused.delivered, list(refused.refused)) == ((), [first.id])
    assert len(queue.lake.dead_letters()) == 2
    queue.sql("ALTER TABLE events ALTER COLUMN kind DROP NOT NULL")
    assert dead_letter_actions.retry(queue.lake, [first.id]).delivered == (first.id,)
    assert [letter.id for letter in queue.lake.dead_letters()] == [second.id]
    assert dead_letter_actions.retry(queue.lake).delivered == (second.id,)
    assert dead_letter_actions.retry(queue.lake).delivered == ()
    sent = once_each(range(12), range(13, 19), range(20, 22)) + Counter([(12, None), (19, None)])
    assert queue.lake_rows() == sent
    assert_audited(queue)


def test_a_dead_letter_that_is_dropped_is_gone_and_one_that_is_not_there_is_an_error(queue: QueueScene) -> None:
    _tightened(queue)
    queue.coordinator.force_flush_all()
    (first, second) = queue.lake.dead_letters()
    for act in (dead_letter_actions.retry, dead_letter_actions.drop):
        with pytest.raises(InputError, match="no dead letter"):
            act(queue.lake, [first.id, "no such"])
    assert dead_letter_actions.drop(queue.lake, [first.id]) == 1
    assert [letter.id for letter in queue.lake.dead_letters()] == [second.id]
    with pytest.raises(InputError, match="no dead letter"):
        dead_letter_actions.drop(queue.lake, [first.id])
    assert queue.lake_rows() == once_each(range(12), range(13, 19), range(20, 22))
    assert_audited(queue)
