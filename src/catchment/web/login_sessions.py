"""Who visits: by the cookie that a login gave out, by `Basic`, or as whoever a server without users lets in.

A login costs a hash of the password once; from then on a random id in a cookie stands for it, and what it stands for is
known here only. A cookie is also given to those who need no login: what a form sends along is bound to it, so that
no page elsewhere can have a browser send the form.
"""

import base64
import hashlib
import hmac
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
_KEY_LETTERS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who calls, and as what; `tenant` is set for a user who may see nothing but a tenant's tables."""

    name: str
    role: str
    tenant: str | None = None


class UserDirectory(Protocol):
    """Finds out who calls."""

    def visitor(self, authorization: str, host: str) -> Identity:
        """Who sends that header from that host; NotLoggedInError where that is nobody who may come in."""
        ...

    def standing(self, name: str) -> str | None:
        """Something that is another once the user's password or rights are, or once there is no such user."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedIn:
    """A visitor, and how they came in: `key` is their cookie, `standing` what they were when they came."""

    visitor: Identity
    key: str
    standing: str | None
    by_cookie: bool = False
    by_header: bool = False


@dataclass(frozen=True, slots=True)
class _Login:
    guest: LoggedIn
    opened_s: float
    used_s: float

    def is_over(self, now_s: float) -> bool:
        return now_s - self.used_s > IDLE_S_MAX or now_s - self.opened_s > LOGIN_S_MAX


class LoginSessions:
    """Lets visitors in, and remembers those who logged in. Any thread may ask."""

    def __init__(self, doorkeeper: UserDirectory, clock: Clock, *, logins_max: int = LOGINS_MAX) -> None:
        self._doorkeeper = doorkeeper
        self._clock = clock
        self._logins_max = logins_max
        self._secret = secrets.token_bytes(_KEY_BYTES)
        self._mutex = threading.Lock()
        # By what a cookie hashes to, those who were here last at the end.
        self._logins: OrderedDict[bytes, _Login] = OrderedDict()

    def admit(self, request: Request) -> LoggedIn:
        """Who calls; NotLoggedInError where nobody knows, NotAllowedError where this is not for them."""
        header, key = request.headers.get("authorization", ""), cookie_of(request)
        known = None if header else self._known(key)
        if known is not None:
            return known
        visitor = self._visitor(header, _host(request))
        standing = self._doorkeeper.standing(visitor.name)
        return LoggedIn(visitor=visitor, key=key, standing=standing, by_header=bool(header))

    def is_still(self, guest: LoggedIn) -> bool:
        """Whether one who was let in would be now, without asking for the password again."""
        try:
            if guest.by_cookie:
                return self._known(guest.key) is not None
            if guest.by_header:
                return self._doorkeeper.standing(guest.visitor.name) == guest.standing
            return self._doorkeeper.visitor("", "") == guest.visitor
        except NotLoggedInError:
            return False

    def login(self, request: Request, name: str, password: str) -> str:
        """A new cookie for that user; the old one is worth nothing from now on."""
        if not name or ":" in name:
            raise NotLoggedInError("The user or the password is wrong.")
        header = "Basic " + base64.b64encode(f"{name}:{password}".encode(errors="replace")).decode()
        visitor = self._visitor(header, _host(request))
        self.forget(cookie_of(request))
        guest = LoggedIn(
            visitor=visitor, key=new_key(), standing=self._doorkeeper.standing(visitor.name), by_cookie=True
        )
        now_s = self._clock.monotonic_s()
        with self._mutex:
            self._logins[_hashed(guest.key)] = _Login(guest, now_s, now_s)
            while len(self._logins) > self._logins_max:
                self._logins.popitem(last=False)
        return guest.key

    def forget(self, key: str) -> None:
        """Log out."""
        with self._mutex:
            self._logins.pop(_hashed(key), None)

    def token(self, key: str) -> str:
        """What a form sends along to show that it is from a page of ours that was given that cookie."""
        return hmac.new(self._secret, key.encode(), hashlib.sha256).hexdigest()

    def require_own_form(self, request: Request, token: str) -> None:
        """See that a page of ours sent the form, with the cookie that the page was given: else NotAllowedError."""
        key = cookie_of(request)
        given = token.encode(errors="replace")
        if not key or not _is_same_origin(request) or not hmac.compare_digest(self.token(key).encode(), given):
            raise NotAllowedError(
                "The form is not from this page, or the page is too old.",
                hint="Load the page again, then try again.",
            )

    def _visitor(self, header: str, host: str) -> Identity:
        visitor = self._doorkeeper.visitor(header, host)
        if visitor.tenant is not None:
            raise NotAllowedError("This is not for users of a tenant.")
        return visitor

    def _known(self, key: str) -> LoggedIn | None:
        now_s, hashed = self._clock.monotonic_s(), _hashed(key)
        with self._mutex:
            login = self._logins.get(hashed)
        if login is None:
            return None
        guest = login.guest
        is_over = login.is_over(now_s) or self._doorkeeper.standing(guest.visitor.name) != guest.standing
        with self._mutex:
            # Somebody may have logged out in between.
            if self._logins.pop(hashed, None) is None or is_over:
                return None
            self._logins[hashed] = replace(login, used_s=now_s)
        return guest


def new_key() -> str:
    """What nobody guesses."""
    return secrets.token_urlsafe(_KEY_BYTES)


def cookie_of(request: Request) -> str:
    """The key that the browser has from here; empty where it has none."""
    key = request.cookies.get(_cookie_name(request), "")
    return key if key.isascii() and len(key) <= _KEY_LETTERS_MAX else ""


def give_cookie(request: Request, response: Response, key: str) -> None:
    """Have the browser keep the key, out of reach of scripts and of other sites, until it is closed."""
    response.set_cookie(
        _cookie_name(request), key, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


def take_cookie(request: Request, response: Response) -> None:
    """Have the browser forget the key."""
    response.delete_cookie(
        _cookie_name(request), path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


def _cookie_name(request: Request) -> str:
    # Browsers do not tell the ports of a machine apart, and several servers may run on one.
    name = f"catchment_{request.url.port or 'web'}"
    return f"__Host-{name}" if request.url.scheme == "https" else name


def _is_same_origin(request: Request) -> bool:
    """Whether the browser says that one of our own pages sent this."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        # What browsers say of themselves also holds behind a proxy, which calls us by another name.
        return site == "same-origin"
    origin = urlsplit(request.headers.get("origin", ""))
    return (origin.scheme, origin.netloc) == (request.url.scheme, request.headers.get("host"))


def _host(request: Request) -> str:
    return request.client.host if request.client else ""


def _hashed(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
