"""Rows on their way into the queue: what an INSERT gives, in the shape of its target, without a table to keep it.

The target's shape is a temporary table of the session's own. The INSERT goes into it as it would into the target, so
that columns, their order, defaults, casts and constraints are DuckDB's, and gives back what it inserted; then the
table is emptied again.
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
from catchment.server import sql_tokens as scanner
from catchment.server.connections import Connection, by_place_or_name, python_values
from catchment.server.literals import WHOLE_NUMBERS
from catchment.server.sql_tokens import Token
from catchment.server.statement_plan import BOUND, Bulk, Capture
from catchment.server.values import Call

# Lets a statement through, or refuses it.
Admit = Callable[[duckdb.Statement, str, tuple[Token, ...]], object]
# What DuckDB calls the target in its messages.
_SHAPE_PREFIX = "duckling_queue."


def _shape(table: TableId, columns: tuple[Column, ...], link: Connection, call: Call) -> str:
    """The name of a temporary table with these columns, made where the link has none."""
    name = sql.qualified("temp", "main", f"{_SHAPE_PREFIX}{table.schema}.{table.name}")
    if link.shapes.get(table) != columns:
        listed = ", ".join(column.definition for column in columns)
        link.run(f"CREATE OR REPLACE TEMP TABLE {name} ({listed})", call)
        link.shapes[table] = columns
    return name


def given(bulk: Bulk, rows: pa.Table, columns: tuple[Column, ...]) -> pa.Table | None:
    """Bound rows as rows for the target, where the statement says no more than that; else None."""
    if bulk.plain_columns is None or rows.num_columns != bulk.parameters:
        return None
    names = list(bulk.plain_columns) or [column.name for column in columns]
    if len(names) != rows.num_columns:
        return None
    renamed = _as_whole_numbers(rows.rename_columns(names), columns)
    try:
        incoming.require_fit(renamed.schema, columns, table="")
    except (TypeConflictError, InputError):
        # DuckDB casts more than the queue does: it shall say.
        return None
    return renamed


def _as_whole_numbers(rows: pa.Table, columns: tuple[Column, ...]) -> pa.Table:
    """The rows with whole numbers as wide as their columns, where these hold them: drivers send all as 64 bits."""
    types = {sql.fold(column.name): WHOLE_NUMBERS.get(column.type) for column in columns}
    for at, field in enumerate(rows.schema):
        wanted = types.get(sql.fold(field.name))
        if wanted is not None and field.type != wanted and pa.types.is_integer(field.type):
            with suppress(pa.ArrowInvalid):
                # Where one does not fit, DuckDB says so.
                rows = rows.set_column(at, field.name, rows.column(at).cast(wanted))
    return rows


def inserted(
    step: Capture,
    queue: DqCoordinator,
    link: Connection,
    admit: Admit,
    call: Call,
    *,
    bound: pa.Table | None,
    in_transaction: bool,
) -> pa.Table:
    """What the statement inserts; the link's lock is held by the caller."""
    try:
        columns = queue.columns(step.table)
    except TableMissingError:
        if not step.columns and step.source[:6].casefold() == "values":
            # Nothing says what the columns of a new table would be called.
            raise
        return _selected(step, link, admit, call)
    try:
        rows = _insert(step, columns, link, admit, call, bound, in_transaction=in_transaction)
    except (duckdb.BinderException, duckdb.ConversionException, duckdb.ConstraintException):
        # The table may have changed since it was asked for.
        asked = queue.columns(step.table, ask=True)
        if asked == columns:
            raise
        columns, rows = asked, _insert(step, asked, link, admit, call, bound, in_transaction=in_transaction)
    if queue.columns(step.table) != columns:
        # The rows have the names of columns that may mean others by now. An INSERT into the table fails as well then.
        raise ConflictError(f"{step.table} was changed while the statement ran.", hint="Run it again.")
    return rows


def _insert(
    step: Capture,
    columns: tuple[Column, ...],
    link: Connection,
    admit: Admit,
    call: Call,
    bound: pa.Table | None,
    *,
    in_transaction: bool,
) -> pa.Table:
    shape = _shape(step.table, columns, link, call)
    is_bulk = bound is not None and step.bulk is not None and step.bulk.parameters == bound.num_columns
    _judge(step.into(shape, bulk=is_bulk), link, admit)
    text = step.into(shape, bulk=is_bulk, returning=_carried(columns))
    if not in_transaction:
        link.run("BEGIN", call)
    try:
        return incoming.restored(_run(text, link, call, bound, is_bulk=is_bulk), columns)
    finally:
        # Nothing is to stay in the shape, whatever became of the statement.
        with suppress(duckdb.Error):
            # Where this fails, the transaction has failed, and takes the rows with it.
            link.connection.execute(f"DELETE FROM {shape}" if in_transaction else "ROLLBACK")


def _run(text: str, link: Connection, call: Call, bound: pa.Table | None, *, is_bulk: bool) -> pa.Table:
    if bound is None:
        return link.table(text, call)
    if is_bulk:
        with link.registered(BOUND, numbered(bound), call):
            return link.table(text, call)
    names = link.connection.extract_statements(text)[-1].named_parameters
    rows = [by_place_or_name(names, bound.column_names, row) for row in rows_of(bound)]
    return pa.concat_tables([link.table(text, call, row) for row in rows])


def _carried(columns: Sequence[Column]) -> str:
    """The columns as a statement gives them back without loss: Arrow has no form for every type of a lake."""
    return ", ".join(_carried_as(sql.identifier(column.name), column) for column in columns)


def _carried_as(expression: str, column: Column) -> str:
    carrier, name = types.normal(types.carrier(column.type)), sql.identifier(column.name)
    return f"{expression} AS {name}" if carrier == column.type else f"CAST({expression} AS {carrier}) AS {name}"


def cast(table: TableId, rows: pa.Table, columns: tuple[Column, ...], link: Connection, call: Call) -> pa.Table:
    """Rows in the columns' types, as an INSERT by name would cast them; the link's lock is held by the caller."""
    shape = _shape(table, columns, link, call)
    with link.registered(BOUND, rows, call):
        text = f"INSERT INTO {shape} BY NAME FROM temp.main.{BOUND} RETURNING {_carried(columns)}"
        inserted_rows = link.table(text, call)
        link.run(f"DELETE FROM {shape}", call)
    return incoming.restored(inserted_rows, columns)


def _selected(step: Capture, link: Connection, admit: Admit, call: Call) -> pa.Table:
    """The rows for a table that is still to be made: as the source gives them, under the names that it has."""
    rows, _ = selected(step.source, link, admit, call)
    if step.columns and len(step.columns) != rows.num_columns:
        raise InputError(f"{len(step.columns)} columns are named, and there are {rows.num_columns} values.")
    return rows.rename_columns(list(step.columns)) if step.columns else rows


def selected(
    source: str, link: Connection, admit: Admit, call: Call, bound: pa.Table | None = None
) -> tuple[pa.Table, tuple[Column, ...]]:
    """What a query gives, without loss, and its columns; the link's lock is held by the caller.

    `bound` is one row of parameters.
    """
    text = f"SELECT * FROM ({source}\n)"
    _judge(text, link, admit)
    columns = described(f"DESCRIBE {text}", link, call, bound)
    places = [f"column_{at}" for at in range(len(columns))]
    chosen = ", ".join(_carried_as(place, column) for place, column in zip(places, columns, strict=True))
    rows = _run(f"SELECT {chosen} FROM ({source}\n) AS given({', '.join(places)})", link, call, bound, is_bulk=False)
    return incoming.restored(rows, columns), columns


def described(text: str, link: Connection, call: Call, bound: pa.Table | None = None) -> tuple[Column, ...]:
    """The columns that a DESCRIBE tells of."""
    found = _run(text, link, call, bound, is_bulk=False)
    kinds = zip(found.column("column_name").to_pylist(), found.column("column_type").to_pylist(), strict=True)
    return tuple(Column(name=name, type=types.normal(kind)) for name, kind in kinds)


def _judge(text: str, link: Connection, admit: Admit) -> None:
    admit(link.connection.extract_statements(text)[-1], text, scanner.read(text.encode()))


def numbered(rows: pa.Table) -> pa.Table:
    """The rows with their columns' places for names."""
    return rows.rename_columns([str(at) for at in range(rows.num_columns)])


def rows_of(bound: pa.Table) -> list[Sequence[object]]:
    """The rows as DuckDB's Python takes parameters."""
    columns = [python_values(column) for column in bound.columns]
    return [list(row) for row in zip(*columns, strict=True)]
