"""The queue through the ADBC driver: duckling_queue, catchment_fresh, and its commands."""

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any

import adbc_driver_manager
import pytest

from tests.queue.queues import open_queue
from tests.sample_events import rows_of
from tests.server.server_process import ServerProcess, serving
from tests.waiting import BEAT_S, wait_until

Error = adbc_driver_manager.Error
SHAPE = (
    "(a INTEGER NOT NULL, b VARCHAR DEFAULT 'x', d DATE, n DECIMAL(10, 2) DEFAULT 1.5, l INTEGER[],"
    ' t TIMESTAMP, "Ü b" BOOLEAN)'
)
# `{}` is the target. Each does to the queue what it does to a table.
INSERTS = [
    "INSERT INTO {} VALUES (1, 'y', '2024-01-01', 2.25, [1, NULL], '2024-01-01 12:00:00', true)",
    "INSERT INTO {} (a) VALUES (1), (2), (3)",
    "INSERT INTO {} (d, a) VALUES (DATE '2024-02-29', 1)",
    "INSERT INTO {} (a, b, n) VALUES (1, DEFAULT, DEFAULT), (2, NULL, NULL)",
    'INSERT INTO {} ("Ü b", "A") VALUES (false, 1)',
    "INSERT INTO {} BY NAME SELECT 'n' AS b, 1 AS a",
    "INSERT INTO {} (a) SELECT range::INTEGER FROM range(5)",
    "INSERT INTO {} (a, b) WITH w AS (SELECT 1 AS z) SELECT z, 'w' FROM w",
    "WITH w AS (SELECT 1 AS z) INSERT INTO {} (a) SELECT z FROM w",
    "INSERT INTO {} (a) FROM range(3)",
    "INSERT INTO {} (a) SELECT 1 UNION ALL SELECT 2 ORDER BY 1 LIMIT 1",
    "INSERT INTO {} (a) VALUES ('12')",
    "INSERT INTO {} (a, n, l) VALUES (1.6, '2.345', '[1, 2]')",
    "INSERT INTO {} (a, t) VALUES (length('four'), TIMESTAMP '2024-01-01' + INTERVAL 1 DAY)",
    "INSERT INTO {} (a) SELECT 1 WHERE false",
    "insert into {} (a, b) values (1, 'values (2); -- returning'); -- done",
    "/* first */ INSERT INTO {} (a) -- columns\n VALUES (1) /* last */",
    "INSERT INTO {} (a) VALUES (1) -- RETURNING *",
    "INSERT INTO {} VALUES (1)",
    "INSERT INTO {} VALUES (1, 'y', NULL, 1, NULL, NULL, true, 8)",
    "INSERT INTO {} (a, b) VALUES (1)",
    "INSERT INTO {} (a, a) VALUES (1, 2)",
    "INSERT INTO {} (missing) VALUES (1)",
    "INSERT INTO {} (a) VALUES (NULL)",
    "INSERT INTO {} (b) VALUES ('no a')",
    "INSERT INTO {} DEFAULT VALUES",
    "INSERT INTO {} (a) VALUES ('one')",
    "INSERT INTO {} (a) VALUES (1e30)",
    "INSERT INTO {} (a, d) VALUES (1, '2024-13-01')",
    "INSERT INTO {} (a) SELECT error('boom')",
    "INSERT INTO {} (a) SELECT a FROM missing",
    "INSERT INTO {} (a) VALUES (1), (2, 3)",
    "INSERT INTO {} (a) SELEC 1",
]


def _code(error: Error) -> str:
    return str(error).rpartition("(")[2].partition(";")[0]


def _tried(cursor: Any, statement: str) -> int | str:
    """How many rows it inserts, or the status that it fails with."""
    try:
        cursor.execute(statement)
    except Error as error:
        return _code(error)
    return int(cursor.rowcount)


def test_an_insert_into_the_queue_does_what_it_does_to_the_table(server: ServerProcess, table: str) -> None:
    with server.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} {SHAPE}; CREATE TABLE {table}_plain {SHAPE}")
        queued = {insert: _tried(cursor, insert.format(f"duckling_queue.{table}")) for insert in INSERTS}
        assert queued == {insert: _tried(cursor, insert.format(f"{table}_plain")) for insert in INSERTS}
        assert sum(isinstance(each, int) for each in queued.values()) == 18
        buffered, plain = f"SELECT * FROM catchment_fresh.{table}", f"SELECT * FROM {table}_plain"
        cursor.execute(f"({buffered} EXCEPT ALL {plain}) UNION ALL ({plain} EXCEPT ALL {buffered})")
        assert cursor.fetchall() == []


def test_names_are_found_in_any_case_in_quotes_and_in_other_schemas(server: ServerProcess, table: str) -> None:
    odd = f'"Ünï ""q"" {table}"'
    with server.cursor() as cursor:
        cursor.execute(f'CREATE TABLE {table} (a INTEGER); CREATE TABLE {odd} ("select" INTEGER)')
        cursor.execute(f"CREATE SCHEMA of_{table}; CREATE TABLE of_{table}.{table} (a INTEGER)")
        for target in (f"duckling_queue.{table}", f'DUCKLING_QUEUE."{table}"', f'"duckling_queue".{table.upper()}'):
            cursor.execute(f"INSERT INTO {target} VALUES (1)")
        cursor.execute(f'INSERT INTO duckling_queue.{odd} ("select") VALUES (2)')
        cursor.execute(f"INSERT INTO duckling_queue.of_{table}.{table} VALUES (3)")
        for source, values in ((table.upper(), [1, 1, 1]), (odd, [2]), (f"of_{table}.{table}", [3])):
            cursor.execute(f"SELECT * FROM catchment_fresh.{source}")
            assert [row[0] for row in cursor.fetchall()] == values


def test_several_inserts_in_one_text_are_all_done(server: ServerProcess, table: str) -> None:
    server.rows(f"CREATE TABLE {table} (a INTEGER)", "SELECT 1")
    insert = f"INSERT INTO duckling_queue.{table} VALUES"
    with server.cursor() as cursor:
        assert _tried(cursor, f"{insert} (1); {insert} (2), (3)") == 2
    assert server.rows(f"SELECT count(*) FROM {table}") == [(0,)]
    assert server.rows(f"{insert} (4); SELECT count(*) FROM catchment_fresh.{table}") == [(4,)]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("INSERT INTO duckling_queue.t VALUES (1) RETURNING a", "RETURNING is not possible"),
        ("INSERT INTO duckling_queue.t VALUES (1) ON CONFLICT DO NOTHING", "ON CONFLICT is not possible"),
        ("INSERT OR REPLACE INTO duckling_queue.t VALUES (1)", "INSERT OR … is not possible"),
        ("INSERT OR IGNORE INTO duckling_queue.t VALUES (1)", "INSERT OR … is not possible"),
        ("SELECT * FROM duckling_queue.t", "write-only"),
        ("DESCRIBE duckling_queue.t", "write-only"),
        ("UPDATE duckling_queue.t SET a = 1", "append-only"),
        ("DELETE FROM duckling_queue.t", "append-only"),
        ("TRUNCATE duckling_queue.t", "append-only"),
        ("DROP TABLE duckling_queue.t", "append-only"),
        ("CREATE OR REPLACE TABLE duckling_queue.t (a INTEGER)", "is not possible on duckling_queue"),
        ("ALTER TABLE duckling_queue.t ADD COLUMN b INTEGER", "append-only"),
        ("INSERT INTO other SELECT * FROM duckling_queue.t", "append-only"),
        ("MERGE INTO duckling_queue.t USING (SELECT 1 AS a) s USING (a) WHEN NOT MATCHED THEN INSERT", "append-only"),
        ("INSERT INTO duckling_queue.t SELECT * FROM catchment_fresh.t", "not inside an INSERT"),
        ("CREATE TABLE copy AS SELECT * FROM catchment_fresh.t", "read only by a query"),
        ("DELETE FROM catchment_fresh.t", "read only by a query"),
    ],
)
def test_statements_that_the_queue_cannot_run_are_refused_with_the_reason(
    server: ServerProcess, statement: str, reason: str
) -> None:
    with server.cursor() as cursor, pytest.raises(Error, match="Unimplemented") as failed:
        cursor.execute(statement)
    assert reason in str(failed.value)


def test_bound_rows_are_all_enqueued_or_none(server: ServerProcess, table: str) -> None:
    server.rows(f"CREATE TABLE {table} (a INTEGER, b VARCHAR DEFAULT 'x', d DATE)", "SELECT 1")
    queue = f"INSERT INTO duckling_queue.{table}"
    counted = [
        (f"{queue} VALUES (?, ?, ?)", [(1, "b", date(2024, 1, 1)), (2, None, None)], 2),
        (f"{queue} VALUES (?, ?, ?)", [(3, "b", "2024-01-01")], 1),
        (f"{queue} (b, a) VALUES (?, ?)", [("b", 4)], 1),
        (f"{queue} (a, b) VALUES (? + ?, upper(?))", [(2, 3, "b"), (3, 3, "b")], 2),
        (f"{queue} (a) SELECT ?", [(7,), (8,)], 2),
        (f"{queue} (a) VALUES (?), (?)", [(9, 10), (11, 12)], 4),
    ]
    with server.cursor() as cursor:
        for statement, rows, count in counted:
            cursor.executemany(statement, rows)
            assert (statement, cursor.rowcount) == (statement, count)
        for statement in (f"{queue} (a, d) VALUES (?, ?)", f"{queue} (a, d) SELECT ?, ?"):
            with pytest.raises(Error, match="InvalidArgument"):
                cursor.executemany(statement, [(90, "2024-01-01"), (91, "never")])
    found = server.rows(f"SELECT a, b FROM catchment_fresh.{table} ORDER BY a")
    assert [row[0] for row in found] == list(range(1, 13))
    assert [row[1] for row in found[3:6]] == ["b", "B", "B"]


# Fresh reads.


@pytest.fixture(scope="module")
def fresh(server: ServerProcess) -> str:
    """A table with one row in the lake and one in the buffer."""
    table = "fresh_and_lake"
    server.rows(f"CREATE TABLE {table} (a INTEGER, b VARCHAR); INSERT INTO {table} VALUES (1, 'lake')", "SELECT 1")
    server.rows(f"INSERT INTO duckling_queue.{table} VALUES (2, 'buffer')", "SELECT 1")
    return table


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT a, b FROM catchment_fresh.{} ORDER BY a", [(1, "lake"), (2, "buffer")]),
        ("FROM catchment_fresh.{} ORDER BY a LIMIT 1", [(1, "lake")]),
        ("SELECT {}.a FROM catchment_fresh.{} WHERE {}.b = 'buffer'", [(2,)]),
        ("SELECT f.a FROM catchment_fresh.{} AS f WHERE f.b = 'buffer'", [(2,)]),
        ("SELECT x.a FROM catchment_fresh.main.{} x ORDER BY ALL", [(1,), (2,)]),
        ("SELECT count(*) FROM catchment_fresh.{} l JOIN catchment_fresh.{} r USING (a)", [(2,)]),
        ("SELECT f.a FROM catchment_fresh.{} f ANTI JOIN {} USING (a)", [(2,)]),
        ("WITH w AS (SELECT * FROM catchment_fresh.{}) SELECT sum(a) FROM w", [(3,)]),
        ("SELECT (SELECT max(a) FROM catchment_fresh.{}) + 1", [(3,)]),
        ("SELECT a FROM catchment_fresh.{} UNION ALL SELECT 9 ORDER BY 1", [(1,), (2,), (9,)]),
        ("SELECT 'catchment_fresh.{}', count(*) FROM CATCHMENT_FRESH.{} -- all", [("catchment_fresh.{}", 2)]),
    ],
)
def test_a_fresh_read_has_rows_of_lake_and_buffer(
    server: ServerProcess, fresh: str, query: str, expected: list[Any]
) -> None:
    found = server.rows(query.replace("{}", fresh))
    assert [tuple(str(each) for each in row) for row in found] == [
        tuple(str(each).replace("{}", fresh) for each in row) for row in expected
    ]


def test_a_fresh_read_takes_parameters_and_can_be_explained(server: ServerProcess, fresh: str) -> None:
    with server.cursor() as cursor:
        cursor.execute(f"SELECT b FROM catchment_fresh.{fresh} WHERE a = ? OR b = ? ORDER BY a", (2, "lake"))
        assert cursor.fetchall() == [("lake",), ("buffer",)]
        cursor.execute(f"EXPLAIN SELECT * FROM catchment_fresh.{fresh}")
        assert cursor.fetchall()[0][0] == "physical_plan"


def test_a_fresh_read_within_a_transaction_is_as_of_now(server: ServerProcess, table: str) -> None:
    """It sees what others have committed and enqueued, and nothing of the transaction itself."""
    server.rows(f"CREATE TABLE {table} (a INTEGER); INSERT INTO {table} VALUES (1)", "SELECT 1")
    with server.cursor(autocommit=False) as cursor:
        cursor.execute(f"INSERT INTO {table} VALUES (2)")
        cursor.execute(f"INSERT INTO duckling_queue.{table} VALUES (3)")
        server.rows(f"INSERT INTO duckling_queue.{table} VALUES (4)", "SELECT 1")
        cursor.execute(f"SELECT a FROM catchment_fresh.{table} ORDER BY a")
        assert cursor.fetchall() == [(1,), (4,)]
        cursor.execute(f"SELECT a FROM {table} ORDER BY a")
        assert cursor.fetchall() == [(1,), (2,)]


def test_the_status_of_the_queue_can_be_asked_for_in_two_ways(server: ServerProcess, fresh: str) -> None:
    with server.cursor() as cursor:
        for statement in ("CALL duckling_queue_status()", "SELECT * FROM duckling_queue_status()"):
            cursor.execute(statement)
            (row,) = [each for each in cursor.fetch_arrow_table().to_pylist() if each["table_name"] == fresh]
            assert (row["table_schema"], row["rows"], row["seq_last"], row["flushing"]) == ("main", 1, 1, False)
        assert _updated(cursor, "CALL duckling_queue_status()") == 0


def _updated(cursor: Any, statement: str) -> int:
    """What a statement says when it is run as an update."""
    cursor.adbc_statement.set_sql_query(statement)
    return int(cursor.adbc_statement.execute_update())


# What needs a server of its own.


@pytest.fixture(scope="module")
def with_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that makes tables, and has time to flush them when it ends."""
    with serving(
        tmp_path_factory.mktemp("flushing"),
        CATCHMENT_SERVER_SHUTDOWN_SECONDS="120",
        DUCKLING_QUEUE_AUTO_CREATE_TABLES="true",
    ) as running:
        yield running


@pytest.fixture
def flushing(with_spark: ServerProcess) -> ServerProcess:
    """The server with Spark, started again where a test has left it dead."""
    if not with_spark.is_running:
        with_spark.start()
    return with_spark


def test_a_missing_table_is_made_from_the_first_rows(flushing: ServerProcess, table: str) -> None:
    with flushing.cursor() as cursor:
        cursor.execute(f"INSERT INTO duckling_queue.{table} SELECT 1 AS a, 'x' AS b")
        cursor.execute(f"INSERT INTO duckling_queue.{table}_named (a, b) VALUES (1, 'x'), (2, 'y') -- two")
        with pytest.raises(Error, match="NotFound"):
            cursor.execute(f"INSERT INTO duckling_queue.{table}_nameless VALUES (1)")
        cursor.execute(f"SELECT * FROM catchment_fresh.{table}")
        assert cursor.fetchall() == [(1, "x")]
        cursor.execute(f"SELECT b FROM catchment_fresh.{table}_named ORDER BY a")
        assert cursor.fetchall() == [("x",), ("y",)]


def test_a_table_that_is_made_from_rows_has_the_types_that_the_rows_have_in_sql(
    flushing: ServerProcess, table: str
) -> None:
    with flushing.cursor() as cursor:
        made = "'{}'::JSON AS j, uuid() AS u, [uuid()] AS l, {j: '1'::JSON} AS s, 1::HUGEINT AS h"
        cursor.execute(f"INSERT INTO duckling_queue.{table} SELECT {made}")
        described = cursor.execute(f"DESCRIBE {table}").fetchall()
    assert [row[1] for row in described] == ["JSON", "UUID", "UUID[]", "STRUCT(j JSON)", "HUGEINT"]


def test_a_flush_brings_what_is_buffered_to_the_lake(flushing: ServerProcess, table: str) -> None:
    with flushing.cursor() as cursor:

        def write() -> None:
            cursor.execute(f"INSERT INTO duckling_queue.{table} VALUES (1), (2)")
            cursor.execute(f"INSERT INTO duckling_queue.{table}_other VALUES (3)")

        cursor.execute(f"CREATE TABLE {table} (a INTEGER); CREATE TABLE {table}_other (a INTEGER)")
        write()
        cursor.execute("PRAGMA duckling_queue.flush")
        flushed = [row[:3] for row in cursor.fetchall() if row[1].startswith(table)]
        assert flushed == [("main", table, 2), ("main", f"{table}_other", 1)]
        write()
        assert _updated(cursor, "CALL duckling_queue_flush()") == 0
        for nothing_left in ("CALL duckling_queue_flush()", "PRAGMA duckling_queue.flush;"):
            cursor.execute(nothing_left)
            assert cursor.fetchall() == []
        cursor.execute("CALL duckling_queue_status()")
        assert {row["rows"] for row in cursor.fetch_arrow_table().to_pylist()} <= {0}
        for source in (table, f"catchment_fresh.{table}"):
            cursor.execute(f"SELECT count(*), sum(a) FROM {source}")
            assert cursor.fetchall() == [(4, 6)]


class Writer:
    """A client that writes row after row, and comes back when the server does."""

    def __init__(self, server: ServerProcess, table: str, first: int) -> None:
        self._server = server
        self._insert = f"INSERT INTO duckling_queue.{table} VALUES"
        self._next = first
        self.acked: list[int] = []
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.is_set():
            try:
                self._write()
            except (Error, RuntimeError, ResourceWarning):
                # The row may be there or not. The driver stumbles over handles that it cannot close
                # at the server.
                self._next += 1
                self.enough.wait(0.5)

    def _write(self) -> None:
        with self._server.cursor() as cursor:
            while not self.enough.wait(BEAT_S):
                cursor.execute(f"{self._insert} ({self._next})")
                self.acked.append(self._next)
                self._next += 1

    def wait_for(self, rows: int) -> None:
        wait_until(lambda: len(self.acked) >= rows, f"{rows} rows are acknowledged")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_clients_go_on_after_a_restart_and_every_row_is_there_once(flushing: ServerProcess, table: str) -> None:
    flushing.rows(f"CREATE TABLE {table} (a BIGINT)", "SELECT 1")
    writers = [Writer(flushing, table, first * 1_000_000) for first in range(4)]
    with ThreadPoolExecutor(len(writers)) as pool:
        running = [pool.submit(writer.run) for writer in writers]
        for writer in writers:
            writer.wait_for(10)
        before = {number for writer in writers for number in writer.acked}
        assert flushing.stop() == 0
        flushing.start()
        for writer in writers:
            writer.wait_for(len(writer.acked) + 10)
            writer.enough.set()
        for each in running:
            each.result(60)
    # Here and now, the driver complains of handles that it could not close at the server which was
    # gone.
    gc.collect()
    acked = {number for writer in writers for number in writer.acked}
    # The end of the first flushed what it had.
    assert before <= {row[0] for row in flushing.rows(f"SELECT a FROM {table}")}
    _assert_once([row[0] for row in flushing.rows(f"SELECT a FROM catchment_fresh.{table}")], acked)
    flushing.kill()
    with open_queue(flushing.settings) as queue:
        queue.force_flush_all()
        _assert_once([row[0] for row in rows_of(queue.lake, f"SELECT a FROM {table}")], acked)


def _assert_once(found: list[Any], acked: set[int]) -> None:
    assert len(found) == len(set(found))
    assert acked <= set(found)
