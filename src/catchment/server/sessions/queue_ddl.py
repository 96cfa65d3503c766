"""Create tables through the queue: CREATE TABLE duckling_queue.t, with or without AS, and ingests.

The table is created in the lake, as CREATE TABLE would, and the rows go through the queue. The rows
are computed first: a query that fails creates no table. In a transaction, the table is created
within it, and its rows are enqueued at COMMIT.
"""

import duckdb
import pyarrow as pa

from catchment.errors import AlreadyExistsError, CatchmentError, NotAllowedError, NotSupportedError
from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.lake.commit import refuse_ledger
from catchment.queue import incoming
from catchment.server.sessions import capture
from catchment.server.sessions.connections import Connection, require_row
from catchment.server.sessions.queue_statements import QueueStatements
from catchment.server.sessions.transactions import Transaction
from catchment.server.sql.statement_plan import CreateThroughQueue
from catchment.server.sql.syntax import SqlReading
from catchment.server.values import Call, IfExists, IngestTarget, Role


def create(
    queued: QueueStatements, step: CreateThroughQueue, call: Call, joined: Transaction | None, bound: pa.Table | None
) -> int | None:
    """Create the table and return the number of enqueued rows; None if it has no query."""
    queued.policy.require(Role.WRITER, "CREATE TABLE")
    queued.queue()
    require_row(bound)
    if bound is not None and bound.num_rows > 1:
        raise NotSupportedError("CREATE TABLE accepts one row of parameters.")
    state, rows = queued.state, None
    table = step.table if state.scope is None else state.scope.own(step.table)
    refuse_ledger(table)
    text = step.named(sql.qualified(state.lake.name, table.schema, table.name))
    with queued.state.connection(joined) as connection, state.reading_lake(queued.policy.owner(table.schema)):
        exists = is_in_lake(connection, state.lake.name, table, call)
        if not exists:
            _require_allowed(queued, table)
            if step.has_rows:
                rows = _query_rows(queued, step, connection, call, bound)
    if exists and step.if_not_exists:
        return None if step.source is None else 0
    try:
        queued.create_table(table, text, call, joined, bound)
    except duckdb.CatalogException:
        # Another session may have created it after this one checked.
        if step.if_not_exists and _exists_now(queued, table, call, joined):
            return None if step.source is None else 0
        raise
    if rows is not None:
        enqueue(queued, table, rows, joined)
    return rows.num_rows if rows is not None else None if step.source is None else 0


def prepare(
    queued: QueueStatements,
    target: IngestTarget,
    table: TableId,
    rows: pa.Table,
    call: Call,
    joined: Transaction | None,
) -> bool:
    """Create the table for an ingest if the ingest allows it and the table is missing; return
    whether it was created.
    """
    refuse_ledger(table)
    lake = queued.state.lake.name
    with queued.state.connection(joined) as connection:
        if is_in_lake(connection, lake, table, call):
            if target.if_exists is IfExists.FAIL:
                raise AlreadyExistsError(f"The table {table} already exists.")
            return False
    _require_allowed(queued, table)
    columns = incoming.columns_of(rows.schema)
    incoming.require_values(rows, columns)
    listed = ", ".join(column.definition for column in columns)
    place = sql.qualified(lake, table.schema, table.name)
    queued.create_table(table, f"CREATE TABLE {place} ({listed})", call, joined)
    return True


def enqueue(queued: QueueStatements, table: TableId, rows: pa.Table, joined: Transaction | None) -> None:
    """Enqueue the rows of a table that was created for them: at COMMIT if a transaction created it."""
    if joined is not None:
        with queued.state.connection(joined):
            # The queue cannot see the table before COMMIT; `create_table` has checked that it can
            # accept such rows.
            joined.keep(table, rows)
        return
    try:
        queued.enqueue(table, rows, None)
    except CatchmentError as error:
        error.message += f" The table {table} was created, but none of its rows were kept."
        error.hint = f"INSERT the rows, or DROP TABLE {table} and run the statement again."
        raise


def is_in_lake(connection: Connection, lake: str, table: TableId, call: Call) -> bool:
    """Return whether the lake, or `temp`, has the table as the connection sees it. The caller holds
    the connection's lock.
    """
    # Do not use DuckDB's list of tables: DuckLake counts the rows of every table for it. The list
    # of columns also contains views.
    found = connection.table(
        "SELECT 1 FROM duckdb_columns() WHERE database_name = $1 AND lower(schema_name) = lower($2) "
        "AND lower(table_name) = lower($3) AND NOT EXISTS (FROM duckdb_views() WHERE database_name = $1 "
        "AND lower(schema_name) = lower($2) AND lower(view_name) = lower($3)) LIMIT 1",
        call,
        [lake, table.schema, table.name],
    )
    return bool(found.num_rows)


def _exists_now(queued: QueueStatements, table: TableId, call: Call, joined: Transaction | None) -> bool:
    with queued.state.connection(joined) as connection:
        return is_in_lake(connection, queued.state.lake.name, table, call)


def _query_rows(
    queued: QueueStatements, step: CreateThroughQueue, connection: Connection, call: Call, bound: pa.Table | None
) -> pa.Table:
    """Compute the rows of the query, check that the queue can accept them, and name their columns
    as the table does.
    """
    rows, columns = capture.selected(
        step.source or "",
        connection,
        lambda text: queued.policy.permission_for(SqlReading.of(text, queued.state.parser), connection),
        call,
        bound,
    )
    incoming.require_queueable(columns)
    incoming.require_values(rows, columns)
    queued.require_small(rows)
    # If more columns are named than there are, DuckDB refuses to create the table.
    return rows.rename_columns([*step.columns, *rows.column_names[len(step.columns) :]][: rows.num_columns])


def _require_allowed(queued: QueueStatements, table: TableId) -> None:
    if not queued.state.backend.settings.queue_auto_create_tables:
        raise NotAllowedError(
            f"The queue does not create tables on this server, and the lake has no table {table}.",
            hint="CREATE TABLE in the lake itself, or set DUCKLING_QUEUE_AUTO_CREATE_TABLES=true.",
        )
