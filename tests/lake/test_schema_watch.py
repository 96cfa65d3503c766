"""Noticing that the lake's tables changed, and the behaviour while the lake does not answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pytest

from catchment.errors import LakeUnavailableError
from catchment.lake import Lake, schema_watch
from catchment.lake.schema_watch import SchemaWatch
from catchment.testing import FakeClock
from tests.conftest import MakeSettings


class SlowLake(Lake):
    """A lake whose answers can be held back, or fail."""

    down = False
    gate: threading.Event | None = None
    questions = 0

    @contextmanager
    def snapshot(self) -> Iterator[duckdb.DuckDBPyConnection]:
        self.questions += 1
        if self.gate is not None:
            assert self.gate.wait(20)
        if self.down:
            raise LakeUnavailableError("The lake is down.")
        with super().snapshot() as connection:
            yield connection


@pytest.fixture
def lake(make_settings: MakeSettings) -> Iterator[SlowLake]:
    with SlowLake.from_settings(make_settings("sqlite")) as lake:
        yield lake


def change(lake: Lake) -> None:
    with lake.write() as connection:
        connection.execute("CREATE OR REPLACE TABLE t (a INTEGER)")


def test_a_change_by_this_process_is_seen_at_once_and_one_by_another_after_a_while(
    lake: SlowLake,
) -> None:
    clock = FakeClock()
    seen = SchemaWatch(lake, clock, age_s_max=1)
    first = seen.version()
    assert first is not None
    change(lake)
    second = seen.version()
    assert second is not None
    assert second > first
    with Lake(lake.address) as other:
        change(other)
    assert seen.version() == second
    clock.advance(1.5)
    third = seen.version()
    assert third is not None
    assert third > second


def test_an_answer_is_reused_for_a_while(lake: SlowLake) -> None:
    seen = SchemaWatch(lake, FakeClock(), age_s_max=1)
    assert [seen.version() for _ in range(5)] == [seen.version()] * 5
    assert lake.questions == 1


def test_a_lake_that_is_away_has_no_version_and_is_not_asked_again_at_once(lake: SlowLake) -> None:
    clock = FakeClock()
    seen = SchemaWatch(lake, clock, age_s_max=1)
    lake.down = True
    assert [seen.version() for _ in range(3)] == [None] * 3
    assert lake.questions == 1
    lake.down = False
    clock.advance(1.5)
    assert seen.version() is not None


def test_a_lake_that_hangs_holds_no_writer_longer_than_the_bound(
    lake: SlowLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_watch, "_WAIT_S_MAX", 0.05)
    clock = FakeClock()
    seen = SchemaWatch(lake, clock, age_s_max=1)
    lake.gate = threading.Event()
    assert seen.version() is None
    clock.advance(0.1)
    # The query has run for so long that waiting for it is useless.
    assert seen.version() is None
    assert lake.questions == 1
    lake.gate.set()
    for thread in threading.enumerate():
        if thread.name == "schema-watch":
            thread.join()
    monkeypatch.undo()
    clock.advance(1.5)
    assert seen.version() is not None
