"""The demo's servers: one `catchment serve` process for each shard, which ends with the demo."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from catchment import Catchment
from catchment.cli.demo.interrupts import Interrupts
from catchment.errors import MachineError, StateError
from catchment.foundation import server_file
from catchment.foundation.clock import Clock
from catchment.foundation.settings import SERVER_PORT, WEB_PORT

_HOST = "127.0.0.1"
# If the demo is killed, Linux sends the signal: otherwise the server would stay.
_RUN = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() == {demo}:
    from catchment.cli.main import main
    main()
"""
# A server stops within 30 s, and needs a moment to close.
_GENTLE_S_MAX = 45.0
_AT_ONCE_S_MAX = 8.0
_AGAIN_S = 1.0
_LOOK_S = 0.02
_LOG_TAIL_LINES = 3


@dataclass(slots=True, kw_only=True)
class ServerProcess:
    """One server; `uri` and `web` are set when it is ready, `exit_code` when it has ended."""

    shard: str
    home: Path
    process: subprocess.Popen[str]
    uri: str = ""
    web: str = ""
    exit_code: int | None = None


class Servers:
    """Both servers. The `with` block stops them: after an error at once, without a flush."""

    def __init__(self, clock: Clock, interrupts: Interrupts) -> None:
        self.by_shard: dict[str, ServerProcess] = {}
        self._clock = clock
        self._interrupts = interrupts

    def __enter__(self) -> "Servers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._interrupts.deferred(discard=True):
            self._stop(at_once=kind is not None)

    def __getitem__(self, shard: str) -> ServerProcess:
        return self.by_shard[shard]

    def start(self, shards: Mapping[str, Catchment], note: Callable[[str], None]) -> None:
        """Start a server for each shard, and wait until they are ready.

        Each has its own usual ports; one that is taken is replaced by any free port. `note` is
        called with the reason of a wait.
        """
        for number, (shard, opened) in enumerate(shards.items()):
            self.wait_for_earlier(opened, note)
            ports = [_free_port(first + 2 * number) for first in (SERVER_PORT, WEB_PORT)]
            with self._interrupts.deferred():
                self.by_shard[shard] = _launch(shard, opened.settings.home, *ports)
        for server in self.by_shard.values():
            _wait_until_ready(server)

    def wait_for_earlier(self, opened: Catchment, note: Callable[[str], None]) -> None:
        """Wait for the server of a demo that was killed, which stops by itself.

        Raises StateError if it does not.
        """
        found, home = server_file.find(opened.settings), opened.settings.home
        if found is None:
            return
        note(f"waiting for the server in {home} to stop, process {found.pid}")
        until_s = self._clock.monotonic_s() + _GENTLE_S_MAX
        while server_file.find(opened.settings) is not None:
            if self._clock.monotonic_s() > until_s:
                raise StateError(
                    f"A server runs in {home}, process {found.pid}.", hint="Stop it, or use another --home."
                )
            self._clock.sleep(_LOOK_S)

    def _stop(self, *, at_once: bool) -> None:
        for server in self.by_shard.values():
            server.process.terminate()
        until_s = self._clock.monotonic_s() + (_AT_ONCE_S_MAX if at_once else _GENTLE_S_MAX)
        for server in self.by_shard.values():
            self._end(server, until_s, at_once=at_once)

    def _end(self, server: ServerProcess, until_s: float, *, at_once: bool) -> None:
        process = server.process
        while process.poll() is None and self._clock.monotonic_s() < until_s:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_AGAIN_S)
            if at_once:
                # A second signal ends a server without a flush.
                process.terminate()
        # Its Spark ends a moment later; processes that do not are killed.
        while self._clock.monotonic_s() < until_s and _group_is_alive(process):
            self._clock.sleep(_LOOK_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        server.exit_code = process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _launch(shard: str, home: Path, port: int, web_port: int) -> ServerProcess:
    options = ["--home", str(home), "--shard", shard, "--port", str(port), "--web-port", str(web_port)]
    with _log(home).open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _RUN.format(demo=os.getpid()), "serve", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # Ctrl-C on the terminal reaches only the demo, which stops the servers in order.
            start_new_session=True,
        )
    return ServerProcess(shard=shard, home=home, process=process)


def _wait_until_ready(server: ServerProcess) -> None:
    assert server.process.stdout is not None
    ready, web = server.process.stdout.readline().split(), server.process.stdout.readline().split()
    if not ready or not web:
        log = _log(server.home)
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        raise MachineError(f"Server {server.shard} does not start: {' '.join(tail)}", log=str(log))
    server.uri, server.web = ready[1], f"{web[1]}/"


def _log(home: Path) -> Path:
    return home / "server.log"


def _free_port(port: int) -> int:
    """Return the port if it is free, or 0, which means any."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return 0
    return port


def _group_is_alive(leader: subprocess.Popen[str]) -> bool:
    leader.poll()
    try:
        os.killpg(leader.pid, 0)
    except ProcessLookupError:
        return False
    return True
