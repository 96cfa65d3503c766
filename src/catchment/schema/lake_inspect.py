"""Structure of a lake's schema as DuckLake reports it, and models in DuckLake's types.

DuckLake has neither primary keys nor foreign keys: an `id` is a BIGINT that may not be NULL, and a
relation is a BIGINT with the name of its field. Only the program can ensure that it refers to a
row.

A default is compared by its value: DuckLake stores `7` as `'7'` and `TRUE` as `CAST('t' AS
BOOLEAN)`. So on both sides a constant is written as DuckDB writes the value, in quotes, which is
also the only form that ADD COLUMN accepts.
"""

import json
import re
from collections.abc import Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import Any

import duckdb

from catchment.errors import InputError
from catchment.foundation import sql
from catchment.lake import extensions, types
from catchment.lake.placeholders import has_token
from catchment.schema.models import FieldKind, ModelField, TableRow, checked, table_name
from catchment.schema.structure import DeclaredColumn, DeclaredTable, Structure

TYPES: dict[FieldKind, str] = {
    FieldKind.TEXT: "VARCHAR",
    FieldKind.INTEGER: "BIGINT",
    FieldKind.REAL: "DOUBLE",
    FieldKind.BLOB: "BLOB",
    FieldKind.BOOL: "BOOLEAN",
    FieldKind.DATE: "DATE",
    FieldKind.DATETIME: "TIMESTAMP",
    FieldKind.JSON: "JSON",
    FieldKind.RELATION: "BIGINT",
}
_CONSTANTS_MAX = 1_000
_TEXT = r"'(?:[^']|'')*'"
_CONSTANT = re.compile(
    rf"{_TEXT}|CAST\({_TEXT} AS [^()']+\)|[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?|true|false", re.IGNORECASE
)


def lake_structure(models: Sequence[type[TableRow]]) -> Structure:
    """Return the tables that the models describe, as DuckLake declares them."""
    return Structure(
        tables=tuple(
            DeclaredTable(name=table_name(model), columns=tuple(_expected(model, field) for field in fields))
            for model, fields in checked(models)
        )
    )


def inspect(connection: duckdb.DuckDBPyConnection, lake_name: str, schema: str) -> Structure:
    """Return the tables of the schema, as the connection's transaction sees them."""
    found: dict[str, list[DeclaredColumn]] = {}
    wanted = {"lake": lake_name, "schema": schema}
    rows = connection.execute(sql.statement("catchment.schema", "lake_columns"), wanted).fetchall()
    for table, *facts in rows:
        found.setdefault(table, []).append(_column(*facts))
    return Structure(tables=tuple(DeclaredTable(name=name, columns=tuple(columns)) for name, columns in found.items()))


def described(
    connection: duckdb.DuckDBPyConnection, lake_name: str, schema: str, table: str, *, snapshot: int
) -> DeclaredTable:
    """Return a table as it was at a snapshot."""
    rows = connection.execute(f"DESCRIBE FROM {at(lake_name, schema, table, snapshot=snapshot)}").fetchall()
    columns = tuple(_column(name, kind, null == "YES", default) for name, kind, null, _, default, _ in rows)
    return DeclaredTable(name=table, columns=columns)


def at(lake_name: str, schema: str, table: str, *, snapshot: int) -> str:
    """Return a FROM clause for a table as it was at a snapshot."""
    return f"{sql.qualified(lake_name, schema, table)} AT (VERSION => {snapshot})"


def count_rows(connection: duckdb.DuckDBPyConnection, source: str) -> int:
    """Return the number of rows of anything that a FROM clause accepts."""
    row = connection.execute(f"SELECT count(*) FROM {source}").fetchone()
    return int(row[0]) if row else 0


def _column(name: str, kind: str, nullable: bool, default: str | None) -> DeclaredColumn:
    normal = types.normal(kind)
    return DeclaredColumn(name=name, type=normal, nullable=nullable, default=_by_value(default, normal))


def _by_value(expression: str | None, kind: str) -> str | None:
    """Return a constant default as its value in quotes; any other default unchanged."""
    if expression is None or expression.upper() == "NULL":
        return None
    return _constant(expression, kind) if _CONSTANT.fullmatch(expression) else expression


@lru_cache(maxsize=_CONSTANTS_MAX)
def _constant(expression: str, kind: str) -> str:
    with extensions.scratch() as memory:
        try:
            row = memory.execute(f"SELECT CAST(CAST({expression} AS {kind}) AS VARCHAR)").fetchone()
        except (duckdb.DataError, duckdb.ProgrammingError, duckdb.NotSupportedError):
            # The default was set by hand, and the column cannot store it; it stays unchanged.
            return expression
    return expression if row is None else sql.literal(row[0])


def _expected(model: type[TableRow], field: ModelField) -> DeclaredColumn:
    if field.name == "id":
        return DeclaredColumn(name="id", type="BIGINT", nullable=False)
    kind = TYPES[field.kind]
    default: str | None = None
    if field.has_default:
        default = "NULL" if field.default is None else _by_value(sql.literal(_text(model, field)), kind)
    return DeclaredColumn(name=field.name, type=kind, nullable=field.nullable, default=default)


def _text(model: type[TableRow], field: ModelField) -> str:
    text = _default_text(field.default)
    if text == "NULL" or has_token(text):
        why = "treats it as no default" if text == "NULL" else "replaces the text in its braces"
        raise InputError(
            f"{model.__name__}.{field.name}: {text!r} cannot be a default in a lake, because DuckLake {why}.",
            hint="Give another default, or none.",
        )
    return text


def _default_text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case bytes():
            return "".join(f"\\x{byte:02X}" for byte in value)
        case datetime():
            return value.isoformat(sep=" ")
        case date():
            return value.isoformat()
        case list() | dict():
            return json.dumps(value)
        case _:
            return str(value)
