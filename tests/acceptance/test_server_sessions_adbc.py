"""Sessions through the ADBC driver: their state, end and limits, and many clients at once."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import adbc_driver_manager
import psutil
import pytest

from catchment.foundation.clock import SystemClock
from tests.queue.queues import segments_in
from tests.server.raw_client import ENDLESS
from tests.server.server_process import ServerProcess, serving
from tests.waiting import wait_until

Error = adbc_driver_manager.Error
MIB = 1024 * 1024
SESSIONS_MAX = 9
CLIENTS = 8
ROUNDS = 4


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that has little patience, and a file for each session."""
    with serving(
        tmp_path_factory.mktemp("strict"),
        {"catchment.server.encoding.wire.RESULT_BYTES_MAX": MIB},
        DUCKLING_QUEUE_LAYOUT="sessions",
        DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS="86400",
        CATCHMENT_SERVER_SESSIONS_MAX=str(SESSIONS_MAX),
        CATCHMENT_SERVER_SESSION_IDLE_SECONDS="5",
        CATCHMENT_SERVER_TRANSACTION_IDLE_SECONDS="1",
        CATCHMENT_SERVER_STATEMENT_SECONDS_MAX="2",
    ) as running:
        yield running


# What is a client's own.


def test_temporary_tables_and_use_are_the_sessions_own(server: ServerProcess, table: str) -> None:
    with server.cursor() as one, server.cursor() as other:
        one.execute(f"CREATE SCHEMA of_{table}; USE of_{table}; CREATE TABLE {table} AS SELECT 1 AS a")
        one.execute(f"CREATE TEMP TABLE {table}_passing AS SELECT 2 AS a")
        one.execute(f"SELECT * FROM {table}, {table}_passing")
        assert one.fetchall() == [(1, 2)]
        for name in (table, f"{table}_passing"):
            with pytest.raises(Error, match="NotFound"):
                other.execute(f"SELECT * FROM {name}")
        other.execute(f"CREATE TEMP TABLE {table}_passing AS SELECT 3 AS a")
        other.execute("SELECT current_schema()")
        assert other.fetchall() == [("main",)]
        one.execute(f"SELECT current_schema(), a FROM {table}_passing")
        assert one.fetchall() == [(f"of_{table}", 2)]


def test_the_schema_can_be_chosen_through_the_driver(server: ServerProcess, table: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA of_{table}; CREATE TABLE of_{table}.{table} AS SELECT 1 AS a")
        connection.adbc_current_db_schema = f"of_{table}"
        cursor.execute(f"SELECT a FROM {table}")
        assert cursor.fetchall() == [(1,)]
        assert connection.adbc_current_db_schema == f"of_{table}"


# Long statements and long results.


def test_a_cancelled_statement_ends_and_the_connection_goes_on(server: ServerProcess) -> None:
    with server.connect() as connection:
        with connection.cursor() as cursor, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(cursor.execute, ENDLESS)
            _wait_for_work(server)
            cursor.adbc_cancel()
            with pytest.raises(Error, match=r"(?i)cancel"):
                waiting.result(timeout=10)
        with connection.cursor() as cursor:
            cursor.execute("SELECT 42")
            assert cursor.fetchall() == [(42,)]
    _wait_for_rest(server)


def test_a_result_that_is_cancelled_while_it_is_read_ends(server: ServerProcess) -> None:
    with server.connect() as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM range(1000000000000)")
            reader = cursor.fetch_record_batch()
            assert reader.read_next_batch().num_rows
            cursor.adbc_cancel()
            with pytest.raises(OSError, match=r"(?i)cancel"):
                reader.read_all()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 42")
            assert cursor.fetchall() == [(42,)]
    _wait_for_rest(server)


def _wait_for_work(server: ServerProcess) -> None:
    before_s = _user_s(server)
    wait_until(lambda: _user_s(server) > before_s + 0.2, "the server works")


def _wait_for_rest(server: ServerProcess) -> None:
    def rests() -> bool:
        before_s, clock = _user_s(server), SystemClock()
        clock.sleep(0.2)
        return _user_s(server) - before_s < 0.1

    wait_until(rests, "the server rests")


def _user_s(server: ServerProcess) -> float:
    """The CPU time of the server and its engine."""
    process = psutil.Process(server.pid)
    return float(sum(each.cpu_times().user for each in (process, *process.children())))


def test_a_large_result_streams_through_little_memory(server: ServerProcess) -> None:
    """50 million rows of over 100 bytes; of them 500,000 are read."""
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    with server.cursor() as cursor:
        cursor.execute("SELECT range, repeat('x', 100) AS text FROM range(50000000)")
        reader, rows = cursor.fetch_record_batch(), 0
        while rows < 500_000:
            rows += reader.read_next_batch().num_rows
        assert process.memory_info().rss < before + 100 * MIB
    _wait_for_rest(server)
    assert process.memory_info().rss < before + 100 * MIB


def test_a_statement_before_the_first_result_is_read_does_not_harm_it(server: ServerProcess) -> None:
    with server.connect() as connection, connection.cursor() as first, connection.cursor() as second:
        first.execute("SELECT * FROM range(200000)")
        second.execute("SELECT 7")
        assert second.fetchall() == [(7,)]
        assert first.fetch_arrow_table().num_rows == 200_000


def test_a_result_too_large_to_be_kept_is_given_up_with_the_reason(strict: ServerProcess) -> None:
    with strict.connect() as connection, connection.cursor() as first, connection.cursor() as second:
        first.execute("SELECT repeat('x', 1000) AS text FROM range(100000)")
        second.execute("SELECT 7")
        assert second.fetchall() == [(7,)]
        with pytest.raises((Error, OSError), match="second connection"):
            first.fetch_arrow_table()


@pytest.mark.parametrize(("option", "statement"), [("query", ENDLESS), ("update", f"CREATE TABLE never AS {ENDLESS}")])
def test_a_client_may_set_a_limit_of_its_own(server: ServerProcess, option: str, statement: str) -> None:
    limit = {f"adbc.flight.sql.rpc.timeout_seconds.{option}": "0.3"}
    with server.cursor(options=limit) as cursor:
        with pytest.raises(Error, match="DeadlineExceeded"):
            cursor.execute(statement)
        cursor.execute("SELECT 42")
        assert cursor.fetchall() == [(42,)]
    _wait_for_rest(server)


def test_a_statement_that_takes_too_long_is_ended_by_the_server(strict: ServerProcess) -> None:
    with strict.cursor() as cursor:
        with pytest.raises(Error, match="DeadlineExceeded"):
            cursor.execute(ENDLESS)
        cursor.execute("SELECT 42")
        assert cursor.fetchall() == [(42,)]


# What ends when nothing is heard of it.


def test_a_transaction_that_idles_is_rolled_back_and_its_client_can_go_on(strict: ServerProcess, table: str) -> None:
    strict.rows(f"CREATE TABLE {table} (a INTEGER)", "SELECT 1")
    with strict.connect(autocommit=False) as connection, connection.cursor() as idle:
        idle.execute(f"INSERT INTO {table} VALUES (1)")
        idle.execute(f"INSERT INTO duckling_queue.{table} VALUES (2)")
        # Waits for the lake, which the transaction has.
        strict.rows(f"INSERT INTO {table} VALUES (3)", "SELECT 1")
        with pytest.raises(Error, match="rolled back for idling"):
            idle.execute(f"INSERT INTO {table} VALUES (4)")
        connection.rollback()
        idle.execute(f"INSERT INTO {table} VALUES (5)")
        connection.commit()
    assert strict.rows(f"SELECT a FROM catchment_fresh.{table} ORDER BY a") == [(3,), (5,)]


def test_a_transaction_in_which_nothing_was_done_may_idle(strict: ServerProcess, table: str) -> None:
    with strict.connect(autocommit=False) as quiet, strict.connect(autocommit=False) as idle:
        with idle.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {table} (a INTEGER)")
            # Both began by now. When this one has been rolled back, so would the other have been.
            strict.rows(f"CREATE TABLE {table}_later (a INTEGER)", "SELECT 1")
        with quiet.cursor() as cursor:
            cursor.execute("SELECT 42")
            assert cursor.fetchall() == [(42,)]
            quiet.commit()


def test_a_session_that_idles_is_closed_and_its_file_sealed(strict: ServerProcess, table: str) -> None:
    root = strict.home / "duckling_queue"
    strict.rows(f"CREATE TABLE {table} (a INTEGER)", "SELECT 1")
    with strict.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE passing (a INTEGER)")
        before = set(segments_in(root, "active"))
        cursor.execute(f"INSERT INTO duckling_queue.{table} VALUES (1)")
        names = {path.name for path in set(segments_in(root, "active")) - before if path.suffix == ".db"}
        assert len(names) == 1
        wait_until(lambda: names <= {path.name for path in segments_in(root, "sealed")}, "the file is sealed")
        # Without logins a new session takes its place, without the state of the old one.
        with pytest.raises(Error, match="NotFound"):
            cursor.execute("SELECT * FROM passing")
        cursor.execute(f"INSERT INTO duckling_queue.{table} VALUES (2)")
        cursor.execute(f"SELECT a FROM catchment_fresh.{table} ORDER BY a")
        assert cursor.fetchall() == [(1,), (2,)]


# Many clients.


def test_sessions_are_limited_in_number(strict: ServerProcess) -> None:
    with ExitStack() as open_ones:
        cursors = [open_ones.enter_context(strict.cursor()) for _ in range(SESSIONS_MAX - 1)]
        with strict.connect() as last:
            for cursor in (*cursors, open_ones.enter_context(last.cursor())):
                cursor.execute("CREATE TEMP TABLE kept (a INTEGER)")
            with pytest.raises(Error, match="ResourceExhausted"):
                strict.rows("SELECT 1")
            open_ones.pop_all().close()
        assert strict.rows("SELECT 42") == [(42,)]


def _written(server: ServerProcess, table: str, *, read: bool) -> None:
    """Eight clients write at once, each its own rows, and read what they wrote."""
    server.rows(f"CREATE TABLE {table} (client INTEGER, a INTEGER)", "SELECT 1")
    together = threading.Barrier(CLIENTS)

    def work(client: int) -> list[int]:
        seen = []
        with server.cursor() as cursor:
            cursor.execute("SELECT 1")
            together.wait(60)
            for number in range(ROUNDS):
                rows = [(client, number * 10 + each) for each in range(1 + client % 3)]
                cursor.executemany(f"INSERT INTO duckling_queue.{table} VALUES (?, ?)", rows)
                if read and number % 2:
                    cursor.execute(f"SELECT count(*) FROM catchment_fresh.{table} WHERE client = ?", (client,))
                    seen.append(cursor.fetchone()[0])
        return seen

    with ThreadPoolExecutor(CLIENTS) as pool:
        for client, seen in enumerate(pool.map(work, range(CLIENTS))):
            assert seen == [number * (1 + client % 3) for number in range(2, ROUNDS + 1, 2) if read]


def test_clients_that_write_and_read_at_once_lose_nothing(server: ServerProcess, table: str) -> None:
    _written(server, table, read=True)
    counted = server.rows(
        f"SELECT client, count(*), count(DISTINCT a) FROM catchment_fresh.{table} GROUP BY ALL ORDER BY ALL"
    )
    assert counted == [(each, ROUNDS * (1 + each % 3), ROUNDS * (1 + each % 3)) for each in range(CLIENTS)]


def test_clients_with_a_file_each_lose_nothing_either(strict: ServerProcess, table: str) -> None:
    _written(strict, table, read=False)
    expected = ROUNDS * sum(1 + client % 3 for client in range(CLIENTS))

    def are_all_there() -> bool:
        # Files of closed sessions are being flushed meanwhile.
        with strict.cursor() as cursor:
            cursor.execute("CALL duckling_queue_status()")
            buffered = {row["table_name"]: row["rows"] for row in cursor.fetch_arrow_table().to_pylist()}
        flushed = strict.rows(f"SELECT count(*) FROM {table}")[0][0]
        return bool(buffered.get(table, 0) + flushed == expected)

    wait_until(are_all_there, "all rows are buffered or in the lake")
    assert strict.rows(f"SELECT count(DISTINCT (client, a)) FROM catchment_fresh.{table}") == [(expected,)]
