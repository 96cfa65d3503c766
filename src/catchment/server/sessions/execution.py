"""Execution of a session's operations: the contract, and the execution in this server.

Session ──▶ Execution ─┬─ LocalExecution    here
                       └─ PlacedExecution   here, or on the server of the tenant's primary
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from google.protobuf.message import Message

from catchment.server.sessions import ingest, prepared
from catchment.server.sessions.session_state import SessionState
from catchment.server.sessions.statements import Statements
from catchment.server.sql.statement_plan import Step
from catchment.server.values import Call, IngestTarget, Result, StatementFacts, StatementOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRequest:
    """One statement to run: its own text, its step, its transaction, and rows of its parameters.

    With `is_update`, the caller reads only the number of changed rows.
    """

    text: str
    step: Step
    transaction: bytes | None
    parameters: pa.Table | None
    is_update: bool


class Execution(Protocol):
    """Runs the operations of one session. Thread-safe."""

    def execute(self, request: StatementRequest, call: Call) -> StatementOutcome:
        """Run a statement."""

    def prepare(self, text: str, transaction: bytes | None, call: Call) -> StatementFacts:
        """Inspect a text without running it."""

    def ingest(self, target: IngestTarget, rows: pa.RecordBatchReader, call: Call, transaction: bytes | None) -> int:
        """Write a stream of rows, all of them or none; return their number."""

    def begin(self, call: Call) -> bytes:
        """Open a transaction and return its handle."""

    def describe(self, command: Message, schema: pa.Schema, answer: Callable[[], Result], call: Call) -> Result:
        """Answer a command about the catalog, here by `answer`; the answer's columns are `schema`."""

    def release(self) -> None:
        """Release what can be opened again: the client may never return."""


class LocalExecution:
    """Runs the operations of one session in this server, and its engine."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._statements = Statements(state)

    def execute(self, request: StatementRequest, call: Call) -> StatementOutcome:
        """Run a statement."""
        with self._state.redacted_errors():
            return self._statements.run(request.step, call, request.transaction, request.parameters)

    def prepare(self, text: str, transaction: bytes | None, call: Call) -> StatementFacts:
        """Inspect a text without running it."""
        with self._state.reading_lake(), self._state.redacted_errors():
            return prepared.inspect(self._statements, text, transaction, call)

    def ingest(self, target: IngestTarget, rows: pa.RecordBatchReader, call: Call, transaction: bytes | None) -> int:
        """Write a stream of rows, all of them or none; return their number."""
        with self._state.reading_lake(), self._state.redacted_errors():
            return ingest.ingest(self._statements, target, rows, call, transaction)

    def begin(self, call: Call) -> bytes:
        """Open a transaction and return its handle."""
        return self._state.begin(call)

    def describe(self, _command: Message, _schema: pa.Schema, answer: Callable[[], Result], _call: Call) -> Result:
        """Answer a command about the catalog."""
        with self._state.reading_lake():
            return answer()

    def release(self) -> None:
        """Release nothing: all of it belongs to the session."""
