"""Rows whose table was dropped after they were acknowledged: exported, redirected, discarded."""

import duckdb
import pyarrow as pa
import pytest

from catchment.errors import InputError, TypeConflictError
from catchment.foundation import faults
from catchment.foundation.ids import TableId
from catchment.queue.stranded import Stranded
from tests.queue.queues import Killed, MakeQueue, QueueScene, assert_audited, die

T, U = TableId("main", "t"), TableId("main", "u")


@pytest.fixture
def queue(make_queue: MakeQueue) -> QueueScene:
    """A queue with three rows of two shapes for a dropped table, whose name has a successor."""
    queue = make_queue()
    queue.sql("CREATE TABLE t (a INTEGER, u UUID)")
    queue.coordinator.enqueue(T, pa.table({"a": pa.array([1, 2], pa.int32())}))
    queue.sql("ALTER TABLE t ADD COLUMN b VARCHAR DEFAULT 'x'")
    queue.coordinator.enqueue(T, pa.table({"a": pa.array([3], pa.int32())}))
    queue.sql("DROP TABLE t")
    queue.sql("CREATE TABLE t (z INTEGER)")
    queue.coordinator.enqueue(T, pa.table({"z": pa.array([9], pa.int32())}))
    report = queue.coordinator.force_flush_all()
    assert (report.rows, sum(each.stranded for each in report.tables)) == (1, 3)
    return queue


def name_of(queue: QueueScene) -> TableId:
    """The name that the stranded rows are buffered under."""
    (name,) = [state.table for state in queue.buffer.tables() if state.rows]
    return name


def test_stranded_rows_are_exported_with_their_types_and_stay_buffered(queue: QueueScene) -> None:
    name = name_of(queue)
    with queue.coordinator.stranded(name) as rows:
        found = rows.export()
    assert found.rows == 3
    described = [duckdb.sql(f"DESCRIBE FROM '{path}'").fetchall() for path in found.files]
    assert [[(row[0], row[1]) for row in each] for each in described] == [
        [("a", "INTEGER"), ("u", "UUID")],
        [("a", "INTEGER"), ("u", "UUID"), ("b", "VARCHAR")],
    ]
    assert sorted(row for path in found.files for row in duckdb.sql(f"SELECT a FROM '{path}'").fetchall()) == [
        (1,), (2,), (3,)
    ]  # fmt: skip
    with queue.coordinator.stranded(name) as rows:
        assert rows.facts == Stranded(table=name, rows=3)


def test_stranded_rows_are_redirected_once_to_a_table_that_fits(queue: QueueScene) -> None:
    queue.sql("CREATE TABLE u (b VARCHAR DEFAULT 'none', a BIGINT, u UUID)")
    with queue.coordinator.stranded(name_of(queue)) as rows:
        assert rows.redirect(queue.coordinator.flusher, U).rows == 3
    assert queue.lake_rows(U) == {("none", 1, None): 1, ("none", 2, None): 1, ("x", 3, None): 1}
    assert queue.lake_rows(T) == {(9,): 1}
    assert sum(state.rows for state in queue.buffer.tables()) == 0
    assert all(each.failure is None for each in queue.coordinator.status().tables)
    assert_audited(queue)


def test_stranded_rows_that_do_not_fit_the_other_table_stay_buffered(queue: QueueScene) -> None:
    with pytest.raises(TypeConflictError, match="no column"), queue.coordinator.stranded(name_of(queue)) as rows:
        rows.redirect(queue.coordinator.flusher, T)
    with queue.coordinator.stranded(name_of(queue)) as rows:
        assert rows.facts.rows == 3


def test_discarded_rows_are_gone_and_the_audit_knows(queue: QueueScene) -> None:
    name = name_of(queue)
    with queue.coordinator.stranded(name) as rows:
        assert rows.discard() == Stranded(table=name, rows=3)
    queue.reopen()
    assert sum(state.rows for state in queue.buffer.tables()) == 0
    report = queue.coordinator.force_flush_all()
    assert sum(each.stranded for each in report.tables) == 0
    assert_audited(queue)
    with pytest.raises(InputError, match="stranded"), queue.coordinator.stranded(name):
        pass


def test_a_discard_that_is_killed_in_the_middle_is_finished_by_the_next_one(queue: QueueScene) -> None:
    name = name_of(queue)
    with (
        faults.armed("queue.before_discard", die),
        pytest.raises(Killed),
        queue.coordinator.stranded(name) as rows,
    ):
        rows.discard()
    queue.reopen()
    if sum(state.rows for state in queue.buffer.tables()):
        with queue.coordinator.stranded(name) as rows:
            rows.discard()
    assert sum(state.rows for state in queue.buffer.tables()) == 0
    assert_audited(queue)


def test_rows_whose_table_is_there_are_not_stranded(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.sql("CREATE TABLE t (a INTEGER)")
    queue.coordinator.enqueue(T, pa.table({"a": pa.array([1], pa.int32())}))
    with pytest.raises(InputError, match="stranded"), queue.coordinator.stranded(T) as rows:
        rows.discard()
    queue.coordinator.force_flush_all()
    assert queue.lake_rows(T) == {(1,): 1}
