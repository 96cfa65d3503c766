"""The lake's tables as values: columns, partitioning, order, and the folder of their files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from catchment.errors import InvariantError, NotSupportedError, TableMissingError
from catchment.foundation import sql
from catchment.foundation.ids import DEFAULT_SCHEMA, TableId
from catchment.lake import expressions, types
from catchment.lake.types import Column, Field

PACKAGE = "catchment.lake"
LEDGER_SCHEMA = "_catchment"
# Characters of an expression that an error shows.
_SHOWN_MAX = 200
_DATE_PARTS = frozenset({"year", "month", "day", "hour"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKey:
    """A column, or a transform of one, that the table's files are split by."""

    column: str
    transform: str = "identity"

    @property
    def is_transform(self) -> bool:
        """Whether the files are split by a function of the column's value."""
        return self.transform != "identity"

    @property
    def clause(self) -> str:
        """The key as written in SET PARTITIONED BY; the catalog stores a bucket as `bucket(8)`."""
        return self._applied(sql.identifier(self.column))

    @property
    def folder(self) -> str:
        """The key's name in a registered file's `key=value` folder."""
        return self.transform if self.is_transform else self.column

    def __str__(self) -> str:
        return self._applied(self.column)

    def _applied(self, name: str) -> str:
        if not self.is_transform:
            return name
        function, _, count = self.transform.rstrip(")").partition("(")
        return f"{function}({count}, {name})" if count else f"{function}({name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SortKey:
    """An expression that the table's files are ordered by."""

    expression: str
    descending: bool = False
    nulls_first: bool = False

    @property
    def is_computable(self) -> bool:
        """Whether it may be computed outside an engine."""
        return expressions.is_computable_key(self.expression)

    @property
    def clause(self) -> str:
        """The key as written in ORDER BY."""
        way = "DESC" if self.descending else "ASC"
        return f"{self.expression} {way} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the lake as the catalog describes it, at one version of the lake's schema.

    If `encrypted`, the lake encrypts its data files, each with its own key in the catalog.
    """

    id: TableId
    uuid: str
    folder: str
    columns: tuple[Column, ...]
    partition_by: tuple[PartitionKey, ...] = ()
    sort_by: tuple[SortKey, ...] = ()
    encrypted: bool = False
    schema_version: int | None = field(default=None, compare=False)

    @property
    def insert_reason(self) -> str | None:
        """Why rows must be inserted instead of registered as files; None if they need not be."""
        if self.encrypted:
            return "the lake encrypts its files"
        if not self._keys_are_in_folders():
            keys = ", ".join(str(key) for key in self.partition_by)
            return f"it is partitioned by {keys}, which registered files cannot carry"
        return next((reason for column in self.columns if (reason := types.insert_reason(column)) is not None), None)

    def require_computable(self) -> "Table":
        """Return the table; refuse one whose expressions only an engine may compute."""
        require_computable(self.id, self.columns, self.sort_by)
        return self

    def _keys_are_in_folders(self) -> bool:
        """Return whether folder names can represent the keys: all columns, or all parts of a date.

        DuckLake confuses several keys of one column, and reads a folder named like a column as that
        column. Parts of a TIMESTAMPTZ depend on the session, and buckets on DuckLake.
        """
        kinds = {sql.fold(column.name): types.parse(column.type).id for column in self.columns}
        columns = {sql.fold(key.column) for key in self.partition_by}
        if not any(key.is_transform for key in self.partition_by):
            # Folder names cannot represent nested values.
            return not any(kinds.get(column) in types.NESTED for column in columns)
        folders = {sql.fold(key.folder) for key in self.partition_by}
        return (
            all(key.transform in _DATE_PARTS for key in self.partition_by)
            and all(kinds.get(column) in ("date", "timestamp") for column in columns)
            and len(columns) == len(folders) == len(self.partition_by)
            and not folders & kinds.keys()
        )


def uncomputable(columns: Iterable[Column], sort_by: Iterable[SortKey]) -> str | None:
    """Return the default or sort key that only an engine may compute; None if there is none."""
    for column in columns:
        if column.default is not None and not expressions.is_computable_default(column.default):
            return f"DEFAULT {column.default}"
    return next((f"SORTED BY {key.expression}" for key in sort_by if not key.is_computable), None)


def require_computable(table: TableId, columns: Iterable[Column], sort_by: Iterable[SortKey]) -> None:
    """Refuse a table with a default or sort key that only an engine may compute."""
    found = uncomputable(columns, sort_by)
    if found is not None:
        raise NotSupportedError(
            f"Table {table} has {found[:_SHOWN_MAX]}, which is computed for clients' own statements only.",
            hint="INSERT into the table itself through a server, or change that expression.",
        )


def metadata_of(lake_name: str) -> str:
    """Return the name under which DuckLake attaches the catalog database itself."""
    return f"__ducklake_metadata_{lake_name}"


def list_tables(connection: duckdb.DuckDBPyConnection, lake_name: str) -> tuple[TableId, ...]:
    """Return every user table of the catalog."""
    found = (each for each in list_uuids(connection, lake_name) if each.schema != LEDGER_SCHEMA)
    return tuple(sorted(found, key=lambda table: (table.schema, table.name)))


def has_table(connection: duckdb.DuckDBPyConnection, lake_name: str, table: TableId) -> bool:
    """Return whether the connection's transaction sees a table or view of that name."""
    try:
        connection.execute(f"DESCRIBE {sql.qualified(lake_name, table.schema, table.name)}")
    except duckdb.CatalogException:
        return False
    return True


def list_uuids(connection: duckdb.DuckDBPyConnection, lake_name: str) -> dict[TableId, str]:
    """Return every table's uuid, which differs from that of a dropped table of the same name."""
    text = sql.statement(PACKAGE, "table_uuids", metadata=metadata_of(lake_name))
    return {TableId(schema, name): uuid for schema, name, uuid in connection.execute(text).fetchall()}


def created_by(connection: duckdb.DuckDBPyConnection, lake_name: str, info: str) -> dict[TableId, str]:
    """Return the tables, with uuids, that the commit with this provenance created, if any."""
    text = sql.statement(PACKAGE, "table_created_by", metadata=metadata_of(lake_name))
    return {TableId(schema, name): uuid for schema, name, uuid in connection.execute(text, [info]).fetchall()}


def identity_of(connection: duckdb.DuckDBPyConnection, lake_name: str) -> str:
    """Return the id of the lake's first schema, which is unique to the lake."""
    query = (
        f"SELECT schema_uuid FROM {metadata_of(lake_name)}.ducklake_schema "
        f"WHERE schema_name = {sql.literal(DEFAULT_SCHEMA)} AND end_snapshot IS NULL"
    )
    row = connection.execute(query).fetchone()
    return str(row[0]) if row else ""


def newest_schema(connection: duckdb.DuckDBPyConnection, lake_name: str, *, since: int = 0) -> tuple[int, int]:
    """Return the newest snapshot, and the schema version, which grows with every schema change.

    With `since`, an earlier newest snapshot, only later snapshots are read from the catalog.
    """
    snapshots = f"{metadata_of(lake_name)}.ducklake_snapshot WHERE snapshot_id >= {since}"
    row = connection.execute(f"SELECT max(snapshot_id), max(schema_version) FROM {snapshots}").fetchone()
    if row is None or row[0] is None:
        # An older backup of the catalog was restored.
        return newest_schema(connection, lake_name) if since else (0, 0)
    return int(row[0]), int(row[1])


def snapshot_of(connection: duckdb.DuckDBPyConnection, lake_name: str) -> int:
    """Return the snapshot at which the connection's whole transaction sees the lake's tables."""
    row = connection.execute(f"SELECT id FROM {sql.identifier(lake_name)}.current_snapshot()").fetchone()
    if row is None:
        raise InvariantError(f"A transaction on {lake_name} has no snapshot.")
    return int(row[0])


def is_encrypted(connection: duckdb.DuckDBPyConnection, lake_name: str) -> bool:
    """Return whether the lake encrypts its data files; fixed when the lake is created."""
    query = f"SELECT value FROM {metadata_of(lake_name)}.ducklake_metadata WHERE key = 'encrypted'"
    return connection.execute(query).fetchall() == [("true",)]


def find_table(
    connection: duckdb.DuckDBPyConnection, lake_name: str, table: TableId, *, data_path: str
) -> Table | None:
    """Return the table, or None if the lake has none of that name."""
    # Small statements on the catalog's own tables: as one statement they take twice as long, mostly
    # for planning, and DuckDB's own lists cover all attached databases.
    catalog = _Catalog(connection, lake_name)
    places = catalog.rows("table_place", table.schema, table.name)
    if not places:
        return None
    table_id, uuid, folder, schema_version, encrypted = _one(places, table)
    try:
        columns = connection.execute(f"DESCRIBE {sql.qualified(lake_name, table.schema, table.name)}").fetchall()
    except duckdb.CatalogException:
        # The connection's own transaction has dropped it.
        return None
    fields = catalog.rows("table_fields", table_id)
    names = {field: name for field, _, name, _ in fields}
    known = _fields_by_name(fields)
    unbounded = catalog.without_bounds(table_id, fields)
    return Table(
        id=table,
        uuid=uuid,
        folder=folder if folder.startswith("/") or "://" in folder else f"{data_path.rstrip('/')}/{folder}",
        columns=tuple(
            Column(
                name=name,
                type=types.normal(kind),
                nullable=nullable == "YES",
                default=_default(default),
                initial=known[name].initial if name in known else None,
                unbounded=name in unbounded,
                # A column that the connection's own transaction added or renamed has no known field
                # yet.
                table_uuid=uuid,
                lake_field=known.get(name),
            )
            for name, kind, nullable, _, default, _ in columns
        ),
        partition_by=tuple(
            PartitionKey(column=names[field], transform=transform)
            for field, transform in catalog.rows("table_partition", table_id)
        ),
        sort_by=tuple(
            SortKey(expression=expression, descending=direction == "DESC", nulls_first=nulls == "NULLS_FIRST")
            for expression, direction, nulls in catalog.rows("table_order", table_id)
        ),
        encrypted=bool(encrypted),
        schema_version=schema_version,
    )


def is_as_it_was(connection: duckdb.DuckDBPyConnection, lake_name: str, table: Table) -> bool:
    """Return whether no table's schema changed since this one was read; cheaper than reading it."""
    places = _Catalog(connection, lake_name).rows("table_place", table.id.schema, table.id.name)
    return [(uuid, version) for _, uuid, _, version, _ in places] == [(table.uuid, table.schema_version)]


def changes_since(connection: duckdb.DuckDBPyConnection, lake_name: str, table: Table, snapshot_id: int) -> int:
    """Return the number of snapshots after that one that changed the table in any way."""
    text = sql.statement(PACKAGE, "table_changes", metadata=metadata_of(lake_name))
    row = connection.execute(text, [table.uuid, snapshot_id]).fetchone()
    return int(row[0]) if row else 0


def require_table(connection: duckdb.DuckDBPyConnection, lake_name: str, table: TableId, *, data_path: str) -> Table:
    """Return the table, or raise TableMissingError with a list of the existing tables."""
    found = find_table(connection, lake_name, table, data_path=data_path)
    if found is None:
        known = ", ".join(str(each) for each in list_tables(connection, lake_name)[:10]) or "none"
        raise TableMissingError(f"The lake has no table {table}.", hint=f"Its tables: {known}.")
    return found


class _Catalog:
    """DuckLake's own tables about a lake's tables."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, lake_name: str) -> None:
        self._connection = connection
        self._metadata = metadata_of(lake_name)

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        text = sql.statement(PACKAGE, statement, metadata=self._metadata)
        return self._connection.execute(text, list(values)).fetchall()

    def without_bounds(self, table_id: int, fields: Iterable[tuple[Any, ...]]) -> frozenset[str]:
        """Return the columns of a table with files for which DuckLake keeps no bounds."""
        if not self.rows("table_has_files", table_id):
            return frozenset()
        parents = {field: parent for field, parent, _, _ in fields}
        bounded = set()
        for (at,) in self.rows("table_bounded", table_id):
            while at is not None and at not in bounded:
                bounded.add(at)
                at = parents.get(at)
        return frozenset(name for field, parent, name, _ in fields if parent is None and field not in bounded)


def _fields_by_name(rows: Sequence[tuple[Any, ...]]) -> dict[str, Field]:
    """Return DuckLake's fields of the columns, including nested ones, by the columns' names."""
    within: dict[int | None, list[tuple[Any, ...]]] = {}
    for row in rows:
        within.setdefault(row[1], []).append(row)

    def field_of(row: tuple[Any, ...]) -> Field:
        return Field(row[0], row[3], tuple(map(field_of, within.get(row[0], ()))))

    return {row[2]: field_of(row) for row in within.get(None, ())}


def _default(expression: str | None) -> str | None:
    return None if expression == "NULL" else expression


def _one(rows: list[tuple[Any, ...]], table: TableId) -> tuple[Any, ...]:
    if len(rows) != 1:
        raise TableMissingError(f"The catalog has {len(rows)} entries for table {table}.")
    return rows[0]
