"""`FlightServer`: puts the server's parts together, and takes them apart so that nothing acknowledged is lost.

Up: the control database is brought up to date, the buffer is opened and recovers, the lake is opened if it can be
reached, and only then does anybody listen. Down: no new calls, time for those under way, sessions are closed, which
seals their files, and what is buffered is flushed in the time that is left. A flush that does not end in time is left
alone: its rows are on the disk, and the next start goes on with them.
"""

import errno
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import grpc

from catchment.app import App
from catchment.control import ControlDatabase
from catchment.errors import MachineError, RetryableError
from catchment.foundation import events
from catchment.foundation.clock import Clock
from catchment.foundation.settings import Settings
from catchment.server import memory, server_file, web_auth
from catchment.server.auth import Authenticator, is_loopback, require_safe
from catchment.server.flight import FlightService
from catchment.server.registry import SessionRegistry
from catchment.server.statement_log import StatementLog
from catchment.server.tenancy import Tenancy
from catchment.server.tls import Certificate, certificate_of
from catchment.server.users import Users
from catchment.status import StatusReader
from catchment.tenants.model import ShardId
from catchment.web.dead_letter_pages import LakeDeadLetterService
from catchment.web.site import LOOPBACK_HOSTS, application
from catchment.web.web_server import WebServer

# Closing what is open takes a moment also where there is no time left for work.
_CLOSE_S_MIN = 5.0
_THREADS_SPARE = 32
_KEEPALIVE_MS = 60_000
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class FlightServer:
    """The Flight SQL server of a home, from `start` to `stop`."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        # Strangers' SQL runs in it.
        self.app = App(settings, clock=clock, walled=True)
        self._settings = settings
        self._users = Users.from_settings(settings, clock=self.app.clock)
        self.authenticator = Authenticator.from_settings(settings, self._users, clock=self.app.clock)
        self._opened = ExitStack()
        self._grpc: grpc.Server | None = None
        self._sessions: SessionRegistry | None = None
        self._status: StatusReader | None = None
        self._desk: LakeDeadLetterService | None = None
        self._web: WebServer | None = None
        self.port = 0

    @property
    def uri(self) -> str:
        """Where clients connect to."""
        return self._uri(self._settings.server_host)

    @property
    def web_address(self) -> str | None:
        """Where browsers and Prometheus find it; None where the settings switch that off."""
        return None if self._web is None else self._web.address

    def start(self) -> None:
        """Come up and listen; refused where the settings would let anybody in."""
        settings, app = self._settings, self.app
        require_safe(settings, self._users)
        memory.bound_arenas()
        with ExitStack() as opened:
            opened.enter_context(app)
            self._open()
            sessions = self._sessions = SessionRegistry(app, admits=self.authenticator.admits)
            opened.callback(sessions.close_all)
            tenancy = self._tenancy()
            if tenancy is not None:
                opened.callback(tenancy.close)
                sessions.engine.tenants = tenancy
            shard = None if tenancy is None else tenancy.shard
            log = _statement_log(app)
            service = FlightService(sessions, self.authenticator, settings, shard=shard, clock=app.clock, log=log)
            opened.callback(service.close)
            server = self._grpc = _grpc_server(service, settings)
            self.port = _bind(server, settings, certificate_of(settings))
            web = self._web = self._open_web(opened, sessions, log)
            local = _WILDCARDS.get(settings.server_host, settings.server_host)
            server_file.announce(
                settings,
                uri=self._uri(local),
                token=self.authenticator.local_token,
                web=None if web is None else web.address_at(local),
            )
            opened.callback(server_file.withdraw, settings)
            if settings.queue_enable:
                app.runtime.start()
            if tenancy is not None:
                # Before anybody calls: a gate that was closed is closed still.
                tenancy.start()
            if web is not None:
                web.start()
            server.start()
            self._opened = opened.pop_all()
        events.emit("serving", uri=self.uri)

    def stop(self) -> bool:
        """End gently, in the time that the settings give; False where a flush was left alone, and nothing is closed."""
        clock, seconds = self.app.clock, self._settings.server_shutdown_seconds
        events.emit("stopping", uri=self.uri, seconds_max=seconds)
        until_s = clock.monotonic_s() + seconds
        server_file.withdraw(self._settings)
        if self._grpc is not None:
            # Refuses new calls at once, and cancels what still runs when the time is up.
            self._grpc.stop(seconds).wait()
        winding_up = threading.Thread(target=self._wind_up, name="catchment-end", daemon=True)
        winding_up.start()
        winding_up.join(max(_CLOSE_S_MIN, until_s - clock.monotonic_s()))
        if winding_up.is_alive():
            events.emit("last_flush_left", level=logging.WARNING, uri=self.uri)
            return False
        self._opened.close()
        events.emit("stopped", uri=self.uri)
        return True

    def _open_web(self, opened: ExitStack, sessions: SessionRegistry, log: StatementLog) -> WebServer | None:
        """Take the web's port, and count from now on; it answers once it is started."""
        settings, port = self._settings, self._settings.web_port
        if port is None:
            return None
        status = self._status = StatusReader(self.app, sessions=lambda: web_auth.sessions(sessions, log, settings))
        opened.callback(status.close)
        desk = self._desk = LakeDeadLetterService(self.app)
        opened.callback(desk.close)
        web = WebServer(
            application(
                status.status,
                web_auth.WebAuth(self.authenticator),
                desk=desk,
                hosts=LOOPBACK_HOSTS if is_loopback(settings.server_host) else ("*",),
                clock=self.app.clock,
            ),
            host=settings.server_host,
            port=port,
            certificate=settings.server_tls_certificate,
            key=settings.server_tls_key,
        )
        opened.callback(web.stop)
        status.start()
        return web

    def _wind_up(self) -> None:
        if self._web is not None:
            self._web.stop()
        if self._sessions is not None:
            self._sessions.close_all()
        if self._settings.queue_enable:
            self.app.runtime.stop(flush=True)
        # Who only looks comes last: a source that hangs must not cost the last flush.
        if self._desk is not None:
            self._desk.close()
        if self._status is not None:
            self._status.close()

    def _open(self) -> None:
        """Everything that must be there before somebody calls."""
        before = ControlDatabase.examine(self._settings)
        control = self.app.control
        if before.exists and before.pending and before.is_backed_up:
            path, scripts = str(control.path), list(before.pending)
            events.emit("control_backed_up", database=path, scripts=scripts, backups=f"{path}.bak")
        if self._settings.queue_enable:
            _ = self.app.queue
        try:
            _ = self.app.lake
        except RetryableError as error:
            # Writes are acknowledged all the same, and are flushed once it is back.
            events.emit("lake_away", level=logging.WARNING, reason=error.message)

    def _tenancy(self) -> Tenancy | None:
        name = self._settings.shard_name
        return None if name is None else Tenancy(self.app, ShardId(name))

    def _uri(self, host: str) -> str:
        scheme = "grpc" if self._settings.server_tls_certificate is None else "grpc+tls"
        return f"{scheme}://{_address(host, self.port)}"


def _statement_log(app: App) -> StatementLog:
    settings = app.settings
    slow_seconds, log_sql = settings.server_slow_statement_seconds, settings.log_sql
    return StatementLog(app.meters, slow_seconds=slow_seconds, clock=app.clock, log_sql=log_sql)


def _grpc_server(service: FlightService, settings: Settings) -> grpc.Server:
    # A thread for every result that is read and every statement that runs, and some for logging in, cancelling and
    # closing; what is more waits, up to a bound.
    threads = settings.server_sessions_max + 2 * settings.server_statements_max + _THREADS_SPARE
    options = (
        ("grpc.max_receive_message_length", settings.server_message_bytes_max),
        # Two servers on one port would each get some of the calls.
        ("grpc.so_reuseport", 0),
        # Finds clients that are gone without having said so.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    )
    pool = ThreadPoolExecutor(threads, thread_name_prefix="catchment-call")
    server = grpc.server(pool, options=options, maximum_concurrent_rpcs=4 * threads)
    service.add_to(server)
    return server


def _bind(server: grpc.Server, settings: Settings, certificate: Certificate | None) -> int:
    address = _address(settings.server_host, settings.server_port)
    _require_free(settings)
    try:
        if certificate is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, certificate.credentials())
    except RuntimeError:
        raise _unusable(address, "it is no address of this machine, or taken") from None


def _require_free(settings: Settings) -> None:
    """See that nobody listens there: gRPC would say so on stderr only, and in its own words."""
    host, port = settings.server_host, settings.server_port
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in found:
        with closing(socket.socket(family, kind, protocol)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                # A name may stand for addresses that this machine does not have; gRPC takes those that it has.
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    reason = "the port is taken" if error.errno == errno.EADDRINUSE else "this user may not"
                    raise _unusable(_address(host, port), reason) from None


def _unusable(address: str, reason: str) -> MachineError:
    return MachineError(
        f"Cannot listen on {address}: {reason}.",
        hint="Does another server run there? Take another port: `--port`, or CATCHMENT_SERVER_PORT; 0 is any.",
    )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
