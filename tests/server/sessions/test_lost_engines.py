"""What ends with an engine, and what of an engine the server does not take."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import cast

import duckdb
import pytest

from catchment.errors import CommitUnknownError, ConflictError, EngineFailedError, LimitError
from catchment.lake import Lake
from catchment.lake.instance import Origin
from catchment.server.engine import engine_process, remote_connection
from catchment.server.engine.engines import LAKE
from catchment.server.engine.remote_connection import RemoteConnection
from catchment.server.sessions.session import Session
from catchment.server.sessions.transactions import Transaction
from catchment.server.values import Call
from tests.server.sessions.in_process import run
from tests.waiting import BEAT_S, PATIENCE_S, wait_until


@pytest.fixture
def table(session: Session) -> str:
    run(session, "CREATE OR REPLACE TABLE t (a INTEGER, b INTEGER DEFAULT 7)")
    return "t"


def test_transactions_that_fail_to_begin_do_not_disturb_a_sweep(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, sweeping = session.state, threading.Event()
    open_one = state.begin(Call())

    def fail(*_: object) -> None:
        assert sweeping.wait(PATIENCE_S)
        raise EngineFailedError

    monkeypatch.setattr(Transaction, "begin", fail)
    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(state.begin, Call())
        wait_until(lambda: len(state._transactions) > 1, "the second one begins")

        def is_due(*_: object) -> None:
            sweeping.set()
            # It must wait for the end of the sweep, and gets a moment in which it could fail to.
            wait([failing], timeout=BEAT_S)

        monkeypatch.setattr(Transaction, "lock_if_due", is_due)
        state.expire_transactions(idle_before_s=None)
        assert isinstance(failing.exception(PATIENCE_S), EngineFailedError)
    monkeypatch.undo()
    session.end(open_one, commit=False)


def test_rows_that_are_too_large_for_the_server_stay_in_the_engine(
    session: Session, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(session, "CREATE TEMP TABLE kept (a INTEGER)")
    monkeypatch.setattr(session.state.own_connection(), "_bytes_max", 1_000)
    returning = "INSERT INTO kept SELECT range FROM range(1000) RETURNING a"
    for text in (returning, f"INSERT INTO duckling_queue.{table} SELECT range, 1 FROM range(1000)"):
        with pytest.raises(LimitError, match="more than 1,000 bytes"):
            run(session, text)
    transaction = session.begin()
    with pytest.raises(LimitError):
        run(session, returning, transaction=transaction)
    with pytest.raises(ConflictError, match="nothing was committed"):
        session.end(transaction, commit=True)
    assert run(session, f"SELECT count(*) AS n FROM catchment_fresh.{table}") == [{"n": 0}]
    assert run(session, "SELECT count(*) AS n FROM kept") == [{"n": 0}]


def test_an_engine_that_sends_more_rows_than_it_may_is_not_listened_to(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = cast(RemoteConnection, session.state.own_connection().raw)
    monkeypatch.setattr(remote_connection, "_ENCODING_BYTES_MAX", -(2**40))
    with pytest.raises(LimitError):
        raw.execute("SELECT 42").to_arrow_table()
    assert raw.is_closed
    monkeypatch.undo()
    assert run(session, "SELECT 42 AS x") == [{"x": 42}]


def test_only_a_commit_that_changes_the_lake_can_have_an_unknown_result(
    session: Session, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(_lake: Lake, connection: duckdb.DuckDBPyConnection, _origin: Origin) -> None:
        connection.execute("ROLLBACK")
        raise CommitUnknownError

    kept = f"INSERT INTO duckling_queue.{table} VALUES (1, 1)"
    for text in (f"FROM {table}", kept):
        transaction = session.begin()
        run(session, text, transaction=transaction)
        with monkeypatch.context() as patched:
            patched.setattr(Lake, "commit_on", lose)
            session.end(transaction, commit=True)
    transaction = session.begin()
    for text in (kept, "CREATE TEMP TABLE changed (a INTEGER)"):
        run(session, text, transaction=transaction)
    monkeypatch.setattr(Lake, "commit_on", lose)
    with pytest.raises(CommitUnknownError) as unknown:
        session.end(transaction, commit=True)
    assert "rows for the queue were not enqueued" in unknown.value.message
    monkeypatch.undo()
    assert run(session, f"SELECT count(*) AS n FROM catchment_fresh.{table}") == [{"n": 1}]


def test_a_commit_that_did_not_reach_its_engine_is_not_unknown(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "_REAP_S", 0.01)
    transaction = session.begin()
    run(session, "CREATE TEMP TABLE changed (a INTEGER)", transaction=transaction)
    raw = cast(RemoteConnection, session.state.own_connection().raw)
    raw._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(EngineFailedError, match="its connection broke"):
        session.end(transaction, commit=True)


def test_a_transaction_whose_commit_fails_in_any_way_is_rolled_back(
    session: Session, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise duckdb.OutOfMemoryException

    transaction = session.begin()
    run(session, f"INSERT INTO {table} VALUES (1, 1)", transaction=transaction)
    with monkeypatch.context() as patched:
        patched.setattr(Lake, "commit_on", fail)
        with pytest.raises(duckdb.OutOfMemoryException):
            session.end(transaction, commit=True)
    run(session, f"INSERT INTO {table} VALUES (2, 2)")
    assert run(session, f"SELECT a FROM {table}") == [{"a": 2}]


def test_the_end_of_a_transaction_leaves_the_next_one_of_its_handle(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, roll_back = session.begin(), Transaction.roll_back

    def slowly(ended: Transaction) -> None:
        monkeypatch.undo()
        roll_back(ended)
        # As a driver's transaction that SQL has ended is opened again.
        session.state.begin(Call(), handle)

    monkeypatch.setattr(Transaction, "roll_back", slowly)
    session.end(handle, commit=False)
    assert session.state.has_transactions
    session.end(handle, commit=False)


def test_a_replaced_lake_of_an_engine_ends_with_its_last_connection(session: Session) -> None:
    transaction = session.begin()
    run(session, "CREATE TEMP TABLE kept (a INTEGER)", transaction=transaction)
    engine = session.state.engine
    assert engine is not None
    engine.instances[LAKE].give_up()
    other = session.state.backend.connect(engine)
    assert other.table("SELECT 42 AS x", Call()).to_pylist() == [{"x": 42}]
    assert run(session, "SELECT count(*) AS n FROM kept", transaction=transaction) == [{"n": 0}]
    other.close()
    session.end(transaction, commit=False)


def test_a_session_that_drops_the_table_through_which_its_rows_pass_gets_another(session: Session, table: str) -> None:
    text = f"INSERT INTO duckling_queue.{table} (a) SELECT range FROM range(3)"
    run(session, text)
    (name,) = run(session, "SELECT table_name AS x FROM duckdb_tables() WHERE database_name = 'temp'")
    for change in (f'DROP TABLE temp.main."{name["x"]}"', f'ALTER TABLE temp.main."{name["x"]}" DROP COLUMN b'):
        run(session, change)
        with pytest.raises(duckdb.Error):
            run(session, text)
        run(session, text)
    assert run(session, f"SELECT count(*) AS n FROM catchment_fresh.{table}") == [{"n": 9}]
