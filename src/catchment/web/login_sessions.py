"""Login sessions: identifies callers by the cookie of a login, by `Basic`, or as the anonymous user
of a server without users.

A login hashes the password once; afterwards a random id in a cookie represents it. Callers that
need no login get a cookie too: form tokens are bound to it, so that no other site can make a
browser submit a form.
"""

import base64
import hashlib
import hmac
import re
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from catchment.errors import NotAllowedError, NotLoggedInError
from catchment.foundation.clock import Clock

LOGINS_MAX = 1_000
IDLE_S_MAX = 3_600.0
LOGIN_S_MAX = 12 * 3_600.0
_KEY_BYTES = 32
# What `new_key` makes; anything else would be repeated to the browser in an answer's header.
_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Name and role of a caller; `tenant` is set for users who see only that tenant's tables.

    `credential_version` is that of the password that was verified; None for callers without one.
    """

    name: str
    role: str
    tenant: str | None = None
    credential_version: str | None = None


class UserDirectory(Protocol):
    """Identifies callers."""

    def identify(self, authorization: str, host: str) -> Identity:
        """Identify the sender of that header from that host; NotLoggedInError if it is unknown."""
        ...

    def credential_version(self, name: str) -> str | None:
        """Value that changes with the user's password or rights, or if the user is removed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedIn:
    """An identified caller: `key` is its cookie."""

    identity: Identity
    key: str
    by_cookie: bool = False
    by_header: bool = False


@dataclass(frozen=True, slots=True)
class _Login:
    caller: LoggedIn
    opened_s: float
    used_s: float

    def is_over(self, now_s: float) -> bool:
        return now_s - self.used_s > IDLE_S_MAX or now_s - self.opened_s > LOGIN_S_MAX


class LoginSessions:
    """Admits callers and remembers logins. Safe for concurrent use."""

    def __init__(self, directory: UserDirectory, clock: Clock, *, logins_max: int = LOGINS_MAX) -> None:
        self._directory = directory
        self._clock = clock
        self._logins_max = logins_max
        self._secret = secrets.token_bytes(_KEY_BYTES)
        self._mutex = threading.Lock()
        # By hash of the cookie, least recently used first.
        self._logins: OrderedDict[bytes, _Login] = OrderedDict()

    def admit(self, request: Request) -> LoggedIn:
        """Identify the caller; NotLoggedInError if unknown, NotAllowedError if the page is not for
        this caller.
        """
        header, key = request.headers.get("authorization", ""), cookie_of(request)
        known = None if header else self._known(key)
        if known is not None:
            return known
        identity = self._identify(header, _host(request))
        return LoggedIn(identity=identity, key=key, by_header=bool(header))

    def is_valid(self, caller: LoggedIn) -> bool:
        """Whether an admitted caller would be admitted now; does not check the password again."""
        try:
            if caller.by_cookie:
                return self._known(caller.key) is not None
            if caller.by_header:
                return self._is_current(caller.identity)
            return self._directory.identify("", "") == caller.identity
        except NotLoggedInError:
            return False

    def login(self, request: Request, name: str, password: str) -> str:
        """Create a new cookie for that user and invalidate the old one."""
        if not name or ":" in name:
            raise NotLoggedInError("The user or the password is wrong.")
        header = "Basic " + base64.b64encode(f"{name}:{password}".encode(errors="replace")).decode()
        identity = self._identify(header, _host(request))
        self.forget(cookie_of(request))
        caller = LoggedIn(identity=identity, key=new_key(), by_cookie=True)
        now_s = self._clock.monotonic_s()
        with self._mutex:
            self._logins[_hashed(caller.key)] = _Login(caller, now_s, now_s)
            while len(self._logins) > self._logins_max:
                self._logins.popitem(last=False)
        return caller.key

    def forget(self, key: str) -> None:
        """Log out."""
        with self._mutex:
            self._logins.pop(_hashed(key), None)

    def token(self, key: str) -> str:
        """Token that a form sends to prove that it comes from a page that was given that cookie."""
        return hmac.new(self._secret, key.encode(), hashlib.sha256).hexdigest()

    def require_own_form(self, request: Request, token: str) -> None:
        """Check that one of our pages sent the form, with the cookie of that page; otherwise
        NotAllowedError.
        """
        key = cookie_of(request)
        given = token.encode(errors="replace")
        if not key or not _is_same_origin(request) or not hmac.compare_digest(self.token(key).encode(), given):
            raise NotAllowedError(
                "The form is not from this page, or the page is too old.",
                hint="Load the page again, then try again.",
            )

    def _identify(self, header: str, host: str) -> Identity:
        identity = self._directory.identify(header, host)
        if identity.tenant is not None:
            raise NotAllowedError("This is not for users of a tenant.")
        return identity

    def _is_current(self, identity: Identity) -> bool:
        """Whether the user is still what the verified password belonged to."""
        return self._directory.credential_version(identity.name) == identity.credential_version

    def _known(self, key: str) -> LoggedIn | None:
        now_s, hashed = self._clock.monotonic_s(), _hashed(key)
        with self._mutex:
            login = self._logins.get(hashed)
        if login is None:
            return None
        caller = login.caller
        is_over = login.is_over(now_s) or not self._is_current(caller.identity)
        with self._mutex:
            # A logout may have happened in between.
            if self._logins.pop(hashed, None) is None or is_over:
                return None
            self._logins[hashed] = replace(login, used_s=now_s)
        return caller


def new_key() -> str:
    """Create an unguessable key."""
    return secrets.token_urlsafe(_KEY_BYTES)


def cookie_of(request: Request) -> str:
    """The key in the browser's cookie, or an empty text."""
    key = request.cookies.get(_cookie_name(request), "")
    return key if _KEY.fullmatch(key) else ""


def set_cookie(request: Request, response: Response, key: str) -> None:
    """Set the cookie: not readable by scripts or other sites, deleted when the browser closes."""
    response.set_cookie(
        _cookie_name(request), key, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


def delete_cookie(request: Request, response: Response) -> None:
    """Delete the cookie."""
    response.delete_cookie(
        _cookie_name(request), path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


def _cookie_name(request: Request) -> str:
    # Cookies are shared by all ports of a host, and several servers may run on one.
    name = f"catchment_{request.url.port or 'web'}"
    return f"__Host-{name}" if request.url.scheme == "https" else name


def _is_same_origin(request: Request) -> bool:
    """Whether the browser states that one of our own pages sent this request."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        # These headers are correct even if a proxy forwards the request under another host name.
        return site == "same-origin"
    origin = urlsplit(request.headers.get("origin", ""))
    return (origin.scheme, origin.netloc) == (request.url.scheme, request.headers.get("host"))


def _host(request: Request) -> str:
    return request.client.host if request.client else ""


def _hashed(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
