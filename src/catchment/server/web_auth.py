"""What the server tells the web beside it: who may come in, and who is connected."""

from catchment.foundation.settings import Settings
from catchment.server.auth import Authenticator
from catchment.server.registry import SessionRegistry
from catchment.server.sessions import Session
from catchment.server.statement_log import StatementLog, shown_session
from catchment.status.model import SessionFacts, Sessions
from catchment.web.login_sessions import Identity

SESSIONS_SHOWN_MAX = 200


class WebAuth:
    """The server's users and roles, for calls over HTTP. Any thread may ask."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def visitor(self, authorization: str, host: str) -> Identity:
        """Who sends that header from that host."""
        if authorization:
            principal = self._authenticator.login_basic(authorization, host)
        else:
            principal = self._authenticator.anonymous()
        tenant = None if principal.tenant is None else str(principal.tenant)
        return Identity(name=principal.name, role=principal.role.name.lower(), tenant=tenant)

    def standing(self, name: str) -> str | None:
        """Something that is another once the user is."""
        return self._authenticator.standing(name)


def sessions(registry: SessionRegistry, log: StatementLog, settings: Settings) -> Sessions:
    """Who is connected, and what they do."""
    found, now_s, running = registry.sessions(), registry.engine.clock.monotonic_s(), log.now()
    return Sessions(
        sessions_total=len(found),
        sessions_max=settings.server_sessions_max,
        statements_running=len(running),
        slow_seconds=settings.server_slow_statement_seconds,
        sessions=tuple(_session(each, now_s) for each in found[:SESSIONS_SHOWN_MAX]),
        running=running,
        slow=log.slow(),
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
