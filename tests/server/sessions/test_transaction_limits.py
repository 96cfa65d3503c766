"""How long a client's transaction may keep others waiting, and the error that they get."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from catchment.app import App
from catchment.errors import ConflictError, LockTimeoutError, StateError
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from catchment.server.values import Call
from catchment.testing import FakeClock, InlineRunner
from tests.conftest import MakeSettings
from tests.server.sessions.in_process import FOUNDER, run
from tests.waiting import BEAT_S

WAIT_S = 20.0
TRANSACTION_S_MAX = 600
IDLE_S_MAX = 60
# Others can commit meanwhile: DuckLake detects conflicts with them.
DETECTING = ["duckdb", "postgres"]


@contextmanager
def sessions(
    settings: Settings, *, clock: FakeClock | None = None
) -> Iterator[tuple[SessionRegistry, Session, Session]]:
    """Two clients of one server, with an empty table `t`."""
    with App(settings, sandboxed=True) as app:
        app.lake.limits = replace(app.lake.limits, lock_timeout_s=0.5)
        app._runner = InlineRunner()  # type: ignore[assignment]
        registry = SessionRegistry(app)
        first, second = registry.open(FOUNDER), registry.open(FOUNDER)
        run(first, "CREATE TABLE t (a INTEGER)")
        run(first, "INSERT INTO t VALUES (0)")
        if clock is not None:
            registry.backend.clock = clock
        try:
            yield registry, first, second
        finally:
            registry.close_all()


def values(session: Session) -> list[object]:
    return [row["a"] for row in run(session, "SELECT a FROM t ORDER BY a")]


@pytest.mark.parametrize("catalog", DETECTING)
def test_an_open_transaction_that_has_written_blocks_no_other_writer(catalog: str, make_settings: MakeSettings) -> None:
    with sessions(make_settings(catalog, lake_threads_max=1)) as (_, first, second):
        run(first, "BEGIN")
        run(first, "INSERT INTO t VALUES (1)")
        run(second, "INSERT INTO t VALUES (2)")
        run(second, "CREATE TABLE u (a INTEGER)")
        run(first, "COMMIT")
        assert values(second) == [0, 1, 2]


@pytest.mark.parametrize("catalog", DETECTING)
def test_a_transaction_whose_changes_conflict_with_others_commits_nothing(
    catalog: str, make_settings: MakeSettings
) -> None:
    with sessions(make_settings(catalog, lake_threads_max=1)) as (_, first, second):
        run(first, "BEGIN")
        run(first, "UPDATE t SET a = 10")
        run(second, "INSERT INTO t VALUES (2)")
        with pytest.raises(ConflictError):
            run(first, "COMMIT")
        run(first, "UPDATE t SET a = a + 10")
        assert values(second) == [10, 12]


@pytest.mark.parametrize("catalog", DETECTING)
def test_two_statements_that_insert_a_missing_key_do_not_both_insert_it(
    catalog: str, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "INSERT INTO t SELECT 7 WHERE NOT EXISTS (FROM t WHERE a = 7)"
    commit_on, others = Lake.commit_on, list[Future[object]]()

    def overlapping(lake: Lake, *given: Any) -> None:
        if not others:
            others.append(pool.submit(run, second, missing))
            # It must wait for this one, and gets a moment in which it could fail to.
            wait(others, timeout=BEAT_S)
        commit_on(lake, *given)

    with sessions(make_settings(catalog, lake_threads_max=1)) as (_, first, second), ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(Lake, "commit_on", overlapping)
        first.state.lake.limits = replace(first.state.lake.limits, lock_timeout_s=WAIT_S)
        run(first, missing)
        others[0].result(WAIT_S)
        assert values(second) == [0, 7]


@pytest.mark.parametrize("catalog", DETECTING)
def test_a_flush_does_not_wait_for_an_open_transaction(catalog: str, make_settings: MakeSettings) -> None:
    with sessions(make_settings(catalog, lake_threads_max=1)) as (_, first, second):
        run(first, "BEGIN")
        run(first, "INSERT INTO t VALUES (1)")
        run(second, "INSERT INTO duckling_queue.t VALUES (2)")
        run(second, "CALL duckling_queue_flush()")
        assert values(second) == [0, 2]
        run(first, "COMMIT")
        assert values(second) == [0, 1, 2]


def test_on_a_sqlite_catalog_a_waiting_writer_sees_who_holds_the_lock_and_since_when(
    make_settings: MakeSettings,
) -> None:
    with sessions(make_settings("sqlite", lake_threads_max=1)) as (_, first, second):
        run(first, "BEGIN")
        run(first, "INSERT INTO t VALUES (1)")
        with pytest.raises(LockTimeoutError) as raised:
            run(second, "INSERT INTO t VALUES (2)")
        assert re.fullmatch(
            rf"The lake's commit lock is held by a transaction of session {re.escape(first.shown_id)} in process \d+ "
            r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\. The statement waited for 0\.5 s\.",
            raised.value.message,
        )
        run(first, "COMMIT")
        run(second, "INSERT INTO t VALUES (2)")
        assert values(second) == [0, 1, 2]


def test_a_transaction_that_is_kept_busy_is_rolled_back_when_its_time_is_up(make_settings: MakeSettings) -> None:
    clock = FakeClock()
    with sessions(make_settings("sqlite", lake_threads_max=1), clock=clock) as (registry, first, second):
        run(first, "BEGIN")
        run(first, "INSERT INTO t VALUES (1)")
        for _ in range(TRANSACTION_S_MAX // (IDLE_S_MAX // 2)):
            clock.advance(IDLE_S_MAX // 2)
            run(first, "SELECT 1")
            registry.sweep()
        clock.advance(1)
        registry.sweep()
        run(second, "INSERT INTO t VALUES (2)")
        with pytest.raises(StateError, match="open for too long"):
            run(first, "INSERT INTO t VALUES (3)")
        # It was reported once; the session goes on.
        run(first, "INSERT INTO t VALUES (4)")
        assert values(first) == [0, 2, 4]


@pytest.mark.parametrize("text", ["SELECT 1", "COMMIT"])
def test_an_overlong_transaction_ends_with_its_next_statement_before_any_sweep(
    text: str, make_settings: MakeSettings
) -> None:
    clock = FakeClock()
    with sessions(make_settings("sqlite", lake_threads_max=1), clock=clock) as (_, first, second):
        run(first, "BEGIN")
        run(first, "INSERT INTO t VALUES (1)")
        clock.advance(TRANSACTION_S_MAX + 1)
        with pytest.raises(StateError, match="open for too long"):
            run(first, text)
        run(second, "INSERT INTO t VALUES (2)")
        run(first, "INSERT INTO t VALUES (3)")
        assert values(first) == [0, 2, 3]


def test_a_running_statement_of_an_overlong_transaction_finishes_before_the_rollback(
    make_settings: MakeSettings,
) -> None:
    clock = FakeClock()
    with sessions(make_settings("sqlite", lake_threads_max=1), clock=clock) as (registry, first, second):
        transaction = first.begin()
        first.execute("INSERT INTO t VALUES (1)", Call(), transaction=transaction).result.close()
        connection = first.state.own_connection()
        clock.advance(TRANSACTION_S_MAX + 1)
        busy, free = threading.Event(), threading.Event()

        def hold() -> None:
            with connection.lock:
                busy.set()
                assert free.wait(WAIT_S)

        holder = threading.Thread(target=hold)
        holder.start()
        assert busy.wait(WAIT_S)
        registry.sweep()
        held = [first.state.holds_lock]
        free.set()
        holder.join(WAIT_S)
        registry.sweep()
        assert [*held, first.state.holds_lock] == [True, False]
        run(second, "INSERT INTO t VALUES (2)")
        assert values(second) == [0, 2]


def test_a_transaction_in_which_nothing_ran_may_stay_open(make_settings: MakeSettings) -> None:
    clock = FakeClock()
    with sessions(make_settings("sqlite", lake_threads_max=1), clock=clock) as (registry, first, _):
        transaction = first.begin()
        clock.advance(2 * TRANSACTION_S_MAX)
        registry.sweep()
        first.execute("INSERT INTO t VALUES (1)", Call(), transaction=transaction).result.close()
        first.end(transaction, commit=True)
        assert values(first) == [0, 1]
