"""Incoming rows in Arrow: their columns in DuckDB, and whether they fit a table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import duckdb
import pyarrow as pa

from catchment.errors import InputError, TypeConflictError
from catchment.foundation import sql
from catchment.lake import extensions, reshape, types
from catchment.lake.types import Column
from catchment.queue.buffer import AT, SEQ

_SHAPES_MAX = 1_000
_SMALL_BYTES_MAX = 16 * 1024
_NOT_IN_ARROW = frozenset({"variant"})
# Types all of whose values DuckDB reads unchanged.
_PLAIN = frozenset(
    {
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.uuid(), pa.json_()),
    }
)


def size_of(rows: pa.Table) -> int:
    """Return the rows' size in bytes: exact, unless it is too small to matter.

    Adding up the bytes that slices refer to takes Arrow as long as the rest of a small write.
    """
    size: int = rows.get_total_buffer_size()
    return size if size <= _SMALL_BYTES_MAX else int(rows.nbytes)


def as_table(rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> pa.Table:
    """Return Arrow rows of any form as one table."""
    match rows:
        case pa.Table():
            table = rows
        case pa.RecordBatch():
            table = pa.Table.from_batches([rows])
        case _:
            try:
                table = pa.Table.from_batches(list(rows))
            except (ValueError, TypeError) as error:
                # No batch at all, batches with different schemas, or something other than batches.
                raise InputError(
                    f"These are not Arrow rows: {error}",
                    hint="Pass an Arrow table, such as `pyarrow.Table.from_pylist(rows)`.",
                ) from None
    return table


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns of such rows, as DuckDB reads them."""
    return _columns_of(_shape(schema))


def _shape(schema: pa.Schema) -> bytes:
    """Return a cache key for the whole schema; Arrow's comparison ignores column metadata."""
    return bytes(schema.serialize())


@lru_cache(maxsize=_SHAPES_MAX)
def _columns_of(shape: bytes) -> tuple[Column, ...]:
    schema = pa.ipc.read_schema(pa.py_buffer(shape))
    if len({sql.fold(name) for name in schema.names}) != len(schema.names):
        # DuckDB would rename one of them, possibly to another column of the table.
        raise InputError(f"Two columns of the rows have the same name: {', '.join(schema.names)}.")
    try:
        with extensions.scratch() as connection:
            # A stream without a batch: Arrow cannot create an empty column of an extension type
            # inside another type.
            stream = pa.RecordBatchReader.from_batches(schema, [])
            connection.register("arrived", stream.__arrow_c_stream__())
            found = connection.execute("DESCRIBE FROM arrived").fetchall()
    except (duckdb.Error, pa.ArrowException) as error:
        raise InputError(f"DuckDB cannot read rows of this shape: {error}") from None
    return tuple(Column(name=row[0], type=row[1]) for row in found)


@dataclass(frozen=True, slots=True)
class _Fit:
    """How rows of one schema relate to a table's columns."""

    schema: pa.Schema
    columns: tuple[Column, ...]
    schema_mismatch: str | None
    is_plain: bool
    # Columns that must not be NULL: their names in the rows, and in the table.
    required: dict[str, str]
    # Conditions for values that the lake stores unchanged, by column name in the rows.
    kept: dict[str, str]


# The last fit for each table's columns, by their identity: hashing a schema takes longer than using
# the result.
_latest: dict[int, _Fit] = {}


def _fit(schema: pa.Schema, columns: tuple[Column, ...]) -> _Fit:
    fit = _latest.get(id(columns))
    if fit is None or not fit.schema.equals(schema, check_metadata=True):
        # Keeping a reference ensures that no other columns get their identity.
        fit = replace(_examined(_shape(schema), columns), schema=schema, columns=columns)
        if len(_latest) >= _SHAPES_MAX:
            _latest.clear()
        _latest[id(columns)] = fit
    return fit


@lru_cache(maxsize=_SHAPES_MAX)
def _examined(shape: bytes, columns: tuple[Column, ...]) -> _Fit:
    schema = pa.ipc.read_schema(pa.py_buffer(shape))
    found = {sql.fold(column.name): column.type for column in columns_of(schema)}
    wanted = {sql.fold(column.name): column.type for column in columns}
    names = {sql.fold(name): name for name in schema.names}
    required = [column.name for column in columns if not column.nullable and sql.fold(column.name) in names]
    return _Fit(
        schema=schema,
        columns=columns,
        schema_mismatch=reshape.misfit(columns_of(schema), columns),
        is_plain=found == wanted and all(field.type in _PLAIN for field in schema),
        required={names[sql.fold(name)]: name for name in required},
        kept={
            names[sql.fold(column.name)]: condition
            for column in columns
            if sql.fold(column.name) in names and (condition := types.kept(column)) is not None
        },
    )


def schema_mismatch(schema: pa.Schema, columns: tuple[Column, ...]) -> str | None:
    """Return why such rows cannot be stored in the columns unchanged, or None."""
    return _fit(schema, columns).schema_mismatch


def select_list(schema: pa.Schema, columns: tuple[Column, ...]) -> str:
    """Return expressions that convert such rows to the columns."""
    return ", ".join(reshape.select_list(columns_of(schema), columns))


def needs_no_cast(rows: pa.Table, columns: tuple[Column, ...]) -> bool:
    """Return whether storing the rows later can neither fail nor change a value.

    They need no cast and no default, and their values are valid for their types.
    """
    if not _fit(rows.schema, columns).is_plain:
        return False
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def restored(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Return the rows with the values that plain Arrow carries as text cast to the columns' types.

    Raises InputError if a text cannot be cast. Rows without such texts are returned as they are.
    """
    wanted = {sql.fold(column.name): column.type for column in columns}
    chosen, is_same = [], True
    for have in columns_of(rows.schema):
        name, kind = sql.identifier(have.name), wanted.get(sql.fold(have.name), have.type)
        is_carried = have.type != kind and have.type == types.normal(types.carrier(kind))
        chosen.append(f"CAST({name} AS {kind}) AS {name}" if is_carried else name)
        is_same = is_same and not is_carried
    if is_same:
        return rows
    with extensions.scratch() as connection:
        connection.register("carried", rows.__arrow_c_stream__())
        try:
            return connection.execute(f"SELECT {', '.join(chosen)} FROM carried").to_arrow_table()
        except duckdb.ConversionException as error:
            raise InputError(str(error).partition("\n")[0]) from None
        finally:
            connection.unregister("carried")


def require_values(rows: pa.Table, columns: tuple[Column, ...]) -> None:
    """Refuse NULL in NOT NULL columns, and values that DuckLake would change."""
    fit = _fit(rows.schema, columns)
    for name, column in fit.required.items():
        if rows.column(name).null_count:
            raise InputError(f"Column {column!r} is NOT NULL, but some row has NULL there.")
    if fit.kept:
        _require_kept(rows, fit.kept)


def _require_kept(rows: pa.Table, conditions: Mapping[str, str]) -> None:
    with extensions.scratch() as connection:
        connection.register("arrived", rows.__arrow_c_stream__())
        try:
            checked = ", ".join(f"bool_and({condition})" for condition in conditions.values())
            row = connection.execute(f"SELECT {checked} FROM arrived").fetchone()
        finally:
            connection.unregister("arrived")
    for name, is_kept in zip(conditions, row or (), strict=False):
        if is_kept is False:
            raise InputError(
                f"Column {name!r} has a value that DuckLake would change silently.",
                hint="Parquet stores 128-bit numbers as DOUBLE, intervals in whole milliseconds without a sign, and "
                "times of day with a zone in UTC. Round such values, or make the column VARCHAR or DECIMAL.",
            )


def require_fit(schema: pa.Schema, columns: tuple[Column, ...], *, table: str) -> None:
    """Refuse rows whose schema does not fit the columns unchanged."""
    reason = schema_mismatch(schema, columns)
    if reason is not None:
        raise TypeConflictError(
            f"The rows do not fit {table}: {reason}.", hint="Change the table or the rows, then write again."
        )


def require_queueable(columns: Sequence[Column]) -> None:
    """Refuse columns of a table that the queue cannot accept rows for."""
    refuse_reserved(columns)
    for column in columns:
        types.require_deliverable(column)
    types.require_bounded(columns)
    refuse_unknown(columns)


def refuse_unknown(columns: Iterable[Column]) -> None:
    """Refuse columns of a type that Arrow lacks: the queue stores and passes on its rows in Arrow."""
    for column in columns:
        if types.holds(column.type, _NOT_IN_ARROW):
            raise TypeConflictError(
                f"Column {column.name!r} is {column.type}, which the queue cannot store.",
                hint="INSERT into the table itself instead of the queue, or make the column JSON.",
                column=column.name,
            )


def refuse_reserved(columns: Iterable[Column]) -> None:
    """Refuse columns named like one of the buffer's two internal columns."""
    taken = [column.name for column in columns if sql.fold(column.name) in (SEQ, AT)]
    if taken:
        raise InputError(f"A buffered table cannot have a column {taken[0]!r}: the name is reserved for the queue.")
