"""Shapes and values on every layout: rows match the table's columns, and values stay the same."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from catchment.errors import InputError, TableMissingError, TypeConflictError
from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.lake.types import Column
from catchment.queue import incoming
from tests.queue.queues import (
    MakeQueue,
    QueueScene,
    arrow,
    assert_audited,
    assert_delivered,
    difference,
    event_rows,
    once_each,
)
from tests.sample_events import EVENTS, create_table

VALUES = TableId("main", "values")
WAIT_S = 30.0

# For each type an ordinary value, and two that are limits or oddities.
EVERY_TYPE = {
    "BOOLEAN": ("true", "false", "true"),
    "TINYINT": ("1", "-128", "127"),
    "SMALLINT": ("-2", "-32768", "32767"),
    "INTEGER": ("3", "-2147483648", "2147483647"),
    "BIGINT": ("4", "-9223372036854775808", "9223372036854775807"),
    "UTINYINT": ("5", "0", "255"),
    "USMALLINT": ("6", "0", "65535"),
    "UINTEGER": ("7", "0", "4294967295"),
    "UBIGINT": ("8", "0", "18446744073709551615"),
    "FLOAT": ("1.5", "'nan'", "'-inf'"),
    "DOUBLE": ("2.5", "'inf'", "'nan'"),
    "DECIMAL(9,2)": ("12.34", "-9999999.99", "0"),
    "DECIMAL(38,10)": ("1.0000000001", "-9999999999999999999999999999.9999999999", "0"),
    "VARCHAR": ("'text'", "''", "'{SNAPSHOT_ID}'"),
    "BLOB": ("'ab\\x00\\xFF'", "''", "'{DATA_PATH}'"),
    "UUID": (
        "'01234567-89ab-cdef-0123-456789abcdef'",
        "'00000000-0000-0000-0000-000000000000'",
        "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    ),
    "DATE": ("'2024-02-29'", "'0001-01-01'", "'9999-12-31'"),
    "TIME": ("'12:34:56'", "'00:00:00'", "'23:59:59.999999'"),
    "TIMESTAMP": ("'2024-02-29 12:34:56.789012'", "'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"),
    "TIMESTAMP_MS": ("'2024-02-29 12:34:56.789'", "'1969-12-31 23:59:59.999'", "'2262-01-01 00:00:00'"),
    "TIMESTAMP_NS": ("'2024-02-29 12:34:56.789012345'", "'1969-12-31 23:59:59.999999999'", "'1970-01-01 00:00:00'"),
    "TIMESTAMPTZ": ("'2024-02-29 12:34:56.789012+05:30'", "'1900-01-01 00:00:00+00'", "'2024-01-01 00:00:00-11'"),
    "INTEGER[]": ("[1, NULL, 3]", "[]", "[NULL]"),
    "STRUCT(a INTEGER, b VARCHAR)": ("{'a': 1, 'b': 'x'}", "{'a': NULL, 'b': ''}", "{'a': 0, 'b': '{DATA_PATH}'}"),
    "MAP(VARCHAR, INTEGER)": ("MAP {'k': 1, 'l': NULL}", "MAP {}", "MAP {'{SNAPSHOT_ID}': 1}"),
    "STRUCT(deep MAP(VARCHAR, DATE)[])[]": ("[{'deep': [MAP {'m': DATE '1970-01-01'}]}]", "[]", "[{'deep': NULL}]"),
}
EVERY_VALUE = " UNION ALL ".join(
    "SELECT " + ", ".join(f"CAST({(*some, 'NULL')[at]} AS {kind})" for kind, some in EVERY_TYPE.items())
    for at in range(4)
)

TEXTS = [
    "",
    " ",
    "'",
    '"',
    "''; DROP TABLE events; --",
    "{SNAPSHOT_ID}",
    "{DATA_PATH}",
    "{METADATA_CATALOG}",
    "a\nb\tc\\",
    "ünïcödé 🦆 漢字",
    "NULL",
    "null",
    "%s {} {0} $1 ?",
    "x" * 100_000,
]


def _read(queue: QueueScene, table: TableId, query: str) -> list[tuple[object, ...]]:
    """Rows that differ between query and fresh read, or between fresh read and flushed lake."""
    with queue.coordinator.fresh(table) as fresh:
        found = difference(fresh.connection, fresh.queries[table], query)
    queue.coordinator.force_flush_all()
    with queue.lake.cursor() as cursor:
        lake = f"FROM {sql.qualified(queue.lake.name, table.schema, table.name)}"
        found += difference(cursor, lake, query)
    assert queue.held_rows(table) == 0
    assert_audited(queue)
    return found


def test_columns_are_matched_by_name_whatever_their_order_and_case(queue: QueueScene) -> None:
    queue.write(range(2))
    queue.coordinator.enqueue(EVENTS, pa.table({"KIND": ["k2"], "Id": pa.array([2], pa.int64())}))
    queue.coordinator.enqueue(EVENTS, pa.table({"kind": ["k3"], "ID": pa.array([3], pa.int64())}))
    assert queue.fresh_rows() == once_each(range(4))
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(4))


def test_narrower_numbers_are_widened_in_any_order(queue: QueueScene) -> None:
    for number, kind in enumerate([pa.int32(), pa.int64(), pa.int8(), pa.uint32(), pa.int32()]):
        rows = pa.table({"id": pa.array([number], kind), "kind": [f"k{number}"]})
        assert queue.coordinator.enqueue(EVENTS, rows).seq_last == number + 1
    assert queue.fresh_rows() == once_each(range(5))
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(5))


def test_missing_columns_take_the_tables_defaults(queue: QueueScene) -> None:
    columns = (
        Column(name="id", type="BIGINT"),
        Column(name="note", type="VARCHAR", default="'none'"),
        Column(name="size", type="INTEGER", nullable=False, default="7"),
        Column(name="tags", type="VARCHAR[]"),
    )
    create_table(queue.lake, VALUES, columns=columns)
    queue.coordinator.enqueue(VALUES, pa.table({"id": [1]}))
    # What is sent as NULL is NULL.
    queue.coordinator.enqueue(VALUES, pa.table({"id": [2], "note": pa.array([None], pa.string())}))
    expected = "FROM (VALUES (1, 'none', 7, NULL::VARCHAR[]), (2, NULL, 7, NULL))"
    assert _read(queue, VALUES, expected) == []


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (pa.table({"id": [1.5], "kind": ["k"]}), "DOUBLE, which does not go into BIGINT unchanged"),
        (pa.table({"id": ["1"], "kind": ["k"]}), "VARCHAR, which does not go into BIGINT unchanged"),
        (pa.table({"id": pa.array([1], pa.uint64()), "kind": ["k"]}), "UBIGINT, which does not go into BIGINT"),
        (pa.table({"id": [1], "kind": [2]}), "BIGINT, which does not go into VARCHAR unchanged"),
        (pa.table({"id": [1], "kind": ["k"], "surprise": [1]}), "no column 'surprise'"),
        (pa.table({"id": [1], "ID": [1], "kind": ["k"]}), "[Tt]wo columns of the rows have the same name"),
        (pa.table({"id": [1], "kind": ["k"], "dq_seq": [1]}), "no column 'dq_seq'"),
        (
            pa.table({"id": pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "kind": ["k"]}),
            "INTERVAL, which does not go",
        ),
    ],
    ids=["fraction", "text", "unsigned", "number", "unknown column", "twice", "reserved", "interval"],
)
def test_rows_that_the_table_cannot_take_unchanged_are_refused_whole(
    rows: pa.Table, reason: str, queue: QueueScene
) -> None:
    queue.write(range(2))
    with pytest.raises(InputError, match=reason):
        queue.coordinator.enqueue(EVENTS, rows)
    assert queue.fresh_rows() == once_each(range(2))
    # No number was used up, and the buffer takes the next rows as before.
    assert queue.write(range(2, 3)).seq_first == 3
    queue.coordinator.force_flush_all()
    assert_delivered(queue, range(3))


def test_null_in_a_required_column_is_refused_before_it_is_buffered(queue: QueueScene) -> None:
    columns = (Column(name="id", type="BIGINT", nullable=False), Column(name="kind", type="VARCHAR"))
    create_table(queue.lake, VALUES, columns=columns)
    with pytest.raises(InputError, match="'id' is NOT NULL"):
        queue.coordinator.enqueue(VALUES, pa.table({"ID": pa.array([1, None], pa.int64()), "kind": ["a", "b"]}))
    with pytest.raises(InputError, match="'id' is missing"):
        queue.coordinator.enqueue(VALUES, pa.table({"kind": ["a"]}))
    assert queue.held_rows(VALUES) == 0
    assert queue.write(range(1), VALUES).seq_first == 1


@pytest.mark.parametrize("reserved", ["dq_seq", "DQ_AT"])
def test_a_table_with_a_column_that_the_queue_keeps_for_itself_is_refused(reserved: str, make_queue: MakeQueue) -> None:
    queue = make_queue(queue_auto_create_tables=True)
    rows = pa.table({"id": [1], reserved: [1]})
    with pytest.raises(InputError, match=reserved):
        queue.coordinator.enqueue(VALUES, rows)
    assert queue.lake.find_table(VALUES) is None
    create_table(queue.lake, VALUES, columns=(Column(name="id", type="BIGINT"), Column(name=reserved, type="BIGINT")))
    with pytest.raises(InputError, match=reserved):
        queue.coordinator.enqueue(VALUES, rows)
    assert queue.held_rows(VALUES) == 0


def test_a_missing_table_is_an_error_that_says_what_to_do(queue: QueueScene) -> None:
    with pytest.raises(TableMissingError) as missing:
        queue.write(range(1), VALUES)
    assert "DUCKLING_QUEUE_AUTO_CREATE_TABLES" in str(missing.value.hint)
    assert queue.buffer.tables() == ()
    create_table(queue.lake, VALUES)
    assert queue.write(range(1), VALUES).seq_first == 1


def test_a_missing_table_is_created_from_its_first_rows_if_the_setting_allows_it(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_auto_create_tables=True)
    table = TableId("made", "for you")
    rows = arrow("SELECT 1::INTEGER AS n, [1.5::DECIMAL(4,2)] AS list, 'x'::BLOB AS bin")
    queue.coordinator.enqueue(table, rows)
    assert [(column.name, column.type) for column in queue.lake.table(table).columns] == [
        ("n", "INTEGER"),
        ("list", "DECIMAL(4,2)[]"),
        ("bin", "BLOB"),
    ]
    assert _read(queue, table, "SELECT 1, [1.5::DECIMAL(4,2)], 'x'::BLOB") == []


@pytest.mark.parametrize("auto_create", [False, True])
def test_the_queue_refuses_writes_to_the_ledger(auto_create: bool, make_queue: MakeQueue) -> None:
    queue = make_queue(queue_auto_create_tables=auto_create)
    for name in ("producers", "mine"):
        with pytest.raises(InputError):
            queue.write(range(1), TableId("_catchment", name))
    assert queue.buffer.tables() == ()


def test_writers_with_a_new_column_go_on_at_once_and_the_old_rows_drain_in_order(make_queue: MakeQueue) -> None:
    queue = make_queue(queue_flush_chunk_rows=2)
    queue.write(range(3))
    queue.sql("ALTER TABLE events ADD COLUMN note VARCHAR")
    new = pa.table({"id": [3, 4], "kind": ["k3", "k4"], "note": ["n3", "n4"]})
    assert (queue.coordinator.enqueue(EVENTS, new).seq_first, queue.write(range(5, 6)).seq_first) == (4, 6)
    expected = Counter({(n, f"k{n}", f"n{n}" if n in (3, 4) else None): 1 for n in range(6)})
    assert queue.fresh_rows() == expected
    queue.buffer.seal()
    payloads = queue.buffer.payloads()
    try:
        read = [(payload.seq_first, queue.buffer.read(payload).column_names) for payload in payloads]
    finally:
        for payload in payloads:
            queue.buffer.release(payload)
    assert read == sorted(read)
    assert (read[0][1], read[-1][1]) == (["id", "kind"], ["id", "kind", "note"])
    queue.coordinator.force_flush_all()
    assert queue.lake_rows() == expected
    assert queue.held_rows() == 0
    assert_audited(queue)
    with queue.lake.ledger() as ledger:
        firsts = [each.seq_first for each in ledger.deliveries()]
    assert firsts == sorted(firsts)


def test_versions_of_a_table_survive_a_power_cut(queue: QueueScene) -> None:
    queue.write(range(2))
    for number, name in enumerate(["one", "two"], start=2):
        queue.sql(f"ALTER TABLE events ADD COLUMN {name} INTEGER")
        queue.coordinator.enqueue(
            EVENTS, pa.table({"id": [number], "kind": [f"k{number}"], name: pa.array([7], pa.int32())})
        )
    queue.crash()
    expected = Counter(
        {(0, "k0", None, None): 1, (1, "k1", None, None): 1, (2, "k2", 7, None): 1, (3, "k3", None, 7): 1}
    )
    assert queue.fresh_rows() == expected
    queue.coordinator.force_flush_all()
    assert queue.lake_rows() == expected
    assert_audited(queue)


def test_a_column_that_was_widened_takes_the_wider_rows_at_once(queue: QueueScene) -> None:
    create_table(queue.lake, VALUES, columns=(Column(name="n", type="INTEGER"),))
    queue.coordinator.enqueue(VALUES, pa.table({"n": pa.array([1], pa.int32())}))
    with pytest.raises(TypeConflictError):
        queue.coordinator.enqueue(VALUES, pa.table({"n": [2**40]}))
    queue.sql("ALTER TABLE values ALTER n SET DATA TYPE BIGINT")
    queue.coordinator.enqueue(VALUES, pa.table({"n": [2**40]}))
    assert _read(queue, VALUES, f"FROM (VALUES (1::BIGINT), ({2**40}))") == []


@pytest.mark.parametrize(
    ("change", "rows", "expected"),
    [
        ("ALTER n SET DATA TYPE BIGINT", {"n": pa.array([2], pa.int32()), "d": ["x"]}, "(2, 'x')"),
        ("ALTER n DROP NOT NULL", {"n": pa.array([None], pa.int32()), "d": ["x"]}, "(NULL, 'x')"),
        ("ALTER d SET DEFAULT 'new'", {"n": pa.array([2], pa.int32())}, "(2, 'new')"),
    ],
    ids=["wider", "nullable", "default"],
)
def test_once_the_lake_was_asked_its_answer_counts_and_not_what_the_buffer_keeps(
    change: str, rows: dict[str, pa.Array], expected: str, queue: QueueScene
) -> None:
    columns = (
        Column(name="n", type="INTEGER", nullable=False),
        Column(name="d", type="VARCHAR", default="'old'"),
    )
    create_table(queue.lake, VALUES, columns=columns)
    queue.coordinator.enqueue(VALUES, pa.table({"n": pa.array([1], pa.int32())}))
    queue.sql(f"ALTER TABLE values {change}")
    asked = queue.coordinator.columns(VALUES, ask=True)
    assert asked != columns
    assert queue.coordinator.columns(VALUES) == asked
    queue.coordinator.enqueue(VALUES, pa.table(rows))
    assert queue.buffer.columns(VALUES, "default") == asked
    assert _read(queue, VALUES, f"FROM (VALUES (1, 'old'), {expected})") == []


def test_a_process_that_has_asked_nothing_yet_takes_rows_as_the_buffer_keeps_them(queue: QueueScene) -> None:
    create_table(queue.lake, VALUES, columns=(Column(name="n", type="INTEGER"),))
    queue.coordinator.enqueue(VALUES, pa.table({"n": pa.array([1], pa.int32())}))
    queue.sql("ALTER TABLE values ALTER n SET DATA TYPE BIGINT")
    queue.coordinator.columns(VALUES, ask=True)
    queue.coordinator.enqueue(VALUES, pa.table({"n": pa.array([2], pa.int32())}))
    queue.crash()
    queue.lake.down = True
    queue.coordinator.enqueue(VALUES, pa.table({"n": [2**40]}))
    queue.lake.down = False
    assert _read(queue, VALUES, f"FROM (VALUES (1::BIGINT), (2), ({2**40}))") == []


def test_writers_of_two_shapes_do_not_take_turns_at_new_versions(queue: QueueScene) -> None:
    """A late writer with the old shape resets the cached columns once, not for good."""
    queue.write(range(1))
    before = queue.buffer.columns(EVENTS, "default")
    assert before is not None
    queue.sql("ALTER TABLE events DROP COLUMN kind")
    after = queue.coordinator.columns(EVENTS, ask=True)
    queue.coordinator.enqueue(EVENTS, pa.table({"id": [1]}))
    assert queue.buffer.columns(EVENTS, "default") == after
    queue.buffer.append(EVENTS, before, event_rows(range(2, 3)), session="default")
    with pytest.raises(TypeConflictError, match="no column 'kind'"):
        queue.write(range(3, 4))
    for number in range(3, 5):
        queue.coordinator.enqueue(EVENTS, pa.table({"id": [number]}))
        assert queue.buffer.columns(EVENTS, "default") == after


@pytest.mark.parametrize("layout", ["shared"])
def test_waiting_for_a_table_to_be_created_blocks_no_writer_of_another_one(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(queue_auto_create_tables=True)
    commit, begun, let = queue.lake.commit, threading.Event(), threading.Event()

    def held_up(*given: Any) -> Any:
        begun.set()
        assert let.wait(WAIT_S)
        return commit(*given)

    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(queue.lake, "commit", held_up)
        making = pool.submit(queue.write, range(1), VALUES)
        assert begun.wait(WAIT_S)
        try:
            # The lake has to be asked for this one too.
            assert pool.submit(queue.write, range(1)).result(WAIT_S).seq_last == 1
            assert not making.done()
        finally:
            let.set()
        assert making.result(WAIT_S).seq_last == 1
    assert queue.coordinator._schemas._locks == {}


@pytest.mark.parametrize("layout", ["shared"])
def test_one_writer_asks_for_a_changed_table_and_the_others_take_its_answer(
    queue: QueueScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.write(range(1))
    queue.sql("ALTER TABLE events ADD COLUMN note VARCHAR")
    find, asked, targets = queue.lake.find_table, [], queue.coordinator._schemas

    def found_when_all_wait(table: TableId) -> Any:
        asked.append(table)
        pause = threading.Event()
        for _ in range(1_000):
            if targets._locks[table][1] == 3:
                break
            pause.wait(0.01)
        return find(table)

    monkeypatch.setattr(queue.lake, "find_table", found_when_all_wait)
    rows = pa.table({"id": [1], "kind": ["k"], "note": ["n"]})
    with ThreadPoolExecutor(3) as pool:
        acks = [pool.submit(queue.coordinator.enqueue, EVENTS, rows) for _ in range(3)]
        assert sorted(ack.result(WAIT_S).seq_first for ack in acks) == [2, 3, 4]
    assert asked == [EVENTS]
    assert targets._locks == {}


def test_rows_that_still_differ_after_the_table_changed_are_refused_and_nothing_is_dropped(queue: QueueScene) -> None:
    queue.write(range(3))
    queue.sql("ALTER TABLE events ADD COLUMN note VARCHAR")
    with pytest.raises(TypeConflictError, match="no column 'remark'"):
        queue.coordinator.enqueue(EVENTS, pa.table({"id": [3], "remark": ["r"]}))
    assert queue.held_rows() == 3
    queue.coordinator.force_flush_all()
    assert queue.lake_rows() == Counter({(n, f"k{n}", None): 1 for n in range(3)})
    assert_audited(queue)


def test_values_of_every_type_come_out_as_they_went_in(queue: QueueScene) -> None:
    columns = tuple(Column(name=f"c{at}", type=kind) for at, kind in enumerate(EVERY_TYPE))
    create_table(queue.lake, VALUES, columns=columns)
    sent = arrow(EVERY_VALUE).rename_columns([column.name for column in columns])
    queue.coordinator.enqueue(VALUES, sent)
    assert _read(queue, VALUES, EVERY_VALUE) == []


DEEP = {
    "lists": "[" * 16 + "1" + "]" * 16,
    "maps": "MAP {'k': " * 16 + "1" + "}" * 16,
    "structs": "{'a': " * 50 + "1" + "}" * 50,
}


@pytest.mark.parametrize("kind", DEEP)
def test_values_that_are_nested_as_deep_as_may_be_come_out_as_they_went_in(kind: str, queue: QueueScene) -> None:
    query = f"SELECT {DEEP[kind]} AS c"
    sent = arrow(query)
    create_table(queue.lake, VALUES, columns=incoming.columns_of(sent.schema))
    queue.coordinator.enqueue(VALUES, sent)
    assert _read(queue, VALUES, query) == []


def test_a_row_of_a_thousand_columns_comes_out_as_it_went_in(queue: QueueScene) -> None:
    query = f"SELECT {', '.join(f'{n} AS c{n}' for n in range(1_000))}"
    sent = arrow(query)
    create_table(queue.lake, VALUES, columns=incoming.columns_of(sent.schema))
    queue.coordinator.enqueue(VALUES, sent)
    assert _read(queue, VALUES, query) == []


@pytest.mark.parametrize("auto_create", [False, True])
def test_rows_that_are_nested_too_deep_are_refused_before_they_are_kept(
    auto_create: bool, make_queue: MakeQueue
) -> None:
    queue = make_queue(queue_auto_create_tables=auto_create)
    sent = arrow(f"SELECT {'[' * 17}1{']' * 17} AS c")
    if not auto_create:
        create_table(queue.lake, VALUES, columns=incoming.columns_of(sent.schema))
    with pytest.raises(TypeConflictError, match="17 deep, and the limit is 16"):
        queue.coordinator.enqueue(VALUES, sent)
    assert queue.buffer.tables() == ()
    assert (queue.lake.find_table(VALUES) is None) == auto_create


def test_texts_with_special_meaning_come_out_as_they_went_in(queue: QueueScene) -> None:
    queue.coordinator.enqueue(EVENTS, pa.table({"id": pa.array(range(len(TEXTS)), pa.int64()), "kind": TEXTS}))
    expected = Counter(enumerate(TEXTS))
    assert queue.fresh_rows() == expected
    queue.coordinator.force_flush_all()
    # Alone in their file too, where they are its least and its greatest value.
    for number, text in enumerate(TEXTS, start=100):
        if "{" in text:
            queue.coordinator.enqueue(EVENTS, pa.table({"id": [number], "kind": [text]}))
            queue.coordinator.force_flush_all()
            expected[number, text] = 1
    assert queue.lake_rows() == queue.fresh_rows() == expected
    assert_audited(queue)


@pytest.mark.parametrize("layout", ["shared"])
def test_rows_are_found_by_their_values_after_a_text_that_ducklake_would_replace(queue: QueueScene) -> None:
    token = pa.table({"id": [3], "kind": ["{SNAPSHOT_ID}"]})
    for rows in (event_rows(range(3)), token, event_rows(range(4, 6))):
        queue.coordinator.enqueue(EVENTS, rows)
        queue.coordinator.force_flush_all()
    with queue.lake.cursor() as cursor:
        query = "SELECT count(*) FROM events WHERE id = ?"
        assert [cursor.execute(query, [number]).fetchone() for number in range(6)] == [(1,)] * 6
        assert cursor.execute("SELECT min(id), max(id) FROM events").fetchone() == (0, 5)


def test_tables_and_columns_may_have_odd_names(queue: QueueScene) -> None:
    names = ["a b", 'quote"d', "it's", "semi;colon", "sélect", "SELECT", "comma,", "dot.ted", "--"]
    tables = [
        TableId("main", "a.b"),
        TableId("a", "b"),
        TableId("main", 'odd "table"; --'),
        TableId("odd 'schema'", "SELECT"),
        TableId("main", "ünïcödé"),
    ]
    for number, table in enumerate(tables):
        create_table(queue.lake, table, columns=tuple(Column(name=name, type="BIGINT") for name in names))
        queue.coordinator.enqueue(table, pa.table({name: [number * 100 + at] for at, name in enumerate(names)}))
    expected = {table: {tuple(number * 100 + at for at in range(len(names))): 1} for number, table in enumerate(tables)}
    assert {table: queue.fresh_rows(table) for table in tables} == expected
    assert queue.coordinator.force_flush_all().rows == len(tables)
    assert {table: queue.lake_rows(table) for table in tables} == expected
    assert_audited(queue)


def test_rows_of_a_partitioned_table_are_split_but_for_those_whose_folder_cannot_be_named(queue: QueueScene) -> None:
    create_table(queue.lake, VALUES, partition_by=("kind",))
    kinds = ["a", "it's", "", "{SNAPSHOT_ID}"]
    for start in range(0, 12, 4):
        rows = event_rows(range(start, start + 4)).set_column(1, "kind", pa.array(kinds))
        queue.coordinator.enqueue(VALUES, rows)
    sent = Counter({(number, kinds[number % 4]): 1 for number in range(12)})
    assert queue.fresh_rows(VALUES) == sent
    (done,) = queue.coordinator.force_flush_all().tables
    assert (done.rows, done.buried) == (9, 3)
    letters = [letter.content().to_pylist()[0] for letter in queue.lake.dead_letters()]
    assert queue.lake_rows(VALUES) + Counter((row["id"], row["kind"]) for row in letters) == sent
    assert {row["kind"] for row in letters} == {"{SNAPSHOT_ID}"}
    assert_audited(queue)
