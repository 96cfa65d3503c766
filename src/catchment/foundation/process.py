"""Processes of this machine: the processors that this one may use, and when another one started."""

import os
from pathlib import Path


def cpu_count() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_tick(pid: int) -> str | None:
    """Return when a process started, in ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The process name comes first, in brackets, and may contain anything.
    return stat.rpartition(")")[2].split()[19]
