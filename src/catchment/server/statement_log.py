"""Statement log: running statements, slow ones, and the duration of all."""

import logging
import threading
from collections import deque
from datetime import timedelta
from itertools import count
from types import TracebackType

from catchment.foundation import events
from catchment.foundation.clock import Clock
from catchment.foundation.meters import Meters
from catchment.server.values import Principal
from catchment.status.model import StatementStatus

SLOW_MAX = 50
# Far above what a statement on a few files takes, so that the list shows what deserves a look.
SLOW_SECONDS = 1.0
TEXT_CHARACTERS_MAX = 2_000
_SESSION_CHARACTERS = 6


class StatementLog:
    """The statements of a server, running and finished. Thread-safe."""

    def __init__(
        self, meters: Meters, *, clock: Clock, slow_seconds: float | None = None, log_sql: bool = False
    ) -> None:
        """`log_sql` is whether the log may contain the text of statements."""
        self._log_sql = log_sql
        self._meters = meters
        self.slow_seconds = SLOW_SECONDS if slow_seconds is None else slow_seconds
        self._clock = clock
        self._numbers = count()
        # Written without a lock: each statement has its own key.
        self._running: dict[int, RunningStatement] = {}
        self._mutex = threading.Lock()
        self._slow: deque[StatementStatus] = deque(maxlen=SLOW_MAX)

    def running(self, session: str, principal: Principal, text: str) -> "RunningStatement":
        """Return a context manager that records a statement while its block runs."""
        return RunningStatement(self, session, principal.name, text)

    def begin(self, statement: "RunningStatement") -> None:
        """Record the start of a statement."""
        statement.number, statement.started_s = next(self._numbers), self._clock.monotonic_s()
        self._running[statement.number] = statement

    def end(self, statement: "RunningStatement", *, failed: bool) -> None:
        """Record the end of a statement."""
        del self._running[statement.number]
        seconds = self._clock.monotonic_s() - statement.started_s
        self._meters.statement_seconds.observe(seconds)
        if failed:
            # The error itself is logged when its call ends.
            self._meters.statements_failed.add()
        elif events.is_logged(logging.DEBUG):
            said = {"sql": statement.text} if self._log_sql else {}
            events.emit("statement_finished", level=logging.DEBUG, seconds=round(seconds, 4), **said)
        if seconds >= self.slow_seconds:
            with self._mutex:
                self._slow.appendleft(self._shown(statement, seconds))

    def now(self) -> tuple[StatementStatus, ...]:
        """Return the running statements, the longest first."""
        now_s = self._clock.monotonic_s()
        found = sorted(self._running.copy().values(), key=lambda each: each.started_s)
        return tuple(self._shown(each, now_s - each.started_s) for each in found)

    def slow(self) -> tuple[StatementStatus, ...]:
        """Return the slow statements, newest first."""
        with self._mutex:
            return tuple(self._slow)

    def _shown(self, statement: "RunningStatement", seconds: float) -> StatementStatus:
        return StatementStatus(
            at=self._clock.now() - timedelta(seconds=seconds),
            session=shown_session(statement.session),
            user=statement.user,
            seconds=round(seconds, 3),
            text=statement.text[:TEXT_CHARACTERS_MAX],
        )


class RunningStatement:
    """A running statement. Every write creates one, so it is as small as possible."""

    __slots__ = ("_log", "number", "session", "started_s", "text", "user")

    def __init__(self, log: StatementLog, session: str, user: str, text: str) -> None:
        self._log = log
        self.session = session
        self.user = user
        self.text = text
        self.number = 0
        self.started_s = 0.0

    def __enter__(self) -> None:
        self._log.begin(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.end(self, failed=kind is not None)


def shown_session(session: str) -> str:
    """Return the part of a session's id that may be shown: it identifies the session, but cannot be
    used as a handle.
    """
    return session[:_SESSION_CHARACTERS]
