"""Execution of a session's statements, of every kind."""

import pyarrow as pa

from catchment.errors import LimitError, NotAllowedError, NotSupportedError, StateError
from catchment.server.sessions import buffered_reads, queue_ddl, queue_results
from catchment.server.sessions.plain_statements import PlainStatements
from catchment.server.sessions.queue_statements import QueueStatements
from catchment.server.sessions.session_policy import SessionPolicy
from catchment.server.sessions.session_state import SessionState
from catchment.server.sql.sql_policy import StatementKind
from catchment.server.sql.statement_plan import (
    Capture,
    CreateThroughQueue,
    FreshRead,
    NamedStatement,
    Plain,
    QueueCommand,
    Rescue,
    RescueCommand,
    Step,
)
from catchment.server.values import Call, Role, StatementOutcome, TableResult

_STORED_MAX = 100


class Statements:
    """Runs the statements of one session."""

    def __init__(self, state: SessionState) -> None:
        self.state = state
        self.policy = SessionPolicy(state)
        self.plain = PlainStatements(state, self.policy)
        self.queued = QueueStatements(state, self.policy, self.plain)

    def run(self, step: Step, call: Call, transaction: bytes | None, bound: pa.Table | None) -> StatementOutcome:
        """Run one statement; `bound` are the rows of its parameters."""
        match step:
            case QueueCommand():
                return self._command(step)
            case RescueCommand():
                return self._rescue(step)
            case Capture():
                return self.queued.capture(step, call, self.state.find(transaction), bound)
            case CreateThroughQueue():
                rows = queue_ddl.create(self.queued, step, call, self.state.find(transaction), bound)
                return StatementOutcome.none() if rows is None else StatementOutcome.changed(rows)
            case FreshRead():
                return buffered_reads.read(self.queued, step, call, bound)
            case NamedStatement():
                return self._named_statement(step, call, transaction, bound)
            case Plain():
                return self.plain.run(step, call, transaction, bound)

    def _command(self, command: QueueCommand) -> StatementOutcome:
        self._require_operator()
        queue = self.queued.queue()
        if command is QueueCommand.FLUSH:
            if self.state.holds_lock:
                raise StateError("The flush would wait for this session's own transaction.", hint="COMMIT first.")
            return StatementOutcome(None, TableResult(queue_results.flushed(queue.force_flush_all())))
        return StatementOutcome(None, TableResult(queue_results.status(queue.status())))

    def _rescue(self, step: RescueCommand) -> StatementOutcome:
        self._require_operator()
        queue = self.queued.queue()
        with queue.stranded(step.table) as rows:
            match step.action:
                case Rescue.COUNT:
                    found = rows.facts
                case Rescue.EXPORT:
                    found = rows.export()
                case Rescue.DISCARD:
                    found = rows.discard()
                case Rescue.REDIRECT:
                    found = rows.redirect(queue.flusher, step.into or step.table)
        return StatementOutcome(None, TableResult(queue_results.stranded(found)))

    def _require_operator(self) -> None:
        self.policy.require(Role.ADMIN, "Queue commands")
        if self.state.scope is not None:
            raise NotAllowedError("Queue commands are not available to users of a tenant.")

    def _named_statement(
        self, step: NamedStatement, call: Call, transaction: bytes | None, bound: pa.Table | None
    ) -> StatementOutcome:
        """Store a statement, run a stored one, or forget it. Each run is authorized again."""
        if step.verb == "execute":
            inner = self.stored(step)
            if step.text:
                arguments = self.run(self.state.plan(step.text)[0], call, transaction, bound).result
                bound = pa.Table.from_batches(arguments.batches(call), arguments.schema)
            return self.run(inner, call, transaction, bound)
        stored = self.state.named_statements
        if step.verb == "deallocate":
            self.stored(step)
            stored.pop(step.name, None)
            return StatementOutcome.none()
        self._require_storable(step, transaction)
        if step.name not in stored and len(stored) >= _STORED_MAX:
            raise LimitError(f"The session has {_STORED_MAX} prepared statements.", hint="DEALLOCATE one.")
        stored[step.name] = step.text
        self.state.has_left_state = True
        return StatementOutcome.none()

    def stored(self, step: NamedStatement) -> Step:
        """Return the statement that is stored under that name."""
        text = self.state.named_statements.get(step.name)
        if text is None:
            raise StateError(f"There is no prepared statement {step.name}.", hint="PREPARE creates one.")
        return self.state.plan(text)[0]

    def _require_storable(self, step: NamedStatement, transaction: bytes | None) -> None:
        inner = self.state.plan(step.text)[0]
        if isinstance(inner, QueueCommand | NamedStatement):
            raise NotSupportedError("PREPARE supports only queries and statements that change rows.")
        if isinstance(inner, Plain):
            with self.state.connection(self.state.find(transaction)) as connection:
                kind = self.policy.authorized(inner, connection)[1].kind
            if kind not in (StatementKind.READ, StatementKind.WRITE):
                raise NotSupportedError("PREPARE supports only queries and statements that change rows.")
