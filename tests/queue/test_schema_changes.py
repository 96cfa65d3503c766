"""Tables that change while rows for them are buffered.

The oracle is a twin table that gets every row at the moment at which the queue acknowledges it, and
every change too.
"""

import pyarrow as pa
import pytest

from catchment.errors import InputError, TableMissingError
from catchment.foundation import faults
from catchment.foundation.ids import TableId
from tests.queue.queues import Killed, MakeQueue, QueueScene, die

T = TableId("main", "t")
ONE, TWO, THREE = (pa.table({"a": pa.array([number], pa.int32())}) for number in (1, 2, 3))


class Twins:
    """A table that is written through the queue, and its twin that is written directly."""

    def __init__(self, queue: QueueScene, definition: str) -> None:
        self.queue = queue
        self.names = {"t": "t", "twin": "twin"}
        self.alter("CREATE TABLE {} (" + definition + ")")

    def seed(self, values: str) -> None:
        """Give both tables a row: DuckLake sets NOT NULL only where it knows that no NULL is there."""
        self.alter("INSERT INTO {} VALUES " + values)

    def alter(self, statement: str) -> None:
        """Change both tables in the same way."""
        for name in self.names.values():
            self.queue.sql(statement.replace("{}", name))

    def insert(self, values: str, columns: str = "") -> None:
        """Insert the same row into both: through the queue, and directly."""
        rows = self._rows(values, columns)
        self.queue.coordinator.enqueue(TableId("main", self.names["t"]), rows)
        self.queue.sql(f"INSERT INTO {self.names['twin']} {columns} VALUES {values}")

    def _rows(self, values: str, columns: str) -> pa.Table:
        """The row as an INSERT would shape it."""
        twin = self.names["twin"]
        with self.queue.lake.cursor() as connection:
            connection.execute("SET arrow_lossless_conversion = true")
            connection.execute(f"CREATE OR REPLACE TEMP TABLE shape AS FROM {twin} LIMIT 0")
            connection.execute(f"INSERT INTO temp.shape {columns} VALUES {values}")
            names = columns.strip("()") or "*"
            return connection.execute(f"SELECT {names} FROM temp.shape").to_arrow_table()

    def agree(self) -> None:
        """Fresh reads and the lake, after a flush, show what the twin has."""
        expected = self._lake_rows("twin")
        assert self._fresh_rows() == expected
        self.queue.reopen()
        assert self._fresh_rows() == expected
        report = self.queue.coordinator.force_flush_all()
        assert [each.buried for each in report.tables] == [0] * len(report.tables)
        assert self._lake_rows("t") == expected
        assert self._fresh_rows() == expected

    def _lake_rows(self, which: str) -> list[str]:
        with self.queue.lake.cursor() as cursor:
            return sorted(map(repr, cursor.execute(f"FROM {self.names[which]}").fetchall()))

    def _fresh_rows(self) -> list[str]:
        table = TableId("main", self.names["t"])
        with self.queue.coordinator.fresh(table) as fresh:
            return sorted(map(repr, fresh.connection.execute(fresh.queries[table]).fetchall()))


CHANGES = {
    "rename": ["ALTER TABLE {} RENAME COLUMN a TO z"],
    "names exchanged": [
        "ALTER TABLE {} RENAME COLUMN a TO c",
        "ALTER TABLE {} RENAME COLUMN b TO a",
        "ALTER TABLE {} RENAME COLUMN c TO b",
    ],
    "drop and add under the same name": ["ALTER TABLE {} DROP COLUMN b", "ALTER TABLE {} ADD COLUMN b INTEGER"],
    "drop": ["ALTER TABLE {} DROP COLUMN b"],
    "add": ["ALTER TABLE {} ADD COLUMN d INTEGER"],
    "add with a default": ["ALTER TABLE {} ADD COLUMN d INTEGER DEFAULT 5"],
    "add with a default that changes": [
        "ALTER TABLE {} ADD COLUMN d VARCHAR DEFAULT 'it''s'",
        "ALTER TABLE {} ALTER COLUMN d SET DEFAULT 'other'",
    ],
    "set default": ["ALTER TABLE {} ALTER COLUMN b SET DEFAULT 9"],
    "drop default": ["ALTER TABLE {} ALTER COLUMN k DROP DEFAULT"],
    "widen": ["ALTER TABLE {} ALTER COLUMN a SET DATA TYPE BIGINT"],
    "set not null": ["ALTER TABLE {} ALTER COLUMN a SET NOT NULL"],
    "drop not null": ["ALTER TABLE {} ALTER COLUMN n DROP NOT NULL"],
    "comment": ["COMMENT ON TABLE {} IS 'a table'", "COMMENT ON COLUMN {}.a IS 'a column'"],
    "nested field renamed": ["ALTER TABLE {} RENAME COLUMN s.i TO ii"],
    "nested field added": ["ALTER TABLE {} ADD COLUMN s.k VARCHAR"],
    "nested field dropped": ["ALTER TABLE {} DROP COLUMN s.j"],
    "nested fields exchanged": [
        "ALTER TABLE {} RENAME COLUMN s.i TO x",
        "ALTER TABLE {} RENAME COLUMN s.j TO i",
        "ALTER TABLE {} RENAME COLUMN s.x TO j",
    ],
    "partitioned": ["ALTER TABLE {} SET PARTITIONED BY (a)"],
    "partitioned by a nested column": ["ALTER TABLE {} SET PARTITIONED BY (s)"],
    "sorted": ["ALTER TABLE {} SET SORTED BY (b)"],
}
DEFINITION = "a INTEGER, b INTEGER, k INTEGER DEFAULT 3, n INTEGER NOT NULL DEFAULT 0, s STRUCT(i INTEGER, j INTEGER)"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_rows_that_were_acknowledged_before_a_change_are_rows_that_were_there_before_it(
    change: list[str], make_queue: MakeQueue
) -> None:
    twins = Twins(make_queue(), DEFINITION)
    twins.seed("(0, 0, 0, 0, {i: 0, j: 0})")
    twins.insert("(1, 2, 4, 5, {i: 6, j: 7}), (10, 20, 30, 40, {i: 60, j: 70}), (11, NULL, NULL, 41, NULL)")
    for statement in change:
        twins.alter(statement)
    twins.agree()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_rows_that_are_written_after_a_change_are_bound_to_what_the_table_is_by_then(
    change: list[str], make_queue: MakeQueue
) -> None:
    twins = Twins(make_queue(), DEFINITION)
    twins.seed("(0, 0, 0, 0, {i: 0, j: 0})")
    twins.insert("(1, 2, 4, 5, {i: 6, j: 7})")
    for statement in change:
        twins.alter(statement)
        twins.insert("(101)", _first_column(twins))
    twins.agree()


def _first_column(twins: Twins) -> str:
    with twins.queue.lake.cursor() as cursor:
        return f"({cursor.execute('DESCRIBE twin').fetchall()[0][0]})"


def test_a_renamed_table_gets_the_rows_that_were_acknowledged_under_its_old_name(make_queue: MakeQueue) -> None:
    twins = Twins(make_queue(), "a INTEGER")
    twins.insert("(1)")
    twins.queue.sql("ALTER TABLE t RENAME TO u")
    twins.names["t"] = "u"
    assert twins.queue.fresh_rows(TableId("main", "u")) == {(1,): 1}
    twins.insert("(2)")
    twins.agree()


def test_a_name_that_is_given_to_another_table_leaves_each_row_to_its_own(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.sql("CREATE TABLE t (a INTEGER)")
    queue.coordinator.enqueue(T, pa.table({"a": pa.array([1, 2], pa.int32())}))
    queue.sql("ALTER TABLE t RENAME TO old")
    queue.sql("CREATE TABLE t (a INTEGER)")
    queue.coordinator.enqueue(T, THREE)
    old = TableId("main", "old")
    for _ in range(2):
        assert queue.fresh_rows(T) == {(3,): 1}
        assert queue.fresh_rows(old) == {(1,): 1, (2,): 1}
        queue.reopen()
    queue.coordinator.force_flush_all()
    assert queue.lake_rows(T) == queue.fresh_rows(T) == {(3,): 1}
    assert queue.lake_rows(old) == queue.fresh_rows(old) == {(1,): 1, (2,): 1}
    assert queue.lake.audit().ok


def test_rows_of_a_dropped_table_neither_go_into_its_successor_nor_delay_it(make_queue: MakeQueue) -> None:
    queue = make_queue()
    for number in range(3):
        queue.sql("CREATE TABLE t (a INTEGER)")
        queue.coordinator.enqueue(T, pa.table({"a": pa.array([number], pa.int32())}))
        queue.sql("DROP TABLE t")
    queue.sql("CREATE TABLE t (a INTEGER)")
    queue.coordinator.enqueue(T, THREE)
    queue.reopen()
    report = queue.coordinator.force_flush_all()
    assert (report.rows, sum(each.stranded for each in report.tables)) == (1, 3)
    assert queue.lake_rows(T) == queue.fresh_rows(T) == {(3,): 1}
    assert sum(state.rows for state in queue.buffer.tables()) == 3
    failing = [each for each in queue.coordinator.status().tables if each.failure is not None]
    assert sum(each.state.rows for each in failing) == 3
    assert queue.lake.audit().ok


def test_rows_that_a_table_had_before_it_was_dropped_are_not_stranded(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.sql("CREATE TABLE t (a INTEGER)")
    queue.coordinator.enqueue(T, ONE)
    with pytest.raises(Killed), faults.armed("deliver.after_commit", die):
        queue.coordinator.force_flush_all()
    queue.crash()
    assert queue.lake_rows(T) == {(1,): 1}
    queue.coordinator.enqueue(T, TWO)
    queue.sql("DROP TABLE t")
    report = queue.coordinator.force_flush_all()
    assert sum(each.stranded for each in report.tables) == 1
    assert sum(state.rows for state in queue.buffer.tables()) == 1


def test_a_table_that_is_replaced_takes_only_rows_that_were_written_since(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.sql("CREATE TABLE t (a INTEGER)")
    queue.coordinator.enqueue(T, ONE)
    queue.coordinator.force_flush_all()
    queue.coordinator.enqueue(T, TWO)
    queue.sql("CREATE OR REPLACE TABLE t (a INTEGER)")
    queue.coordinator.enqueue(T, THREE)
    assert queue.fresh_rows(T) == {(3,): 1}
    queue.coordinator.force_flush_all()
    assert queue.lake_rows(T) == {(3,): 1}


def test_writes_to_a_dropped_table_are_refused(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.sql("CREATE TABLE t (a INTEGER)")
    queue.coordinator.enqueue(T, ONE)
    queue.sql("DROP TABLE t")
    with pytest.raises(TableMissingError):
        queue.coordinator.enqueue(T, TWO)


def test_not_null_and_defaults_that_are_set_by_a_change_hold_for_the_next_write(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.sql("CREATE TABLE t (a INTEGER, b VARCHAR DEFAULT 'one')")
    queue.sql("INSERT INTO t VALUES (0, 'zero')")
    queue.coordinator.enqueue(T, ONE)
    queue.sql("ALTER TABLE t ALTER COLUMN b SET DEFAULT 'two'")
    queue.coordinator.enqueue(T, TWO)
    queue.sql("ALTER TABLE t ALTER COLUMN a SET NOT NULL")
    with pytest.raises(InputError):
        queue.coordinator.enqueue(T, pa.table({"a": pa.array([None], pa.int32())}))
    queue.coordinator.force_flush_all()
    assert queue.lake_rows(T) == {(0, "zero"): 1, (1, "one"): 1, (2, "two"): 1}


def test_a_default_that_is_an_expression_is_evaluated_once_at_the_acknowledgement(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.sql("CREATE TABLE t (a INTEGER, u UUID DEFAULT uuid(), made TIMESTAMP DEFAULT now()::TIMESTAMP)")
    queue.coordinator.enqueue(T, pa.table({"a": pa.array([1, 2], pa.int32())}))
    first = queue.fresh_rows(T)
    queue.reopen()
    assert queue.fresh_rows(T) == first
    queue.coordinator.force_flush_all()
    assert queue.lake_rows(T) == queue.fresh_rows(T) == first
    assert len({row[1] for row in first}) == 2
