"""Rows as they arrive, in Arrow: what their columns are to DuckDB, and whether a table takes them."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import duckdb
import pyarrow as pa

from catchment import sql
from catchment.errors import InputError, TypeConflictError
from catchment.lake import reshape
from catchment.lake.types import Column
from catchment.queue.buffer import AT, SEQ

_SHAPES_MAX = 1_000


def as_table(rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> pa.Table:
    """Arrow rows in any of their forms, as one table."""
    match rows:
        case pa.Table():
            table = rows
        case pa.RecordBatch():
            table = pa.Table.from_batches([rows])
        case _:
            try:
                table = pa.Table.from_batches(list(rows))
            except (ValueError, TypeError) as error:
                # No batch at all, batches of different shapes, or something else than batches.
                raise InputError(f"These are no rows in Arrow: {error}") from None
    return table


@lru_cache(maxsize=_SHAPES_MAX)
def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """The columns of such rows, as DuckDB itself reads them."""
    if len({sql.fold(name) for name in schema.names}) != len(schema.names):
        # DuckDB would give one of them another name, which the table might have.
        raise InputError(f"Two columns of the rows have the same name: {', '.join(schema.names)}.")
    try:
        with duckdb.connect() as connection:
            connection.register("arrived", schema.empty_table())
            found = connection.execute("DESCRIBE FROM arrived").fetchall()
    except (duckdb.Error, pa.ArrowException) as error:
        raise InputError(f"DuckDB cannot read rows of this shape: {error}") from None
    return tuple(Column(name=row[0], type=row[1]) for row in found)


@lru_cache(maxsize=_SHAPES_MAX)
def misfit(schema: pa.Schema, columns: tuple[Column, ...]) -> str | None:
    """Why such rows cannot go into the columns unchanged, or None."""
    return reshape.misfit(columns_of(schema), columns)


@lru_cache(maxsize=_SHAPES_MAX)
def select_list(schema: pa.Schema, columns: tuple[Column, ...]) -> str:
    """Expressions that turn such rows into the columns."""
    return ", ".join(reshape.select_list(columns_of(schema), columns))


def require_values(rows: pa.Table, columns: Sequence[Column]) -> None:
    """Refuse NULL where it must not be: such rows could never be delivered."""
    names = {sql.fold(name): name for name in rows.schema.names}
    for column in columns:
        name = names.get(sql.fold(column.name))
        if not column.nullable and name is not None and rows.column(name).null_count:
            raise InputError(f"Column {column.name!r} is NULL in some row and must not be.")


def require_fit(schema: pa.Schema, columns: tuple[Column, ...], *, table: str) -> None:
    """Refuse rows of a shape that the columns do not take unchanged."""
    reason = misfit(schema, columns)
    if reason is not None:
        raise TypeConflictError(
            f"The rows do not fit {table}: {reason}.", hint="Change the table or the rows, then write again."
        )


def refuse_reserved(columns: Iterable[Column]) -> None:
    """The buffer keeps two columns of its own beside the table's."""
    taken = [column.name for column in columns if sql.fold(column.name) in (SEQ, AT)]
    if taken:
        raise InputError(f"A buffered table cannot have a column {taken[0]!r}: the queue keeps its own there.")
