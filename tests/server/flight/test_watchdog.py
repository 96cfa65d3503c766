"""The watchdog ends calls that exceed their deadline, and no others."""

import threading
from collections.abc import Iterator

import pytest

from catchment.errors import TimedOutError
from catchment.foundation.clock import SystemClock
from catchment.server.flight import watchdog
from catchment.server.flight.watchdog import Watchdog
from catchment.server.values import Call

PATIENCE_S = 30.0
LONG_S = 3_600.0


@pytest.fixture
def dog(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watchdog]:
    monkeypatch.setattr(watchdog, "GRACE_S", 0.05)
    found = Watchdog()
    yield found
    found.close()


def call_of(seconds: float) -> Call:
    return Call(deadline_s=SystemClock().monotonic_s() + seconds)


def test_a_call_is_cancelled_at_its_deadline_and_cut_off_if_it_does_not_react(dog: Watchdog) -> None:
    told, cut = threading.Event(), threading.Event()
    call = call_of(0.01)
    with dog.watching(call, cut.set), call.interruptible(told.set):
        assert told.wait(PATIENCE_S)
        with pytest.raises(TimedOutError):
            call.refuse_stopped()
        assert cut.wait(PATIENCE_S)


def test_a_call_that_ends_in_time_is_left_alone(dog: Watchdog) -> None:
    cut, later = threading.Event(), threading.Event()
    call, other = call_of(0.05), call_of(0.1)
    with dog.watching(call, cut.set):
        pass
    with dog.watching(other, later.set):
        assert later.wait(PATIENCE_S)
    call.refuse_stopped()
    assert not cut.is_set()


def test_a_call_with_less_time_is_ended_before_one_with_more(dog: Watchdog) -> None:
    cut = threading.Event()
    long, short = call_of(LONG_S), call_of(0.01)
    with dog.watching(long, lambda: None), dog.watching(short, cut.set):
        assert cut.wait(PATIENCE_S)
        long.refuse_stopped()


def test_a_call_without_a_deadline_is_not_watched(dog: Watchdog) -> None:
    with dog.watching(Call(), lambda: None):
        pass


def test_the_watchdog_can_be_closed_while_calls_run() -> None:
    dog = Watchdog()
    with dog.watching(call_of(LONG_S), lambda: None):
        dog.close()
