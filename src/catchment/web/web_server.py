"""`WebServer`: serves the web application on its own port, by a thread of this process."""

import asyncio
import errno
import socket
import threading
from pathlib import Path

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from catchment.errors import InvariantError, MachineError
from catchment.web.live import Live

_CONNECTIONS_MAX = 64
_SHUTDOWN_S = 2
_START_S_MAX = 30.0
_BACKLOG = 128
# Maximum length of request headers, in characters.
_HEADER_BYTES_MAX = 16 * 1024
# How long a client may take to send a request, or to read what was sent to it. Connections are few:
# without a limit, clients that send nothing, and need no login for it, would block all others.
CLIENT_S_MAX = 10.0


class WebServer:
    """Listens from `start` to `stop`; with TLS if given a certificate and key."""

    def __init__(
        self, app: Starlette, *, host: str, port: int, certificate: Path | None = None, key: Path | None = None
    ) -> None:
        """Bind the port, a free one if it is 0. MachineError if it cannot be bound."""
        self._socket = _bound(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._is_secure = certificate is not None
        self._host = host
        self._live: Live = app.state.live
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                # Whatever else is installed: other parsers have no limit on headers, and there are
                # no web sockets.
                http=_BoundedProtocol,
                ws="none",
                # Catchment's own logging is configured by now, and requests are counted, not
                # logged.
                log_config=None,
                access_log=False,
                server_header=False,
                # The peer address counts: trusting a header would let password guessers avoid their
                # delays.
                proxy_headers=False,
                limit_concurrency=_CONNECTIONS_MAX,
                timeout_graceful_shutdown=_SHUTDOWN_S,
                h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
                ssl_certfile=certificate,
                ssl_keyfile=key,
            )
        )
        self._thread = threading.Thread(target=self._run, name="catchment-web", daemon=True)

    @property
    def address(self) -> str:
        """URL for a browser."""
        return self.address_at(self._host)

    def address_at(self, host: str) -> str:
        """The same URL with another name of this machine."""
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._is_secure else 'http'}://{shown}:{self.port}"

    def start(self) -> None:
        """Start answering."""
        self._thread.start()
        if not self._server.answering.wait(_START_S_MAX):
            raise InvariantError("The web server did not come up.")

    def stop(self) -> None:
        """Stop answering; running requests get a moment."""
        self._server.should_exit = True
        # Open event streams would otherwise delay the end.
        self._live.end()
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


class _BoundedProtocol(H11Protocol):
    """A connection that is closed if its client sends or reads too slowly, or not at all."""

    _arriving: asyncio.TimerHandle | None = None
    _leaving: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._arriving, self._leaving):
            if timer is not None:
                timer.cancel()

    def handle_events(self) -> None:
        super().handle_events()
        # A proxy that took the length from the other header may have sent the rest of this
        # connection as part of the body.
        if self.headers and {b"content-length", b"transfer-encoding"} <= {name for name, _ in self.headers}:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._leaving = self.loop.call_later(CLIENT_S_MAX, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._leaving is not None:
            self._leaving.cancel()

    def _await_request(self) -> None:
        """Limit the time until the next request is here; its first bytes do not extend it."""
        if self._arriving is not None:
            self._arriving.cancel()
        self._arriving = self.loop.call_later(CLIENT_S_MAX, self._require_request)

    def _require_request(self) -> None:
        # Once all of the request is here, it is the application that takes its time.
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()


class _Server(uvicorn.Server):
    """Signals when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answering = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.answering.set()


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        reason = {errno.EADDRINUSE: "the port is in use", errno.EACCES: "permission denied"}.get(
            error.errno or 0, "it is not an address of this machine"
        )
        raise MachineError(
            f"Cannot listen on {host}:{port} for the web: {reason}.",
            hint="Does another server run there? Set another port by `--web-port` or CATCHMENT_SERVER_WEB_PORT; "
            "0 means any, `off` none.",
        ) from None
    return listening
