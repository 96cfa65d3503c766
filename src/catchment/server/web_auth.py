"""The web server's access to the server: authentication, and the list of sessions."""

from catchment.foundation.settings import Settings
from catchment.server.access.auth import Authenticator
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from catchment.server.statement_log import StatementLog, shown_session
from catchment.status.model import SessionFacts, Sessions
from catchment.web.login_sessions import Identity

SESSIONS_SHOWN_MAX = 200


class WebAuth:
    """The server's users and roles, for HTTP requests. Thread-safe."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def identify(self, authorization: str, host: str) -> Identity:
        """Authenticate a request by its header and its host."""
        if authorization:
            principal = self._authenticator.login_basic(authorization, host)
        else:
            principal = self._authenticator.anonymous()
        tenant = None if principal.tenant is None else str(principal.tenant)
        return Identity(
            name=principal.name,
            role=principal.role.name.lower(),
            tenant=tenant,
            credential_version=principal.credential_version,
        )

    def credential_version(self, name: str) -> str | None:
        """Return a value that changes whenever the user does."""
        return self._authenticator.credential_version(name)


def sessions(registry: SessionRegistry, log: StatementLog, settings: Settings) -> Sessions:
    """Return the sessions, and the running and slow statements."""
    found, now_s, running = registry.sessions(), registry.backend.clock.monotonic_s(), log.now()
    return Sessions(
        sessions_total=len(found),
        sessions_max=settings.server_sessions_max,
        statements_running=len(running),
        slow_seconds=log.slow_seconds,
        sessions=tuple(_session(each, now_s) for each in found[:SESSIONS_SHOWN_MAX]),
        running=running,
        slow=log.slow(),
        engines=() if registry.backend.engines is None else registry.backend.engines.status(),
    )


def _session(session: Session, now_s: float) -> SessionFacts:
    principal = session.principal
    return SessionFacts(
        session=shown_session(session.id),
        user=principal.name,
        role=principal.role.name.lower(),
        tenant=None if principal.tenant is None else str(principal.tenant),
        idle_s=0.0 if session.is_used else max(0.0, round(now_s - session.touched_s, 3)),
        busy=session.is_used,
    )
