"""Background threads continue after a defect, which is reported."""

import threading

import pytest

from catchment.foundation import lasting_thread
from catchment.foundation.lasting_thread import LastingThread
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What threads that end by an error report."""
    found: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda died: found.append(f"{died.thread.name}: {died.exc_value}"))
    monkeypatch.setattr(lasting_thread, "_PAUSE_S", 0.0)
    return found


def test_a_thread_that_ends_by_an_error_reports_it_and_starts_again(reported: list[str]) -> None:
    left = [ValueError("one"), KeyError("two")]

    def work() -> None:
        if left:
            raise left.pop(0)

    thread = LastingThread(work, name="catchment-test")
    thread.start()
    thread.join(PATIENCE_S)
    wait_until(lambda: sorted(reported) == ["catchment-test: 'two'", "catchment-test: one"], "both are reported")
    assert left == []


def test_a_thread_whose_function_returns_ends(reported: list[str]) -> None:
    calls: list[str] = []
    thread = LastingThread(lambda: calls.append(threading.current_thread().name), name="catchment-test")
    thread.start()
    thread.join(PATIENCE_S)
    assert (calls, reported) == (["catchment-test"], [])


def test_a_thread_that_was_never_started_is_not_waited_for() -> None:
    LastingThread(threading.Event().wait, name="catchment-test").join()
