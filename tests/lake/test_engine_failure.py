"""An INTERNAL error of DuckDB ends one statement, and everything else goes on."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from catchment.errors import EngineFailedError, InvariantError
from catchment.foundation import events
from catchment.foundation.events import Event
from catchment.lake import Lake
from catchment.lake.instance import has_failed_inside
from tests.repo.source_tree import ROOT
from tests.shortcuts import warm

# DuckDB's own writer of Parquet fails on the type.
FAILING = "CREATE TABLE x AS SELECT '12:00'::TIME_NS AS a"


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    found: list[Event] = []
    with events.listening(found.append):
        yield found


@pytest.mark.parametrize("catalog", ["sqlite", "duckdb"])
def test_every_client_of_a_server_goes_on_within_two_seconds(tmp_path: Path, catalog: str) -> None:
    command = [sys.executable, "-m", "tests.lake.engine_failure_child", str(tmp_path), catalog]
    ended = warm.run(command, cwd=ROOT, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "every client went on\n"), ended.stderr[-4_000:]


def in_a_write(lake: Lake) -> None:
    with lake.write() as connection:
        connection.execute(FAILING)


def in_a_read(lake: Lake) -> None:
    with lake.snapshot() as connection:
        connection.execute(FAILING)


def insert_while_it_fails(lake: Lake) -> None:
    with lake.write() as connection:
        connection.execute("INSERT INTO main.t VALUES (2)")
        with pytest.raises(InvariantError):
            in_a_read(lake)


@pytest.mark.parametrize("failing", [in_a_write, in_a_read])
def test_a_lake_goes_on_with_a_new_instance(lake: Lake, seen: list[Event], failing: Callable[[Lake], None]) -> None:
    with lake.write() as connection:
        connection.execute("CREATE TABLE main.t AS SELECT 1 AS a")
    before = lake.origin()
    with pytest.raises(InvariantError, match="TIME_NS"):
        failing(lake)
    assert before.is_lost
    assert not lake.origin().is_lost
    with lake.write() as connection:
        connection.execute("INSERT INTO main.t VALUES (2)")
    with lake.snapshot() as connection:
        assert connection.execute("SELECT sum(a) FROM t").fetchall() == [(3,)]
    assert lake.audit().ok
    assert [event.verb for event in seen].count("engine_replaced") == 1


def test_open_transactions_of_the_old_instance_are_rolled_back_and_never_committed(lake: Lake) -> None:
    with lake.write() as connection:
        connection.execute("CREATE TABLE main.t AS SELECT 1 AS a")
    with pytest.raises(EngineFailedError):
        insert_while_it_fails(lake)
    origin, cursor = lake.origin(), lake.cursor()
    cursor.execute("BEGIN")
    cursor.execute("INSERT INTO main.t VALUES (3)")
    with pytest.raises(InvariantError):
        in_a_read(lake)
    with pytest.raises(EngineFailedError):
        lake.commit_on(cursor, origin)
    cursor.close()
    with lake.snapshot() as connection:
        assert connection.execute("SELECT a FROM t").fetchall() == [(1,)]


def test_a_failure_of_an_old_instance_leaves_the_new_one_alone(sqlite_lake: Lake) -> None:
    old = sqlite_lake.origin()
    for _ in range(2):
        old.note(duckdb.FatalException("FATAL Error: database has been invalidated because of a previous fatal error"))
    assert (old.generation, sqlite_lake.generation) == (0, 1)


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (duckdb.InternalException("INTERNAL Error: x"), True),
        (duckdb.FatalException("FATAL Error: x"), True),
        (OSError("INTERNAL Error: x"), True),
        (OSError("Invalid Input Error: INTERNAL Error: x"), False),
        (duckdb.InvalidInputException("Invalid Input Error: x"), False),
        (duckdb.OutOfMemoryException("Out of Memory Error: x"), False),
        (ValueError("INTERNAL Error: x"), False),
    ],
)
def test_an_internal_failure_is_distinguished_from_one_of_a_statement(error: Exception, is_so: bool) -> None:
    assert has_failed_inside(error) is is_so
