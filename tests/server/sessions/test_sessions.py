"""Concurrent calls of one session, and transactions that end while calls wait for them."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from catchment.errors import (
    CancelledError,
    ConflictError,
    InputError,
    LimitError,
    NotLoggedInError,
    StateError,
)
from catchment.foundation.ids import TableId
from catchment.server.access.users import ANONYMOUS
from catchment.server.flight.watchdog import Watchdog
from catchment.server.sessions import capture
from catchment.server.sessions import registry as registries
from catchment.server.sessions.connections import Connection
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from catchment.server.sessions.session_state import SessionState
from catchment.server.sessions.transactions import Transaction
from catchment.server.values import Call, Principal, Role, StatementOutcome, TableResult
from tests.server.sessions.in_process import FOUNDER, run

NOBODY = Principal(ANONYMOUS, Role.ADMIN)
WAIT_S = 20.0


@pytest.fixture
def table(session: Session, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.name))}"
    run(session, f"CREATE TABLE {name} (a INTEGER, b INTEGER DEFAULT 7)")
    return name


@contextmanager
def closing_all(registry: SessionRegistry, sessions: list[Session]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in sessions:
            registry.close(each)


def left_tokens(registry: SessionRegistry, count: int) -> list[str]:
    """Anonymous tokens of closed sessions."""
    opened = [registry.open(NOBODY) for _ in range(count)]
    tokens = [registry.token_of(each) for each in opened]
    for each in opened:
        registry.close(each)
    return tokens


def limit(registry: SessionRegistry, monkeypatch: pytest.MonkeyPatch, *, more: int) -> None:
    """Let so many sessions more be opened than there are."""
    known = sum(not each.is_unclaimed for each in registry.sessions())
    limited = registry._settings.model_copy(update={"server_sessions_max": known + more})
    monkeypatch.setattr(registry, "_settings", limited)


def others_can_write(registry: SessionRegistry, table: str) -> None:
    """Whether the lake's commit lock is free."""
    other = registry.open(FOUNDER)
    run(other, f"INSERT INTO {table} (a) VALUES (-1)")
    registry.close(other)


@contextmanager
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Pause statements between finding their transaction and taking its connection."""
    there, go_on = threading.Event(), threading.Event()
    real = SessionState.connection

    @contextmanager
    def connection(self: SessionState, transaction: Transaction | None) -> Iterator[Connection]:
        there.set()
        assert go_on.wait(WAIT_S)
        with real(self, transaction) as found:
            yield found

    monkeypatch.setattr(SessionState, "connection", connection)
    try:
        yield there, go_on
    finally:
        go_on.set()
        monkeypatch.undo()


@pytest.mark.parametrize("target", ["{}", "duckling_queue.{}"])
def test_a_statement_that_waited_while_its_transaction_ended_is_refused(
    registry: SessionRegistry, session: Session, table: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = session.begin()
    failures: list[Exception] = []

    def insert() -> None:
        try:
            run(session, f"INSERT INTO {target.format(table)} (a) VALUES (100)", transaction=transaction)
        except StateError as error:
            failures.append(error)

    with held_back(monkeypatch) as (there, go_on):
        late = threading.Thread(target=insert)
        late.start()
        assert there.wait(WAIT_S)
        session.end(transaction, commit=False)
        go_on.set()
        late.join(WAIT_S)
    assert [str(failure) for failure in failures] == ["There is no such transaction."]
    assert run(session, f"SELECT * FROM catchment_fresh.{table}") == []
    others_can_write(registry, table)


def test_unread_results_are_dropped_while_others_use_the_connection(session: Session) -> None:
    for _ in range(64):
        session.keep(session.execute("SELECT 1", Call()))
    own = session.state.own_connection()
    with own.lock:
        # One more, while a statement is under way and another one waits for it.
        waiting = threading.Thread(target=run, args=(session, "SELECT 2"), daemon=True)
        keeping = threading.Thread(
            target=session.keep, args=(StatementOutcome(None, TableResult(pa.table({"x": [1]}))),), daemon=True
        )
        waiting.start()
        keeping.start()
    for thread in (waiting, keeping):
        thread.join(WAIT_S)
        assert not thread.is_alive()


# It gives its first rows at once, and looks for more for minutes.
LONG = "SELECT i FROM range(400000000000) r(i) WHERE i < 300000 OR hash(i) = 1"


def test_a_transaction_with_a_long_unread_result_is_rolled_back_at_once(
    registry: SessionRegistry, session: Session, table: str
) -> None:
    transaction = session.begin()
    run(session, f"INSERT INTO {table} (a) VALUES (1)", transaction=transaction)
    session.keep(session.execute(LONG, Call(), transaction=transaction))
    ending = threading.Thread(target=session.end, args=(transaction,), kwargs={"commit": False}, daemon=True)
    ending.start()
    ending.join(WAIT_S)
    assert not ending.is_alive()
    others_can_write(registry, table)


def test_a_statement_that_waits_for_a_long_result_can_be_cancelled(session: Session) -> None:
    session.keep(session.execute(LONG, Call()))
    call = Call()
    threading.Timer(0.2, call.cancel).start()
    with pytest.raises(CancelledError):
        session.execute("SELECT 1", call)
    assert run(session, "SELECT 42 AS answer") == [{"answer": 42}]


def test_begin_within_a_transaction_that_has_changes_is_refused(
    registry: SessionRegistry, session: Session, table: str
) -> None:
    transaction = session.begin()
    # Its client may not know that the driver has opened one.
    run(session, "BEGIN", transaction=transaction)
    run(session, f"INSERT INTO {table} (a) VALUES (1)", transaction=transaction)
    with pytest.raises(StateError, match="already open"):
        run(session, "BEGIN", transaction=transaction)
    session.end(transaction, commit=True)
    run(session, f"INSERT INTO {table} (a) VALUES (2)")
    other = registry.open(FOUNDER)
    assert run(other, f"SELECT a FROM {table} ORDER BY a") == [{"a": 1}, {"a": 2}]
    registry.close(other)


CHANGES = {
    "exchanged": [
        "ALTER TABLE {} RENAME COLUMN a TO x",
        "ALTER TABLE {} RENAME COLUMN b TO a",
        "ALTER TABLE {} RENAME COLUMN x TO b",
    ],
    "renamed": ["ALTER TABLE {} RENAME COLUMN b TO z"],
    "added": ["ALTER TABLE {} ADD COLUMN c INTEGER DEFAULT 3"],
    "dropped": ["ALTER TABLE {} DROP COLUMN b"],
    "default": ["ALTER TABLE {} ALTER COLUMN b SET DEFAULT 9"],
    "widened": ["ALTER TABLE {} ALTER COLUMN b SET DATA TYPE BIGINT"],
    "table renamed": ["ALTER TABLE {} RENAME TO {}_elsewhere"],
    "table dropped": ["DROP TABLE {}"],
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_rows_for_the_queue_and_changes_of_their_table_are_refused_in_one_transaction(
    session: Session, table: str, changes: list[str]
) -> None:
    insert, statements = (
        f"INSERT INTO duckling_queue.{table} (a) VALUES (1)",
        [each.format(table, table) for each in changes],
    )
    run(session, "BEGIN")
    for each in statements:
        run(session, each)
    with pytest.raises(StateError, match="created or changed"):
        run(session, insert)
    run(session, "ROLLBACK")
    run(session, "BEGIN")
    run(session, insert)
    for each in statements:
        run(session, each)
    with pytest.raises(StateError, match="nothing was committed"):
        run(session, "COMMIT")
    assert _fresh(session, table) == []
    run(session, f"INSERT INTO {table} VALUES (1, 2)")
    assert run(session, f"SELECT a, b FROM {table}") == [{"a": 1, "b": 2}]


def test_rows_for_the_queue_and_changes_of_other_tables_go_into_one_transaction(session: Session, table: str) -> None:
    run(session, "BEGIN")
    run(session, f"INSERT INTO duckling_queue.{table} (a) VALUES (1)")
    run(session, f"CREATE TABLE other_{table} (a INTEGER)")
    run(session, f"COMMENT ON TABLE {table} IS 'a table'")
    run(session, f"INSERT INTO duckling_queue.{table} (a) VALUES (2)")
    run(session, "COMMIT")
    assert _fresh(session, table) == [{"a": 1, "b": 7}, {"a": 2, "b": 7}]


def _fresh(session: Session, table: str) -> list[dict[str, object]]:
    assert session.state.queue is not None
    with session.state.queue.fresh(TableId("main", table)) as fresh:
        rows: list[dict[str, object]] = fresh.rows().sort_by("a").to_pylist()
    return rows


def test_columns_that_some_inserts_of_a_transaction_name_have_their_default_in_the_others(
    session: Session, table: str
) -> None:
    transaction = session.begin()
    for text in ("(a) VALUES (1)", "(a, b) VALUES (2, 2)", "(a) VALUES (3)"):
        run(session, f"INSERT INTO duckling_queue.{table} {text}", transaction=transaction)
    session.end(transaction, commit=True)
    found = run(session, f"SELECT * FROM catchment_fresh.{table} ORDER BY a")
    assert found == [{"a": 1, "b": 7}, {"a": 2, "b": 2}, {"a": 3, "b": 7}]


def test_rows_of_one_transaction_that_arrive_in_different_types_are_all_enqueued(session: Session, table: str) -> None:
    run(session, f"CREATE TABLE {table}_at (moment TIMESTAMP)")
    transaction = session.begin()
    into = f"INSERT INTO duckling_queue.{table}_at VALUES"
    days = pa.table({"at": pa.array([date(2024, 1, 1)], pa.date32())})
    run(session, f"{into} (?)", transaction=transaction, parameters=days)
    run(session, f"{into} ('2024-01-02 10:00:00')", transaction=transaction)
    session.end(transaction, commit=True)
    assert run(session, f"SELECT count(moment) AS n FROM catchment_fresh.{table}_at") == [{"n": 2}]


def test_two_executions_of_one_prepared_statement_each_have_their_own_rows(session: Session, table: str) -> None:
    prepared = session.prepare(f"INSERT INTO duckling_queue.{table} (a) VALUES (?)")
    session.run_prepared(prepared, Call(), pa.table({"a": pa.array([1], pa.int32())}))
    with pytest.raises(StateError, match="1 parameter, and no value is bound"):
        session.run_prepared(prepared, Call())
    session.run_prepared(prepared, Call(), pa.table({"a": pa.array([2], pa.int32())}))
    assert run(session, f"SELECT a FROM catchment_fresh.{table} ORDER BY a") == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO {t} (a) VALUES (?)",
        "INSERT INTO {t} (a) SELECT 1 WHERE 1 = ?",
        "UPDATE {t} SET a = ?",
        "DELETE FROM {t} WHERE a = ? RETURNING a",
        "INSERT INTO duckling_queue.{t} (a) VALUES (?)",
        "INSERT INTO duckling_queue.{t} (a) SELECT a FROM {t} WHERE a = ?",
    ],
)
def test_a_change_for_no_row_of_parameters_changes_nothing(session: Session, table: str, text: str) -> None:
    run(session, f"INSERT INTO {table} (a) VALUES (1)")
    none = pa.table({"a": pa.array([], pa.int32())})
    outcome = session.run_prepared(session.prepare(text.format(t=table)), Call(), none, is_update=True)
    outcome.result.close()
    assert outcome.rows == 0
    assert run(session, f"SELECT a FROM catchment_fresh.{table}") == [{"a": 1}]


def test_a_type_in_a_forged_plan_does_not_become_sql(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans come from engines, whose memory a statement may have corrupted."""
    forged = {
        "type": "VALUE_PARAMETER",
        "identifier": "1",
        "return_type": {"id": "INTEGER, (SELECT 1)", "type_info": None},
    }
    real = Connection.table

    def table(self: Connection, text: str, *given: Any) -> pa.Table:
        if "json_serialize_plan" in text:
            return pa.table({"plan": [json.dumps(forged)]})
        return real(self, text, *given)

    monkeypatch.setattr(Connection, "table", table)
    assert session.prepare("SELECT ? + 1").parameters == pa.schema([("1", pa.string())])


@pytest.mark.parametrize("text", ["SELECT ? AS x", "SELECT count(*) FROM catchment_fresh.{t} WHERE a = ?"])
def test_a_query_needs_a_row_of_parameters(session: Session, table: str, text: str) -> None:
    with pytest.raises(InputError, match="No row"):
        run(session, text.format(t=table), parameters=pa.table({"x": pa.array([], pa.int32())}))


@pytest.mark.parametrize(
    ("months", "days", "nanoseconds", "found"),
    [(1, 2, 3_000_000, "1 month 2 days 00:00:00.003"), (13, 0, 3_000_000_000, "1 year 1 month 00:00:03")],
)
def test_intervals_can_be_bound_in_every_position_of_a_value(
    session: Session, table: str, months: int, days: int, nanoseconds: int, found: str
) -> None:
    run(session, f"CREATE TABLE {table}_i (a INTEGER, i INTERVAL)")
    run(session, f"INSERT INTO {table}_i VALUES (1, NULL)")
    given = pa.array([pa.MonthDayNano([months, days, nanoseconds])], pa.month_day_nano_interval())
    bound = pa.table({"i": given})
    run(session, f"UPDATE {table}_i SET i = ?", parameters=bound)
    assert run(session, f"SELECT i::VARCHAR AS i FROM {table}_i") == [{"i": found}]
    assert run(session, "SELECT typeof($1) AS kind, $1::VARCHAR AS i", parameters=bound)[0] == {
        "kind": "INTERVAL",
        "i": found,
    }
    run(session, f"UPDATE {table}_i SET i = ?", parameters=pa.table({"i": pa.nulls(1, given.type)}))
    assert run(session, f"SELECT i FROM {table}_i") == [{"i": None}]


def test_an_interval_may_be_negative(session: Session) -> None:
    given = pa.array([pa.MonthDayNano([-13, -2, -3_000_000_000])], pa.month_day_nano_interval())
    found = run(session, "SELECT ?::VARCHAR AS i", parameters=pa.table({"i": given}))
    assert found == [{"i": "-1 year -1 month -2 days -00:00:03"}]


@pytest.mark.parametrize(
    "text",
    [
        "FROM {t} AT (VERSION => NULL)",
        "FROM {t} AT(version=>NULL -- none\n)",
        "FROM {t} JOIN {t} AT (VERSION => getvariable('unset')::BIGINT) USING (a)",
        "EXPLAIN FROM {t} AT (VERSION => (NULL))",
        "CREATE TABLE {t}_x AS FROM {t} AT (VERSION => getvariable('unset'))",
        "CREATE VIEW {t}_v AS FROM {t} AT (VERSION => getvariable('unset'))",
        "INSERT INTO {t} FROM {t} AT (VERSION => getvariable('unset'))",
        "INSERT INTO duckling_queue.{t} FROM {t} AT (VERSION => getvariable('unset'))",
        "SELECT 'é', (SELECT max(a) FROM {t} AT (VERSION => NULL))",
    ],
)
def test_a_version_that_is_null_is_an_error_of_the_statement_alone(session: Session, table: str, text: str) -> None:
    with session.state.autocommit_connection() as connection:
        origin = connection.origin
    with pytest.raises(duckdb.InvalidInputException, match="The version is NULL"):
        run(session, text.format(t=table))
    assert not origin.is_lost


def test_versions_are_numbers_texts_and_what_can_be_computed(session: Session, table: str) -> None:
    run(session, f"INSERT INTO {table} (a) VALUES (1)")
    now = run(session, "SELECT id AS v FROM lake.current_snapshot()")[0]["v"]
    run(session, f"DELETE FROM {table}")
    run(session, f"SET VARIABLE v = {now}")
    for version in (
        str(now),
        f"'{now}'",
        f"{now} + 0",
        "getvariable('v')",
        f"CAST(getvariable('v') AS BIGINT) /* {now} */",
    ):
        assert run(session, f"SELECT a FROM {table} AT (VERSION => {version})") == [{"a": 1}], version
    run(session, f"CREATE VIEW {table}_then AS FROM {table} AT (VERSION => getvariable('v'))")
    assert run(session, f"SELECT a FROM {table}_then") == [{"a": 1}]


def test_a_statement_of_which_only_some_rows_can_be_bound_changes_none(session: Session, table: str) -> None:
    run(session, f"CREATE TABLE {table}_at (moment TIMESTAMP)")
    run(session, f"INSERT INTO {table}_at VALUES ('2024-01-01')")
    transaction = session.begin()
    # No year of Python's is as late as the second.
    late = pa.table({"at": pa.array([0, 400_000_000_000_000_000], pa.timestamp("us"))})
    with pytest.raises(InputError):
        run(session, f"UPDATE {table}_at SET moment = ?", transaction=transaction, parameters=late)
    session.end(transaction, commit=True)
    assert run(session, f"SELECT year(moment) AS y FROM {table}_at") == [{"y": 2024}]


def test_a_transaction_in_which_a_statement_was_done_in_part_cannot_be_committed(session: Session, table: str) -> None:
    transaction = session.begin()
    rows = pa.table({"a": ["1", "2", "no number"]})
    with pytest.raises(Exception, match="no number"):
        run(session, f"INSERT INTO {table} (a) SELECT CAST(? AS INTEGER)", transaction=transaction, parameters=rows)
    with pytest.raises(ConflictError):
        session.end(transaction, commit=True)
    assert run(session, f"SELECT * FROM {table}") == []


def test_a_transaction_that_has_written_does_not_wait_for_itself(session: Session, table: str) -> None:
    transaction = session.begin()
    run(session, f"INSERT INTO {table} (a) VALUES (1)", transaction=transaction)
    with pytest.raises(StateError, match="own transaction"):
        run(session, "CALL duckling_queue_flush()", transaction=transaction)
    with pytest.raises(StateError, match="does not exist yet"):
        run(session, f"INSERT INTO duckling_queue.{table}_new SELECT 1 AS a", transaction=transaction)
    session.end(transaction, commit=True)
    run(session, f"INSERT INTO duckling_queue.{table}_new SELECT 1 AS a")


@pytest.mark.parametrize("bound", [False, True])
def test_the_queue_accepts_the_values_of_a_widened_column(session: Session, table: str, bound: bool) -> None:
    run(session, f"INSERT INTO duckling_queue.{table} (a) VALUES (1)")
    run(session, f"ALTER TABLE {table} ALTER a TYPE BIGINT")
    large = 3_000_000_000
    if bound:
        rows = pa.table({"a": pa.array([large], pa.int64())})
        run(session, f"INSERT INTO duckling_queue.{table} (a) VALUES (?)", parameters=rows)
    else:
        run(session, f"INSERT INTO duckling_queue.{table} (a) VALUES ({large})")
    assert run(session, f"SELECT a FROM catchment_fresh.{table} ORDER BY a") == [{"a": 1}, {"a": large}]


def test_a_call_whose_connection_is_closed_at_its_deadline_affects_no_other_call(registry: SessionRegistry) -> None:
    clock = registry.backend.clock
    watchdog = Watchdog(clock)
    try:
        connection = registry.backend.connect(registry.backend.engine())
        call = Call(deadline_s=clock.monotonic_s())
        stopped = threading.Event()
        with call.interruptible(connection.interrupt):
            connection.raw.close()
            with watchdog.watching(call, stopped.set):
                assert stopped.wait(WAIT_S)
        with pytest.raises(CancelledError):
            call.refuse_stopped()
    finally:
        watchdog.close()


def test_null_is_accepted_once_the_table_accepts_it(session: Session, table: str) -> None:
    run(session, f"CREATE TABLE {table}_strict (a INTEGER NOT NULL)")
    run(session, f"INSERT INTO duckling_queue.{table}_strict VALUES (1)")
    with pytest.raises(Exception, match="NOT NULL"):
        run(session, f"INSERT INTO duckling_queue.{table}_strict VALUES (NULL)")
    run(session, f"ALTER TABLE {table}_strict ALTER a DROP NOT NULL")
    nothing = pa.table({"a": pa.array([None], pa.int32())})
    run(session, f"INSERT INTO duckling_queue.{table}_strict VALUES (?)", parameters=nothing)
    run(session, f"INSERT INTO duckling_queue.{table}_strict VALUES (NULL)")
    assert run(session, f"SELECT count(*) AS n, count(a) AS m FROM catchment_fresh.{table}_strict") == [
        {"n": 3, "m": 1}
    ]


def test_of_sessions_that_were_never_resumed_the_oldest_are_forgotten(
    registry: SessionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "_UNCLAIMED_MAX", 2)
    opened = [registry.open(FOUNDER) for _ in range(3)]
    tokens = [registry.token_of(each) for each in opened]
    registry.find(tokens[0])
    newest = registry.open(FOUNDER)
    assert registry.find(tokens[0]) is opened[0]
    with closing_all(registry, [opened[0], opened[2], newest]):
        registry.close(registry.open(FOUNDER))
        with pytest.raises(NotLoggedInError):
            registry.find(tokens[1])
        assert registry.find(tokens[2]) is opened[2]


def test_an_anonymous_token_opens_another_session_as_long_as_it_is_remembered(
    registry: SessionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "_UNCLAIMED_MAX", 2)
    tokens = left_tokens(registry, 3)
    assert registry.reopen(tokens[0], NOBODY) is None
    again = registry.reopen(tokens[1], NOBODY)
    assert again is not None
    assert registry.reopen(tokens[1], NOBODY) is again
    assert registry.find(tokens[1]) is again
    registry.close(again)
    founder = registry.open(FOUNDER)
    token = registry.token_of(founder)
    registry.close(founder)
    assert registry.reopen(token, NOBODY) is None


def test_two_calls_that_come_back_at_once_have_one_session(registry: SessionRegistry) -> None:
    for _ in range(20):
        (token,) = left_tokens(registry, 1)
        ready = threading.Barrier(4)

        def come_back(token: str = token, ready: threading.Barrier = ready) -> Session | None:
            ready.wait(WAIT_S)
            return registry.reopen(token, NOBODY)

        with ThreadPoolExecutor(4) as pool:
            found = [each.result() for each in [pool.submit(come_back) for _ in range(4)]]
        assert found[0] is not None
        assert all(each is found[0] for each in found)
        registry.close(found[0])


def test_of_sessions_without_state_the_least_recently_used_makes_room(
    registry: SessionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = left_tokens(registry, 3)
    limit(registry, monkeypatch, more=3)
    used, later, earlier = (registry.reopen(token, NOBODY) for token in tokens)
    assert used is not None
    assert later is not None
    assert earlier is not None
    used.begin_use()
    assert not used.give_up()
    later.begin_use()
    later.end_use()
    newcomers = []
    for left, gone in (([used, later], earlier), ([used], later)):
        newcomers.append(registry.open(FOUNDER))
        newcomers[-1].state.is_kept = True
        assert [each for each in registry.sessions() if each.is_replaceable] == left
        with pytest.raises(StateError, match="has ended"):
            gone.begin_use()
    with pytest.raises(LimitError):
        registry.open(FOUNDER)
    used.end_use()
    with closing_all(registry, [registry.open(FOUNDER), *newcomers]), pytest.raises(NotLoggedInError):
        registry.find(tokens[0])


def test_a_token_that_finds_no_room_is_remembered(registry: SessionRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "_UNCLAIMED_MAX", 1)
    tokens: list[str] = []
    for _ in range(2):
        tokens += left_tokens(registry, 1)
        assert registry.reopen(tokens[0], NOBODY) is not None
    # One is all that is remembered now, and of those that are open one may stay.
    limit(registry, monkeypatch, more=0)
    second = registry.reopen(tokens[1], NOBODY)
    assert second is not None
    assert [each for each in registry.sessions() if each.is_replaceable] == [second]
    second.begin_use()
    with pytest.raises(LimitError):
        registry.reopen(tokens[0], NOBODY)
    second.end_use()
    first = registry.reopen(tokens[0], NOBODY)
    assert first is not None
    registry.close(first)


def test_an_insert_into_the_queue_fails_if_the_table_is_changed_while_it_runs(
    session: Session, registry: SessionRegistry, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = capture._run

    def run_and_alter(*given: Any, **named: Any) -> pa.Table:
        rows = before(*given, **named)
        with registry.backend.lake.write() as connection:
            for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
                connection.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
        return rows

    monkeypatch.setattr(capture, "_run", run_and_alter)
    with pytest.raises(ConflictError, match="changed while"):
        run(session, f"INSERT INTO duckling_queue.{table} SELECT 1, 2")
    monkeypatch.undo()
    run(session, f"INSERT INTO duckling_queue.{table} SELECT 1, 2")
    assert run(session, f"SELECT a, b FROM catchment_fresh.{table}") == [{"a": 2, "b": 1}]
