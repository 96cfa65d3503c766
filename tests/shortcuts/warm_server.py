"""A process that has imported everything, and forks for every order; started by `warm`.

    python -m tests.shortcuts.warm_server SOCKET

An order comes on a connection of its own, as JSON, with stdin, stdout and stderr of the new
process. The answer is the number of the process, and when it has ended, how: two lines. The new
process is one of its own in every way, only that it has nothing left to import, which takes longer
than most of what it is started for, and that its Spark may start in a JVM that an earlier one had,
see `tests.shortcuts.lent_jvm`. Nothing is opened before a fork: no database, no thread of ours.
"""

import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import duckdb

import catchment
from catchment.cli.main import command_line
from catchment.foundation.pandas_probe import skip_pandas_probe
from catchment.lake import extensions
from tests.shortcuts.lent_jvm import ASK, GIVE, Lender, borrow_from

_ORDER_BYTES_MAX = 1 << 20
# What processes import when they come to it; the commands' own modules bring the rest.
_LATER = (
    "catchment.control",
    "catchment.doctor",
    "catchment.pipeline.spark_driver",
    "catchment.tenants.transport.remote_shard",
    "catchment.server.flight_server",
    "catchment.tenants.gateway",
    "catchment.tenants.service",
    "catchment.tenants.control_store",
    "psycopg",
    "pyarrow.parquet",
    "tests.pipeline.legacy.legacy_home",
    "tests.queue.queues",
    "tests.schema.projects",
    "tests.server.server_process",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a new process is to be: a module, a script, or code."""

    kind: str
    target: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    session: bool


class Server:
    """Takes orders until its client is gone."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._path = path
        self._listener.listen()
        self._wakeup = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, socket.socket] = {}
        self._lender = Lender()

    def serve(self) -> Order | None:
        """Return the order in every forked process, and None in this one when it has to end."""
        for end in self._wakeup:
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup[1])
        for each in (self._listener.fileno(), self._wakeup[0], 0):
            self._selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    return None
                if key.fd == self._wakeup[0]:
                    os.read(key.fd, 4096)
                    self._reap()
                elif (order := self._fork()) is not None:
                    return order

    def _fork(self) -> Order | None:
        connection, _ = self._listener.accept()
        data, streams, _, _ = socket.recv_fds(connection, _ORDER_BYTES_MAX, 3)
        while not data.endswith(b"\n"):
            data += connection.recv(_ORDER_BYTES_MAX)
        wanted = json.loads(data)
        if wanted["kind"] in (ASK, GIVE):
            with connection:
                self._lender.answer(connection, wanted, streams)
            return None
        pid = os.fork()
        if pid:
            for stream in streams:
                os.close(stream)
            connection.sendall(f"{pid}\n".encode())
            self._running[pid] = connection
            return None
        order = Order(**wanted)
        # No object here may close a descriptor that is reused by then.
        for each in (self._listener, connection, *self._running.values()):
            each.detach()
        self._selector.close()
        _become(order, streams)
        borrow_from(self._path)
        return order

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            # Its client may be gone; the others still need their answers.
            with self._running.pop(pid) as connection, suppress(BrokenPipeError):
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(order: Order, streams: list[int]) -> None:
    """Take the streams, folder and environment of the order, and nothing else."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    if order.session:
        os.setsid()
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    time.tzset()
    tempfile.tempdir = None


def _warm_up() -> None:
    command_line()
    for name in _LATER:
        import_module(name)
    skip_pandas_probe()
    # DuckDB opens a database in memory when it is imported; without threads there is nothing that a
    # fork would miss. So it is with one that loads the extensions, whose code is then there for
    # all, and is closed again.
    duckdb.execute("SET threads = 1")
    with extensions.connect(threads=1) as connection:
        for name in extensions.KNOWN:
            extensions.load(connection, name)
    gc.collect()
    gc.freeze()


def _run(order: Order) -> int:
    """How it ended, if by itself; what else may end a process is raised."""
    sys.argv = ["-c" if order.kind == "code" else order.target, *order.arguments]
    try:
        match order.kind:
            case "module":
                runpy.run_module(order.target, run_name="__main__", alter_sys=True)
            case "script":
                runpy.run_path(order.target, run_name="__main__")
            case _:
                exec(compile(order.target, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        return end.code or 0
    return 0


def _end(code: int) -> None:
    """Exit as the interpreter does, without its slow teardown of every module."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _warm_up()
    server = Server(sys.argv[1])
    sys.stdout.write(f"{Path(catchment.__file__).parent}\n")
    sys.stdout.flush()
    ordered = server.serve()
    if ordered is not None:
        _end(_run(ordered))
