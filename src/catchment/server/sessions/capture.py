"""Captures the rows of an INSERT into the queue, in the shape of its target table.

The target's shape is a temporary table of the session. The INSERT runs on it as it would on the
target, so that columns, their order, defaults, casts and constraints are DuckDB's, and returns the
inserted rows; then the table is emptied.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import duckdb
import pyarrow as pa

from catchment.errors import ConflictError, InputError, TableMissingError, TypeConflictError
from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.lake import types
from catchment.lake.types import Column
from catchment.queue import DqCoordinator, incoming
from catchment.server.sessions.connections import Connection, by_position_or_name, python_values
from catchment.server.sql.literals import WHOLE_NUMBERS
from catchment.server.sql.statement_plan import BOUND, Bulk, Capture
from catchment.server.values import Call

# Returns if a statement is allowed, raises if not.
Authorize = Callable[[str], object]
# The target's name in DuckDB's messages.
_SHAPE_PREFIX = "duckling_queue."


def _shape(table: TableId, columns: tuple[Column, ...], connection: Connection, call: Call) -> str:
    """Return the name of a temporary table with these columns; create it if necessary."""
    name = sql.qualified("temp", "main", f"{_SHAPE_PREFIX}{table.schema}.{table.name}")
    if connection.shapes.get(table) != columns:
        listed = ", ".join(column.definition for column in columns)
        connection.run(f"CREATE OR REPLACE TEMP TABLE {name} ({listed})", call)
        connection.shapes[table] = columns
    return name


def bound_rows(bulk: Bulk, rows: pa.Table, columns: tuple[Column, ...]) -> pa.Table | None:
    """Return bound rows as rows for the target; None if the statement does more than insert them."""
    if bulk.plain_columns is None or rows.num_columns != bulk.parameters:
        return None
    names = list(bulk.plain_columns) or [column.name for column in columns]
    if len(names) != rows.num_columns:
        return None
    renamed = _as_whole_numbers(rows.rename_columns(names), columns)
    try:
        incoming.require_fit(renamed.schema, columns, table="")
    except (TypeConflictError, InputError):
        # DuckDB casts more than the queue does, and reports values that it cannot cast.
        return None
    return renamed


def _as_whole_numbers(rows: pa.Table, columns: tuple[Column, ...]) -> pa.Table:
    """Cast integers to the width of their columns if they fit: drivers send 64 bits."""
    types = {sql.fold(column.name): WHOLE_NUMBERS.get(column.type) for column in columns}
    for at, field in enumerate(rows.schema):
        wanted = types.get(sql.fold(field.name))
        if wanted is not None and field.type != wanted and pa.types.is_integer(field.type):
            with suppress(pa.ArrowInvalid):
                # If a value does not fit, DuckDB reports it.
                rows = rows.set_column(at, field.name, rows.column(at).cast(wanted))
    return rows


def inserted(
    step: Capture,
    queue: DqCoordinator,
    connection: Connection,
    authorize: Authorize,
    call: Call,
    *,
    bound: pa.Table | None,
    in_transaction: bool,
) -> pa.Table:
    """Return the rows that the statement inserts. The caller holds the connection's lock."""
    try:
        columns = queue.columns(step.table)
    except TableMissingError:
        if not step.columns and step.source[:6].casefold() == "values":
            # The columns of a new table would have no names.
            raise
        return _selected(step, connection, authorize, call)
    try:
        rows = _insert(step, columns, connection, authorize, call, bound, in_transaction=in_transaction)
    except (duckdb.CatalogException, duckdb.BinderException, duckdb.ConversionException, duckdb.ConstraintException):
        # The table may have changed since its columns were read.
        asked = queue.columns(step.table, ask=True)
        if asked == columns:
            raise
        columns, rows = asked, _insert(step, asked, connection, authorize, call, bound, in_transaction=in_transaction)
    if queue.columns(step.table) != columns:
        # The rows have column names that may denote other columns by now. An INSERT into the table
        # fails in this case as well.
        raise ConflictError(f"{step.table} changed while the statement ran.", hint="Run it again.")
    return rows


def _insert(
    step: Capture,
    columns: tuple[Column, ...],
    connection: Connection,
    authorize: Authorize,
    call: Call,
    bound: pa.Table | None,
    *,
    in_transaction: bool,
) -> pa.Table:
    shape = _shape(step.table, columns, connection, call)
    is_bulk = bound is not None and step.bulk is not None and step.bulk.parameters == bound.num_columns
    authorize(step.into(shape, bulk=is_bulk))
    text = step.into(shape, bulk=is_bulk, returning=_lossless(columns))
    if not in_transaction:
        connection.run("BEGIN", call)
    try:
        return incoming.restored(_run(text, connection, call, bound, is_bulk=is_bulk), columns)
    except (duckdb.CatalogException, duckdb.BinderException):
        # The client can see the table, and may have dropped or changed it.
        connection.shapes.pop(step.table, None)
        raise
    finally:
        # Leave no rows in the shape, however the statement ended.
        with suppress(duckdb.Error):
            # If this fails, the transaction has failed, and its rows are gone with it.
            connection.raw.execute(f"DELETE FROM {shape}" if in_transaction else "ROLLBACK")


def _run(text: str, connection: Connection, call: Call, bound: pa.Table | None, *, is_bulk: bool) -> pa.Table:
    if bound is None:
        return connection.table(text, call)
    if is_bulk:
        with connection.registered(BOUND, numbered(bound), call):
            return connection.table(text, call)
    names = connection.parser.statements(text)[-1].named_parameters
    rows = [by_position_or_name(names, bound.column_names, row) for row in rows_of(bound)]
    return pa.concat_tables([connection.table(text, call, row) for row in rows])


def _lossless(columns: Sequence[Column]) -> str:
    """Return a select list without loss: Arrow cannot represent every type of a lake."""
    return ", ".join(_lossless_as(sql.identifier(column.name), column) for column in columns)


def _lossless_as(expression: str, column: Column) -> str:
    carrier, name = types.normal(types.carrier(column.type)), sql.identifier(column.name)
    return f"{expression} AS {name}" if carrier == column.type else f"CAST({expression} AS {carrier}) AS {name}"


def cast(table: TableId, rows: pa.Table, columns: tuple[Column, ...], connection: Connection, call: Call) -> pa.Table:
    """Cast rows to the columns' types, like an INSERT BY NAME. The caller holds the lock."""
    shape = _shape(table, columns, connection, call)
    with connection.registered(BOUND, rows, call):
        text = f"INSERT INTO {shape} BY NAME FROM temp.main.{BOUND} RETURNING {_lossless(columns)}"
        inserted_rows = connection.table(text, call)
        connection.run(f"DELETE FROM {shape}", call)
    return incoming.restored(inserted_rows, columns)


def _selected(step: Capture, connection: Connection, authorize: Authorize, call: Call) -> pa.Table:
    """Return the rows for a table that does not exist yet, with the source's column names."""
    rows, _ = selected(step.source, connection, authorize, call)
    if step.columns and len(step.columns) != rows.num_columns:
        raise InputError(f"{len(step.columns)} columns are listed, but there are {rows.num_columns} values.")
    return rows.rename_columns(list(step.columns)) if step.columns else rows


def selected(
    source: str, connection: Connection, authorize: Authorize, call: Call, bound: pa.Table | None = None
) -> tuple[pa.Table, tuple[Column, ...]]:
    """Return the rows of a query, without loss, and its columns. The caller holds the lock.

    `bound` is one row of parameters.
    """
    text = f"SELECT * FROM ({source}\n)"
    authorize(text)
    columns = described(f"DESCRIBE {text}", connection, call, bound)
    places = [f"column_{at}" for at in range(len(columns))]
    chosen = ", ".join(_lossless_as(place, column) for place, column in zip(places, columns, strict=True))
    rows = _run(
        f"SELECT {chosen} FROM ({source}\n) AS given({', '.join(places)})", connection, call, bound, is_bulk=False
    )
    return incoming.restored(rows, columns), columns


def described(text: str, connection: Connection, call: Call, bound: pa.Table | None = None) -> tuple[Column, ...]:
    """Return the columns that a DESCRIBE lists."""
    found = _run(text, connection, call, bound, is_bulk=False)
    kinds = zip(found.column("column_name").to_pylist(), found.column("column_type").to_pylist(), strict=True)
    return tuple(Column(name=name, type=types.normal(kind)) for name, kind in kinds)


def numbered(rows: pa.Table) -> pa.Table:
    """Rename the columns to their positions."""
    return rows.rename_columns([str(at) for at in range(rows.num_columns)])


def rows_of(bound: pa.Table) -> list[Sequence[object]]:
    """Return the rows as parameters for DuckDB's Python API."""
    columns = [python_values(column) for column in bound.columns]
    return [list(row) for row in zip(*columns, strict=True)]
