"""`demo-server.json` in a shard's home: which process the demo started there, so that a later one may end it.

A number alone says little: the same may be another process's by now, after a restart of the machine even with the same
start. So all three are kept, and a server that somebody else started in the folder has no mark.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from catchment.foundation import files, process

_FILE_NAME = "demo-server.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
# A process that has ended, and that its parent has not asked about.
_ENDED = ("Z", "X")


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A process: its number, the tick at which it started, and the machine's start that ticks are counted from."""

    pid: int
    started: str
    boot: str

    @classmethod
    def of(cls, pid: int) -> "ProcessMark":
        """The mark of a process that runs now."""
        return cls(pid, process.start_tick(pid) or "", _boot())

    @property
    def is_alive(self) -> bool:
        """Whether that very process still runs."""
        if not self.started or self.boot != _boot() or process.start_tick(self.pid) != self.started:
            return False
        return _state(self.pid) not in _ENDED


def write(home: Path, mark: ProcessMark) -> None:
    """Say that the demo started this process in the home."""
    files.replace_text(home / _FILE_NAME, json.dumps(asdict(mark)) + "\n")


def read(home: Path) -> ProcessMark | None:
    """What the last demo started in the home; None where it ended it again."""
    try:
        return ProcessMark(**json.loads((home / _FILE_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def remove(home: Path) -> None:
    """Say that nothing of the demo runs in the home."""
    files.remove(home / _FILE_NAME)


def _boot() -> str:
    try:
        return _BOOT.read_text(encoding="utf-8").strip()
    except OSError:
        # A container may hide it.
        return ""


def _state(pid: int) -> str:
    """The letter that Linux has for what a process does; that of one that has ended where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _ENDED[0]
    # Its name comes before, in brackets, and may hold anything.
    return stat.rpartition(")")[2].split()[0]
