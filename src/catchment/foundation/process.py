"""Processes of this machine: the processors and the memory that this one may use, and when another
one started.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# States of a process that has ended, but was not reaped by its parent.
_ENDED = ("Z", "X")


def cpu_count() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory that this process may use: the machine's, or a lower limit of its cgroup.

    `root` has the folders `proc` and `sys`.
    """
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_cgroup_limits(root)])


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Yield the limits on the cgroup of this process, and on those that contain it."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container, the path may be one that only the host has; what is mounted at the top is
        # then the container's own.
        own = Path(path.lstrip("/"))
        for folder in (own, *own.parents):
            # Without a limit, there is the word `max`, or no file.
            with suppress(OSError, ValueError):
                yield int((top / folder / name).read_text(encoding="ascii"))


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
