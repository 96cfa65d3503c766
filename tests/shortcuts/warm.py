"""Processes that start warm: forked from one that has imported everything, instead of `subprocess`.

    python -m tests.shortcuts.warm ORDERS COMMAND…

does so for a shell, whose streams the command has; see `stand_in`.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Self

from tests.repo.source_tree import ROOT

PIPE = subprocess.PIPE
DEVNULL = subprocess.DEVNULL
_SERVER = "tests.shortcuts.warm_server"


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended."""

    returncode: int
    stdout: str
    stderr: str


class Process:
    """A command or a module of ours in a process of its own; what it has in common with `Popen`
    means the same.

    `arguments` begin with a command that is installed beside the interpreter, or with the
    interpreter and `-m`, `-c` or a script. Pipes are text.
    """

    def __init__(
        self,
        arguments: Sequence[str | Path | bytes],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[str] = DEVNULL,
        stdout: int | IO[str] = 1,
        stderr: int | IO[str] = 2,
        start_new_session: bool = False,
        orders: str | None = None,
    ) -> None:
        self.returncode: int | None = None
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        kind, target, rest = _target([os.fsdecode(each) for each in arguments])
        order = {
            "kind": kind,
            "target": target,
            "arguments": rest,
            "folder": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "session": start_new_session,
        }
        theirs = [self._stream(name, each) for name, each in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr))]
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(orders or _server())
        data = json.dumps(order).encode() + b"\n"
        sent = socket.send_fds(self._line, [data], [stream for stream, _ in theirs])
        if sent < len(data):
            # Not if nothing is left: the process may have ended by now.
            self._line.sendall(data[sent:])
        for stream, is_ours in theirs:
            if is_ours:
                os.close(stream)
        # Not a byte more than a line is read of it: of a short process both answers are there at
        # once.
        self._answers = self._line.makefile("rb", buffering=0)
        self.pid = int(self._answers.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()

    def poll(self) -> int | None:
        """What it ended with; None while it runs."""
        try:
            return self.wait(timeout=0.001)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; what it ended with, the negative of a signal if by one."""
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                said = self._line.recv(16, socket.MSG_PEEK)
            except TimeoutError:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            assert said, "the server of warm processes died"
            self._line.settimeout(None)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._line.close()
        return self.returncode

    def communicate(self, timeout: float | None = None, typed: bytes = b"") -> tuple[str, str]:
        """Write `typed` to its stdin and close it, read its output, and wait for its end."""
        said: dict[str, str] = {"stdout": "", "stderr": ""}

        def read(name: str, pipe: IO[str]) -> None:
            said[name] = pipe.read()

        if self.stdin is not None:
            with self.stdin as stdin, suppress(BrokenPipeError):
                # Less than a pipe buffers, so this does not block if the process does not read.
                os.write(stdin.fileno(), typed)
        pipes = [(name, pipe) for name in said if (pipe := getattr(self, name)) is not None]
        readers = [threading.Thread(target=read, args=each, daemon=True) for each in pipes]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader, (_, pipe) in zip(readers, pipes, strict=True):
            reader.join()
            pipe.close()
        return said["stdout"], said["stderr"]

    def send_signal(self, number: int) -> None:
        """Signal it, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, if it runs."""
        self.send_signal(signal.SIGKILL)

    def _stream(self, name: str, wanted: int | IO[str]) -> tuple[int, bool]:
        """The descriptor for the process, and whether this process has to close it."""
        if wanted == DEVNULL:
            return os.open(os.devnull, os.O_RDWR), True
        if wanted != PIPE:
            return (wanted if isinstance(wanted, int) else wanted.fileno()), False
        reading, writing = os.pipe()
        if name == "stdin":
            self.stdin = os.fdopen(writing, "w", encoding="utf-8")
            return reading, True
        setattr(self, name, os.fdopen(reading, encoding="utf-8"))
        return writing, True


def run(
    arguments: Sequence[str | Path | bytes],
    *,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    typed: bytes = b"",
) -> Ended:
    """Run a process to its end; what takes longer is killed, and an error."""
    process = Process(arguments, cwd=cwd, env=env, stdin=PIPE if typed else DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        out, err = process.communicate(timeout, typed)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return Ended(process.wait(), out, err)


def stand_in(command: Path) -> str:
    """A shell script to be put where the command would be."""
    # Nothing but the standard library is there, which is soon imported; the process that it asks
    # for has all of it.
    client = f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -S -m {__name__}'
    return f'#!/bin/sh\n{client} "{_server()}" "{command}" "$@"\n'


def _target(arguments: list[str]) -> tuple[str, str, list[str]]:
    match arguments:
        case [program, "-m", module, *rest] if program == sys.executable:
            return "module", module, rest
        case [program, "-c", code, *rest] if program == sys.executable:
            return "code", code, rest
        case [program, script, *rest] if program == sys.executable and script.endswith(".py"):
            return "script", script, rest
        case [program, *rest] if Path(program).parent == Path(sys.executable).parent:
            return "script", program, rest
    raise AssertionError(f"nothing that starts warm: {arguments}")


@cache
def _server() -> str:
    """Where orders are taken; one server for all that this process starts."""
    folder = tempfile.TemporaryDirectory(prefix="catchment-warm-")
    path = str(Path(folder.name) / "orders")
    server = subprocess.Popen(
        [sys.executable, "-m", _SERVER, path],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline(), "the server of warm processes does not start"

    def end() -> None:
        server.communicate()
        folder.cleanup()

    atexit.register(end)
    return path


if __name__ == "__main__":
    where, *command = sys.argv[1:]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    sys.exit(Process(command, env=inherited, stdin=0, orders=where).wait())
