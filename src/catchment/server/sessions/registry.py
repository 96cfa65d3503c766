"""Session registry: finds sessions by token or handle, limits their number, closes idle ones."""

import hashlib
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress

from catchment.app import App
from catchment.errors import CatchmentError, LimitError, NotLoggedInError, StateError
from catchment.foundation import events
from catchment.foundation.lasting_thread import LastingThread
from catchment.server import memory
from catchment.server.access.users import ANONYMOUS
from catchment.server.sessions.backend import Backend
from catchment.server.sessions.session import Session
from catchment.server.values import Principal

_SWEEP_S = 1.0
# Sweep interval while statements are being interrupted.
_SWEEP_AGAIN_S = 0.05
_SWEEPS_PER_TRIM = 10
# Maximum number of sessions whose client may never return, and of tokens of ended sessions.
_UNCLAIMED_MAX = 1_000


class SessionRegistry:
    """The sessions of a server. Thread-safe."""

    def __init__(self, app: App, *, admits: Callable[[Principal], bool] = lambda _: True) -> None:
        """`admits` returns whether a logged-in user may continue; sessions of other users end."""
        self.backend = Backend(app)
        self._admits = admits
        self._settings = app.settings
        self._mutex = threading.Lock()
        self._by_id: OrderedDict[str, Session] = OrderedDict()
        self._ids: dict[str, str] = {}
        self._tokens: dict[str, str] = {}
        # Digests of tokens of anonymous sessions that have ended, oldest first.
        self._ended_tokens: OrderedDict[str, None] = OrderedDict()
        self._stopping = threading.Event()
        self._sweeper = LastingThread(self._sweep, name="catchment-sessions")
        self._sweeper.start()

    def open(self, principal: Principal) -> Session:
        """Open a new session."""
        session = Session(secrets.token_hex(8), principal, self.backend)
        with self._mutex:
            forgotten = self._admit(session, secrets.token_urlsafe(32))
        self._announce(session, forgotten)
        return session

    def reopen(self, token: str, principal: Principal) -> Session | None:
        """Open a new session under the token of an ended one; None if no such token was issued.

        This way a client whose session was closed with its call does not need a new token each
        time.
        """
        digest = _digest(token)
        session = Session(secrets.token_hex(8), principal, self.backend)
        session.state.is_kept = session.is_replaceable = True
        session.is_logged_in = False
        with self._mutex:
            if digest not in self._ended_tokens:
                # Another call of the client was faster, or the token was never issued.
                return self._by_id.get(self._ids.get(digest, ""))
            del self._ended_tokens[digest]
            try:
                forgotten = self._admit(session, token)
            except LimitError:
                # The client may try again, and is then recognized by the token.
                self._ended_tokens[digest] = None
                raise
        self._announce(session, forgotten)
        return session

    def _admit(self, session: Session, token: str) -> list[Session]:
        """Register the session. The caller holds the mutex.

        Returns the sessions that were removed to make room: they can no longer be found, and the
        caller still has to end them.
        """
        if self._stopping.is_set():
            raise LimitError("The server is shutting down.")
        every, most = list(self._by_id.values()), self._settings.server_sessions_max
        unclaimed = [each for each in every if each.is_unclaimed]
        over = len(every) - len(unclaimed) + 1 - most
        # Sessions whose clients would not notice a replacement, least recently used first.
        replaceable = sorted((each for each in every if each.is_replaceable and each.is_stateless), key=_touched_s)
        if over > len(replaceable):
            raise LimitError(
                f"The server has {most + over - 1} sessions, and the limit is {most}.",
                hint="Close one, or wait for one to expire; CATCHMENT_SERVER_SESSIONS_MAX sets the limit.",
            )
        wanted = [*unclaimed[:-_UNCLAIMED_MAX], *replaceable[: max(0, over)]]
        forgotten = [each for each in wanted if each.give_up()]
        for each in forgotten:
            self._remove(each)
        self._by_id[session.id] = session
        self._ids[_digest(token)] = session.id
        self._tokens[session.id] = token
        return forgotten

    def _announce(self, session: Session, forgotten: Sequence[Session]) -> None:
        for each in forgotten:
            # A failure to end another session does not concern the client that opens this one.
            with suppress(CatchmentError):
                self._end(each)
        principal = session.principal
        events.identify(session=session.shown_id, user=principal.name)
        tenant = None if principal.tenant is None else str(principal.tenant)
        role = principal.role.name.lower()
        events.emit("session_opened", session=session.shown_id, user=principal.name, role=role, tenant=tenant)

    def find(self, token: str) -> Session:
        """Return the session of a token."""
        with self._mutex:
            session = self._by_id.get(self._ids.get(_digest(token), ""))
            if session is None:
                raise NotLoggedInError("The session has ended or never existed.", hint="Connect again.")
            # The client sent the token, so it is known to have it from now on.
            session.state.is_kept = True
        return self._admitted(session)

    def by_handle(self, handle: bytes) -> Session:
        """Return the session that a handle belongs to."""
        session_id = handle.partition(b".")[0].decode("ascii", "replace")
        with self._mutex:
            session = self._by_id.get(session_id)
        if session is None:
            raise StateError("The session of this handle has ended.", hint="Connect again.")
        return self._admitted(session)

    def _admitted(self, session: Session) -> Session:
        if not self._admits(session.principal):
            self._evict(session)
            raise NotLoggedInError("The user was changed or removed after the login.", hint="Log in again.")
        return session

    def _evict(self, session: Session) -> None:
        """End the session of a changed user: cancel its calls, and close it once none is left."""
        session.calls.cancel_all()
        if not session.is_used:
            self.close(session)

    def token_of(self, session: Session) -> str:
        """Return the token of the session."""
        return self._tokens[session.id]

    def close(self, session: Session) -> None:
        """End a session."""
        with self._mutex:
            was_open = self._remove(session)
        if was_open:
            self._end(session)

    def _remove(self, session: Session) -> bool:
        """Remove the session; False if it is not registered. The caller holds the mutex."""
        token = self._tokens.pop(session.id, None)
        if token is not None:
            self._ids.pop(_digest(token), None)
            if session.principal.name == ANONYMOUS:
                self._ended_tokens[_digest(token)] = None
                if len(self._ended_tokens) > _UNCLAIMED_MAX:
                    self._ended_tokens.popitem(last=False)
        return self._by_id.pop(session.id, None) is not None

    @staticmethod
    def _end(session: Session) -> None:
        try:
            session.close()
        finally:
            events.emit("session_closed", session=session.shown_id, user=session.principal.name)

    def sessions(self) -> tuple[Session, ...]:
        """Return all sessions."""
        with self._mutex:
            return tuple(self._by_id.values())

    def close_all(self) -> None:
        """End all sessions and the engine processes, and accept no new sessions."""
        self._stopping.set()
        # The sweeper waits for this event.
        self.backend.lake.failed.set()
        self._sweeper.join()
        for session in self.sessions():
            with suppress(CatchmentError):
                self.close(session)
        self.backend.close()

    def sweep(self) -> bool:
        """End sessions, transactions and results that idled too long, and the remains of DuckDB
        instances that failed internally.

        Returns False if statements still run on such an instance: they are interrupted, and the
        caller should sweep again soon.
        """
        now_s = self.backend.clock.monotonic_s()
        sessions = self.sessions()
        for session in sessions:
            session.expire_transactions(now_s - self._settings.server_transaction_idle_seconds)
        self.backend.expire_results(now_s - self._settings.server_statement_seconds_max)
        is_done = self.backend.close_lost()
        for session in sessions:
            if not self._admits(session.principal):
                self._evict(session)
                continue
            idle_s = now_s - session.touched_s
            if idle_s > self._settings.server_session_idle_seconds and not session.is_used:
                events.emit(
                    "session_expired", session=session.shown_id, user=session.principal.name, idle_s=round(idle_s)
                )
                self.close(session)
        return is_done

    def _sweep(self) -> None:
        rounds, is_done, failed = 0, True, self.backend.lake.failed
        while True:
            failed.wait(_SWEEP_S if is_done else _SWEEP_AGAIN_S)
            failed.clear()
            if self._stopping.is_set():
                return
            rounds += 1
            if rounds % _SWEEPS_PER_TRIM == 0:
                memory.give_back()
            try:
                is_done = self.sweep()
            except CatchmentError as error:
                events.emit("session_sweep_failed", level=logging.ERROR, reason=error.message)


def _touched_s(session: Session) -> float:
    return session.touched_s


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
