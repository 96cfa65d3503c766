"""Plain statements: those that DuckDB runs on the lake, unchanged or with limited catalog lists."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pyarrow as pa

from catchment.errors import ConflictError, LakeUnavailableError, LimitError, NotAllowedError, StateError
from catchment.foundation import sql
from catchment.foundation.ids import DEFAULT_SCHEMA
from catchment.queue import incoming
from catchment.server.encoding import wire
from catchment.server.engine.parsing import ParsedStatement
from catchment.server.sessions import capture, unstorable_types
from catchment.server.sessions.connections import Connection, parameter_row, require_row
from catchment.server.sessions.kept_settings import PATH
from catchment.server.sessions.session_policy import SessionPolicy
from catchment.server.sessions.session_state import SessionState
from catchment.server.sessions.transactions import Transaction, exclusive
from catchment.server.sql.session_settings import is_path, require_harmless_path, session_statement, setting_name
from catchment.server.sql.sql_policy import Permission, StatementKind, transaction_kind
from catchment.server.sql.statement_plan import BOUND, Plain
from catchment.server.values import Call, StatementOutcome, TableResult

# Tokens of statements that create something in their connection only.
_TEMPORARY = frozenset({"temp", "temporary"})


class PlainStatements:
    """Runs the plain statements of one session."""

    def __init__(self, state: SessionState, policy: SessionPolicy) -> None:
        self.state = state
        self.policy = policy

    def run(self, step: Plain, call: Call, transaction: bytes | None, bound: pa.Table | None) -> StatementOutcome:
        """Run a statement; `bound` are the rows of its parameters."""
        state = self.state
        control = transaction_kind(step.tokens)
        if control is StatementKind.ROLLBACK:
            state.parser.statements(step.text)
            if state.roll_back_expired(transaction):
                return StatementOutcome.none()
        elif control is StatementKind.BEGIN:
            state.forget_reported_loss()
        joined = state.find(transaction)
        with self.state.connection(joined) as connection:
            statement, permission = self.policy.authorized(step, connection)
            match permission.kind:
                case StatementKind.READ:
                    if joined is not None:
                        joined.refuse_failed()
                    return self._read(
                        self.policy.readable(step, permission), statement, permission, connection, call, bound
                    )
                case StatementKind.WRITE:
                    if state.scope is not None:
                        step = replace(step, text=state.scope.qualify_created(step.text, step.tokens))
                    if permission.in_transaction and joined is None:
                        raise StateError("The statement has an effect only in a transaction.", hint="BEGIN opens one.")
                    return self._write(step, permission, connection, call, joined, bound)
                case StatementKind.SESSION:
                    self._set(step, connection, call)
                    state.has_left_state = True
        # These acquire connections themselves.
        if permission.kind is StatementKind.BEGIN:
            if joined is not None and transaction is not None and not joined.has_changes:
                # A driver opened it without its client's knowledge.
                return StatementOutcome.none()
            if joined is not None:
                raise StateError("A transaction is already open.", hint="COMMIT or ROLLBACK it first.")
            state.begin_by_sql(call)
        elif permission.kind is not StatementKind.SESSION:
            state.end_by_sql(transaction, commit=permission.kind is StatementKind.COMMIT, call=call)
        return StatementOutcome.none()

    def _set(self, step: Plain, connection: Connection, call: Call) -> None:
        """Change the search path; restore it and refuse the statement if it leaves the lake."""
        scope = self.state.scope
        if scope is not None and scope.allows_search_path(step.text, step.tokens):
            return
        own, name = session_statement(step.text, step.tokens), PATH
        if own is not None:
            name = setting_name(step.tokens)
        elif is_path(step.tokens):
            own = f"USE {sql.identifier(self.state.lake.name)}" if step.tokens[0].text == "reset" else step.text
        else:
            # A variable: its value is in the connection only.
            connection.has_state = True
        connection.run(own or step.text, call)
        if scope is not None:
            if own is not None:
                self.state.settings.keep(name, own, connection)
            return
        path = connection.table("SELECT current_setting('search_path')", call).column(0)[0].as_py()
        try:
            require_harmless_path(path)
        except NotAllowedError:
            connection.run(f"USE {sql.identifier(self.state.lake.name)}", call)
            connection.search_path = (DEFAULT_SCHEMA,)
            raise
        connection.search_path = tuple(sql.fold(each.rpartition(".")[2].strip('" ')) for each in path.split(","))
        if own is not None:
            self.state.settings.keep(name, own, connection)

    def _read(
        self,
        step: Plain,
        statement: ParsedStatement,
        permission: Permission,
        connection: Connection,
        call: Call,
        bound: pa.Table | None,
    ) -> StatementOutcome:
        require_row(bound)
        if bound is None or bound.num_rows == 1:
            row = None if bound is None else parameter_row(statement, bound, 0)
            with ExitStack() as held:
                held.enter_context(self.state.reading_lake(permission.touched))
                result = connection.stream(step.text, call, row)
                result.and_then(held.pop_all().close)
            return StatementOutcome(None, result)
        limit, parts, size = wire.RESULT_BYTES_MAX, [], 0
        with self.state.reading_lake(permission.touched):
            for at in range(bound.num_rows):
                parts.append(connection.table(step.text, call, parameter_row(statement, bound, at)))
                size += parts[-1].nbytes
                if size > limit:
                    raise LimitError(f"The results of all parameter rows have more than {limit:,} bytes.")
        return StatementOutcome(None, TableResult(pa.concat_tables(parts, promote_options="permissive")))

    def _write(
        self,
        step: Plain,
        permission: Permission,
        connection: Connection,
        call: Call,
        transaction: Transaction | None,
        bound: pa.Table | None,
    ) -> StatementOutcome:
        self.state.has_left_state = True
        connection.has_state = connection.has_state or any(token.text in _TEMPORARY for token in step.tokens)
        if transaction is not None:
            transaction.prepare_write(call)
            transaction.touched |= permission.touched
            outcome = self._changed(step, permission, connection, call, bound, on_partial=transaction.fail)
        else:
            with self.state.reading_lake(permission.touched), self.autocommit_write(connection, call):
                outcome = self._changed(step, permission, connection, call, bound)
        return outcome

    @contextmanager
    def autocommit_write(self, connection: Connection, call: Call) -> Iterator[None]:
        """Run one statement in a separate write transaction."""
        with self.state.changing_lake(), self.write_transaction(connection, call):
            yield

    @contextmanager
    def write_transaction(self, connection: Connection, call: Call) -> Iterator[None]:
        """Open a write transaction under the lake's commit lock."""
        lake, backend = self.state.lake, self.state.backend
        if not backend.is_current(connection):
            raise LakeUnavailableError("The lake is unavailable.")
        with exclusive(lake, call, f"a statement of session {self.state.shown_id}"):
            if not backend.is_current(connection):
                raise ConflictError("The lake was opened again while the statement waited.", hint="Run it again.")
            connection.run("BEGIN", call)
            try:
                yield
                call.refuse_stopped()
                connection.origin.refuse_lost()
            except BaseException:
                connection.abandon("The statement failed.")
                connection.roll_back()
                raise
            lake.commit_on(connection.raw, connection.origin)

    def _changed(
        self,
        step: Plain,
        permission: Permission,
        connection: Connection,
        call: Call,
        bound: pa.Table | None,
        *,
        on_partial: Callable[[], None] | None = None,
    ) -> StatementOutcome:
        """Run a statement that changes something, for each bound row.

        `on_partial` is called if only some of the rows succeeded.
        """
        limit = wire.RESULT_BYTES_MAX
        parts: list[pa.Table] = []
        try:
            for part in self._each(step, connection, call, bound):
                parts.append(part)
                if sum(each.nbytes for each in parts) > limit:
                    raise LimitError(f"The rows that the statement returns have more than {limit:,} bytes.")
            unstorable_types.require_storable_table(step, connection, self.state.lake.name, call)
            if step.queued is not None:
                place = sql.qualified(self.state.lake.name, step.queued.schema, step.queued.name)
                incoming.require_queueable(capture.described(f"DESCRIBE {place}", connection, call))
        except BaseException:
            if parts and on_partial is not None:
                on_partial()
            raise
        # An upload without rows runs the statement zero times.
        return _outcome(pa.concat_tables(parts), permission, step) if parts else StatementOutcome.none()

    @staticmethod
    def _each(step: Plain, connection: Connection, call: Call, bound: pa.Table | None) -> Iterator[pa.Table]:
        if bound is None:
            unstorable_types.require_storable_query(step, connection, call)
            yield connection.table(step.text, call)
        elif step.bulk is not None and step.bulk.parameters == bound.num_columns:
            with connection.registered(BOUND, capture.numbered(bound), call):
                yield connection.table(step.bulk.text, call)
        else:
            statement = connection.parser.statements(step.text)[-1]
            # Convert all rows before any is run: one that has no value in Python must fail before
            # the first.
            for row in [parameter_row(statement, bound, at) for at in range(bound.num_rows)]:
                unstorable_types.require_storable_query(step, connection, call, row)
                yield connection.table(step.text, call, row)


def _outcome(result: pa.Table, permission: Permission, step: Plain) -> StatementOutcome:
    if step.returns:
        return StatementOutcome(result.num_rows, TableResult(result))
    if permission.counts and result.num_columns == 1 and result.num_rows:
        return StatementOutcome.changed(sum(result.column(0).to_pylist()))
    return StatementOutcome.none()
