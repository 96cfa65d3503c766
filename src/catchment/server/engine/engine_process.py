"""One engine process, seen from the server: started, asked, interrupted, killed, and found dead."""

import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol, Self
from weakref import WeakSet

from catchment.errors import EngineFailedError, LimitError
from catchment.foundation import events
from catchment.foundation.clock import SystemClock

_WORKER = "catchment.server.engine.worker"
# Processes react in real time, whatever clock their server has.
_CLOCK = SystemClock()
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# How long an interrupted statement may take to end: DuckDB checks for interrupts between vectors,
# so it reacts at once, or not before its function returns. On a busy machine, where an engine gets
# less of the processor, it may take longer. A statement that computes nothing waits for the
# catalog or a file: it may have to, and its engine's other sessions should not suffer from that.
# What it computes is what the thread of its connection does, whatever runs beside it: while
# DuckDB's other threads work for that one, it works, too, or spins.
_REACTION_S = 1.0
_REACTION_CPU_S = 0.25
_REACTION_S_MAX = 30.0
_REACTION_POLL_S = 0.25
# How long the kernel may take to report the end of a process whose sockets are closed; then the
# process has only closed the socket, and cannot be used any more.
_REAP_S = 2.0
# An engine answers while its statements run. One that does not was stopped, or keeps Python's lock:
# nothing else would end calls that have no deadline.
_PING = b'{"ping": true}'
_PING_S = 2.0
_SILENCE_S_MAX = 20.0
_CONTROL_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class EngineStatement:
    """A client's statement in an engine: its text, its user, and the id of its request."""

    text: str
    user: str = ""
    request: str = ""

    @classmethod
    def current(cls, text: str) -> Self:
        """Return the statement of the request that this thread answers."""
        return cls(text, events.current("user") or "", events.current("request") or "")

    @property
    def key(self) -> bytes:
        """A digest of user and text: a session gives a text its meaning."""
        return hashlib.blake2b(f"{self.user}\0{self.text}".encode(), digest_size=16).digest()


class ChannelUser(Protocol):
    """A connection, as far as its process knows it."""

    statement: EngineStatement | None

    @property
    def is_computing(self) -> bool:
        """Whether the engine computes the answer to a request."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed."""


class EngineProcess:
    """A running engine process. Thread-safe.

    Started by the thread that waits for its end, because the kernel ends it with that thread.
    """

    def __init__(self, *, data_bytes_max: int, connections_max: int, on_end: Callable[["EngineProcess"], None]) -> None:
        """`on_end` is called, perhaps repeatedly, when the process is found to be lost."""
        self._on_end = on_end
        self._connections_max = connections_max
        self._numbers = count(1)
        self._users: WeakSet[ChannelUser] = WeakSet()
        self._databases = count(1)
        self._mutex = threading.Lock()
        self._killed_for: str | None = None
        # The statements for which it was killed.
        self._culprits: tuple[EngineStatement, ...] = ()
        # When the process last answered on the control socket.
        self._answered_s = _CLOCK.monotonic_s()
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

    def statements(self) -> list[EngineStatement]:
        """Return the statements that run now."""
        with self._mutex:
            users = list(self._users)
        return [user.statement for user in users if user.is_computing and user.statement]

    def blamed(self) -> Sequence[EngineStatement]:
        """Return the statements that may have ended the process: all, if it was not killed."""
        return self.statements() if self._killed_for is None else self._culprits

    def number_database(self) -> int:
        """Return the number of a database that the process has not opened yet."""
        return next(self._databases)

    def number_channel(self) -> int:
        """Return the number of a connection that has not been opened yet."""
        return next(self._numbers)

    def open_channel(self, number: int, user: ChannelUser, theirs: socket.socket) -> None:
        """Open a connection for its user, who keeps the other end of the socket.

        EngineFailedError if the process has ended.
        """
        with self._mutex:
            if sum(not each.is_closed for each in self._users) >= self._connections_max:
                raise LimitError(
                    f"The engine process has {self._connections_max} open connections.",
                    hint="Read results to their end before the next statement, or start more engines.",
                )
            self._users.add(user)
        try:
            socket.send_fds(self._control, [json.dumps({"channel": number}).encode()], [theirs.fileno()])
        except OSError:
            raise self.lost() from None

    def stop(
        self,
        running: Callable[[], tuple[int, int] | None],
        is_over: Callable[[], bool],
        statement: EngineStatement | None,
        thread: int,
    ) -> None:
        """Interrupt a connection's requests until `is_over`; kill the process if it does not react.

        `running` returns channel and number of the request to interrupt, or None if there is none;
        `statement` is what it runs, and `thread` the process's thread that runs it.
        """
        self._interrupt(running)
        arguments = (running, is_over, statement, thread)
        threading.Thread(target=self._stop, args=arguments, name="catchment-stop", daemon=True).start()

    def drop(self, channel: int) -> None:
        """Interrupt whatever the connection runs, because it is being closed."""
        with suppress(OSError):
            self._control.send(json.dumps({"channel": channel}).encode())

    def close_database(self, number: int) -> None:
        """Close a database once its last connection is closed."""
        with suppress(OSError):
            self._control.send(json.dumps({"database": number}).encode())

    def kill(self, reason: str, *culprits: EngineStatement) -> None:
        """End the process at once."""
        with self._mutex:
            if self._killed_for is None:
                self._culprits, self._killed_for = culprits, reason
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
        """Wait for the end of the process; kill it if it gives no sign of life."""
        poll, ping_s = select.poll(), 0.0
        poll.register(self._control, select.POLLIN)
        while self._process.poll() is None:
            if _CLOCK.monotonic_s() - ping_s >= _PING_S:
                ping_s = _CLOCK.monotonic_s()
                with suppress(OSError):
                    self._control.send(_PING, socket.MSG_DONTWAIT)
            poll.poll(_PING_S * 1000)
            if not self._receive():
                # It has closed the socket, or ended.
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_REAP_S)
                self._process.kill()
                self._process.wait()
            elif _CLOCK.monotonic_s() - self._answered_s > _SILENCE_S_MAX:
                self.kill("it gave no sign of life")
        self._on_end(self)

    def _receive(self) -> bool:
        """Note the answers that have arrived; False if there will be no more."""
        try:
            while self._control.recv(_CONTROL_BYTES_MAX, socket.MSG_DONTWAIT):
                self._answered_s = _CLOCK.monotonic_s()
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """End the process and release its resources."""
        self._process.kill()
        self._process.wait()
        self._control.close()

    @property
    def reason(self) -> str:
        """Why the process has ended."""
        code = self._process.poll()
        if self._killed_for is not None:
            return self._killed_for
        if code is None:
            return "its connection broke"
        if code < 0:
            known = [each.name for each in signal.Signals if each == -code]
            return f"signal {-code} ({known[0]})" if known else f"signal {-code}"
        return f"exit code {code}"

    def _interrupt(self, running: Callable[[], tuple[int, int] | None]) -> bool:
        found = running()
        if found is None:
            return False
        with suppress(OSError):
            self._control.send(json.dumps(dict(zip(("channel", "request"), found, strict=True))).encode())
        return True

    def _stop(
        self,
        running: Callable[[], tuple[int, int] | None],
        is_over: Callable[[], bool],
        statement: EngineStatement | None,
        thread: int,
    ) -> None:
        begun_cpu_s, waited_s, asked_s, ended = self._cpu_s(thread), 0.0, _CLOCK.monotonic_s(), threading.Event()
        while not is_over() and self.is_running:
            ended.wait(_REACTION_POLL_S)
            # Again and again: DuckDB loses an interrupt that comes before its query begins.
            if not self._interrupt(running):
                continue
            waited_s += _REACTION_POLL_S
            # An engine that has not read the interrupt parses a long text, or gets no processor.
            has_read = self._answered_s > asked_s
            is_due = waited_s >= _REACTION_S and self._cpu_s(thread) - begun_cpu_s >= _REACTION_CPU_S
            if has_read and (is_due or waited_s >= _REACTION_S_MAX) and not is_over():
                culprits = (statement,) if is_due and statement is not None else ()
                self.kill("a statement did not react to its interruption", *culprits)

    def _cpu_s(self, thread: int) -> float:
        """Return the CPU time of a thread of the process; 0 if there is none."""
        path = Path(f"/proc/{self.pid}/task/{thread}/stat")
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        except OSError:
            return 0.0
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / _TICKS_PER_S
