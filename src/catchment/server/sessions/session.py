"""Sessions: one for each client, from its first call until it disconnects or expires.

    token ──▶ session ──▶ its state: connection, transactions, settings
                     ├──▶ its execution: here, or on the server of its tenant's primary
                     ├──▶ prepared statements
                     └──▶ results that wait to be read, by ticket

A handle (ticket, transaction, prepared statement) begins with its session's id, so that a client
which sends no token still finds its session. Handles and tokens cannot be guessed.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack

import pyarrow as pa
from google.protobuf.message import Message

from catchment.errors import LimitError, StateError
from catchment.flight_protocol.headers import SHARD
from catchment.server.sessions.backend import Backend
from catchment.server.sessions.execution import Execution, LocalExecution, StatementRequest
from catchment.server.sessions.placed_execution import PlacedExecution
from catchment.server.sessions.prepared import PreparedStatement
from catchment.server.sessions.running_calls import RunningCalls
from catchment.server.sessions.session_state import SessionState
from catchment.server.sessions.waiting_results import WaitingResults
from catchment.server.shards import forward
from catchment.server.shards.forward import Forwarding
from catchment.server.values import Call, IngestTarget, Principal, Result, StatementOutcome, TableResult

PREPARED_MAX = 1_000
_RESULTS_MAX = 64


class Session:
    """One client's session. Several threads may call at once; calls that need the same connection
    wait for each other.
    """

    def __init__(self, session_id: str, principal: Principal, backend: Backend) -> None:
        self.state = SessionState(session_id, principal, backend)
        self.calls = RunningCalls()
        self.touched_s = backend.clock.monotonic_s()
        # Whether its client would get another session under the same token, without noticing.
        self.is_replaceable = False
        # Whether its client has identified itself.
        self.is_logged_in = True
        self._backend = backend
        self._execution = _execution(self.state)
        self._mutex = threading.Lock()
        self._prepared: dict[bytes, PreparedStatement] = {}
        self._waiting = WaitingResults(_RESULTS_MAX)
        self._used = 0
        # Whether it accepts no more calls, and whether its resources are released.
        self._is_over = False
        self._is_closed = False

    @property
    def id(self) -> str:
        """The session's id, with which its handles begin."""
        return self.state.id

    @property
    def shown_id(self) -> str:
        """The id as others may see it."""
        return self.state.shown_id

    @property
    def principal(self) -> Principal:
        """The user it is for."""
        return self.state.principal

    # Its life.

    def begin_use(self) -> None:
        """Keep the session from expiring until `end_use`, because a call uses it."""
        with self._mutex:
            self._refuse_closed()
            self._used += 1

    def end_use(self) -> None:
        """Mark the end of a call's use."""
        with self._mutex:
            self._used -= 1
            self.touched_s = self._backend.clock.monotonic_s()

    @property
    def is_used(self) -> bool:
        """Whether a call is using the session."""
        return self._used > 0

    @property
    def is_stateless(self) -> bool:
        """Whether the session can be closed without losing state."""
        state = self.state
        return not (state.has_transactions or self._prepared or self._waiting or state.has_left_state or self._used)

    @property
    def is_unclaimed(self) -> bool:
        """Whether its client may never return; such a session does not count towards the limit."""
        return self.is_stateless and not self.state.is_kept

    def give_up(self) -> bool:
        """Accept no more calls if no state would be lost; if True, the caller must `close` it."""
        with self._mutex:
            self._is_over = self._is_over or self.is_stateless
            return self._is_over

    def expire_transactions(self, idle_before_s: float) -> int:
        """Roll back transactions that idled since `idle_before_s`, are open for too long, or lost."""
        return self.state.expire_transactions(idle_before_s=None if self._used else idle_before_s)

    def release(self) -> None:
        """Close the session's sessions on other servers: its client may never return."""
        self._execution.release()

    def close(self) -> None:
        """End the session: roll back its transactions, and release its buffered rows for delivery."""
        with self._mutex:
            if self._is_closed:
                return
            self._is_over = self._is_closed = True
        self.calls.cancel_all()
        with ExitStack() as cleanup:
            cleanup.callback(self.state.close)
            cleanup.callback(self.release)
            for outcome in self._waiting.take_all():
                cleanup.callback(outcome.result.close)
        self._prepared.clear()

    def _refuse_closed(self) -> None:
        if self._is_over:
            raise StateError("The session has ended.", hint="Connect again.")

    # What its client calls.

    def execute(
        self,
        text: str,
        call: Call,
        *,
        transaction: bytes | None = None,
        parameters: pa.Table | None = None,
        is_update: bool = False,
    ) -> StatementOutcome:
        """Run the text's statements in order and return the outcome of the last.

        With `is_update`, the caller reads only the number of changed rows.
        """
        self._backend.refuse_suspect(text)
        with self.state.redacted_errors():
            steps = self.state.plan(text)
        if parameters is not None and len(steps) > 1:
            raise StateError("Parameters can be used only with a single statement.")
        outcome: StatementOutcome | None = None
        texts = (text,) if len(steps) == 1 else forward.texts(text)
        for own, step in zip(texts, steps, strict=True):
            if outcome is not None:
                outcome.result.close()
            request = StatementRequest(
                text=own,
                step=step,
                transaction=transaction,
                parameters=parameters,
                is_update=is_update or step is not steps[-1],
            )
            self._refuse_closed()
            with call.as_current():
                outcome = self._execution.execute(request, call)
        if outcome is None:
            raise StateError("The text contains no statement.")
        if isinstance(outcome.result, TableResult):
            # It has run to its end; a stream notes that by itself.
            self._backend.clear_suspect(text)
        return outcome

    def prepare(self, text: str, *, transaction: bytes | None = None, call: Call | None = None) -> PreparedStatement:
        """Inspect a statement, to run it later."""
        self._backend.refuse_suspect(text)
        self._refuse_closed()
        with self._mutex:
            if len(self._prepared) >= PREPARED_MAX:
                raise LimitError(
                    f"The session already has {len(self._prepared):,} prepared statements.", hint="Close some."
                )
        call = call or Call()
        with call.as_current():
            facts = self._execution.prepare(text, transaction, call)
        prepared = PreparedStatement(self.state.new_handle(), text, transaction, facts)
        with self._mutex:
            self._prepared[prepared.handle] = prepared
        return prepared

    def prepared(self, handle: bytes) -> PreparedStatement:
        """Return the prepared statement of that handle."""
        with self._mutex:
            found = self._prepared.get(handle)
        if found is None:
            raise StateError("The prepared statement does not exist.", hint="Prepare it again.")
        return found

    def run_prepared(
        self, prepared: PreparedStatement, call: Call, rows: pa.Table | None = None, *, is_update: bool = False
    ) -> StatementOutcome:
        """Run it as one statement with all passed rows, or with the bound rows if none are passed."""
        return self.execute(
            prepared.text,
            call,
            transaction=self.state.current(prepared.transaction),
            parameters=prepared.parameter_rows(rows),
            is_update=is_update,
        )

    def close_prepared(self, handle: bytes) -> None:
        """Forget a prepared statement."""
        with self._mutex:
            self._prepared.pop(handle, None)

    def begin(self, call: Call | None = None) -> bytes:
        """Open a transaction; for a tenant, only on its primary."""
        self._refuse_closed()
        call = call or Call()
        with call.as_current():
            return self._execution.begin(call)

    def end(self, transaction: bytes, *, commit: bool, call: Call | None = None) -> None:
        """Commit a transaction, or roll it back."""
        call = call or Call()
        with call.as_current():
            self.state.end(transaction, commit=commit, call=call)

    def ingest(
        self, target: IngestTarget, rows: pa.RecordBatchReader, call: Call, *, transaction: bytes | None = None
    ) -> int:
        """Write a stream of rows to a table, or to the queue; all of them, or none."""
        self._refuse_closed()
        with call.as_current():
            return self._execution.ingest(target, rows, call, transaction)

    def describe(self, command: Message, schema: pa.Schema, answer: Callable[[], Result], call: Call) -> Result:
        """Answer a command about the catalog, by `answer` if the tenant has its primary here."""
        self._refuse_closed()
        with call.as_current():
            return self._execution.describe(command, schema, answer, call)

    def keep(self, outcome: StatementOutcome) -> bytes:
        """Keep a result until it is read."""
        handle = self.state.new_handle()
        self._waiting.keep(handle, outcome)
        return handle

    def take(self, handle: bytes) -> StatementOutcome:
        """Return the result that waits under the handle, once."""
        return self._waiting.take(handle)

    def cancel(self, handle: bytes) -> bool:
        """Cancel the operation of the handle; False if there is none."""
        return self.calls.cancel(handle) or self._waiting.discard(handle)


def _execution(state: SessionState) -> Execution:
    """Return the execution for a session: a tenant's are placed, unless another server placed them."""
    here, principal, routing = LocalExecution(state), state.principal, state.backend.tenants
    if routing is None or principal.tenant is None or principal.name == SHARD:
        return here
    return PlacedExecution(here, state, Forwarding(routing, principal.tenant, principal, state.backend.clock))
