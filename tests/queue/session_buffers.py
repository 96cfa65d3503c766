"""Buffers of the sessions layout on one root, as of several processes, and a writer that dies."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from catchment.errors import StorageFailedError
from catchment.foundation.ids import TableId
from catchment.foundation.settings import MIB
from catchment.lake.types import Column
from catchment.queue.buffer import FlushPayload
from catchment.queue.sessions.leases import FileLeases
from catchment.queue.sessions.sessions_buffer import SessionsBuffer
from catchment.testing import FakeClock
from tests.repo.source_tree import ROOT
from tests.shortcuts import warm

EVENTS = TableId("main", "events")
CLICKS = TableId("web", "clicks")
COLUMNS = (Column(name="id", type="BIGINT"), Column(name="text", type="VARCHAR"))
NARROW = COLUMNS[:1]

Make = Callable[..., SessionsBuffer]

_WRITER = """
import os, signal, sys
from pathlib import Path
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from tests.queue.session_buffers import COLUMNS, EVENTS, rows
from catchment.queue.sessions.sessions_buffer import SessionsBuffer
home, act = sys.argv[1:]
buffer = SessionsBuffer.from_settings(Settings(home=Path(home), queue_root=Path(home)), clock=SystemClock())
for number in range(5):
    buffer.append(EVENTS, COLUMNS, rows(number * 10, 10), session="dead")
if act == "lease":
    buffer.seal()
    print(len(buffer.payloads()), flush=True)
    sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def rows(first: int, count: int = 1) -> pa.Table:
    """Rows with the ids from `first` on."""
    numbers = list(range(first, first + count))
    return pa.table({"id": pa.array(numbers, pa.int64()), "text": [f"row {number}" for number in numbers]})


@contextmanager
def buffers(root: Path, clock: FakeClock) -> Iterator[Make]:
    """Opens the buffer of a root, as one more process would, as often as it is called."""
    made: list[SessionsBuffer] = []

    def make_buffer(**values: Any) -> SessionsBuffer:
        given: dict[str, Any] = {
            "rotate_size_bytes": 100 * MIB,
            "rotate_interval": timedelta(seconds=300),
            "keep_flushed": timedelta(days=3),
            "leases": FileLeases(root, clock),
            "clock": clock,
            **values,
        }
        made.append(SessionsBuffer(root, **given))
        return made[-1]

    yield make_buffer
    for each in made:
        each.close()


def files_in(root: Path, state: str) -> list[Path]:
    """What lies in one of the folders of states, WALs included."""
    return sorted((root / state).iterdir())


def ids_of(payloads: list[FlushPayload], buffer: SessionsBuffer) -> list[int]:
    """The ids in the payloads, in order."""
    return sorted(number for payload in payloads for number in buffer.read(payload)["id"].to_pylist())


def held_ids(buffer: SessionsBuffer, table: TableId = EVENTS) -> list[int]:
    """The ids that a fresh read gets from the buffer, in order."""
    return sorted(number for each in buffer.buffered_rows(table) for number in each.rows["id"].to_pylist())


def no_room() -> None:
    """A full disk, for a crash point."""
    raise StorageFailedError("No space left on device.")


def run_writer(root: Path, act: str = "die") -> warm.Process:
    """A process that writes 50 rows and kills itself; with `lease`, after a line."""
    return warm.Process([sys.executable, "-c", _WRITER, str(root), act], cwd=ROOT, stdin=warm.PIPE, stdout=warm.PIPE)
