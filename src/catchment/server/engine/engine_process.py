"""One engine process, seen from the server: started, asked, interrupted, killed, and found dead."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from catchment.errors import EngineFailedError
from catchment.server.engine import frames

_WORKER = "catchment.server.engine.worker"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# How long an interrupted statement may take to end: DuckDB checks for interrupts between vectors,
# so it reacts at once, or not before its function returns. On a busy machine, where an engine gets
# less of the processor, it may take longer; but less than the watchdog's grace, so that the client
# still gets the error of its own statement.
_REACTION_S = 1.0
_REACTION_CPU_S = 0.5
_REACTION_S_MAX = 1.75
_REACTION_POLL_S = 0.25
# How long the kernel may take to report the end of a process whose sockets are closed; then the
# process has only closed the socket, and cannot be used any more.
_REAP_S = 2.0


class ChannelUser(Protocol):
    """What a process knows of its connections."""

    statement: str | None

    @property
    def is_running(self) -> bool:
        """Whether a request runs."""


class EngineProcess:
    """A running engine process. Thread-safe.

    Started by the thread that waits for its end, because the kernel ends it with that thread.
    """

    def __init__(self, *, data_bytes_max: int, on_end: Callable[["EngineProcess"], None]) -> None:
        """`on_end` is called, perhaps repeatedly, when the process is found to be lost."""
        self._on_end = on_end
        self._numbers = count(1)
        self._users: WeakSet[ChannelUser] = WeakSet()
        self._databases = count(1)
        self._mutex = threading.Lock()
        self._killed_for: str | None = None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(theirs.fileno()), str(data_bytes_max)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process runs, and was not killed."""
        return self._killed_for is None and self._process.poll() is None

    @property
    def resident_bytes(self) -> int:
        """The memory that the process occupies; 0 if it has ended."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
        except (OSError, IndexError):
            return 0

    def statements(self) -> list[str]:
        """Return the statements that run now."""
        with self._mutex:
            users = list(self._users)
        return [user.statement for user in users if user.is_running and user.statement]

    def number_database(self) -> int:
        """Return the number of a database that the process has not opened yet."""
        return next(self._databases)

    def open_channel(self, user: ChannelUser) -> tuple[int, socket.socket]:
        """Open a connection for its user; EngineFailedError if the process has ended."""
        ours, theirs = frames.pair()
        number = next(self._numbers)
        with self._mutex:
            self._users.add(user)
        with theirs:
            try:
                socket.send_fds(self._control, [json.dumps({"channel": number}).encode()], [theirs.fileno()])
            except OSError:
                ours.close()
                raise self.lost() from None
        return number, ours

    def interrupt(self, channel: int, request: int, is_over: Callable[[], bool]) -> None:
        """Interrupt a request; kill the process if it does not react, unless `is_over` by then."""
        with suppress(OSError):
            self._control.send(json.dumps({"channel": channel, "request": request}).encode())
        watch = threading.Thread(target=self._require_reaction, args=(is_over,), name="catchment-reaction", daemon=True)
        watch.start()

    def drop(self, channel: int) -> None:
        """Interrupt whatever the connection runs, because it is being closed."""
        with suppress(OSError):
            self._control.send(json.dumps({"channel": channel}).encode())

    def close_database(self, number: int) -> None:
        """Close a database once its last connection is closed."""
        with suppress(OSError):
            self._control.send(json.dumps({"database": number}).encode())

    def kill(self, reason: str) -> None:
        """End the process at once."""
        with self._mutex:
            self._killed_for = self._killed_for or reason
        self._process.kill()
        self._on_end(self)

    def lost(self) -> EngineFailedError:
        """Report the end of the process; return the error for those who used it."""
        try:
            self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            self.kill("its connection broke")
        self._on_end(self)
        return EngineFailedError(f"The engine process that ran the statement ended: {self.reason}.")

    def wait(self) -> None:
        """Wait for the end of the process."""
        self._process.wait()
        self._on_end(self)

    def close(self) -> None:
        """End the process and release its resources."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    @property
    def reason(self) -> str:
        """Why the process has ended."""
        code = self._process.poll()
        if self._killed_for is not None:
            return self._killed_for
        if code is None:
            return "its connection broke"
        if code < 0:
            return f"signal {-code} ({signal.Signals(-code).name})"
        return f"exit code {code}"

    def _require_reaction(self, is_over: Callable[[], bool]) -> None:
        begun_cpu_s, waited_s, ended = self._cpu_s(), 0.0, threading.Event()
        while not is_over() and self.is_running:
            is_due = waited_s >= _REACTION_S and self._cpu_s() - begun_cpu_s >= _REACTION_CPU_S
            if is_due or waited_s >= _REACTION_S_MAX:
                self.kill("a statement did not react to its interruption")
                return
            ended.wait(_REACTION_POLL_S)
            waited_s += _REACTION_POLL_S

    def _cpu_s(self) -> float:
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        except OSError:
            return 0.0
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / _TICKS_PER_S
