"""Statements that write to the queue, and the tables that they name."""

from dataclasses import replace

import pyarrow as pa

from catchment.errors import CatchmentError, LimitError, NotSupportedError, StateError, TableMissingError
from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.lake.types import Column
from catchment.queue import DqCoordinator
from catchment.queue.incoming import size_of
from catchment.server.sessions import capture
from catchment.server.sessions.plain_statements import PlainStatements
from catchment.server.sessions.session_policy import SessionPolicy
from catchment.server.sessions.session_state import SessionState
from catchment.server.sessions.transactions import Transaction
from catchment.server.sql import literals
from catchment.server.sql import sql_tokens as scanner
from catchment.server.sql.statement_plan import Capture, Plain
from catchment.server.sql.syntax import SqlReading
from catchment.server.values import Call, Role, StatementOutcome, running_call


class QueueStatements:
    """Runs the statements of one session that write to the queue."""

    def __init__(self, state: SessionState, policy: SessionPolicy, plain: PlainStatements) -> None:
        self.state = state
        self.policy = policy
        self._plain = plain

    def queue(self) -> DqCoordinator:
        """Return the queue; NotSupportedError if it is switched off."""
        queue = self.state.queue
        if queue is None:
            raise NotSupportedError("The queue is switched off.", hint="Set DUCKLING_QUEUE_ENABLE=true.")
        return queue

    def spelled(self, table: TableId) -> TableId:
        """Return the table as the lake spells it: DuckDB's names are not case-sensitive."""
        return self._target(table)[0]

    def _target(self, table: TableId) -> tuple[TableId, tuple[Column, ...] | None]:
        """Return the table as the lake spells it, and its columns; None if it has none yet."""
        queue, scope = self.queue(), self.state.scope
        if scope is not None:
            table = scope.own(table)
        try:
            return table, queue.columns(table)
        except TableMissingError:
            wanted = (sql.fold(table.schema), sql.fold(table.name))
            same = (each for each in self.state.lake.tables() if (sql.fold(each.schema), sql.fold(each.name)) == wanted)
            found = next(same, None)
            return (table, None) if found is None else (found, queue.columns(found))
        except CatchmentError:
            # The actual use of the table reports the error.
            return table, None

    def capture(
        self, step: Capture, call: Call, transaction: Transaction | None, bound: pa.Table | None
    ) -> StatementOutcome:
        """Run an INSERT into the queue; `bound` are the rows of its parameters."""
        self.policy.require(Role.WRITER, "INSERT")
        queue = self.queue()
        table, columns = self._target(step.table)
        if table != step.table:
            step = replace(step, table=table)
        if bound is not None and not bound.num_rows:
            return StatementOutcome.changed(0)
        if transaction is not None:
            with self.state.connection(transaction):
                transaction.refuse_changed(table, call)
        rows = None if columns is None else self._listed_rows(step, columns, bound)
        if rows is None:
            with self.state.connection(transaction) as connection, self.state.reading_lake():
                rows = capture.inserted(
                    step,
                    queue,
                    connection,
                    lambda text: self.policy.permission_for(SqlReading.of(text, self.state.parser), connection),
                    call,
                    bound=bound,
                    in_transaction=transaction is not None,
                )
        self.enqueue(step.table, rows, transaction)
        return StatementOutcome.changed(rows.num_rows)

    @staticmethod
    def _listed_rows(step: Capture, columns: tuple[Column, ...], bound: pa.Table | None) -> pa.Table | None:
        """Return the rows if the statement only lists them; otherwise None."""
        if bound is not None and (step.bulk is None or step.bulk.plain_columns is None):
            return None
        if bound is None:
            found = literals.rows(step.source, step.columns, columns)
            is_null = found is not None and any(
                not column.nullable and column.name in found.column_names and found[column.name].null_count
                for column in columns
            )
            return None if is_null else found
        return None if step.bulk is None else capture.bound_rows(step.bulk, bound, columns)

    def enqueue(self, table: TableId, rows: pa.Table, transaction: Transaction | None) -> None:
        """Write rows to the queue, now or at COMMIT."""
        queue = self.queue()
        self.require_small(rows)
        if not rows.num_rows:
            return
        if transaction is None:
            self.state.enqueue(table, rows)
        else:
            with self.state.connection(transaction):
                transaction.refuse_changed(table, running_call())
                self._require_existing(table, transaction)
                queue.examine(table, rows, session=self.state.queue_name)
                transaction.keep(table, rows)

    def require_small(self, rows: pa.Table) -> None:
        """Refuse rows that are too large for one write to the queue."""
        limit, size = self.state.backend.settings.server_write_bytes_max, size_of(rows)
        if size > limit:
            raise LimitError(
                f"The rows have {size:,} bytes, but the maximum for one write to the queue is {limit:,}.",
                hint="Write fewer at a time, or write directly to the table.",
            )

    def create_table(
        self, table: TableId, text: str, call: Call, transaction: Transaction | None, bound: pa.Table | None = None
    ) -> None:
        """Run a CREATE TABLE in the lake for a table that the queue must accept rows for."""
        step = Plain(text, scanner.read(text.encode()), queued=table)
        self._plain.run(step, call, None if transaction is None else transaction.handle, bound)

    def _require_existing(self, table: TableId, transaction: Transaction) -> None:
        """Refuse rows whose table would have to be created while the transaction blocks that."""
        if transaction.has_written:
            try:
                self.queue().columns(table)
            except TableMissingError:
                raise StateError(f"{table} does not exist yet.", hint="COMMIT first, or create it.") from None
