"""When a table is due, and how long a failing one waits: ever longer, up to a bound."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.foundation.backoff import Backoff
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.queue.buffer import TableState
from catchment.queue.policy import FlushFailure, Policy, Trigger, failed_again

UNHURRIED = settings(deadline=None)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = replace(
    Policy.from_settings(
        Settings(queue_buffer_max_rows=100, queue_rotate_size_bytes=1_000, queue_rotate_interval_seconds=60)
    ),
    retry=Backoff(attempts_max=1, first_ms=1_000, wait_ms_max=90_000),
)


def _state(*, rows: int = 1, size: int = 1, age_s: float = 0, sealed: int | None = None) -> TableState:
    return TableState(
        table=TableId("main", "events"),
        rows=rows,
        bytes=size,
        oldest_at=NOW - timedelta(seconds=age_s),
        seq_last=rows,
        seq_flushed=0,
        ready_rows=rows if sealed is None else sealed,
        sealed_rows=sealed,
    )


def _failures(count: int, luck: float) -> list[FlushFailure]:
    """The failure record after so many failures, each at its retry time."""
    found: list[FlushFailure] = []
    for _ in range(count):
        before = found[-1] if found else None
        found.append(failed_again(before, "reason", POLICY, before.retry_at if before else NOW, luck))
    return found


def _waits_s(failures: list[FlushFailure]) -> list[float]:
    moments = [NOW, *(failure.retry_at for failure in failures)]
    return [(after - before).total_seconds() for before, after in pairwise(moments)]


@pytest.mark.parametrize(
    ("state", "trigger"),
    [
        (_state(), None),
        (_state(rows=99, size=999, age_s=59.9), None),
        (_state(rows=100), Trigger.ROWS),
        (_state(size=1_000), Trigger.BYTES),
        (_state(age_s=60), Trigger.AGE),
        (_state(rows=100, size=1_000, age_s=60), Trigger.ROWS),
        (_state(rows=0, size=0, age_s=10_000), None),
        (_state(rows=100, size=1_000, age_s=60, sealed=0), None),
        (_state(rows=100, sealed=1), Trigger.SEALED),
        (_state(rows=0, sealed=0), None),
    ],
)
def test_a_table_is_due_for_the_first_reason_that_holds(state: TableState, trigger: Trigger | None) -> None:
    assert POLICY.trigger(state, NOW) is trigger


@UNHURRIED
@given(rows=st.integers(0, 200), size=st.integers(0, 2_000), age_s=st.integers(0, 120), later_s=st.integers(0, 1_000))
def test_a_due_table_stays_due(rows: int, size: int, age_s: int, later_s: int) -> None:
    state = _state(rows=rows, size=size, age_s=age_s)
    if POLICY.trigger(state, NOW) is not None:
        assert POLICY.trigger(state, NOW + timedelta(seconds=later_s)) is not None


@UNHURRIED
@given(luck=st.floats(0, 1, exclude_max=True))
def test_a_table_that_keeps_failing_is_left_alone_for_longer_up_to_a_bound(luck: float) -> None:
    waits_s = _waits_s(_failures(100, luck))
    assert 0.5 <= waits_s[0] <= 1
    assert waits_s == sorted(waits_s)
    assert waits_s[1] >= 1.99 * waits_s[0]
    assert 45 <= waits_s[-1] <= 90


def test_failures_are_counted_and_the_last_reason_is_kept() -> None:
    first = failed_again(None, "one", POLICY, NOW, 0.5)
    second = failed_again(first, "two", POLICY, NOW, 0.5)
    assert (first.failures, second.failures, second.reason) == (1, 2, "two")


def test_a_table_may_be_retried_at_the_time_of_its_failure_record() -> None:
    failure = failed_again(None, "reason", POLICY, NOW, 0)
    assert not failure.is_over(failure.retry_at - timedelta(microseconds=1))
    assert failure.is_over(failure.retry_at)


def test_the_number_of_failures_has_no_end_and_the_arithmetic_none_either() -> None:
    tired = FlushFailure(failures=10**9, reason="", retry_at=NOW)
    assert failed_again(tired, "", POLICY, NOW, 0.999).retry_at <= NOW + timedelta(seconds=90)
