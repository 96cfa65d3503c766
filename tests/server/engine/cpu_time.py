"""How much a process has computed."""

import os
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
