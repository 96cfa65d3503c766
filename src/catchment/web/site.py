"""Web application: pages, `/events`, `/metrics`, `/status.json`, `/healthz`, and access control.

Callers are identified by the Flight server of the same process, so users and roles are the same.
Responses are made by worker threads: a slow one does not block others.
"""

from collections.abc import Callable, Mapping
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from catchment.errors import (
    CatchmentError,
    InputError,
    LimitError,
    NotAllowedError,
    NotLoggedInError,
    RetryableError,
)
from catchment.foundation import events
from catchment.foundation.clock import Clock, SystemClock
from catchment.queue.dead_letter_actions import Retried
from catchment.status.model import ADMIN, Status
from catchment.web import pages
from catchment.web.dead_letter_pages import DeadLetterService
from catchment.web.live import Live, Shared
from catchment.web.login_sessions import (
    LoggedIn,
    LoginSessions,
    UserDirectory,
    cookie_of,
    delete_cookie,
    new_key,
    set_cookie,
)
from catchment.web.metric_catalogue import METRICS
from catchment.web.metrics import exposition

HEADERS: Mapping[str, str] = {
    # Nothing is loaded from other origins, and no other page may embed this one.
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # With `no-referrer`, browsers would also hide that a form comes from here.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
# Host names of a server on loopback: a foreign page whose name resolves to this address is refused.
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
FORM_BYTES_MAX = 8 * 1024
# The first match applies.
_STATUSES: Mapping[type[CatchmentError], int] = {
    NotLoggedInError: 401,
    NotAllowedError: 403,
    LimitError: 503,
    InputError: 400,
    RetryableError: 503,
}
_STATIC_CACHE = "public, max-age=31536000, immutable"


def application(
    status: Callable[[], Status],
    directory: UserDirectory,
    *,
    dead_letters: DeadLetterService | None = None,
    hosts: tuple[str, ...] = ("*",),
    clock: Clock | None = None,
    live: Live | None = None,
) -> Starlette:
    """Build the application; `hosts` are the allowed host names."""
    clock = clock or SystemClock()
    live = live or Live(clock=clock)
    site = Site(status, LoginSessions(directory, clock), Shared(status, clock), live, dead_letters)
    app = Starlette(
        routes=[
            Route("/metrics", site.metrics),
            Route("/status.json", site.status_json),
            Route("/healthz", site.healthz),
            *(Route(page.path, site.page) for page in pages.PAGES),
            Route("/events", site.events),
            Route("/static/{name}", site.static),
            Route("/login", site.login_form),
            Route("/login", site.login, methods=["POST"]),
            Route("/logout", site.logout, methods=["POST"]),
            Route("/queue/retry", site.retry, methods=["POST"]),
        ],
        middleware=[Middleware(SecurityHeaders), Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={CatchmentError: _refusal, HTTPException: _missing, Exception: _bug},
    )
    app.state.live = live
    # Such a redirect would name whatever host the request names.
    app.router.redirect_slashes = False
    return app


class Site:
    """Handlers of all addresses."""

    def __init__(
        self,
        status: Callable[[], Status],
        logins: LoginSessions,
        shared: Shared,
        live: Live,
        dead_letters: DeadLetterService | None,
    ) -> None:
        self._status = status
        self._logins = logins
        self._shared = shared
        self._live = live
        self._dead_letters = dead_letters

    def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus."""
        role = self._logins.admit(request).identity.role
        text, content_type = exposition(METRICS, self._status().for_role(role), request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    def status_json(self, request: Request) -> Response:
        """Status for programs."""
        role = self._logins.admit(request).identity.role
        return JSONResponse(self._status().for_role(role).to_json())

    def healthz(self, _request: Request) -> Response:
        """Public health check, for process supervisors, and therefore without reasons."""
        return PlainTextResponse(f"{self._status().health.word}\n")

    def page(self, request: Request) -> Response:
        """Render one of the pages."""
        caller = self._logins.admit(request)
        key = caller.key or new_key()
        found = pages.BY_PATH[request.url.path]
        answer = HTMLResponse(pages.page(found, self._view(found, caller, key, notice=_notice(request))))
        if key != caller.key:
            set_cookie(request, answer, key)
        return answer

    async def events(self, request: Request) -> Response:
        """Stream changes of an open page."""
        caller = await run_in_threadpool(self._logins.admit, request)
        found = pages.BY_NAME.get(request.query_params.get("page", ""))
        if found is None:
            raise InputError("There is no such page.", hint=f"One of: {', '.join(pages.BY_NAME)}.")

        def parts() -> dict[str, str] | None:
            if not self._logins.is_valid(caller):
                return None
            return pages.parts(found, self._view(found, caller, caller.key))

        return self._live.listen(parts)

    def static(self, request: Request) -> Response:
        """Return a static file; contains no secrets."""
        name = request.path_params["name"]
        if name not in pages.STATIC:
            raise HTTPException(404)
        headers = {"content-type": pages.STATIC[name], "cache-control": _STATIC_CACHE}
        return Response(pages.static(name), headers=headers)

    def login_form(self, request: Request) -> Response:
        """Show the form; a caller that is logged in is redirected."""
        after = _after(request.query_params.get("after", ""))
        try:
            self._logins.admit(request)
        except NotLoggedInError:
            return self._form(request, after)
        return RedirectResponse(after, 303)

    async def login(self, request: Request) -> Response:
        """Check user and password, and set a cookie."""
        form = await _form_of(request)
        self._logins.require_own_form(request, form.get("token", ""))
        after, name = _after(form.get("after", "")), form.get("name", "")
        try:
            key = await run_in_threadpool(self._logins.login, request, name, form.get("password", ""))
        except (NotLoggedInError, NotAllowedError, LimitError) as error:
            return self._form(request, after, error=error, name=name)
        answer = RedirectResponse(after, 303)
        set_cookie(request, answer, key)
        return answer

    async def logout(self, request: Request) -> Response:
        """Log out."""
        form = await _form_of(request)
        self._logins.require_own_form(request, form.get("token", ""))
        self._logins.forget(cookie_of(request))
        answer = RedirectResponse("/login", 303)
        delete_cookie(request, answer)
        return answer

    async def retry(self, request: Request) -> Response:
        """Retry the named dead letter, or all."""
        form = await _form_of(request)
        caller = await run_in_threadpool(self._logins.admit, request)
        self._logins.require_own_form(request, form.get("token", ""))
        if caller.identity.role != ADMIN or self._dead_letters is None:
            raise NotAllowedError("Only admins may do that.")
        letter = form.get("letter", "")
        if not letter:
            raise InputError("Which dead letter?")
        dead_letters, ids = self._dead_letters, None if letter == "all" else [letter]

        def retry() -> Retried:
            # The log records the user.
            with events.context(user=caller.identity.name):
                return dead_letters.retry(ids)

        done = await run_in_threadpool(retry)
        return RedirectResponse(f"/queue?delivered={len(done.delivered)}&refused={len(done.refused)}", 303)

    def _form(self, request: Request, after: str, *, error: CatchmentError | None = None, name: str = "") -> Response:
        key = cookie_of(request) or new_key()
        message = None if error is None else error.message
        text = pages.login(token=self._logins.token(key), after=after, message=message, name=name)
        answer = HTMLResponse(text, status_code=200 if error is None else _code(error))
        set_cookie(request, answer, key)
        return answer

    def _view(self, found: pages.Page, caller: LoggedIn, key: str, *, notice: str | None = None) -> pages.PageView:
        status = self._shared.status().for_role(caller.identity.role)
        has_letters = status.lake.value is not None and status.lake.value.dead_letters > 0
        wanted = found.name == "queue" and caller.identity.role == ADMIN and has_letters
        return pages.PageView(
            status=status,
            identity=caller.identity,
            token=self._logins.token(key),
            letters=self._dead_letters.letters() if self._dead_letters is not None and wanted else None,
            notice=notice,
            can_log_out=caller.by_cookie,
        )


class SecurityHeaders:
    """Adds the security headers to every response, refusals included."""

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


async def _form_of(request: Request) -> dict[str, str]:
    """Parse the fields of a form; InputError if it is not one of ours."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise InputError("That is not a form of these pages.")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES_MAX:
                raise InputError("The form is too long.")
    except ClientDisconnect:
        # Not a bug of the server: clients without a login could fill its log with tracebacks.
        raise InputError("The form was not sent to its end.") from None
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=16, errors="replace")
    except ValueError:
        raise InputError("The form cannot be read.") from None
    return {name: values[-1] for name, values in fields.items()}


def _after(path: str) -> str:
    """Target after the login: one of the pages, nothing else."""
    return path if path in pages.BY_PATH else "/"


def _notice(request: Request) -> str | None:
    """The result of a button, from the query of the redirect."""
    delivered, refused = (request.query_params.get(name, "") for name in ("delivered", "refused"))
    if not (delivered.isdecimal() and refused.isdecimal() and len(delivered + refused) < 20):
        return None
    said = f"Delivered: {int(delivered):,}."
    return f"{said} Refused again: {int(refused):,}." if int(refused) else said


def _code(error: CatchmentError) -> int:
    return next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 500)


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


async def _refusal(request: Request, error: Exception) -> Response:
    if not isinstance(error, CatchmentError):
        raise error
    code = _code(error)
    # The page shows the error to its own script; a challenge would make the browser open a login
    # window.
    is_script = request.headers.get("sec-fetch-mode", "navigate") != "navigate"
    asks = {"www-authenticate": 'Basic realm="catchment", charset="UTF-8"'} if code == 401 and not is_script else {}
    if _wants_page(request):
        if code == 401 and request.method == "GET" and "authorization" not in request.headers:
            path = quote(_after(request.url.path), safe="")
            return RedirectResponse(f"/login?after={path}", 303)
        text = pages.problem(code=code, message=error.message, hint=error.hint)
        return HTMLResponse(text, status_code=code, headers=asks)
    shown = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    return JSONResponse(shown, status_code=code, headers=asks)


async def _missing(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    if not _wants_page(request):
        return PlainTextResponse(error.detail, status_code=error.status_code, headers=error.headers)
    said = "There is no such page." if error.status_code == 404 else f"{error.detail}."
    text = pages.problem(code=error.status_code, message=said)
    return HTMLResponse(text, status_code=error.status_code, headers=error.headers)


async def _bug(_request: Request, _error: Exception) -> Response:
    # Sent outside all middleware, headers included; the server logs the error itself.
    text = pages.problem(code=500, message="The page could not be rendered.", hint="The server's log has the reason.")
    return HTMLResponse(text, status_code=500, headers=HEADERS)
