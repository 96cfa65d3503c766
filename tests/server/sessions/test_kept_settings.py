"""The settings of a session: the same on all of its connections."""

import pytest

from catchment.errors import StateError
from catchment.server.sessions.session import Session
from tests.server.sessions.in_process import run

SETTINGS = "SELECT current_setting('TimeZone') AS zone, current_schema() AS schema"


def test_a_session_has_its_settings_in_all_its_transactions_and_beside_them(session: Session) -> None:
    run(session, "CREATE TABLE t (a INTEGER)")
    run(session, "INSERT INTO duckling_queue.t VALUES (1)")
    run(session, "CREATE SCHEMA IF NOT EXISTS lake.other")
    run(session, "USE lake.other")
    run(session, "SET TimeZone = 'Asia/Tokyo'")
    expected = [{"zone": "Asia/Tokyo", "schema": "other"}]
    transactions = [session.begin() for _ in range(2)]
    assert run(session, SETTINGS) == expected
    for each in transactions:
        assert run(session, SETTINGS, transaction=each) == expected
        session.end(each, commit=False)
    assert run(session, f"{SETTINGS} FROM catchment_fresh.t") == expected


@pytest.mark.parametrize("is_within", [False, True])
def test_a_setting_applies_to_everything_that_begins_later(session: Session, is_within: bool) -> None:
    own, other = session.begin(), session.begin()
    run(session, "SET TimeZone = 'Asia/Tokyo'", transaction=other if is_within else None)
    assert run(session, SETTINGS)[0]["zone"] == "Asia/Tokyo"
    session.end(own, commit=False)
    assert run(session, SETTINGS)[0]["zone"] == "Asia/Tokyo"
    session.end(other, commit=False)
    begun = session.begin()
    assert run(session, SETTINGS, transaction=begun)[0]["zone"] == "Asia/Tokyo"
    session.end(begun, commit=False)


def test_beside_a_transaction_no_statement_runs_without_a_search_path_that_only_it_has(session: Session) -> None:
    transaction = session.begin()
    run(session, "CREATE SCHEMA lake.uncommitted", transaction=transaction)
    run(session, "USE lake.uncommitted", transaction=transaction)
    for _ in range(2):
        with pytest.raises(StateError, match=r"`USE lake\.uncommitted` cannot be repeated"):
            run(session, SETTINGS)
    assert run(session, SETTINGS, transaction=transaction)[0]["schema"] == "uncommitted"
    session.end(transaction, commit=True)
    begun = [session.begin() for _ in range(2)]
    assert run(session, SETTINGS)[0]["schema"] == "uncommitted"
    for each in begun:
        session.end(each, commit=False)


def test_a_search_path_whose_schema_was_dropped_is_reported_once_where_it_was_not_yet_set(session: Session) -> None:
    run(session, "CREATE SCHEMA lake.short")
    transaction = session.begin()
    run(session, "USE lake.short")
    run(session, "DROP SCHEMA lake.short", transaction=transaction)
    session.end(transaction, commit=True)
    with pytest.raises(StateError, match=r"`USE lake\.short` cannot be repeated"):
        run(session, SETTINGS)
    assert run(session, SETTINGS)[0]["schema"] == "main"
