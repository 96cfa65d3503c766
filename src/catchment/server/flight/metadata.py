"""Answers to catalog commands: catalogs, schemas, tables and their columns, keys, types.

There is one catalog, the lake. Catchment's own schema is not listed. The queue's schema is, with
the tables that have buffered rows: those of the session if the layout separates sessions, otherwise
all. These tables have a separate table type, and the columns of the lake's tables. A tenant's
user sees the tenant's schema and its tables in the queue, and nothing else. DuckLake has no keys.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
from google.protobuf.message import Message

from catchment.flight_protocol import flight_sql_pb2 as commands
from catchment.foundation import sql
from catchment.foundation.ids import DEFAULT_SCHEMA
from catchment.foundation.settings import Settings
from catchment.lake.tables import LEDGER_SCHEMA
from catchment.server.encoding import wire
from catchment.server.flight import sql_info, type_info
from catchment.server.sessions.connections import Connection, Parameters
from catchment.server.sessions.session import Session
from catchment.server.sessions.session_state import SessionState
from catchment.server.sql.statement_plan import QUEUE
from catchment.server.values import Call, Result, TableResult

COMMANDS = (
    commands.CommandGetCatalogs,
    commands.CommandGetDbSchemas,
    commands.CommandGetTables,
    commands.CommandGetTableTypes,
    commands.CommandGetPrimaryKeys,
    commands.CommandGetExportedKeys,
    commands.CommandGetImportedKeys,
    commands.CommandGetCrossReference,
    commands.CommandGetXdbcTypeInfo,
    commands.CommandGetSqlInfo,
)
_QUEUED = "QUEUE"
TABLE_TYPES = ("TABLE", "VIEW", _QUEUED)

_PACKAGE = "catchment.server.flight"
_METADATA = "ARROW:FLIGHT:SQL:"
_SEARCHABLE = {"IS_AUTO_INCREMENT": "0", "IS_CASE_SENSITIVE": "1", "IS_READ_ONLY": "0", "IS_SEARCHABLE": "1"}


def _text(name: str, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, pa.string(), nullable=nullable)


_CATALOGS = pa.schema([_text("catalog_name")])
_SCHEMAS = pa.schema([_text("catalog_name", nullable=True), _text("db_schema_name")])
_TABLES = pa.schema(
    [
        _text("catalog_name", nullable=True),
        _text("db_schema_name", nullable=True),
        _text("table_name"),
        _text("table_type"),
    ]
)
_TABLES_WITH_SCHEMA = _TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
_TABLE_TYPES = pa.schema([_text("table_type")])
_PRIMARY_KEYS = pa.schema(
    [
        _text("catalog_name", nullable=True),
        _text("db_schema_name", nullable=True),
        _text("table_name"),
        _text("column_name"),
        _text("key_name", nullable=True),
        pa.field("key_sequence", pa.int32(), nullable=False),
    ]
)
_FOREIGN_KEYS = pa.schema(
    [
        _text("pk_catalog_name", nullable=True),
        _text("pk_db_schema_name", nullable=True),
        _text("pk_table_name"),
        _text("pk_column_name"),
        _text("fk_catalog_name", nullable=True),
        _text("fk_db_schema_name", nullable=True),
        _text("fk_table_name"),
        _text("fk_column_name"),
        pa.field("key_sequence", pa.int32(), nullable=False),
        _text("fk_key_name", nullable=True),
        _text("pk_key_name", nullable=True),
        pa.field("update_rule", pa.uint8(), nullable=False),
        pa.field("delete_rule", pa.uint8(), nullable=False),
    ]
)


def schema_of(command: Message) -> pa.Schema:
    """Return the columns of the answer to a command."""
    match command:
        case commands.CommandGetCatalogs():
            return _CATALOGS
        case commands.CommandGetDbSchemas():
            return _SCHEMAS
        case commands.CommandGetTables():
            return _TABLES_WITH_SCHEMA if command.include_schema else _TABLES
        case commands.CommandGetTableTypes():
            return _TABLE_TYPES
        case commands.CommandGetPrimaryKeys():
            return _PRIMARY_KEYS
        case commands.CommandGetXdbcTypeInfo():
            return type_info.SCHEMA
        case commands.CommandGetSqlInfo():
            return sql_info.SCHEMA
        case _:
            return _FOREIGN_KEYS


def result(command: Message, session: Session, settings: Settings, call: Call) -> Result:
    """Return the answer to a command; for a tenant, from the tenant's primary."""

    def here() -> Result:
        return TableResult(answer(command, session.state, settings, call))

    return session.describe(command, schema_of(command), here, call)


def answer(command: Message, state: SessionState, settings: Settings, call: Call) -> pa.Table:
    """Return the answer to a command, as of now."""
    lake = settings.lake_name
    match command:
        case commands.CommandGetCatalogs():
            return _table(_CATALOGS, [(lake,)])
        case commands.CommandGetDbSchemas():
            return _table(_SCHEMAS, _schemas(command, state, settings, call))
        case commands.CommandGetTables():
            return _table(schema_of(command), _tables(command, state, lake, call))
        case commands.CommandGetTableTypes():
            return _table(_TABLE_TYPES, [(each,) for each in TABLE_TYPES])
        case commands.CommandGetXdbcTypeInfo():
            return type_info.table(command.data_type if command.HasField("data_type") else None)
        case commands.CommandGetSqlInfo():
            return sql_info.table(tuple(command.info), settings)
        case _:
            return schema_of(command).empty_table()


def _schemas(
    command: commands.CommandGetDbSchemas, state: SessionState, settings: Settings, call: Call
) -> list[tuple[str, str]]:
    if not _includes_lake(command, settings.lake_name):
        return []
    pattern = _given(command, "db_schema_filter_pattern")
    with _snapshot(state, call) as catalog:
        values: dict[str, object] = {
            "lake": settings.lake_name,
            "ledger": LEDGER_SCHEMA,
            "pattern": pattern,
            "own": _own(state),
        }
        found = catalog.rows(sql.statement(_PACKAGE, "metadata_schemas"), values)
        names = [str(name) for (name,) in found if name not in _moved_schemas(state)]
        if settings.queue_enable and QUEUE not in names and catalog.is_like(QUEUE, pattern):
            names.append(QUEUE)
    return [(settings.lake_name, name) for name in sorted(names)]


def _tables(command: commands.CommandGetTables, state: SessionState, lake: str, call: Call) -> list[tuple[object, ...]]:
    if not _includes_lake(command, lake):
        return []
    values: dict[str, object] = {
        "lake": lake,
        "ledger": LEDGER_SCHEMA,
        "schemas": _given(command, "db_schema_filter_pattern"),
        "tables": _given(command, "table_name_filter_pattern"),
        "own": _own(state),
    }
    with _snapshot(state, call) as catalog:
        statement = sql.statement(_PACKAGE, "metadata_tables")
        listed = catalog.rows(statement, {**values, "types": list(command.table_types)})
        away = _moved_schemas(state)
        queued = _queued(command, state, catalog)
        found = sorted(
            [*(each for each in listed if each[0] not in away), *((QUEUE, name, _QUEUED) for name in queued)]
        )
        if not command.include_schema:
            return [(lake, *each) for each in found]
        schemas = _table_schemas(catalog, values)
        if queued:
            every = _table_schemas(catalog, {**values, "schemas": None, "tables": None})
            schemas |= {(QUEUE, name): _renamed(every.get(table), name) for name, table in queued.items()}
    empty = pa.schema([])
    return [(lake, *each, wire.encode_schema(schemas.get(each[:2], empty))) for each in found]


def _queued(command: commands.CommandGetTables, state: SessionState, catalog: "_Catalog") -> dict[str, tuple[str, str]]:
    """Return the tables with buffered rows that the caller can name after `duckling_queue.`, each
    with its table in the lake.
    """
    of_type = not command.table_types or _QUEUED in command.table_types
    if state.queue is None or not of_type:
        return {}
    if not catalog.is_like(QUEUE, _given(command, "db_schema_filter_pattern")):
        return {}
    own, away, pattern = _own(state), _moved_schemas(state), _given(command, "table_name_filter_pattern")
    tables = [state.table for state in state.queue.buffer.tables(state.queue_name) if state.rows]
    seen = [each for each in tables if each.schema not in away and own in (None, each.schema)]
    names = {
        each.name if each.schema == (own or DEFAULT_SCHEMA) else f"{each.schema}.{each.name}": (each.schema, each.name)
        for each in seen
    }
    return {name: table for name, table in names.items() if catalog.is_like(name, pattern)}


def _renamed(columns: pa.Schema | None, name: str) -> pa.Schema:
    """Return the columns of a lake table as those of the queue's table; none if it was dropped."""
    named = {f"{_METADATA}DB_SCHEMA_NAME": QUEUE, f"{_METADATA}TABLE_NAME": name}
    return pa.schema([field.with_metadata({**field.metadata, **named}) for field in columns or ()])


def _table_schemas(catalog: "_Catalog", values: dict[str, object]) -> dict[tuple[str, str], pa.Schema]:
    """Return the columns of all the tables in one pass, by schema and table."""
    columns = catalog.rows(sql.statement(_PACKAGE, "metadata_columns"), values)
    types = _arrow_types(catalog, sorted({kind for _, _, _, kind, *_ in columns}))
    fields: dict[tuple[str, str], list[pa.Field]] = {}
    for schema, table, column, kind, is_nullable, precision, scale, comment in columns:
        facts = {
            "CATALOG_NAME": values["lake"],
            "DB_SCHEMA_NAME": schema,
            "TABLE_NAME": table,
            "TYPE_NAME": kind,
            "PRECISION": precision,
            "SCALE": scale,
            "REMARKS": comment,
            **_SEARCHABLE,
        }
        metadata = {_METADATA + key: str(value) for key, value in facts.items() if value is not None}
        field = pa.field(column, types[kind], nullable=is_nullable, metadata=metadata)
        fields.setdefault((schema, table), []).append(field)
    return {name: pa.schema(own) for name, own in fields.items()}


def _arrow_types(catalog: "_Catalog", names: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the Arrow type that DuckDB produces for each of its types, by name; text if Arrow has
    none.
    """
    if not names:
        return {}
    nulls = ", ".join(f"NULL::{name} AS {sql.identifier(str(at))}" for at, name in enumerate(names))
    try:
        schema = catalog.table(f"SELECT {nulls}").schema
    except (duckdb.Error, pa.ArrowException):
        if len(names) == 1:
            return {names[0]: pa.string()}
        middle = len(names) // 2
        return _arrow_types(catalog, names[:middle]) | _arrow_types(catalog, names[middle:])
    return {name: field.type for name, field in zip(names, schema, strict=True)}


def _own(state: SessionState) -> str | None:
    """Return the only schema that the caller can see, or None if the caller sees all."""
    return None if state.scope is None else state.scope.schema


def _moved_schemas(state: SessionState) -> frozenset[str]:
    """Return the schemas of tenants whose primary is another shard; their tables are not listed."""
    routing = state.backend.tenants
    return frozenset() if routing is None or state.scope is not None else routing.residents().away


class _Catalog:
    """One snapshot of the catalog, read within a call."""

    def __init__(self, connection: Connection, call: Call) -> None:
        self._connection = connection
        self._call = call

    def table(self, statement: str, values: Parameters | None = None) -> pa.Table:
        """Return the rows of a query as Arrow."""
        return self._connection.table(statement, self._call, values)

    def rows(self, statement: str, values: Parameters) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return list(zip(*(column.to_pylist() for column in self.table(statement, values).columns), strict=True))

    def is_like(self, name: str, pattern: str | None) -> bool:
        """Whether a name matches a pattern, as DuckDB matches those of tables."""
        return pattern is None or self.rows("SELECT ? ILIKE ? ESCAPE '\\'", [name, pattern]) == [(True,)]


@contextmanager
def _snapshot(state: SessionState, call: Call) -> Iterator[_Catalog]:
    backend = state.backend
    with backend.snapshot(state.engine) as (raw, origin):
        connection = backend.wrap(raw, origin, state.engine)
        with connection.lock:
            yield _Catalog(connection, call)


def _includes_lake(command: commands.CommandGetDbSchemas | commands.CommandGetTables, lake: str) -> bool:
    """Return whether the lake is among the requested catalogs."""
    return not command.HasField("catalog") or sql.fold(command.catalog) == sql.fold(lake)


def _given(command: Message, field: str) -> str | None:
    return getattr(command, field) if command.HasField(field) else None


def _table(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
