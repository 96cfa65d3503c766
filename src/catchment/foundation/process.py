"""Processes of this machine: the processors that this one may use, and when another one started."""

import os
from pathlib import Path

# States of a process that has ended, but was not reaped by its parent.
_ENDED = ("Z", "X")


def cpu_count() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_tick(pid: int) -> str | None:
    """Return when a process started, in ticks since boot; None if it does not run.

    A zombie does not run: in a container, it may never be reaped.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The process name comes first, in brackets, and may contain anything.
    state, *numbers = stat.rpartition(")")[2].split()
    return None if state in _ENDED else numbers[18]
