"""Crash points: silent unless armed, declared before use, and final if they kill."""

import signal
import subprocess
import sys

import pytest

from catchment.errors import InvariantError
from catchment.foundation import faults

POINT = "deliver.after_commit"
KILLED = f"""
import atexit
from catchment.foundation import faults
atexit.register(lambda: print("cleaned up", flush=True))
faults.arm("{POINT}", faults.kill)
faults.reach("deliver.before_commit")
print("before", flush=True)
faults.reach("{POINT}")
print("after", flush=True)
"""


def test_a_point_that_is_not_armed_does_nothing() -> None:
    for point in faults.POINTS:
        faults.reach(point)


def test_an_armed_point_acts_whenever_it_is_reached_and_only_it() -> None:
    reached: list[str] = []
    with faults.armed(POINT, lambda: reached.append(POINT)):
        for point in faults.POINTS:
            faults.reach(point)
        faults.reach(POINT)
    assert reached == [POINT, POINT]


def test_a_point_is_disarmed_when_the_block_fails() -> None:
    def fail() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError), faults.armed(POINT, fail):
        faults.reach(POINT)
    faults.reach(POINT)


def test_a_point_that_is_not_declared_cannot_be_armed() -> None:
    with pytest.raises(InvariantError, match=r"deliver\.never"), faults.armed("deliver.never", faults.kill):
        pytest.fail("an unknown point was armed")


def test_every_point_states_when_it_is_reached_and_what_happens_after_a_kill() -> None:
    for name, point in faults.POINTS.items():
        assert name.count(".") == 1
        assert len(point.reached.split()) > 3
        assert point.after_kill


def test_a_kill_ends_the_process_as_a_power_cut_would() -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == "before\n"
