"""Bulk ingest: writes a stream of rows to a lake table or to the queue; all of them, or none."""

from collections import deque
from collections.abc import Iterator

import duckdb
import pyarrow as pa

from catchment.errors import (
    AlreadyExistsError,
    InputError,
    LimitError,
    NotAllowedError,
    TableMissingError,
    TypeConflictError,
)
from catchment.foundation import sql
from catchment.foundation.ids import DEFAULT_SCHEMA, TableId
from catchment.lake.tables import LEDGER_SCHEMA
from catchment.server.encoding import decoded_size
from catchment.server.sessions import bulk, capture, queue_ddl
from catchment.server.sessions.connections import Connection
from catchment.server.sessions.queue_statements import QueueStatements
from catchment.server.sessions.session_state import SessionState
from catchment.server.sessions.statements import Statements
from catchment.server.sessions.transactions import Transaction
from catchment.server.sessions.unstorable_types import InMicroseconds
from catchment.server.sql.statement_plan import FRESH, QUEUE
from catchment.server.values import Call, IfExists, IngestTarget, Role

_ROWS = "catchment_ingested"
# A stream that ends within so many bytes is short. At about 5 MiB, writing a file and registering
# it costs as much CPU as an INSERT; and the sooner a stream is known to be long, the sooner its
# rows are written.
_SHORT_BYTES = 4 * 1024 * 1024
# This much is read before the lake's lock is taken, so that a slow client does not block others.
_AHEAD_BYTES = 64 * 1024 * 1024


def ingest(
    statements: Statements, target: IngestTarget, rows: pa.RecordBatchReader, call: Call, transaction: bytes | None
) -> int:
    """Write the rows and return their number."""
    statements.policy.require(Role.WRITER, "Ingest")
    if _is_temporary(target):
        return _ingest(statements, target, rows, call, transaction)
    stored = InMicroseconds(rows)
    try:
        return _ingest(statements, target, stored.rows(), call, transaction)
    except duckdb.Error:
        # DuckDB reports only that reading the rows failed, not why.
        if stored.failure is not None:
            raise stored.failure from None
        raise


def _ingest(
    statements: Statements, target: IngestTarget, rows: pa.RecordBatchReader, call: Call, transaction: bytes | None
) -> int:
    state, queued = statements.state, statements.queued
    # The Go driver does not name the transaction here, even if one is open.
    joined = state.find(transaction, join=True)
    schema = _schema(state, target)
    if QUEUE in (sql.fold(target.catalog or ""), sql.fold(target.schema or "")):
        _refuse_replacing(target)
        table = queued.spelled(TableId(schema, target.table))
        gathered = _gathered(rows, state.backend.settings.server_write_bytes_max)
        if target.create and queue_ddl.prepare(queued, target, table, gathered, call, joined):
            queue_ddl.enqueue(queued, table, gathered, joined)
            return int(gathered.num_rows)
        return _enqueue(queued, table, gathered, call, joined)
    if sql.fold(schema) == LEDGER_SCHEMA or sql.fold(schema) == FRESH:
        raise NotAllowedError(f"{schema} cannot be written to by clients.")
    if target.catalog and sql.fold(target.catalog) not in (sql.fold(state.lake.name), "temp"):
        raise TableMissingError(f"There is no catalog {target.catalog}.", hint=f"The lake is {state.lake.name}.")
    with state.reading_lake(statements.policy.owner(schema)):
        return _deliver(statements, target, schema, rows, call, joined)


def _deliver(
    statements: Statements,
    target: IngestTarget,
    schema: str,
    rows: pa.RecordBatchReader,
    call: Call,
    joined: Transaction | None,
) -> int:
    """Write the rows to the lake, as files if they are many, or to a temporary table."""
    state, ahead = statements.state, _ReadAhead(rows)
    if (
        ahead.read(_SHORT_BYTES)
        and joined is None
        and target.if_exists is IfExists.APPEND
        and not _is_temporary(target)
    ):
        direct_target = bulk.direct_target(state.lake, TableId(schema, target.table), rows.schema)
        if direct_target is not None:
            return bulk.deliver(state, direct_target, ahead.rows(), call)
    ahead.read(_AHEAD_BYTES)
    with state.connection(joined) as connection:
        state.has_left_state = True
        connection.has_state = connection.has_state or _is_temporary(target)
        if joined is not None:
            joined.prepare_write(call)
            return _write(state, target, schema, ahead.rows(), connection, call)
        with statements.plain.autocommit_write(connection, call):
            return _write(state, target, schema, ahead.rows(), connection, call)


def _schema(state: SessionState, target: IngestTarget) -> str:
    """Return the schema that the rows are written to; the queue is not a schema."""
    given = None if sql.fold(target.schema or "") in ("", QUEUE) else target.schema
    if state.scope is not None:
        return state.scope.own_schema(given, target.table)
    return given or DEFAULT_SCHEMA


def _enqueue(
    queued: QueueStatements, table: TableId, gathered: pa.Table, call: Call, joined: Transaction | None
) -> int:
    try:
        queued.enqueue(table, gathered, joined)
    except TypeConflictError:
        # An INSERT casts more than the queue does.
        columns = queued.queue().columns(table)
        with queued.state.connection(joined) as connection:
            gathered = capture.cast(table, gathered, columns, connection, call)
        queued.enqueue(table, gathered, joined)
    return int(gathered.num_rows)


def _refuse_replacing(target: IngestTarget) -> None:
    if target.if_exists is IfExists.REPLACE:
        raise InputError(f"{QUEUE} cannot replace a table.", hint="Append, or replace the table in the lake.")


def _gathered(rows: pa.RecordBatchReader, bytes_max: int) -> pa.Table:
    batches, size = [], 0
    for batch in rows:
        size += decoded_size.size_of(batch)
        if size > bytes_max:
            raise LimitError(
                f"The rows have more than {bytes_max:,} bytes, the maximum for one write to the queue.",
                hint="Write fewer at a time, or write directly to the table.",
            )
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=rows.schema)


class _ReadAhead:
    """A stream whose first part has been read."""

    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self._rest = rows
        self._first: deque[pa.RecordBatch] = deque()
        self._bytes = 0

    def read(self, size: int) -> bool:
        """Read until more than that many bytes have arrived; False if the stream ends before."""
        while self._bytes <= size:
            try:
                batch = self._rest.read_next_batch()
            except StopIteration:
                return False
            self._first.append(batch)
            self._bytes += batch.nbytes
        return True

    def rows(self) -> pa.RecordBatchReader:
        """Return the whole stream. Can be called once."""
        return pa.RecordBatchReader.from_batches(self._rest.schema, self._all())

    def _all(self) -> Iterator[pa.RecordBatch]:
        while self._first:
            yield self._first.popleft()
        yield from self._rest


def _write(
    state: SessionState,
    target: IngestTarget,
    schema: str,
    rows: pa.RecordBatchReader,
    connection: Connection,
    call: Call,
) -> int:
    is_temporary = _is_temporary(target)
    catalog = "temp" if is_temporary else state.lake.name
    name = sql.qualified(catalog, "main" if is_temporary else schema, target.table)
    exists = queue_ddl.is_in_lake(connection, catalog, TableId("main" if is_temporary else schema, target.table), call)
    if exists and target.if_exists is IfExists.FAIL:
        raise AlreadyExistsError(f"The table {target.table} already exists.")
    if not exists and not target.create:
        raise TableMissingError(f"There is no table {target.table}.")
    with connection.registered(_ROWS, rows, call):
        source = f"FROM {sql.qualified('temp', 'main', _ROWS)}"
        if exists and target.if_exists is IfExists.APPEND:
            try:
                result = connection.table(f"INSERT INTO {name} BY NAME {source}", call)
            except duckdb.BinderException as error:
                if not target.create:
                    raise
                # The existing table differs from the one to be created.
                raise AlreadyExistsError(
                    f"The table {target.table} already exists with other columns: {error}"
                ) from None
        else:
            if exists:
                connection.run(f"DROP TABLE {name}", call)
            result = connection.table(f"CREATE {'TEMP ' if is_temporary else ''}TABLE {name} AS {source}", call)
    return int(result.column(0)[0].as_py())


def _is_temporary(target: IngestTarget) -> bool:
    return target.temporary or sql.fold(target.catalog or "") == "temp"
