"""What the server's parts tell each other: who calls, what is asked, and what comes of it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Protocol

import pyarrow as pa

from catchment.errors import CancelledError, StalledError, TimedOutError
from catchment.tenants.model import TenantId


class Role(IntEnum):
    """What a user may do; each may do what the ones before it may."""

    READER = 1
    WRITER = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls; for a tenant's user there is nothing but the tenant's tables.

    `standing` is something that is another once the user's password, role or tenant is; None for one who is not listed.
    """

    name: str
    role: Role
    tenant: TenantId | None = None
    standing: str | None = field(default=None, compare=False, repr=False)


class IfExists(StrEnum):
    """What an ingest does where its table exists."""

    FAIL = "fail"
    APPEND = "append"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestTarget:
    """Where a bulk ingest goes, in the client's words."""

    catalog: str | None
    schema: str | None
    table: str
    create: bool
    if_exists: IfExists
    temporary: bool = False


class Result(Protocol):
    """The rows of a statement that ran: read once, then closed. Memory is bounded: they come as they are asked for."""

    schema: pa.Schema

    def batches(self, call: "Call") -> Iterator[pa.RecordBatch]:
        """The rows, once; a second reading is StateError."""

    def close(self) -> None:
        """Let go of what is left; no harm if there is nothing."""


@dataclass(frozen=True, slots=True)
class StatementOutcome:
    """What a statement did: `rows` were changed (None where the statement changes none), and `result` can be read."""

    rows: int | None
    result: Result


class Call:
    """One call of a client: it can be cancelled, and it has an end."""

    def __init__(self, *, deadline_s: float | None = None) -> None:
        """`deadline_s` is on the monotonic clock."""
        self.deadline_s = deadline_s
        # What is asked for, and by which statement, for the log.
        self.name = ""
        self.text: str | None = None
        # By what the client, and the log, know it.
        self.request = ""
        self._mutex = threading.Lock()
        self._interrupt: Callable[[], None] | None = None
        self._reason: type[CancelledError] | None = None

    def cancel(self) -> None:
        """The client does not want it any more, or is gone."""
        self._stop(CancelledError)

    def time_out(self) -> None:
        """The call's time is up."""
        self._stop(TimedOutError)

    def stall(self) -> None:
        """The call has waited for its client for too long."""
        self._stop(StalledError)

    @contextmanager
    def interruptible(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Have `interrupt` called if the call is cancelled while the block runs; before it, the block never starts."""
        with self._mutex:
            self._refuse_stopped()
            self._interrupt = interrupt
        try:
            yield
        finally:
            # Whoever cancels after this must not hit the next statement of the same connection.
            with self._mutex:
                self._interrupt = None

    def refuse_stopped(self) -> None:
        """Raise what stopped the call, if anything did."""
        with self._mutex:
            self._refuse_stopped()

    def _refuse_stopped(self) -> None:
        if self._reason is not None:
            raise self._reason

    def _stop(self, reason: type[CancelledError]) -> None:
        with self._mutex:
            self._reason = self._reason or reason
            if self._interrupt is not None:
                self._interrupt()
