"""`WebServer`: serves the web application on its own port, by a thread of this process."""

import errno
import socket
import threading
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from catchment.errors import InvariantError, MachineError
from catchment.web.live import Live

_CONNECTIONS_MAX = 64
_SHUTDOWN_S = 2
_START_S_MAX = 30.0
_BACKLOG = 128
# Maximum length of request headers, in characters.
_HEADER_BYTES_MAX = 16 * 1024


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
