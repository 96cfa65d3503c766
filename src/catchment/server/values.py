"""Values that the server's components exchange: callers, ingest targets, results, calls."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Protocol

import pyarrow as pa

from catchment.errors import CancelledError, StalledError, StateError, TimedOutError
from catchment.tenants.model import TenantId

_NO_COLUMNS = pa.schema([])


class Role(IntEnum):
    """A user's permissions; each role includes those before it."""

    READER = 1
    WRITER = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller; a tenant's user can see only the tenant's tables.

    `credential_version` is a digest that changes with the user's password, role or tenant; None for
    callers that are not in the file of users.
    """

    name: str
    role: Role
    tenant: TenantId | None = None
    credential_version: str | None = field(default=None, compare=False, repr=False)


class IfExists(StrEnum):
    """What an ingest does if its table exists."""

    FAIL = "fail"
    APPEND = "append"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestTarget:
    """The target of a bulk ingest, as the client names it."""

    catalog: str | None
    schema: str | None
    table: str
    create: bool
    if_exists: IfExists
    temporary: bool = False


class Result(Protocol):
    """The rows of a statement: read once, then closed. They are streamed, so memory is bounded."""

    schema: pa.Schema

    def batches(self, call: "Call") -> Iterator[pa.RecordBatch]:
        """Yield the rows; StateError if they have already been read."""

    def close(self) -> None:
        """Discard unread rows. May be called repeatedly."""


class TableResult:
    """A result whose rows are in memory."""

    def __init__(self, table: pa.Table) -> None:
        self.schema: pa.Schema = table.schema
        self._table: pa.Table | None = table

    def batches(self, call: "Call") -> Iterator[pa.RecordBatch]:
        """Yield the rows. Can be called once."""
        del call
        if self._table is None:
            raise StateError("This result has already been read.")
        table, self._table = self._table, None
        yield from table.to_batches()

    def close(self) -> None:
        """Discard the rows."""
        self._table = None


@dataclass(frozen=True, slots=True)
class StatementOutcome:
    """The outcome of a statement: `rows` is the number of changed rows, None for a query."""

    rows: int | None
    result: Result

    @classmethod
    def changed(cls, rows: int) -> "StatementOutcome":
        """Return the outcome of a statement that changed so many rows."""
        return cls(rows, TableResult(_counts(rows)))

    @classmethod
    def none(cls) -> "StatementOutcome":
        """Return the outcome of a statement that counts nothing."""
        return cls(0, TableResult(_counts()))


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFacts:
    """Result columns and parameters of a statement, and whether it changes anything."""

    schema: pa.Schema = _NO_COLUMNS
    parameters: pa.Schema = _NO_COLUMNS
    is_update: bool = False


_current: ContextVar["Call | None"] = ContextVar("catchment_call", default=None)


def current_call() -> "Call | None":
    """Return the call whose statement this thread runs; None outside of statements."""
    return _current.get()


class Call:
    """One call of a client, which can be cancelled and has a deadline."""

    def __init__(self, *, deadline_s: float | None = None) -> None:
        """`deadline_s` is on the monotonic clock."""
        self.deadline_s = deadline_s
        # Name and statement, for the log.
        self.name = ""
        self.text: str | None = None
        # The request's id, as it appears at the client and in the log.
        self.request = ""
        self._mutex = threading.Lock()
        self._interrupt: Callable[[], None] | None = None
        self._reason: type[CancelledError] | None = None

    def cancel(self) -> None:
        """Stop the call: the client has cancelled it, or has disconnected."""
        self._stop(CancelledError)

    def time_out(self) -> None:
        """Stop the call: its time is up."""
        self._stop(TimedOutError)

    def stall(self) -> None:
        """Stop the call: it has waited too long for its client."""
        self._stop(StalledError)

    @contextmanager
    def as_current(self) -> Iterator[None]:
        """Let `current_call` return this call while the block runs."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextmanager
    def interruptible(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Call `interrupt` if the call is stopped during the block; do not start a stopped call."""
        with self._mutex:
            self._refuse_stopped()
            self._interrupt = interrupt
        try:
            yield
        finally:
            # A later cancellation must not hit the next statement on the same connection.
            with self._mutex:
                self._interrupt = None

    def refuse_stopped(self) -> None:
        """Raise the error that stopped the call, if it was stopped."""
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


def running_call() -> Call:
    """Return the call whose statement this thread runs, or a new one, which is never stopped."""
    return current_call() or Call()


@lru_cache(maxsize=64)
def _counts(*rows: int) -> pa.Table:
    return pa.table({"Count": pa.array(rows, pa.int64())})
