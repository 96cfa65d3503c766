"""The web application: `/metrics`, `/status.json` and `/healthz`, for whoever may see them.

Who calls is asked of the server that this stands beside, so that users and roles are the same. Answers are made by
worker threads: what takes a while holds up nobody else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from catchment.errors import CatchmentError, LimitError, NotAllowedError, NotLoggedInError
from catchment.status.model import Status
from catchment.web.catalogue import METRICS
from catchment.web.metrics import exposition

HEADERS: Mapping[str, str] = {
    # Nothing is loaded from anywhere but here, and nobody shows this inside of another page.
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
# The names of a server that only its own machine reaches: a page elsewhere that has a name of its own lead here
# would be turned away.
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_STATUSES: Mapping[type[CatchmentError], int] = {NotLoggedInError: 401, NotAllowedError: 403, LimitError: 503}


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who calls, and as what; `tenant` is set for a user who may see nothing but a tenant's tables."""

    name: str
    role: str
    tenant: str | None = None


class Doorkeeper(Protocol):
    """Finds out who calls."""

    def visitor(self, authorization: str, host: str) -> Visitor:
        """Who sends that header from that host; NotLoggedInError where that is nobody who may come in."""
        ...


def application(status: Callable[[], Status], doorkeeper: Doorkeeper, *, hosts: tuple[str, ...] = ("*",)) -> Starlette:
    """What answers; `hosts` are the names under which it may be called."""

    def admit(request: Request) -> Visitor:
        host = request.client.host if request.client else ""
        visitor = doorkeeper.visitor(request.headers.get("authorization", ""), host)
        if visitor.tenant is not None:
            raise NotAllowedError("This is not for users of a tenant.")
        return visitor

    def metrics(request: Request) -> Response:
        visitor = admit(request)
        text, content_type = exposition(METRICS, status().for_role(visitor.role), request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    def status_json(request: Request) -> Response:
        visitor = admit(request)
        return JSONResponse(status().for_role(visitor.role).to_json())

    def healthz(_request: Request) -> Response:
        # Open to all, for whatever watches processes, and so without the reasons.
        return PlainTextResponse(f"{status().health.word}\n")

    return Starlette(
        routes=[Route("/metrics", metrics), Route("/status.json", status_json), Route("/healthz", healthz)],
        middleware=[Middleware(SecurityHeaders), Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={CatchmentError: _refusal},
    )


class SecurityHeaders:
    """Puts the headers on every answer, refusals included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, sending)


async def _refusal(_request: Request, error: Exception) -> Response:
    if not isinstance(error, CatchmentError):
        raise error
    code = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 500)
    asks = {"www-authenticate": 'Basic realm="catchment", charset="UTF-8"'} if code == 401 else {}
    shown = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    return JSONResponse(shown, status_code=code, headers=asks)
