"""Transactions of the lake and the queue through the ADBC driver, by calls and by SQL."""

from typing import Any

import adbc_driver_manager
import grpc
import pyarrow as pa
import pytest

from tests.server.raw_client import Client
from tests.server.server_process import ServerProcess

Error = adbc_driver_manager.Error


@pytest.fixture
def made(server: ServerProcess, table: str) -> str:
    """A table with no rows."""
    server.rows(f"CREATE TABLE {table} (a INTEGER)", "SELECT 1")
    return table


def _both(cursor: Any, table: str, number: int) -> None:
    """Write to the lake, and to the queue."""
    cursor.execute(f"INSERT INTO {table} VALUES ({number})")
    cursor.execute(f"INSERT INTO duckling_queue.{table} VALUES ({-number})")


def _seen(server: ServerProcess, table: str) -> list[int]:
    """What others see, rows of the queue included."""
    return [row[0] for row in server.rows(f"SELECT a FROM catchment_fresh.{table} ORDER BY a")]


def test_a_commit_brings_both_and_a_rollback_drops_both(server: ServerProcess, made: str) -> None:
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        _both(cursor, made, 1)
        cursor.execute(f"SELECT a FROM {made}")
        assert cursor.fetchall() == [(1,)]
        assert _seen(server, made) == []
        connection.commit()
        assert _seen(server, made) == [-1, 1]
        _both(cursor, made, 2)
        connection.rollback()
        assert _seen(server, made) == [-1, 1]
        _both(cursor, made, 3)
    # A connection that is closed rolls back what it has open.
    assert _seen(server, made) == [-1, 1]


def test_bulk_ingest_belongs_to_the_open_transaction(server: ServerProcess, made: str) -> None:
    rows = pa.table({"a": pa.array([1, 2], pa.int32())})
    with server.connect(autocommit=False) as connection:
        for end, expected in ((connection.rollback, []), (connection.commit, [1, 1, 2, 2])):
            for where in ({}, {"db_schema_name": "duckling_queue"}):
                with connection.cursor() as cursor:
                    assert cursor.adbc_ingest(made, rows, mode="append", **where) == 2
            end()
            assert _seen(server, made) == expected


def test_prepared_statements_belong_to_the_open_transaction(server: ServerProcess, made: str) -> None:
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {made} VALUES (?)", [(1,), (2,)])
        cursor.executemany(f"INSERT INTO duckling_queue.{made} VALUES (?)", [(3,), (4,)])
        cursor.execute(f"SELECT count(*) FROM {made} WHERE a > ?", (0,))
        assert cursor.fetchall() == [(2,)]
        connection.rollback()
        assert _seen(server, made) == []


def test_begin_commit_and_rollback_work_as_sql(server: ServerProcess, made: str) -> None:
    with server.cursor() as cursor:
        for number, end in ((1, "COMMIT"), (2, "ROLLBACK"), (3, "END"), (4, "ABORT")):
            cursor.execute("BEGIN TRANSACTION" if number == 1 else "BEGIN")
            _both(cursor, made, number)
            assert number not in _seen(server, made)
            cursor.execute(end)
        assert _seen(server, made) == [-3, -1, 1, 3]
        cursor.execute(f"BEGIN; INSERT INTO {made} VALUES (5); INSERT INTO duckling_queue.{made} VALUES (-5); COMMIT")
        assert _seen(server, made) == [-5, -3, -1, 1, 3, 5]


def test_begin_and_commit_out_of_place_are_refused(server: ServerProcess) -> None:
    with server.cursor() as cursor:
        for statement in ("COMMIT", "ROLLBACK"):
            with pytest.raises(Error, match="No transaction is open"):
                cursor.execute(statement)
        cursor.execute("BEGIN")
        with pytest.raises(Error, match="already open"):
            cursor.execute("BEGIN")
        cursor.execute("ROLLBACK")


def test_sql_may_begin_and_end_the_transactions_that_a_driver_opens(server: ServerProcess, made: str) -> None:
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        _both(cursor, made, 1)
        with pytest.raises(Error, match="already open"):
            cursor.execute("BEGIN")
        cursor.execute("COMMIT")
        assert _seen(server, made) == [-1, 1]
        _both(cursor, made, 2)
        cursor.execute("ROLLBACK")
        _both(cursor, made, 3)
        assert _seen(server, made) == [-1, 1]
        # The driver ends the transaction that it began, whatever SQL did in it.
        connection.commit()
        assert _seen(server, made) == [-3, -1, 1, 3]
        cursor.execute("ROLLBACK")
        connection.rollback()
        _both(cursor, made, 4)
        connection.commit()
    assert _seen(server, made) == [-4, -3, -1, 1, 3, 4]


@pytest.mark.parametrize(
    "failing", ["INSERT INTO {} VALUES ('one')", "INSERT INTO duckling_queue.{} SELECT error('no')"]
)
def test_after_a_failed_statement_nothing_of_the_transaction_can_be_committed(
    server: ServerProcess, made: str, failing: str
) -> None:
    """A partly executed statement must be neither committed nor enqueued."""
    with server.cursor() as cursor:
        cursor.execute("BEGIN")
        _both(cursor, made, 1)
        with pytest.raises(Error, match="InvalidArgument"):
            cursor.execute(failing.format(made))
        for further in ("SELECT 1", f"INSERT INTO {made} VALUES (7)", f"INSERT INTO duckling_queue.{made} VALUES (7)"):
            with pytest.raises(Error, match="transaction is aborted"):
                cursor.execute(further)
        with pytest.raises(Error, match=r"nothing was committed.*\(Aborted"):
            cursor.execute("COMMIT")
        assert _seen(server, made) == []
        cursor.execute("BEGIN")
        _both(cursor, made, 2)
        cursor.execute("COMMIT")
        assert _seen(server, made) == [-2, 2]


def test_after_a_failed_statement_a_rollback_makes_the_connection_good_again(server: ServerProcess, made: str) -> None:
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        _both(cursor, made, 1)
        with pytest.raises(Error, match="InvalidArgument"):
            cursor.execute(f"INSERT INTO {made} VALUES ('one')")
        connection.rollback()
        _both(cursor, made, 2)
        connection.commit()
        assert _seen(server, made) == [-2, 2]


def test_a_statement_that_cannot_be_bound_leaves_the_transaction_as_it_is(server: ServerProcess, made: str) -> None:
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        _both(cursor, made, 1)
        for statement in ("SELECT * FROM missing", f"INSERT INTO duckling_queue.{made} VALUES (1, 2)", "COPY x TO 'y'"):
            with pytest.raises(Error):
                cursor.execute(statement)
        connection.commit()
        assert _seen(server, made) == [-1, 1]


def test_a_cursor_repeats_its_statement_in_one_transaction_after_the_other(server: ServerProcess, made: str) -> None:
    """The driver prepares a statement once, in the transaction that is open then, and keeps it."""
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        for number, end in enumerate((connection.commit, connection.rollback, connection.commit)):
            cursor.execute(f"INSERT INTO duckling_queue.{made} SELECT count(*) FROM {made}")
            cursor.executemany(f"INSERT INTO {made} VALUES (?)", [(number + 10,)])
            cursor.executemany(f"INSERT INTO {made} VALUES (?)", [(number + 20,)])
            assert _seen(server, made) == [[], [0, 10, 20], [0, 10, 20]][number]
            end()
        assert _seen(server, made) == [0, 2, 10, 12, 20, 22]
        cursor.execute(f"SELECT count(*) FROM {made}")
        connection.commit()
        connection.adbc_connection.set_autocommit(True)
        cursor.execute(f"SELECT count(*) FROM {made}")
        assert cursor.fetchall() == [(4,)]


def test_a_transaction_reads_one_state_of_the_lake(server: ServerProcess, made: str) -> None:
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {made}")
        assert cursor.fetchall() == [(0,)]
        server.rows(f"INSERT INTO {made} VALUES (1)", "SELECT 1")
        cursor.execute(f"SELECT count(*) FROM {made}")
        assert cursor.fetchall() == [(0,)]
        connection.commit()
        cursor.execute(f"SELECT count(*) FROM {made}")
        assert cursor.fetchall() == [(1,)]


def test_a_transaction_that_others_overtook_is_aborted_and_enqueues_nothing(server: ServerProcess, made: str) -> None:
    server.rows(f"INSERT INTO {made} VALUES (1)", "SELECT 1")
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {made}")
        cursor.fetchall()
        server.rows(f"DELETE FROM {made}", "SELECT 1")
        cursor.execute(f"INSERT INTO duckling_queue.{made} VALUES (2)")
        cursor.execute(f"DELETE FROM {made}")
        with pytest.raises(Error, match="Aborted"):
            connection.commit()
    assert _seen(server, made) == []


def test_one_session_may_have_two_transactions(server: ServerProcess, made: str) -> None:
    with Client(f"127.0.0.1:{server.port}", keeps_session=True) as session:
        first, second = session.begin(), session.begin()
        assert session.update(f"INSERT INTO {made} VALUES (1), (2)", first) == 2
        assert session.update(f"INSERT INTO duckling_queue.{made} VALUES (3)", first) == 1
        assert session.update(f"INSERT INTO duckling_queue.{made} VALUES (4)", second) == 1
        assert session.update(f"INSERT INTO duckling_queue.{made} VALUES (5)") == 1
        assert _seen(server, made) == [5]
        session.end(second, commit=True)
        assert _seen(server, made) == [4, 5]
        session.end(first, commit=False)
        assert _seen(server, made) == [4, 5]
        with pytest.raises(grpc.RpcError) as failed:
            session.update("SELECT 1", first)
        assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_write_that_waits_for_a_transaction_ends_when_its_client_gives_up(server: ServerProcess, made: str) -> None:
    limit = {"adbc.flight.sql.rpc.timeout_seconds.update": "0.5"}
    with server.cursor(autocommit=False) as holder, server.cursor(options=limit) as waiting:
        holder.execute(f"INSERT INTO {made} VALUES (1)")
        with pytest.raises(Error, match="DeadlineExceeded"):
            waiting.execute(f"INSERT INTO {made} VALUES (2)")
        # Nothing of it is left that the next statement would have to wait for.
        waiting.execute("SELECT 42")
        assert waiting.fetchall() == [(42,)]
    assert _seen(server, made) == []
