"""Find the session of a call: by its token, by a handle in its message, or by opening a new one.

A client that logs in, or does not have to, gets a token in the answer's headers and sends it in all
later calls. A client that does not send it is recognized by the handles it was given. An anonymous
session that has no handles left is closed with its call. If its client returns with the token, the
session is opened again and then stays. Other sessions wait for their token and are dropped, oldest
first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

import grpc

from catchment.errors import InputError, NotLoggedInError, StateError
from catchment.flight_protocol.headers import AUTHORIZATION, ON_BEHALF, SHARD
from catchment.foundation import events
from catchment.server.access.auth import Authenticator
from catchment.server.access.users import ANONYMOUS
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from catchment.server.values import Principal, Role
from catchment.tenants.model import TenantId

_BEARER = "Bearer "
# Header in which clients send the answer to a handshake with a payload.
_TOKEN = "auth-token-bin"


class SessionLookup:
    """Authenticates calls and finds their sessions."""

    def __init__(self, registry: SessionRegistry, authenticator: Authenticator) -> None:
        self._registry = registry
        self._authenticator = authenticator

    @contextmanager
    def session(self, context: grpc.ServicerContext, handle: bytes = b"") -> Iterator[Session]:
        """Return the session of a call, whose message may contain a handle. It does not expire
        while the block runs.
        """
        session = self._in_use(context, handle)
        events.identify(session=session.shown_id, user=session.principal.name)
        try:
            yield session
        finally:
            session.end_use()
            # A client that has sent no token yet may never send it. If it does, it gets a new
            # session, unless a password is required.
            if not session.state.is_kept and session.is_stateless:
                if session.principal.name == ANONYMOUS:
                    self._registry.close(session)
                else:
                    session.release()

    def _in_use(self, context: grpc.ServicerContext, handle: bytes) -> Session:
        """Return the session of a call, marked as in use."""
        session = self._find(context, handle)
        try:
            session.begin_use()
        except StateError:
            if not session.is_replaceable:
                raise
            # The session was dropped at this very moment: open it again.
            session = self._find(context, handle)
            session.begin_use()
        return session

    def _find(self, context: grpc.ServicerContext, handle: bytes) -> Session:
        header = _authorization(context)
        found = self._by_token(header, handle, is_forwarded=_behalf(context) is not None)
        return found or self._by_principal(header, handle, context)

    def log_in(self, context: grpc.ServicerContext, user: str, password: str) -> str:
        """Open a session for the user with that password and return its token."""
        principal = self._authenticator.login(user, password, peer_host(context))
        return self._hand_out_token(self._registry.open(principal), context)

    def log_in_by_header(self, context: grpc.ServicerContext) -> str:
        """Open a session for the user that the headers name and return its token."""
        return self._hand_out_token(self._open(_authorization(context), context), context)

    def principal(self, context: grpc.ServicerContext) -> Principal:
        """Return the user of a call that needs no session."""
        principal = self._principal(_authorization(context), context)
        events.identify(user=principal.name)
        return principal

    def close(self, session: Session) -> None:
        """Close the session at the client's request."""
        self._registry.close(session)

    def _by_token(self, header: str, handle: bytes, *, is_forwarded: bool) -> Session | None:
        if not header.startswith(_BEARER):
            return None
        token = header[len(_BEARER) :]
        try:
            session = self._registry.find(token)
        except NotLoggedInError:
            if self._authenticator.login_required or is_forwarded:
                raise
            # If no login is required, an expired token is not a reason to reject a client. If there
            # is a handle, the handle counts.
            return None if handle else self._registry.reopen(token, self._authenticator.anonymous())
        if not session.is_logged_in:
            try:
                self._authenticator.anonymous()
            except NotLoggedInError:
                # The session was opened before there were users.
                self._registry.close(session)
                raise
        return session

    def _by_principal(self, header: str, handle: bytes, context: grpc.ServicerContext) -> Session:
        if not handle:
            session = self._open(header, context)
            self._hand_out_token(session, context)
            return session
        principal = self._principal(header, context)
        session = self._registry.by_handle(handle)
        if session.principal != principal:
            raise NotLoggedInError("The session belongs to another user.")
        return session

    def _principal(self, header: str, context: grpc.ServicerContext) -> Principal:
        if _is_anonymous(header):
            principal = self._authenticator.anonymous()
        else:
            principal = self._authenticator.login_basic(header, peer_host(context))
        behalf = _behalf(context)
        # If no login is required, shards need not log in either; for a tenant's user they request
        # less than they are allowed.
        is_shard = principal.name in (SHARD, ANONYMOUS)
        return _on_behalf(behalf) if is_shard and behalf is not None else principal

    def _open(self, header: str, context: grpc.ServicerContext) -> Session:
        """Open a session for the user that the header names."""
        session = self._registry.open(self._principal(header, context))
        session.is_logged_in = not _is_anonymous(header)
        return session

    def _hand_out_token(self, session: Session, context: grpc.ServicerContext) -> str:
        token = self._registry.token_of(session)
        context.send_initial_metadata(((AUTHORIZATION, _BEARER + token),))
        return token


def _is_anonymous(header: str) -> bool:
    """Return whether the caller sends no user; for calls without a valid token."""
    return not header or header.startswith(_BEARER)


def peer_host(context: grpc.ServicerContext) -> str:
    """Return the calling host without its port: `ipv4:127.0.0.1:5000`, `ipv6:%5B::1%5D:5000` or
    `unix:…`.
    """
    kind, _, address = unquote(context.peer()).partition(":")
    return address.rpartition(":")[0].strip("[]") if kind.startswith("ip") else kind


def _behalf(context: grpc.ServicerContext) -> str | None:
    """Return the user on whose behalf a shard calls, a user of a tenant whose primary is here; None
    if it calls for itself.
    """
    return next((str(value) for key, value in context.invocation_metadata() if key == ON_BEHALF), None)


def _on_behalf(behalf: str) -> Principal:
    role, _, tenant = behalf.partition(" ")
    try:
        return Principal(SHARD, min(Role[role.upper()], Role.WRITER), TenantId.parse(tenant))
    except (KeyError, InputError):
        raise NotLoggedInError(f"The header `{ON_BEHALF}` does not name a role and a tenant.") from None


def _authorization(context: grpc.ServicerContext) -> str:
    # The Go driver sends the header twice, with the same value.
    for key, value in context.invocation_metadata():
        if key == AUTHORIZATION:
            return str(value)
        if key == _TOKEN and isinstance(value, bytes):
            return _BEARER + value.decode("ascii", "replace")
    return ""
