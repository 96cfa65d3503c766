"""Execution of a tenant's operations where the tenant has its primary: here, or on another server."""

from collections.abc import Callable

import pyarrow as pa
from google.protobuf.message import Message

from catchment.server.sessions.execution import Execution, StatementRequest
from catchment.server.sessions.session_state import SessionState
from catchment.server.shards import forward
from catchment.server.shards.forward import Forwarding, Rewindable
from catchment.server.shards.peers import PeerSession
from catchment.server.sql.statement_plan import NamedStatement, Plain
from catchment.server.values import Call, IngestTarget, Result, StatementFacts, StatementOutcome


class PlacedExecution:
    """Runs each operation by `here`, or forwards it. What is in a transaction stays here."""

    def __init__(self, here: Execution, state: SessionState, forwarding: Forwarding) -> None:
        self._here = here
        self._state = state
        self._forwarding = forwarding

    def execute(self, request: StatementRequest, call: Call) -> StatementOutcome:
        """Run a statement."""

        def here() -> StatementOutcome:
            return self._here.execute(request, call)

        def there(peer: PeerSession) -> StatementOutcome:
            may_change = forward.may_change(request.step)
            if may_change and isinstance(request.step, Plain | NamedStatement):
                # It may leave state in the connection there, as it may here.
                self._state.has_left_state = True
            return peer.execute(
                request.text,
                call,
                parameters=request.parameters,
                is_update=request.is_update,
                may_change=may_change,
            )

        if self._is_in_transaction(request.transaction):
            return here()
        if forward.begins(request.step):
            return self._forwarding.begin(here, call)
        return self._forwarding.run(here, there, call)

    def prepare(self, text: str, transaction: bytes | None, call: Call) -> StatementFacts:
        """Inspect a text without running it."""
        if self._is_in_transaction(transaction):
            return self._here.prepare(text, transaction, call)
        return self._forwarding.run(
            lambda: self._here.prepare(text, transaction, call), lambda peer: peer.prepare(text, call), call
        )

    def ingest(self, target: IngestTarget, rows: pa.RecordBatchReader, call: Call, transaction: bytes | None) -> int:
        """Write a stream of rows, all of them or none; return their number."""

        def here(given: pa.RecordBatchReader) -> int:
            return self._here.ingest(target, given, call, transaction)

        # The Go driver does not name the transaction here, even if one is open.
        if transaction is not None or self._state.has_transactions:
            return here(rows)
        again = Rewindable(rows)
        return self._forwarding.run(
            lambda: again.read(here),
            lambda peer: again.read(lambda given: peer.ingest(target, given, call)),
            call,
        )

    def begin(self, call: Call) -> bytes:
        """Open a transaction, which is possible on the primary only; return its handle."""
        return self._forwarding.begin(lambda: self._here.begin(call), call)

    def describe(self, command: Message, schema: pa.Schema, answer: Callable[[], Result], call: Call) -> Result:
        """Answer a command about the catalog."""
        return self._forwarding.run(
            lambda: self._here.describe(command, schema, answer, call),
            lambda peer: peer.describe(command, schema, call),
            call,
        )

    def release(self) -> None:
        """Close the session's sessions on other servers."""
        self._forwarding.close()
        self._here.release()

    def _is_in_transaction(self, transaction: bytes | None) -> bool:
        return transaction is not None or self._state.is_in_sql_transaction
