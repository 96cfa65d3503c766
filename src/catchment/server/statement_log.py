"""What clients' statements do with the time: those that run, those that took long, and how long all of them took."""

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
TEXT_LETTERS_MAX = 2_000
_SESSION_LETTERS = 6


class StatementLog:
    """Statements of a server, while they run and after. Any thread may ask."""

    def __init__(self, meters: Meters, *, slow_seconds: float, clock: Clock, log_sql: bool = False) -> None:
        """`log_sql` is whether the log may hold the text of statements."""
        self._log_sql = log_sql
        self._meters = meters
        self._slow_seconds = slow_seconds
        self._clock = clock
        self._numbers = count()
        # Written without a lock: each statement has a key of its own.
        self._running: dict[int, RunningStatement] = {}
        self._mutex = threading.Lock()
        self._slow: deque[StatementStatus] = deque(maxlen=SLOW_MAX)

    def running(self, session: str, principal: Principal, text: str) -> "RunningStatement":
        """Note a statement while a block runs it."""
        return RunningStatement(self, session, principal.name, text)

    def begin(self, statement: "RunningStatement") -> None:
        """A statement starts."""
        statement.number, statement.started_s = next(self._numbers), self._clock.monotonic_s()
        self._running[statement.number] = statement

    def end(self, statement: "RunningStatement", *, failed: bool) -> None:
        """A statement is over."""
        del self._running[statement.number]
        seconds = self._clock.monotonic_s() - statement.started_s
        self._meters.statement_seconds.observe(seconds)
        if failed:
            # Which error it was is said once the call ends with it.
            self._meters.statements_failed.add()
        elif events.is_logged(logging.DEBUG):
            said = {"sql": statement.text} if self._log_sql else {}
            events.emit("statement_finished", level=logging.DEBUG, seconds=round(seconds, 4), **said)
        if seconds >= self._slow_seconds:
            with self._mutex:
                self._slow.appendleft(self._shown(statement, seconds))

    def now(self) -> tuple[StatementStatus, ...]:
        """Those that run, the longest first."""
        now_s = self._clock.monotonic_s()
        found = sorted(self._running.copy().values(), key=lambda each: each.started_s)
        return tuple(self._shown(each, now_s - each.started_s) for each in found)

    def slow(self) -> tuple[StatementStatus, ...]:
        """Those that took long, newest first."""
        with self._mutex:
            return tuple(self._slow)

    def _shown(self, statement: "RunningStatement", seconds: float) -> StatementStatus:
        return StatementStatus(
            at=self._clock.now() - timedelta(seconds=seconds),
            session=shown_session(statement.session),
            user=statement.user,
            seconds=round(seconds, 3),
            text=statement.text[:TEXT_LETTERS_MAX],
        )


class RunningStatement:
    """A statement while it runs. Every write is one, so that it is no more than it must be."""

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
    """A session's id as it is shown: enough to tell it from others, too little to call with."""
    return session[:_SESSION_LETTERS]
