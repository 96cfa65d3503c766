"""Who calls: logging in, and on which addresses a server may do without.

An unknown user is verified against a hash that fits no password, so that it takes as long as a known one. After a few
failures of a user from a host, both have to wait. They wait on their side: the server answers at once, and keeps no
thread for them.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from catchment.errors import CatchmentError, LimitError, NotLoggedInError, SettingsError
from catchment.foundation import events
from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.settings import Settings
from catchment.server.tls import certificate_of
from catchment.server.users import (
    ANONYMOUS,
    LOCAL,
    PASSWORD_BYTES_MAX,
    SHARD,
    ServerUser,
    Users,
    hash_of_nobody,
    is_password,
)
from catchment.server.values import Principal, Role

FAILURES_FREE = 5
WAIT_S_MAX = 60.0
FAILURES_KEPT_MAX = 10_000
HEADER_LETTERS_MAX = 8_192
_HASHES_AT_ONCE_MAX = 4
_TURN_S_MAX = 10.0
_WRONG = "The user or the password is wrong."


@dataclass(frozen=True, slots=True)
class Failures:
    """How often a user has failed from a host, and until when both have to wait."""

    count: int
    until_s: float

    def plus_one(self, now_s: float) -> "Failures":
        """One more: the first few are free, then the wait doubles."""
        count = self.count + 1
        over = count - FAILURES_FREE
        # The exponent is bounded, because a float is.
        wait_s = 0.0 if over < 0 else min(WAIT_S_MAX, 2.0 ** min(over, 16))
        return Failures(count, now_s + wait_s)


class Authenticator:
    """Finds out who calls. Any thread may ask."""

    def __init__(
        self, users: Users, *, required: bool | None, shard_secret: str | None = None, clock: Clock | None = None
    ) -> None:
        """`required` is whether callers must log in; None is: from when on there are users."""
        self.users = users
        # What a command on this machine logs in with; it is as old as the process.
        self.local_token = secrets.token_urlsafe(32)
        self._shard_secret = shard_secret
        self._required = required
        self._clock = clock or SystemClock()
        self._nobody = hash_of_nobody()
        # Each takes 19 MiB.
        self._hashing = threading.BoundedSemaphore(_HASHES_AT_ONCE_MAX)
        self._mutex = threading.Lock()
        self._failures: OrderedDict[tuple[str, str], Failures] = OrderedDict()

    @classmethod
    def from_settings(cls, settings: Settings, users: Users, *, clock: Clock | None = None) -> "Authenticator":
        """As the settings say; on an address that others reach, everybody logs in."""
        required = settings.server_auth
        if required is None and not is_loopback(settings.server_host):
            required = True
        secret = settings.shard_secret
        known = None if secret is None else secret.get_secret_value()
        return cls(users, required=required, shard_secret=known, clock=clock)

    @property
    def login_required(self) -> bool:
        """Whether callers must log in. Once they must, it stays so, whatever becomes of the users."""
        if self._required is None:
            # Asked for every call of those who have not logged in.
            with _readable():
                if self.users.are_there:
                    self._required = True
        return bool(self._required)

    def anonymous(self) -> Principal:
        """Whoever does not say who they are."""
        if self.login_required:
            raise NotLoggedInError("Log in first.", hint="Connect with a user and a password.")
        return Principal(ANONYMOUS, Role.ADMIN)

    def login(self, name: str, password: str, peer_host: str) -> Principal:
        """Who that is; NotLoggedInError where name or password are wrong, or where it is too early to try again."""
        if name == LOCAL:
            return _login_by(self.local_token, password, LOCAL)
        if name == SHARD and self._shard_secret is not None:
            return _login_by(self._shard_secret, password, SHARD)
        if not name or len(name) > PASSWORD_BYTES_MAX or len(password.encode(errors="replace")) > PASSWORD_BYTES_MAX:
            raise NotLoggedInError(_WRONG)
        key = (name, peer_host)
        self._refuse_early(key)
        with self._turn():
            # Those who came together have failed together by now.
            self._refuse_early(key)
            principal = self._verified(name, password)
            self._note(key, failed=principal is None)
        if principal is None:
            events.emit("login_failed", level=logging.WARNING, user=name, host=peer_host)
            raise NotLoggedInError(_WRONG)
        return principal

    def login_basic(self, header: str, peer_host: str) -> Principal:
        """Who an `authorization: Basic …` header says that calls."""
        return self.login(*parse_basic(header), peer_host)

    def standing(self, name: str) -> str | None:
        """Something that is another once the user's password, role or tenant is; None for nobody who is listed."""
        with _readable():
            user = self.users.find(name)
        return None if user is None else _standing(user)

    def admits(self, principal: Principal) -> bool:
        """Whether whoever logged in may go on: False once the user was changed or removed since.

        While the users' file cannot be read nobody logs in, and those who are in go on.
        """
        if principal.standing is None:
            return True
        try:
            user = self.users.find(principal.name)
        except CatchmentError:
            return True
        return user is not None and principal.standing == _standing(user)

    def _verified(self, name: str, password: str) -> Principal | None:
        with _readable():
            user = self.users.find(name)
        if not is_password(user.password_hash if user else self._nobody, password) or user is None:
            return None
        try:
            user = self.users.hash_again(user, password)
        except CatchmentError as error:
            # The old hash serves as well.
            events.emit("hash_kept", level=logging.WARNING, user=name, reason=error.message)
        return Principal(user.name, user.role, user.tenant, _standing(user))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._hashing.acquire(timeout=_TURN_S_MAX):
            raise LimitError("Too many log in at the same time.", hint="Try again in a moment.")
        try:
            yield
        finally:
            self._hashing.release()

    def _refuse_early(self, key: tuple[str, str]) -> None:
        with self._mutex:
            known = self._failures.get(key)
        left_s = 0.0 if known is None else known.until_s - self._clock.monotonic_s()
        if left_s > 0:
            raise NotLoggedInError(f"Too many failures; try again in {max(1, round(left_s))} s.")

    def _note(self, key: tuple[str, str], *, failed: bool) -> None:
        with self._mutex:
            known = self._failures.pop(key, Failures(0, 0.0))
            if failed:
                self._failures[key] = known.plus_one(self._clock.monotonic_s())
                if len(self._failures) > FAILURES_KEPT_MAX:
                    self._failures.popitem(last=False)


@lru_cache(maxsize=1_000)
def _standing(user: ServerUser) -> str:
    return hashlib.sha256(f"{user.password_hash}\0{user.role}\0{user.tenant}".encode()).hexdigest()


def _login_by(secret: str, given: str, name: str) -> Principal:
    # No guess comes near so many bits, so that none is counted.
    if not hmac.compare_digest(given.encode(errors="replace"), secret.encode()):
        raise NotLoggedInError(_WRONG)
    return Principal(name, Role.ADMIN)


def parse_basic(header: str) -> tuple[str, str]:
    """User and password of an `authorization: Basic …` header; clients in Go leave the padding out."""
    scheme, _, encoded = header[:HEADER_LETTERS_MAX].strip().partition(" ")
    if scheme.lower() != "basic" or len(header) > HEADER_LETTERS_MAX:
        raise NotLoggedInError("The header `authorization` is not of the form `Basic …`.")
    bare = encoded.strip().rstrip("=")
    try:
        text = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        raise NotLoggedInError("The header `authorization` holds no user and password.") from None
    name, colon, password = text.partition(":")
    if not colon:
        raise NotLoggedInError("The header `authorization` holds no user and password.")
    return name, password


def require_safe(settings: Settings, users: Users) -> None:
    """See that nobody unknown gets in, and nobody listens: SettingsError where the settings would allow it."""
    certificate = certificate_of(settings)
    # A file that is damaged is found now, and not by those who log in.
    known = users.all()
    if is_loopback(settings.server_host):
        return
    where = f"{settings.server_host} can be reached by others"
    if certificate is None:
        raise SettingsError(
            f"{where}, and there is no TLS.",
            hint="Set CATCHMENT_SERVER_TLS_CERTIFICATE and CATCHMENT_SERVER_TLS_KEY, or listen on 127.0.0.1.",
        )
    if settings.server_auth is False:
        raise SettingsError(
            f"{where}, and nobody has to log in.", hint="Leave CATCHMENT_SERVER_AUTH out, or listen on 127.0.0.1."
        )
    if not known:
        raise SettingsError(
            f"{where}, and there are no users.", hint="`catchment user add NAME --role admin` adds one."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address, whatever the name stands for."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"{host} is no address of this machine: {error}.", hint="Take 127.0.0.1, say.") from None
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)


@contextmanager
def _readable() -> Iterator[None]:
    """Tell the operator, and not the caller, why the users cannot be read."""
    try:
        yield
    except CatchmentError as error:
        events.emit("users_unreadable", level=logging.ERROR, reason=error.message)
        raise NotLoggedInError("Nobody can log in at present.", hint="The server's log says why.") from None
