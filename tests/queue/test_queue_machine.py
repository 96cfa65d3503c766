"""Random operations on the queue: in every order it agrees with a dictionary of lists.

After every step a fresh read shows exactly the acknowledged rows; at the end the lake has each of
them once.
"""

import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pydantic import SecretStr

from catchment.errors import FlushFailedError
from catchment.foundation import faults
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.queue.sessions.sessions_buffer import SessionsBuffer
from tests.queue.queues import FACTS, LAYOUTS_ON_DISK, OTHER, OWN_POINTS, Killed, QueueScene, Row, assert_audited, die
from tests.sample_events import EVENTS, create_table
from tests.shortcuts.made_lakes import put_lake

TABLES = st.sampled_from([EVENTS, OTHER])
SESSIONS = st.sampled_from(["one", "two"])
COLUMNS_MAX = 3
# Most lie between the lake's commit and the end of the buffer's own work, where it takes both to
# know what is so.
POINTS = st.sampled_from(
    [
        "deliver.before_commit",
        "deliver.after_commit",
        "retire.before_unit",
        "queue.after_retire",
        *sorted(OWN_POINTS),
    ]
)


class QueueMachine(RuleBasedStateMachine):
    """One queue with two tables and two sessions, and what it must hold."""

    layout: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="catchment-machine-"))
        self.ids = count()
        # What was acknowledged: by table, each row as the columns that it was sent with.
        self.acked: dict[TableId, list[dict[str, Any]]] = defaultdict(list)
        self.columns: dict[TableId, list[str]] = {EVENTS: ["id", "kind"], OTHER: ["id", "kind"]}

    @initialize()
    def start(self) -> None:
        values: dict[str, Any] = {
            "home": self.home,
            "lake_catalog": SecretStr(f"duckdb:{self.home / 'catalog'}"),
            "queue_layout": self.layout,
            "queue_flush_chunk_rows": 3,
            "queue_buffer_max_rows": 6,
            "queue_rotate_interval_seconds": 60,
        }
        settings = Settings(**values)
        put_lake(settings, events=True)
        self.queue = QueueScene(self.layout, settings)
        create_table(self.queue.lake, OTHER)

    @rule(table=TABLES, session=SESSIONS, number=st.integers(0, 5), all_columns=st.booleans())
    def enqueue(self, table: TableId, session: str, number: int, all_columns: bool) -> None:
        names = self.columns[table] if all_columns else ["id", "kind"]
        rows = [{name: self._value(name) for name in names} for _ in range(number)]
        arrived = pa.table({name: pa.array([row[name] for row in rows], _type(name)) for name in names})
        assert self.queue.coordinator.enqueue(table, arrived, session=session).rows == number
        self.acked[table] += rows

    @rule(session=st.none() | SESSIONS)
    def rotate(self, session: str | None) -> None:
        """By force, or because a session ends."""
        if session is None:
            self.queue.buffer.seal()
        else:
            self.queue.coordinator.end_session(session)

    @rule(seconds=st.sampled_from([1, 59, 60, 600]))
    def flush_stale(self, seconds: int) -> None:
        self.queue.clock.advance(seconds)
        assert self.queue.coordinator.flush_stale_buffers().ok

    @rule()
    def force_flush(self) -> None:
        self.queue.coordinator.force_flush_all()
        for table in (EVENTS, OTHER):
            assert self.queue.held_rows(table) == 0
            assert self.queue.lake_rows(table) == self._expected(table)

    @rule(start_again=st.sampled_from([QueueScene.reopen, QueueScene.crash]))
    def restart(self, start_again: Callable[[QueueScene], None]) -> None:
        start_again(self.queue)

    @rule(point=POINTS, table=TABLES, before=st.integers(1, 4), after=st.integers(0, 2))
    def crash_during_a_flush(self, point: str, table: TableId, before: int, after: int) -> None:
        self.enqueue(table, "one", before, all_columns=False)
        try:
            with faults.armed(point, die):
                self.queue.coordinator.force_flush_all()
        except Killed:
            self.queue.crash()
        # Rows that come after it change how those before it are cut into slices.
        self.enqueue(table, "one", after, all_columns=False)

    @rule(table=TABLES)
    def add_a_column(self, table: TableId) -> None:
        names = self.columns[table]
        if len(names) < COLUMNS_MAX:
            names.append(f"extra{len(names)}")
            self.queue.sql(f"ALTER TABLE {table} ADD COLUMN {names[-1]} BIGINT")

    @rule()
    def lose_the_lake_for_a_while(self) -> None:
        waiting = sum(state.rows for state in self.queue.buffer.tables())
        self.queue.lake.down = True
        try:
            if waiting:
                with pytest.raises(FlushFailedError):
                    self.queue.coordinator.force_flush_all()
        finally:
            self.queue.lake.down = False
        # A table in trouble is left alone for a while, which the other rules do not wait for.
        self.queue.clock.advance(600)

    @precondition(lambda self: FACTS[self.layout].several_processes)
    @rule()
    def a_second_flusher_delivers_what_it_can_have(self) -> None:
        other = self.queue.open_buffer()
        try:
            self.queue.pipeline(other).flush(other.payloads())
        finally:
            other.close()

    @precondition(lambda self: self.layout == "sessions")
    @rule()
    def lose_the_leases_while_parcels_are_out(self) -> None:
        # Sealed first: DuckDB keeps another process from opening an active file, but not this one.
        buffer = self.queue.buffer
        assert isinstance(buffer, SessionsBuffer)
        for session in ("one", "two"):
            buffer.end_session(session)
        mine = buffer.payloads()
        buffer._leases.close()
        other = self.queue.open_buffer()
        try:
            theirs = other.payloads()
            assert {payload.id for payload in theirs} == {payload.id for payload in mine}
            assert not [error for each in self.queue.pipeline(other).flush(theirs) for error in each.errors]
        finally:
            other.close()
        # The process that lost them delivers them again: the ledger knows.
        assert not [error for each in self.queue.pipeline(buffer).flush(mine) for error in each.errors]

    @invariant()
    def a_fresh_read_shows_exactly_what_was_acknowledged(self) -> None:
        for table in (EVENTS, OTHER):
            assert self.queue.fresh_rows(table) == self._expected(table)

    def teardown(self) -> None:
        try:
            if hasattr(self, "queue"):
                self.force_flush()
                assert_audited(self.queue)
                self.queue.close()
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def _value(self, name: str) -> int | str:
        number = next(self.ids)
        return f"k{number}" if name == "kind" else number

    def _expected(self, table: TableId) -> Counter[Row]:
        return Counter(tuple(row.get(name) for name in self.columns[table]) for row in self.acked[table])


def _type(name: str) -> pa.DataType:
    return pa.string() if name == "kind" else pa.int64()


MACHINES = pytest.mark.parametrize(
    "machine", [type(layout, (QueueMachine,), {"layout": layout}) for layout in LAYOUTS_ON_DISK]
)
FEW = settings(
    deadline=None, max_examples=8, stateful_step_count=14, suppress_health_check=list(HealthCheck), database=None
)


@MACHINES
def test_a_queue_agrees_with_a_dictionary_of_lists(machine: type[QueueMachine]) -> None:
    run_state_machine_as_test(machine, settings=FEW)


@pytest.mark.soak
@MACHINES
def test_a_queue_agrees_with_a_dictionary_of_lists_for_long(machine: type[QueueMachine]) -> None:
    many = settings(FEW, max_examples=150, stateful_step_count=40)
    run_state_machine_as_test(machine, settings=many)
