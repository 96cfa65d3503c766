"""Which session a call belongs to: by its token, by a handle in its message, or a new one.

A client that logs in, or need not, gets a token in the answer's headers, and sends it in all later calls. One that does
not is known by the handles it was given. A session of nobody in particular that is left without any is closed with its
call, and opened again, to stay, for one who comes back with its token; others wait for their token, and are forgotten,
oldest first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

import grpc

from catchment.errors import InputError, NotLoggedInError, StateError
from catchment.foundation import events
from catchment.server.auth import Authenticator
from catchment.server.peers import AUTHORIZATION, ON_BEHALF
from catchment.server.registry import SessionRegistry
from catchment.server.sessions import Session
from catchment.server.users import ANONYMOUS, SHARD
from catchment.server.values import Principal, Role
from catchment.tenants.model import TenantId

_BEARER = "Bearer "
# Where clients put the answer to a handshake with a payload.
_TOKEN = "auth-token-bin"


class SessionLookup:
    """Lets calls in."""

    def __init__(self, registry: SessionRegistry, authenticator: Authenticator) -> None:
        self._registry = registry
        self._authenticator = authenticator

    @contextmanager
    def session(self, context: grpc.ServicerContext, handle: bytes = b"") -> Iterator[Session]:
        """The session of a call, whose message may hold a handle; it does not expire while the block runs."""
        session = self._taken(context, handle)
        events.identify(session=session.shown_id, user=session.principal.name)
        try:
            yield session
        finally:
            session.end_use()
            # Whoever has sent no token yet may never do. One who does gets a new session, unless it takes a password.
            if not session.is_kept and session.is_stateless:
                if session.principal.name == ANONYMOUS:
                    self._registry.close(session)
                else:
                    session.release()

    def _taken(self, context: grpc.ServicerContext, handle: bytes) -> Session:
        """The session of a call, in use by it."""
        session = self._found(context, handle)
        try:
            session.begin_use()
        except StateError:
            if not session.is_replaceable:
                raise
            # Forgotten in this very moment: it is opened again.
            session = self._found(context, handle)
            session.begin_use()
        return session

    def _found(self, context: grpc.ServicerContext, handle: bytes) -> Session:
        header = _authorization(context)
        found = self._by_token(header, handle, is_forwarded=_behalf(context) is not None)
        return found or self._by_principal(header, handle, context)

    def log_in(self, context: grpc.ServicerContext, user: str, password: str) -> str:
        """A new session for whoever has that password; its token."""
        principal = self._authenticator.login(user, password, peer_host(context))
        return self._hand_out_token(self._registry.open(principal), context)

    def log_in_by_header(self, context: grpc.ServicerContext) -> str:
        """A new session for whoever the headers name; its token."""
        return self._hand_out_token(self._open(_authorization(context), context), context)

    def principal(self, context: grpc.ServicerContext) -> Principal:
        """Who calls, for calls that need no session."""
        principal = self._principal(_authorization(context), context)
        events.identify(user=principal.name)
        return principal

    def leave(self, session: Session) -> None:
        """The client wants its session no more."""
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
            # Where nobody has to log in, a token that has expired is no reason to turn a client away.
            # Where there is a handle, that counts.
            return None if handle else self._registry.open_again(token, self._authenticator.anonymous())
        if not session.is_logged_in:
            try:
                self._authenticator.anonymous()
            except NotLoggedInError:
                # It was opened before there were users.
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
            raise NotLoggedInError("The session is another user's.")
        return session

    def _principal(self, header: str, context: grpc.ServicerContext) -> Principal:
        if _is_anonymous(header):
            principal = self._authenticator.anonymous()
        else:
            principal = self._authenticator.login_basic(header, peer_host(context))
        behalf = _behalf(context)
        # Where nobody has to log in, shards need not either; for a tenant's user they ask for less than they may.
        is_shard = principal.name in (SHARD, ANONYMOUS)
        return _on_behalf(behalf) if is_shard and behalf is not None else principal

    def _open(self, header: str, context: grpc.ServicerContext) -> Session:
        """A new session for whoever the header names."""
        session = self._registry.open(self._principal(header, context))
        session.is_logged_in = not _is_anonymous(header)
        return session

    def _hand_out_token(self, session: Session, context: grpc.ServicerContext) -> str:
        token = self._registry.token_of(session)
        context.send_initial_metadata(((AUTHORIZATION, _BEARER + token),))
        return token


def _is_anonymous(header: str) -> bool:
    """Whether whoever calls does not say who they are; a token would have."""
    return not header or header.startswith(_BEARER)


def peer_host(context: grpc.ServicerContext) -> str:
    """The host that calls, without its port: `ipv4:127.0.0.1:5000`, `ipv6:%5B::1%5D:5000` or `unix:…`."""
    kind, _, address = unquote(context.peer()).partition(":")
    return address.rpartition(":")[0].strip("[]") if kind.startswith("ip") else kind


def _behalf(context: grpc.ServicerContext) -> str | None:
    """Whom a shard says that it asks for: a user of a tenant that lives here; None where that is itself."""
    return next((str(value) for key, value in context.invocation_metadata() if key == ON_BEHALF), None)


def _on_behalf(behalf: str) -> Principal:
    role, _, tenant = behalf.partition(" ")
    try:
        return Principal(SHARD, min(Role[role.upper()], Role.WRITER), TenantId.parse(tenant))
    except (KeyError, InputError):
        raise NotLoggedInError(f"The header `{ON_BEHALF}` names no role and tenant.") from None


def _authorization(context: grpc.ServicerContext) -> str:
    # The Go driver sends the header twice; both are the same.
    for key, value in context.invocation_metadata():
        if key == AUTHORIZATION:
            return str(value)
        if key == _TOKEN and isinstance(value, bytes):
            return _BEARER + value.decode("ascii", "replace")
    return ""
