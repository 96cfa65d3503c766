"""The demo's servers: real `catchment serve`, each in a process of its own, which end with the demo."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from catchment.cli.demo import process_file
from catchment.cli.demo.demo_folder import SHARDS, DemoPlace
from catchment.cli.demo.interrupts import Interrupts
from catchment.cli.demo.process_file import ProcessMark
from catchment.errors import MachineError, StateError
from catchment.foundation import server_file
from catchment.foundation.clock import Clock
from catchment.foundation.settings import SERVER_PORT, WEB_PORT
from catchment.tenants.model import ShardId

_HOST = "127.0.0.1"
# Flight SQL and the dashboard, of the first shard and of the second.
_PORTS = ((SERVER_PORT, WEB_PORT), (SERVER_PORT + 2, WEB_PORT + 2))
_RUN = "from catchment.cli.main import main; main()"
# A server's own bound is 30 s, and it needs a moment to close.
_GENTLE_S_MAX = 45.0
_AT_ONCE_S_MAX = 8.0
_AGAIN_S = 1.0
_LOOK_S = 0.02
_LOG_TAIL_LINES = 3


@dataclass(slots=True, kw_only=True)
class Server:
    """One server; `uri` and `web` are known once it is ready, `exit_code` once it has ended."""

    shard: ShardId
    home: Path
    process: subprocess.Popen[str]
    uri: str = ""
    web: str = ""
    exit_code: int | None = None

    @property
    def log(self) -> Path:
        return _log(self.home)


@dataclass(slots=True)
class Servers:
    """Both servers, from `start` to `stop`."""

    place: DemoPlace
    clock: Clock
    interrupts: Interrupts
    _by_shard: dict[ShardId, Server] = field(default_factory=dict)

    def __getitem__(self, shard: ShardId) -> Server:
        return self._by_shard[shard]

    def all(self) -> tuple[Server, ...]:
        """Those that were started."""
        return tuple(self._by_shard.values())

    def start(self, expected: Mapping[ShardId, str]) -> None:
        """Start both side by side, and wait for them.

        Each listens where it is expected, or else on its usual ports, or else on any that are free.
        """
        for shard in SHARDS:
            self._end_forgotten(shard)
        for shard, (usual, usual_web) in zip(SHARDS, _PORTS, strict=True):
            port = _first_free(urlsplit(expected.get(shard, "")).port, usual)
            with self.interrupts.held():
                server = _launch(shard, self.place.home(shard), port, _first_free(usual_web))
                self._by_shard[shard] = server
                process_file.write(server.home, ProcessMark.of(server.process.pid))
        for server in self.all():
            _wait_until_ready(server)

    def stop(self, *, at_once: bool = False) -> None:
        """End them, and whatever they started. `at_once` leaves what is buffered in the buffer, where it is durable."""
        alive = [server for server in self.all() if server.exit_code is None]
        for server in alive:
            _signal(server.process.pid, signal.SIGTERM)
        until_s = self.clock.monotonic_s() + (_AT_ONCE_S_MAX if at_once else _GENTLE_S_MAX)
        for server in alive:
            self._end(server, until_s, at_once=at_once)

    def _end(self, server: Server, until_s: float, *, at_once: bool) -> None:
        process = server.process
        while process.poll() is None and self.clock.monotonic_s() < until_s:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_AGAIN_S)
                break
            if at_once:
                # The second one is not gentle any more.
                _signal(process.pid, signal.SIGTERM)
        # Its Spark ends with it, a moment later; whatever does not is ended here.
        while self.clock.monotonic_s() < until_s and _group_is_alive(process):
            self.clock.sleep(_LOOK_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        server.exit_code = process.wait()
        process_file.remove(server.home)
        if process.stdout is not None:
            process.stdout.close()

    def _end_forgotten(self, shard: ShardId) -> None:
        """End the server of a demo that was killed: nobody else has the lock, so nobody else needs it.

        A server that no demo started is somebody's: it is left alone, and the demo does not begin beside it.
        """
        home = self.place.home(shard)
        mark = process_file.read(home)
        if mark is not None and mark.is_alive:
            self._end_marked(mark)
        found = server_file.find(self.place.settings(shard))
        if found is not None and ProcessMark.of(found.pid).is_alive:
            raise StateError(
                f"A server runs in {home} that the demo did not start, process {found.pid}.",
                hint="Stop it, or say another --home.",
            )

    def _end_marked(self, mark: ProcessMark) -> None:
        try:
            _signal(mark.pid, signal.SIGTERM)
        except PermissionError as error:
            raise MachineError(
                f"An earlier demo's server is another user's, process {mark.pid}.", hint="Stop it as that user."
            ) from error
        until_s = self.clock.monotonic_s() + _GENTLE_S_MAX
        while mark.is_alive:
            if self.clock.monotonic_s() > until_s:
                raise MachineError(
                    f"An earlier demo's server does not end, process {mark.pid}.", hint=f"kill -9 {mark.pid}"
                )
            self.clock.sleep(_LOOK_S)


def _launch(shard: ShardId, home: Path, port: int, web_port: int) -> Server:
    options = ["--home", str(home), "--shard", shard.name, "--port", str(port), "--web-port", str(web_port)]
    with _log(home).open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _RUN, "serve", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # A terminal's Ctrl-C is for the demo, which then ends them in order.
            start_new_session=True,
        )
    return Server(shard=shard, home=home, process=process)


def _wait_until_ready(server: Server) -> None:
    assert server.process.stdout is not None
    ready, web = server.process.stdout.readline().split(), server.process.stdout.readline().split()
    if not ready or not web:
        tail = server.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        raise MachineError(f"Server {server.shard} does not start: {' '.join(tail)}", log=str(server.log))
    server.uri, server.web = ready[1], f"{web[1]}/"


def _log(home: Path) -> Path:
    return home / "server.log"


def _first_free(*ports: int | None) -> int:
    """The first of the ports that nobody listens on; 0, which is any, where there is none."""
    return next((port for port in ports if port is not None and _is_free(port)), 0)


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _group_is_alive(leader: subprocess.Popen[str]) -> bool:
    leader.poll()
    try:
        os.killpg(leader.pid, 0)
    except ProcessLookupError:
        return False
    return True
