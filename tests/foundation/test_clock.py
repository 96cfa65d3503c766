"""Clocks: the system's and the fake one keep the same promises."""

from datetime import UTC, timedelta

import pytest

from catchment.foundation.clock import Clock, SystemClock
from catchment.testing import FakeClock


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()], ids=lambda clock: type(clock).__name__)
def test_clocks_return_utc(clock: Clock) -> None:
    assert clock.now().tzinfo is UTC


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()], ids=lambda clock: type(clock).__name__)
def test_sleeping_takes_at_least_the_time_asked_for(clock: Clock) -> None:
    before_s = clock.monotonic_s()
    clock.sleep(0.001)
    assert clock.monotonic_s() - before_s >= 0.001


def test_the_fake_clock_stands_still_and_remembers_how_it_was_asked_to_sleep() -> None:
    clock = FakeClock()
    start = clock.now()
    clock.sleep(90)
    clock.advance(30)
    clock.sleep(0.5)
    assert clock.slept_s == [90, 0.5]
    assert clock.now() - start == timedelta(seconds=120.5)
    assert clock.monotonic_s() == 120.5
