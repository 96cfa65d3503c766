"""Waiting for a condition that no event announces, and the pause of clients that write in the
background.
"""

from collections.abc import Callable

from catchment.foundation.clock import SystemClock

PATIENCE_S = 60.0
# Between two writes of a client. Clients that never pause take the CPU from the code under test.
BEAT_S = 0.05
_PAUSE_S = 0.02


def wait_until(is_so: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S) -> None:
    """Poll until `is_so()`; fail with `what` after `patience_s`."""
    clock = SystemClock()
    end_s = clock.monotonic_s() + patience_s
    while not is_so():
        assert clock.monotonic_s() < end_s, f"not within {patience_s:g} s: {what}"
        clock.sleep(_PAUSE_S)
