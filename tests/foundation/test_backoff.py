"""Retries: bounded, with jitter, and only of temporary errors."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import CatchmentError, ConflictError, FencedError, LakeUnavailableError
from catchment.foundation.backoff import Backoff, retry
from catchment.testing import FakeClock

# A busy machine is not a failure.
UNHURRIED = settings(deadline=None)

POLICY = Backoff(attempts_max=4, first_ms=100, factor=3, wait_ms_max=500)


def _failing(*errors: CatchmentError) -> tuple[Callable[[], str], list[CatchmentError]]:
    """An operation that fails with each error in turn, then works; and the errors left."""
    left = list(errors)

    def operation() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return operation, left


@UNHURRIED
@given(
    attempt=st.integers(1, 1000),
    luck=st.floats(0, 1, exclude_max=True),
    first_ms=st.floats(0, 10_000),
    wait_ms_max=st.floats(0, 10_000),
)
def test_a_wait_is_between_half_and_all_of_the_time_that_the_policy_allows(
    attempt: int, luck: float, first_ms: float, wait_ms_max: float
) -> None:
    policy = Backoff(attempts_max=1000, first_ms=first_ms, wait_ms_max=wait_ms_max)
    full = min(first_ms * 2.0 ** (attempt - 1), wait_ms_max)
    assert full / 2 <= policy.wait_ms(attempt, luck) <= full


def test_waits_grow_by_the_factor_until_the_bound() -> None:
    assert [POLICY.wait_ms(attempt, 0.0) for attempt in (1, 2, 3, 4)] == [50, 150, 250, 250]


def test_luck_spreads_rivals_over_half_of_the_wait() -> None:
    assert POLICY.wait_ms(1, 0.0) == 50
    assert POLICY.wait_ms(1, 0.5) == 75


def test_an_immediate_success_is_neither_repeated_nor_delayed() -> None:
    clock = FakeClock()
    assert retry(lambda: 7, policy=POLICY, clock=clock) == 7
    assert clock.slept_s == []


def test_a_temporary_failure_is_retried_after_growing_waits() -> None:
    clock = FakeClock()
    operation, left = _failing(ConflictError(), LakeUnavailableError(), ConflictError())
    assert retry(operation, policy=POLICY, clock=clock) == "done"
    assert not left
    for waited_s, full_ms in zip(clock.slept_s, (100, 300, 500), strict=True):
        assert full_ms / 2 <= waited_s * 1000 <= full_ms


def test_the_last_error_is_raised_once_the_attempts_are_used_up() -> None:
    clock = FakeClock()
    errors = [ConflictError(f"attempt {number}") for number in range(1, 7)]
    operation, left = _failing(*errors)
    with pytest.raises(ConflictError, match="attempt 4"):
        retry(operation, policy=POLICY, clock=clock)
    assert len(left) == 2
    assert len(clock.slept_s) == 3


def test_a_permanent_error_is_raised_at_once() -> None:
    clock = FakeClock()
    operation, left = _failing(FencedError(), FencedError())
    with pytest.raises(FencedError):
        retry(operation, policy=POLICY, clock=clock)
    assert len(left) == 1
    assert clock.slept_s == []


def test_only_the_given_errors_are_retried() -> None:
    clock = FakeClock()
    operation, left = _failing(ConflictError(), LakeUnavailableError(), ConflictError())
    with pytest.raises(LakeUnavailableError):
        retry(operation, policy=POLICY, clock=clock, on=ConflictError)
    assert len(left) == 1
