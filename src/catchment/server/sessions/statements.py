"""Execution of a session's statements, of every kind."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from catchment.errors import (
    CatchmentError,
    ConflictError,
    LakeUnavailableError,
    LimitError,
    NotAllowedError,
    NotSupportedError,
    StateError,
    TableMissingError,
)
from catchment.foundation import sql
from catchment.foundation.ids import DEFAULT_SCHEMA, TableId
from catchment.lake.types import Column
from catchment.queue import DqCoordinator, incoming
from catchment.queue.incoming import size_of
from catchment.server.encoding import wire
from catchment.server.engine.parsing import ParsedStatement
from catchment.server.sessions import (
    buffered_reads,
    capture,
    queue_ddl,
    queue_results,
    touched_tenants,
    unstorable_types,
)
from catchment.server.sessions.connections import Connection, parameter_row, require_row
from catchment.server.sessions.transactions import Transaction, exclusive
from catchment.server.sql import literals
from catchment.server.sql import sql_tokens as scanner
from catchment.server.sql.catalog_lists import Reader, limit_lists
from catchment.server.sql.session_settings import is_path, require_harmless_path, session_statement, setting_name
from catchment.server.sql.sql_policy import Permission, StatementKind, authorize
from catchment.server.sql.statement_plan import (
    BOUND,
    FRESH,
    QUEUE,
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
from catchment.server.sql.syntax import SqlReading
from catchment.server.values import Call, Role, StatementOutcome, TableResult
from catchment.tenants.model import TenantId

if TYPE_CHECKING:
    from catchment.server.sessions.session import Session

# Tokens of statements that create something in their connection only.
_TEMPORARY = frozenset({"temp", "temporary"})
_STORED_MAX = 100
# Schemas that a fresh read names, but reads from elsewhere.
_READ_ELSEWHERE = frozenset({FRESH, QUEUE})
_NO_COUNT = pa.table({"Count": pa.array([], pa.int64())})


class Statements:
    """Runs the statements of one session."""

    def __init__(self, session: "Session") -> None:
        self.session = session

    def run(self, step: Step, call: Call, transaction: bytes | None, bound: pa.Table | None) -> StatementOutcome:
        """Run one statement; `bound` are the rows of its parameters."""
        match step:
            case QueueCommand():
                return self._command(step)
            case RescueCommand():
                return self._rescue(step)
            case Capture():
                return self._capture(step, call, self.session.find(transaction), bound)
            case CreateThroughQueue():
                rows = queue_ddl.create(self, step, call, self.session.find(transaction), bound)
                return StatementOutcome(rows or 0, TableResult(_NO_COUNT if rows is None else _count(rows)))
            case FreshRead():
                return buffered_reads.read(self, step, call, bound)
            case NamedStatement():
                return self._named_statement(step, call, transaction, bound)
            case Plain():
                return self._plain(step, call, transaction, bound)

    # The queue.

    def queue(self) -> DqCoordinator:
        """Return the queue; NotSupportedError if it is switched off."""
        queue = self.session.queue
        if queue is None:
            raise NotSupportedError("The queue is switched off.", hint="Set DUCKLING_QUEUE_ENABLE=true.")
        return queue

    def spelled(self, table: TableId) -> TableId:
        """Return the table as the lake spells it: DuckDB's names are not case-sensitive."""
        return self._target(table)[0]

    def _target(self, table: TableId) -> tuple[TableId, tuple[Column, ...] | None]:
        """Return the table as the lake spells it, and its columns; None if it has none yet."""
        queue, scope = self.queue(), self.session.scope
        if scope is not None:
            table = scope.own(table)
        try:
            return table, queue.columns(table)
        except TableMissingError:
            wanted = (sql.fold(table.schema), sql.fold(table.name))
            same = (
                each for each in self.session.lake.tables() if (sql.fold(each.schema), sql.fold(each.name)) == wanted
            )
            found = next(same, None)
            return (table, None) if found is None else (found, queue.columns(found))
        except CatchmentError:
            # The actual use of the table reports the error.
            return table, None

    def require(self, role: Role, what: str) -> None:
        """Refuse a caller whose role is not sufficient."""
        if self.session.principal.role < role:
            raise NotAllowedError(f"{what} requires the role `{role.name.lower()}`.")

    def _command(self, command: QueueCommand) -> StatementOutcome:
        self._require_operator()
        queue = self.queue()
        if command is QueueCommand.FLUSH:
            if self.session.holds_lock:
                raise StateError("The flush would wait for this session's own transaction.", hint="COMMIT first.")
            return StatementOutcome(None, TableResult(queue_results.flushed(queue.force_flush_all())))
        return StatementOutcome(None, TableResult(queue_results.status(queue.status())))

    def _rescue(self, step: RescueCommand) -> StatementOutcome:
        self._require_operator()
        queue = self.queue()
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
        self.require(Role.ADMIN, "Queue commands")
        if self.session.scope is not None:
            raise NotAllowedError("Queue commands are not available to users of a tenant.")

    def _capture(
        self, step: Capture, call: Call, transaction: Transaction | None, bound: pa.Table | None
    ) -> StatementOutcome:
        self.require(Role.WRITER, "INSERT")
        queue = self.queue()
        table, columns = self._target(step.table)
        if table != step.table:
            step = replace(step, table=table)
        if bound is not None and not bound.num_rows:
            return StatementOutcome(0, TableResult(_count(0)))
        if transaction is not None:
            with self.connection(transaction):
                transaction.refuse_changed(table, call)
        rows = None if columns is None else self._listed_rows(step, columns, bound)
        if rows is None:
            with self.connection(transaction) as connection, self.session.reading_lake():
                rows = capture.inserted(
                    step,
                    queue,
                    connection,
                    lambda text: self.permission_for(SqlReading.of(text, self.session.parser), connection),
                    call,
                    bound=bound,
                    in_transaction=transaction is not None,
                )
        self.enqueue(step.table, rows, transaction)
        return StatementOutcome(rows.num_rows, TableResult(_count(rows.num_rows)))

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
        session, queue = self.session, self.queue()
        self.require_small(rows)
        if not rows.num_rows:
            return
        if transaction is None:
            session.enqueue(table, rows)
        else:
            with self.connection(transaction):
                transaction.refuse_changed(table, Call())
                self._require_existing(table, transaction)
                queue.examine(table, rows, session=session.queue_name)
                transaction.keep(table, rows)

    def require_small(self, rows: pa.Table) -> None:
        """Refuse rows that are too large for one write to the queue."""
        limit, size = self.session.backend.settings.server_write_bytes_max, size_of(rows)
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
        self._plain(step, call, None if transaction is None else transaction.handle, bound)

    def _require_existing(self, table: TableId, transaction: Transaction) -> None:
        """Refuse rows whose table would have to be created while the transaction blocks that."""
        if transaction.has_written:
            try:
                self.queue().columns(table)
            except TableMissingError:
                raise StateError(f"{table} does not exist yet.", hint="COMMIT first, or create it.") from None

    # Statements stored by name.

    def _named_statement(
        self, step: NamedStatement, call: Call, transaction: bytes | None, bound: pa.Table | None
    ) -> StatementOutcome:
        """Store a statement, run a stored one, or forget it. Each run is authorized again."""
        if step.verb == "execute":
            inner = self.stored(step)
            if step.text:
                arguments = self.run(self.session.plan(step.text)[0], call, transaction, bound).result
                bound = pa.Table.from_batches(arguments.batches(call), arguments.schema)
            return self.run(inner, call, transaction, bound)
        stored = self.session.named_statements
        if step.verb == "deallocate":
            self.stored(step)
            stored.pop(step.name, None)
            return StatementOutcome(0, TableResult(_NO_COUNT))
        self._require_storable(step, transaction)
        if step.name not in stored and len(stored) >= _STORED_MAX:
            raise LimitError(f"The session has {_STORED_MAX} prepared statements.", hint="DEALLOCATE one.")
        stored[step.name] = step.text
        self.session.mark_state()
        return StatementOutcome(0, TableResult(_NO_COUNT))

    def stored(self, step: NamedStatement) -> Step:
        """Return the statement that is stored under that name."""
        text = self.session.named_statements.get(step.name)
        if text is None:
            raise StateError(f"There is no prepared statement {step.name}.", hint="PREPARE creates one.")
        return self.session.plan(text)[0]

    def _require_storable(self, step: NamedStatement, transaction: bytes | None) -> None:
        inner = self.session.plan(step.text)[0]
        if isinstance(inner, QueueCommand | NamedStatement):
            raise NotSupportedError("PREPARE supports only queries and statements that change rows.")
        if isinstance(inner, Plain):
            with self.connection(self.session.find(transaction)) as connection:
                kind = self.authorized(inner, connection)[1].kind
            if kind not in (StatementKind.READ, StatementKind.WRITE):
                raise NotSupportedError("PREPARE supports only queries and statements that change rows.")

    # Plain statements.

    def _plain(self, step: Plain, call: Call, transaction: bytes | None, bound: pa.Table | None) -> StatementOutcome:
        session = self.session
        joined = session.find(transaction)
        with self.connection(joined) as connection:
            statement, permission = self.authorized(step, connection)
            match permission.kind:
                case StatementKind.READ:
                    if joined is not None:
                        joined.refuse_failed()
                    return self._read(self.readable(step, permission), statement, permission, connection, call, bound)
                case StatementKind.WRITE:
                    if session.scope is not None:
                        step = replace(step, text=session.scope.qualify_created(step.text, step.tokens))
                    if permission.in_transaction and joined is None:
                        raise StateError("The statement has an effect only in a transaction.", hint="BEGIN opens one.")
                    return self._write(step, permission, connection, call, joined, bound)
                case StatementKind.SESSION:
                    self._set(step, connection, call)
                    session.mark_state()
        # These acquire connections themselves.
        if permission.kind is StatementKind.BEGIN:
            if joined is not None and transaction is not None and not joined.has_changes:
                # A driver opened it without its client's knowledge.
                return StatementOutcome(0, TableResult(_NO_COUNT))
            if joined is not None:
                raise StateError("A transaction is already open.", hint="COMMIT or ROLLBACK it first.")
            session.begin_by_sql(call)
        elif permission.kind is not StatementKind.SESSION:
            session.end_by_sql(transaction, commit=permission.kind is StatementKind.COMMIT, call=call)
        return StatementOutcome(0, TableResult(_NO_COUNT))

    def _set(self, step: Plain, connection: Connection, call: Call) -> None:
        """Change the search path; restore it and refuse the statement if it leaves the lake."""
        scope = self.session.scope
        if scope is not None and scope.allows_search_path(step.text, step.tokens):
            return
        own, name = session_statement(step.text, step.tokens), "search_path"
        if own is not None:
            name = setting_name(step.tokens)
        elif is_path(step.tokens):
            own = f"USE {sql.identifier(self.session.lake.name)}" if step.tokens[0].text == "reset" else step.text
        else:
            # A variable: its value is in the connection only.
            connection.has_state = True
        connection.run(own or step.text, call)
        if scope is not None:
            if own is not None:
                self.session.settings.keep(name, own, connection)
            return
        path = connection.table("SELECT current_setting('search_path')", call).column(0)[0].as_py()
        try:
            require_harmless_path(path)
        except NotAllowedError:
            connection.run(f"USE {sql.identifier(self.session.lake.name)}", call)
            connection.search_path = (DEFAULT_SCHEMA,)
            raise
        connection.search_path = tuple(sql.fold(each.rpartition(".")[2].strip('" ')) for each in path.split(","))
        if own is not None:
            self.session.settings.keep(name, own, connection)

    def authorized(self, step: Plain | FreshRead, connection: Connection) -> tuple[ParsedStatement, Permission]:
        """Return the statement as DuckDB parses it, and its permission."""
        statement = self.session.parser.statements(step.text)[-1]
        reading = SqlReading(statement.type, step.text, step.tokens, self.session.parser)
        fresh = _READ_ELSEWHERE if isinstance(step, FreshRead) else None
        permission = self.permission_for(reading, connection, fresh=fresh, lists_limited=isinstance(step, Plain))
        self._require_macros(permission.macros, connection)
        return statement, permission

    def _require_macros(self, names: frozenset[str], connection: Connection) -> None:
        """Check that table functions that are not DuckDB's are macros of lake or session."""
        if not names:
            return
        scope = self.session.scope
        own = "true" if scope is None else f"(database_name = 'temp' OR schema_name = {sql.literal(scope.schema)})"
        listed = ", ".join(sql.literal(name) for name in sorted(names))
        found = connection.table(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE function_type = 'table_macro' "
            f"AND NOT internal AND {own} AND lower(function_name) IN ({listed})",
            Call(),
        )
        missing = names - set(found.column(0).to_pylist())
        if missing:
            raise duckdb.CatalogException(f"Catalog Error: Table Function with name {min(missing)} does not exist!")

    def permission_for(
        self,
        reading: SqlReading,
        connection: Connection,
        *,
        fresh: frozenset[str] | None = None,
        lists_limited: bool = False,
    ) -> Permission:
        """Return the statement's permission; a tenant's user may name only the tenant's tables.

        For a user without a tenant, all tenants whose tables are named must have their primary
        here. With `lists_limited`, the statement runs as `readable` returns it, and its macros are
        looked up.
        """
        permission = authorize(reading, self.session.principal)
        sees_all = self.session.scope is None and self.session.principal.role >= Role.ADMIN
        if not lists_limited and ((permission.lists and not sees_all) or permission.macros):
            raise NotAllowedError("Catalog lists and table macros can be read only by separate queries.")
        if self.session.scope is not None:
            self.session.scope.examine(reading, fresh=fresh)
        elif touched := self._touched(reading, connection):
            with self.session.reading_lake(touched):
                return replace(permission, touched=touched)
        return permission

    def owner(self, schema: str) -> frozenset[TenantId]:
        """Return the tenant that owns the schema; empty for a tenant's user, or if none owns it."""
        routing = self.session.backend.tenants
        if routing is None or self.session.scope is not None:
            return frozenset()
        return touched_tenants.owner(routing.residents(), schema)

    def _touched(self, reading: SqlReading, connection: Connection) -> frozenset[TenantId]:
        """Return the tenants whose tables a statement names; none for a tenant's user."""
        backend = self.session.backend
        if backend.tenants is None or self.session.scope is not None:
            return frozenset()
        found = backend.tenants.residents()
        return touched_tenants.touched(found, backend.views, reading, connection)

    def readable(self, step: Plain, permission: Permission) -> Plain:
        """Return the query as this session may run it, with catalog lists limited."""
        scope = self.session.scope
        if scope is not None and step.tokens[0].text == "explain":
            step = replace(step, text=scope.qualify_created(step.text, step.tokens))
        if not permission.lists:
            return step
        reader = Reader(self.session.lake.name, None if scope is None else scope.schema)
        return replace(step, text=limit_lists(step.text, step.tokens, reader, self.session.parser))

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
                held.enter_context(self.session.reading_lake(permission.touched))
                result = connection.stream(step.text, call, row)
                result.and_then(held.pop_all().close)
            return StatementOutcome(None, result)
        limit, parts, size = wire.RESULT_BYTES_MAX, [], 0
        with self.session.reading_lake(permission.touched):
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
        self.session.mark_state()
        connection.has_state = connection.has_state or any(token.text in _TEMPORARY for token in step.tokens)
        if transaction is not None:
            transaction.prepare_write(call)
            transaction.touched |= permission.touched
            outcome = self._changed(step, permission, connection, call, bound, on_partial=transaction.fail)
        else:
            with self.session.reading_lake(permission.touched), self.autocommit_write(connection, call):
                outcome = self._changed(step, permission, connection, call, bound)
        connection.succeed()
        return outcome

    @contextmanager
    def autocommit_write(self, connection: Connection, call: Call) -> Iterator[None]:
        """Run one statement in a separate write transaction."""
        with self.session.changing_lake(), self.write_transaction(connection, call):
            yield

    @contextmanager
    def write_transaction(self, connection: Connection, call: Call) -> Iterator[None]:
        """Open a write transaction under the lake's commit lock."""
        lake, backend = self.session.lake, self.session.backend
        if not backend.is_current(connection):
            raise LakeUnavailableError("The lake is unavailable.")
        with exclusive(lake, call, f"a statement of session {self.session.shown_id}"):
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
            unstorable_types.require_storable_table(step, connection, self.session.lake.name, call)
            if step.queued is not None:
                place = sql.qualified(self.session.lake.name, step.queued.schema, step.queued.name)
                incoming.require_queueable(capture.described(f"DESCRIBE {place}", connection, call))
        except BaseException:
            if parts and on_partial is not None:
                on_partial()
            raise
        # An upload without rows runs the statement zero times.
        return _outcome(pa.concat_tables(parts) if parts else _NO_COUNT, permission, step)

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

    @contextmanager
    def connection(self, transaction: Transaction | None) -> Iterator[Connection]:
        """Yield the connection of the transaction, or one for autocommit; its lock is held."""
        if transaction is None:
            with self.session.autocommit_connection() as connection:
                yield connection
        else:
            with transaction.connection.lock:
                transaction.refuse_ended()
                try:
                    yield transaction.connection
                finally:
                    transaction.touched_s = self.session.backend.clock.monotonic_s()


def _outcome(result: pa.Table, permission: Permission, step: Plain) -> StatementOutcome:
    if step.returns:
        return StatementOutcome(result.num_rows, TableResult(result))
    if permission.counts and result.num_columns == 1 and result.num_rows:
        rows = sum(result.column(0).to_pylist())
        return StatementOutcome(rows, TableResult(_count(rows)))
    return StatementOutcome(0, TableResult(_NO_COUNT))


@lru_cache(maxsize=64)
def _count(rows: int) -> pa.Table:
    return pa.table({"Count": pa.array([rows], pa.int64())})
