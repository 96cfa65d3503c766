"""`FlightServer`: composes the server's parts, and shuts down without losing acknowledged rows.

Start: bring the control database up to date, open the buffer, which recovers, open the lake if it
is available, and only then listen. Stop: refuse new calls, give running ones time to finish, close
the sessions, which seals their files, and flush the buffer in the remaining time. A flush that does
not finish in time is abandoned: its rows are on disk, and the next start continues with them.
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
from catchment.flight_protocol import message_sizes
from catchment.foundation import events, server_file
from catchment.foundation.settings import Settings
from catchment.server import memory, web_auth
from catchment.server.access.auth import Authenticator, is_loopback, require_safe
from catchment.server.access.tls import Certificate, certificate_of
from catchment.server.access.users import Users
from catchment.server.flight.flight_service import FlightService
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.shards.tenancy import Tenancy
from catchment.server.statement_log import StatementLog
from catchment.status import StatusReader
from catchment.tenants.model import ShardId
from catchment.web.dead_letter_pages import LakeDeadLetterService
from catchment.web.site import LOOPBACK_HOSTS, application
from catchment.web.web_server import WebServer

# Closing takes a moment even if no time is left for work.
_CLOSE_S_MIN = 5.0
_THREADS_SPARE = 32
_KEEPALIVE_MS = 60_000
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class FlightServer:
    """The Flight SQL server of a home, from `start` to `stop`."""

    def __init__(self, settings: Settings) -> None:
        # Its DuckDB runs clients' SQL.
        self.app = App(settings, sandboxed=True)
        self._settings = settings
        self._users = Users.from_settings(settings, clock=self.app.clock)
        self.authenticator = Authenticator.from_settings(settings, self._users, clock=self.app.clock)
        self._opened = ExitStack()
        self._grpc: grpc.Server | None = None
        self._sessions: SessionRegistry | None = None
        self._status: StatusReader | None = None
        self._dead_letters: LakeDeadLetterService | None = None
        self._web: WebServer | None = None
        self.port = 0

    @property
    def uri(self) -> str:
        """The address that clients connect to."""
        return self._uri(self._settings.server_host)

    @property
    def web_address(self) -> str | None:
        """The address of the web server; None if the settings switch it off."""
        return None if self._web is None else self._web.address

    def start(self) -> None:
        """Start and listen; refused if the settings would expose the server."""
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
                sessions.backend.tenants = tenancy
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
            if sessions.backend.engines is not None:
                sessions.backend.engines.start()
            if tenancy is not None:
                # Before the first call: a write barrier that was closed is still closed.
                tenancy.start()
            if web is not None:
                web.start()
            server.start()
            self._opened = opened.pop_all()
        events.emit("serving", uri=self.uri)

    def stop(self) -> bool:
        """Stop within the configured time; False if a flush was abandoned, with nothing closed."""
        clock, seconds = self.app.clock, self._settings.server_shutdown_seconds
        events.emit("stopping", uri=self.uri, seconds_max=seconds)
        until_s = clock.monotonic_s() + seconds
        server_file.withdraw(self._settings)
        if self._grpc is not None:
            # Refuses new calls immediately, and cancels running ones when the time is up.
            self._grpc.stop(seconds).wait()
        shutting_down = threading.Thread(target=self._shut_down, name="catchment-end", daemon=True)
        shutting_down.start()
        shutting_down.join(max(_CLOSE_S_MIN, until_s - clock.monotonic_s()))
        if shutting_down.is_alive():
            events.emit("last_flush_left", level=logging.WARNING, uri=self.uri)
            return False
        self._opened.close()
        events.emit("stopped", uri=self.uri)
        return True

    def _open_web(self, opened: ExitStack, sessions: SessionRegistry, log: StatementLog) -> WebServer | None:
        """Bind the web server's port and start collecting the status; `start` makes it answer."""
        settings, port = self._settings, self._settings.web_port
        if port is None:
            return None
        status = self._status = StatusReader(self.app, sessions=lambda: web_auth.sessions(sessions, log, settings))
        opened.callback(status.close)
        dead_letters = self._dead_letters = LakeDeadLetterService(self.app)
        opened.callback(dead_letters.close)
        web = WebServer(
            application(
                status.status,
                web_auth.WebAuth(self.authenticator),
                dead_letters=dead_letters,
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

    def _shut_down(self) -> None:
        if self._web is not None:
            self._web.stop()
        if self._sessions is not None:
            self._sessions.close_all()
        if self._settings.queue_enable:
            self.app.runtime.stop(flush=True)
        # Readers last: a source that hangs must not delay the last flush.
        if self._dead_letters is not None:
            self._dead_letters.close()
        if self._status is not None:
            self._status.close()

    def _open(self) -> None:
        """Open everything that must be available before the first call."""
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
            # Writes are acknowledged nevertheless, and flushed once the lake is available.
            events.emit("lake_away", level=logging.WARNING, reason=error.message)

    def _tenancy(self) -> Tenancy | None:
        name = self._settings.shard_name
        return None if name is None else Tenancy(self.app, ShardId(name))

    def _uri(self, host: str) -> str:
        scheme = "grpc" if self._settings.server_tls_certificate is None else "grpc+tls"
        return f"{scheme}://{_address(host, self.port)}"


def _statement_log(app: App) -> StatementLog:
    return StatementLog(app.meters, clock=app.clock, log_sql=app.settings.log_sql)


def _grpc_server(service: FlightService, settings: Settings) -> grpc.Server:
    # A thread for every result that is read and every statement that runs, and some for log-ins,
    # cancellations and closing. Further calls wait, up to a limit.
    threads = settings.server_sessions_max + 2 * settings.server_statements_max + _THREADS_SPARE
    options = (
        ("grpc.max_receive_message_length", message_sizes.MESSAGE_BYTES_MAX),
        # Two servers on one port would each get some of the calls.
        ("grpc.so_reuseport", 0),
        # Detects clients that are gone without having disconnected.
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
        raise _unusable(address, "it is in use, or not an address of this machine") from None


def _require_free(settings: Settings) -> None:
    """Check that the port is free: gRPC would report it on stderr only."""
    host, port = settings.server_host, settings.server_port
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in found:
        with closing(socket.socket(family, kind, protocol)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                # A name may resolve to addresses that this machine lacks; gRPC binds those that it
                # has.
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    reason = "the port is in use" if error.errno == errno.EADDRINUSE else "permission denied"
                    raise _unusable(_address(host, port), reason) from None


def _unusable(address: str, reason: str) -> MachineError:
    return MachineError(
        f"Cannot listen on {address}: {reason}.",
        hint="Does another server run there? Set another port by `--port` or CATCHMENT_SERVER_PORT; 0 means any.",
    )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
