"""Refuses values that DuckLake cannot store: times of day in nanoseconds.

DuckDB has a type for them, TIME_NS, and DuckLake creates columns of it; but DuckDB's Parquet writer
fails internally on the first value, which ends the open transactions of all sessions. Clients send
them often: polars has all times in nanoseconds. Those that are whole microseconds become TIME,
which represents the same values.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress

import duckdb
import pyarrow as pa

from catchment.errors import InputError, TypeConflictError
from catchment.foundation import sql
from catchment.lake import types
from catchment.server.sessions.connections import Connection, Parameters
from catchment.server.sql.sql_tokens import Token
from catchment.server.sql.statement_plan import Plain
from catchment.server.values import Call

_NANOSECONDS = frozenset({"time_ns"})
_HINT = "Cast it to TIME, which has microseconds, or to VARCHAR."
# Changes of depth by brackets.
_DEPTH = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def refusal(column: str) -> TypeConflictError:
    """Return the error for a column that cannot be stored."""
    return TypeConflictError(
        f"Column {column!r} has times in nanoseconds (TIME_NS), which DuckLake cannot store.", hint=_HINT, column=column
    )


class InMicroseconds:
    """A stream of rows with times in microseconds. If reading fails, `failure` has the error."""

    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self.failure: TypeConflictError | None = None
        self._rows = rows
        fields = [field.with_type(_in_microseconds(field.type)) for field in rows.schema]
        self._schema = pa.schema(fields, rows.schema.metadata)
        for field in self._schema:
            if _has_nanoseconds(field.type):
                raise refusal(field.name)

    def rows(self) -> pa.RecordBatchReader:
        """Return the rows. Can be called once."""
        if self._schema == self._rows.schema:
            return self._rows
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows:
            columns = [self._cast(batch.column(at), field) for at, field in enumerate(self._schema)]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self.failure = refusal(field.name)
            raise self.failure from None


def require_storable_query(
    step: Plain, connection: Connection, call: Call, parameters: Parameters | None = None
) -> None:
    """Refuse a CREATE TABLE … AS that returns unstorable values. The caller holds the lock."""
    source = _source(step)
    if source is None:
        return
    found: pa.Schema | None = None
    with suppress(duckdb.Error):
        # An invalid statement reports its error when it runs.
        found = connection.table(f"SELECT * FROM ({source}\n) LIMIT 0", call, parameters).schema
    for field in found or ():
        if _has_nanoseconds(field.type):
            raise refusal(field.name)


def require_storable_table(step: Plain, connection: Connection, lake_name: str, call: Call) -> None:
    """Refuse a table created with unstorable columns; called before COMMIT, under the lock."""
    words = {token.text for token in step.tokens}
    if not _changes_tables(step.tokens) or not words & _NANOSECONDS:
        return
    query = (
        "SELECT table_name, column_name, data_type FROM duckdb_columns() "
        "WHERE database_name = $1 AND contains(data_type, 'TIME_NS')"
    )
    for row in connection.table(query, call, [lake_name]).to_pylist():
        if sql.fold(row["table_name"]) in words and _is_nanoseconds(row["data_type"]):
            raise refusal(row["column_name"])


def _changes_tables(tokens: tuple[Token, ...]) -> bool:
    return bool(tokens) and tokens[0].text in ("create", "alter")


def _is_nanoseconds(type_name: str) -> bool:
    try:
        return types.holds(type_name, _NANOSECONDS)
    except InputError:
        return False


def _source(step: Plain) -> str | None:
    """Return the query of a CREATE TABLE … AS for a table of the lake; otherwise None."""
    if not _changes_tables(step.tokens):
        return None
    depth, words = 0, []
    for token in step.tokens:
        depth += _DEPTH.get(token.text, 0) if not token.is_name else 0
        if depth == 0 and token.is_name and not token.is_quoted:
            words.append(token.text)
            if token.text == "as":
                is_lake_table = "table" in words and not {"temp", "temporary"}.intersection(words)
                source = step.text.encode()[token.start + len(token.text) :].decode()
                return source.rstrip().rstrip(";") if is_lake_table else None
    return None


def _has_nanoseconds(kind: pa.DataType) -> bool:
    if pa.types.is_time64(kind):
        return bool(kind.unit == "ns")
    inner = kind.value_type if pa.types.is_dictionary(kind) else None
    return (inner is not None and _has_nanoseconds(inner)) or any(
        _has_nanoseconds(kind.field(at).type) for at in range(kind.num_fields)
    )


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """Replace nanoseconds by microseconds, at any depth that Arrow can cast."""
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if not _has_nanoseconds(kind):
        return kind
    if pa.types.is_dictionary(kind):
        return _in_microseconds(kind.value_type)
    fields = [_field(kind.field(at)) for at in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field), keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    for is_kind, make in _MAKERS:
        if is_kind(kind):
            return make(fields)
    return kind


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_in_microseconds(field.type))


_MAKERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[list[pa.Field]], pa.DataType]], ...] = (
    (pa.types.is_struct, pa.struct),
    (pa.types.is_list, lambda fields: pa.list_(fields[0])),
    (pa.types.is_large_list, lambda fields: pa.large_list(fields[0])),
)
