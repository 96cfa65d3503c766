"""Authentication: log-in, and the addresses on which a server may run without it.

The password of an unknown user is verified against a hash that matches no password, so that a
refusal takes as long as for a known user. After a few failures of a user from a place (an address,
or all that one client may have), further attempts of that pair are refused for a while. The server
refuses immediately; it keeps no thread waiting.
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
from catchment.flight_protocol.headers import SHARD
from catchment.foundation import events
from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.settings import Settings
from catchment.server.access.tls import certificate_of
from catchment.server.access.users import (
    ANONYMOUS,
    LOCAL,
    PASSWORD_BYTES_MAX,
    ServerUser,
    Users,
    is_password,
    unmatchable_hash,
)
from catchment.server.values import Principal, Role

FAILURES_FREE = 5
WAIT_S_MAX = 60.0
FAILURES_KEPT_MAX = 10_000
HEADER_CHARACTERS_MAX = 8_192
_HASHES_MAX = 4
_HASHING_WAIT_S_MAX = 10.0
_WRONG_CREDENTIALS = "The user or the password is wrong."


@dataclass(frozen=True, slots=True)
class Failures:
    """The number of failed log-ins of a user from a host, and when the next one is allowed."""

    count: int
    until_s: float

    def after_failure(self, now_s: float) -> "Failures":
        """Return the state after another failure: the first few are free, then the wait doubles."""
        count = self.count + 1
        over = count - FAILURES_FREE
        # The exponent is bounded to stay within the range of a float.
        wait_s = 0.0 if over < 0 else min(WAIT_S_MAX, 2.0 ** min(over, 16))
        return Failures(count, now_s + wait_s)


class Authenticator:
    """Identifies callers. Thread-safe."""

    def __init__(
        self, users: Users, *, required: bool | None, shard_secret: str | None = None, clock: Clock | None = None
    ) -> None:
        """`required` is whether callers must log in; None means: as soon as there are users."""
        self.users = users
        # The password of commands on this machine; every process has a new one.
        self.local_token = secrets.token_urlsafe(32)
        self._shard_secret = shard_secret
        self._required = required
        self._clock = clock or SystemClock()
        self._unmatchable_hash = unmatchable_hash()
        # Each hash takes 19 MiB.
        self._hashing = threading.BoundedSemaphore(_HASHES_MAX)
        self._mutex = threading.Lock()
        self._failures: OrderedDict[tuple[str, str], Failures] = OrderedDict()

    @classmethod
    def from_settings(cls, settings: Settings, users: Users, *, clock: Clock | None = None) -> "Authenticator":
        """Create one from the settings. On a non-loopback address, all callers must log in."""
        required = settings.server_auth
        if required is None and not is_loopback(settings.server_host):
            required = True
        secret = settings.shard_secret
        known = None if secret is None else secret.get_secret_value()
        return cls(users, required=required, shard_secret=known, clock=clock)

    @property
    def login_required(self) -> bool:
        """Whether callers must log in. Once True, it stays so, even if all users are removed."""
        if self._required is None:
            # Evaluated for every call of a client that has not logged in.
            with _readable():
                if self.users.exist:
                    self._required = True
        return bool(self._required)

    def anonymous(self) -> Principal:
        """Return the principal of a caller that does not log in; NotLoggedInError if it must."""
        if self.login_required:
            raise NotLoggedInError("Log in first.", hint="Connect with a user and a password.")
        return Principal(ANONYMOUS, Role.ADMIN)

    def login(self, name: str, password: str, peer_host: str) -> Principal:
        """Verify a password and return its user's principal.

        NotLoggedInError if name or password are wrong, or if it is too early for another attempt.
        """
        if name == LOCAL:
            return _login_by_secret(self.local_token, password, LOCAL)
        if name == SHARD and self._shard_secret is not None:
            return _login_by_secret(self._shard_secret, password, SHARD)
        if not name or len(name) > PASSWORD_BYTES_MAX or len(password.encode(errors="replace")) > PASSWORD_BYTES_MAX:
            raise NotLoggedInError(_WRONG_CREDENTIALS)
        key = (name, place_of(peer_host))
        self._refuse_early(key)
        with self._hashing_slot():
            # Other attempts of the same pair may have failed while this one waited for its slot.
            self._refuse_early(key)
            principal = self._verified(name, password)
            self._record_attempt(key, failed=principal is None)
        if principal is None:
            events.emit("login_failed", level=logging.WARNING, user=name, host=peer_host)
            raise NotLoggedInError(_WRONG_CREDENTIALS)
        return principal

    def login_basic(self, header: str, peer_host: str) -> Principal:
        """Log in by an `authorization: Basic …` header."""
        return self.login(*parse_basic(header), peer_host)

    def credential_version(self, name: str) -> str | None:
        """Return a digest of the user's password, role and tenant; None if the user is unknown."""
        with _readable():
            user = self.users.find(name)
        return None if user is None else _credential_version(user)

    def admits(self, principal: Principal) -> bool:
        """Whether a principal may continue: False if its user has changed since the log-in.

        While the file of users cannot be read, log-in is impossible, and logged-in users continue.
        """
        if principal.credential_version is None:
            return True
        try:
            user = self.users.find(principal.name)
        except CatchmentError:
            return True
        return user is not None and principal.credential_version == _credential_version(user)

    def _verified(self, name: str, password: str) -> Principal | None:
        with _readable():
            user = self.users.find(name)
        if not is_password(user.password_hash if user else self._unmatchable_hash, password) or user is None:
            return None
        try:
            user = self.users.hash_again(user, password)
        except CatchmentError as error:
            # The old hash remains valid.
            events.emit("hash_kept", level=logging.WARNING, user=name, reason=error.message)
        return Principal(user.name, user.role, user.tenant, _credential_version(user))

    @contextmanager
    def _hashing_slot(self) -> Iterator[None]:
        if not self._hashing.acquire(timeout=_HASHING_WAIT_S_MAX):
            raise LimitError("Too many clients are logging in at the same time.", hint="Try again in a moment.")
        try:
            yield
        finally:
            self._hashing.release()

    def _refuse_early(self, key: tuple[str, str]) -> None:
        with self._mutex:
            known = self._failures.get(key)
        left_s = 0.0 if known is None else known.until_s - self._clock.monotonic_s()
        if left_s > 0:
            raise NotLoggedInError(f"Too many failed log-ins; try again in {max(1, round(left_s))} s.")

    def _record_attempt(self, key: tuple[str, str], *, failed: bool) -> None:
        with self._mutex:
            known = self._failures.pop(key, Failures(0, 0.0))
            if failed:
                self._failures[key] = known.after_failure(self._clock.monotonic_s())
                if len(self._failures) > FAILURES_KEPT_MAX:
                    self._failures.popitem(last=False)


@lru_cache(maxsize=1_000)
def _credential_version(user: ServerUser) -> str:
    return hashlib.sha256(f"{user.password_hash}\0{user.role}\0{user.tenant}".encode()).hexdigest()


def _login_by_secret(secret: str, given: str, name: str) -> Principal:
    # The secret is too long to be guessed, so failures are not counted.
    if not hmac.compare_digest(given.encode(errors="replace"), secret.encode()):
        raise NotLoggedInError(_WRONG_CREDENTIALS)
    return Principal(name, Role.ADMIN)


def parse_basic(header: str) -> tuple[str, str]:
    """Return user and password of an `authorization: Basic …` header. Go clients omit padding."""
    scheme, _, encoded = header[:HEADER_CHARACTERS_MAX].strip().partition(" ")
    if scheme.lower() != "basic" or len(header) > HEADER_CHARACTERS_MAX:
        raise NotLoggedInError("The header `authorization` is not of the form `Basic …`.")
    bare = encoded.strip().rstrip("=")
    try:
        text = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        raise NotLoggedInError("The header `authorization` contains no user and password.") from None
    name, colon, password = text.partition(":")
    if not colon:
        raise NotLoggedInError("The header `authorization` contains no user and password.")
    return name, password


def require_safe(settings: Settings, users: Users) -> None:
    """Raise SettingsError if other machines can reach the server and it lacks TLS, log-in or users."""
    certificate = certificate_of(settings)
    # Finds a damaged file at the start, instead of at the first log-in.
    known = users.all()
    if is_loopback(settings.server_host):
        return
    where = f"{settings.server_host} can be reached from other machines"
    if certificate is None:
        raise SettingsError(
            f"{where}, and TLS is not configured.",
            hint="Set CATCHMENT_SERVER_TLS_CERTIFICATE and CATCHMENT_SERVER_TLS_KEY, or listen on 127.0.0.1.",
        )
    if settings.server_auth is False:
        raise SettingsError(
            f"{where}, and log-in is switched off.", hint="Unset CATCHMENT_SERVER_AUTH, or listen on 127.0.0.1."
        )
    if not known:
        raise SettingsError(
            f"{where}, and there are no users.", hint="`catchment user add NAME --role admin` adds one."
        )


def place_of(peer_host: str) -> str:
    """Return the addresses that one guesser has to choose from: this machine, or an IPv6 network.

    Counted by single addresses, every attempt could come from another one.
    """
    try:
        address = ipaddress.ip_address(peer_host.partition("%")[0])
    except ValueError:
        return peer_host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return "loopback" if address.is_loopback else str(ipaddress.ip_network((address, 64), strict=False))
        address = address.ipv4_mapped
    return "loopback" if address.is_loopback else str(address)


def is_loopback(host: str) -> bool:
    """Whether the address, or every address of the host name, is a loopback address."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise SettingsError(
            f"{host} is not an address of this machine: {error}.", hint="Use 127.0.0.1, for example."
        ) from None
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)


@contextmanager
def _readable() -> Iterator[None]:
    """Log why the users cannot be read, and do not disclose it to the caller."""
    try:
        yield
    except CatchmentError as error:
        events.emit("users_unreadable", level=logging.ERROR, reason=error.message)
        raise NotLoggedInError(
            "Log-in is not possible at present.", hint="See the server's log for the reason."
        ) from None
