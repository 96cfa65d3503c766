"""A schema of a lake as it was at a snapshot: its tables, and the files with their rows.

…)`, for a reader that has the files and not the catalog. Merging replaces the files of a snapshot
by others that hold the same rows and later ones. => This is the metadata that DuckLake itself uses
to read `AT (VERSION => …)`, for a reader that has the files but not the catalog. Merging replaces
the files of a snapshot by files that contain the same rows and later ones. => …)`, for a reader
that has the files and not the catalog. Merging replaces the files of a snapshot by others that hold
the same rows and later ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from catchment.errors import InputError, InvariantError, NotSupportedError
from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.lake import types
from catchment.lake.catalog_snapshot import CatalogColumn, CatalogTable, find_snapshot, tables_at
from catchment.lake.lake import Lake
from catchment.lake.tables import PACKAGE, PartitionKey, SortKey, Table, metadata_of
from catchment.lake.types import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotField:
    """A column, or a field inside a nested one; `id` stays the same when it is renamed.

    `initial` is the value, as text, for rows whose file is older than the column. `type` is set for
    columns only.
    """

    id: int
    name: str
    type: str | None = None
    initial: str | None = None
    children: tuple["SnapshotField", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileName:
    """A name in a registered file and its field; `in_path` if the value is in the file's path."""

    name: str
    field_id: int
    in_path: bool = False
    children: tuple["FileName", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """A data file at a snapshot, and its file of deletions, if any.

    If `is_partial` or `deletes_are_partial`, some of the rows or deletions belong to later
    snapshots. `names` is None if the file has field ids. `partition` has the values of the table's
    partition keys, or None if the file is not split by them.
    """

    path: str
    bytes: int
    rows: int
    is_partial: bool = False
    names: tuple[FileName, ...] | None = None
    partition: tuple[str | None, ...] | None = ()
    deletes: str | None = None
    deletes_are_partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTable:
    """A table at a snapshot."""

    table: Table
    fields: tuple[SnapshotField, ...]
    files: tuple[SnapshotFile, ...]


def has_snapshot(lake: Lake, snapshot: int) -> bool:
    """Return whether the lake still has the snapshot."""
    with lake.snapshot() as connection:
        return find_snapshot(connection, lake.name, snapshot) is not None


def schema_at(lake: Lake, schema: str, snapshot: int) -> tuple[SnapshotTable, ...]:
    """Return the schema's tables at the snapshot.

    Raises InputError if the snapshot has expired or rows are in the catalog itself,
    NotSupportedError if something else cannot be read from the files alone.
    """
    with lake.snapshot() as connection:
        if find_snapshot(connection, lake.name, snapshot) is None:
            raise InputError(
                f"The lake has no snapshot {snapshot} any more.",
                hint="Maintenance has expired it. Use a newer one.",
            )
        given = {"snapshot": snapshot, "schema": schema}
        views = [name for (name,) in connection.execute(_statement(lake, "snapshot_views"), given).fetchall()]
        if views:
            raise NotSupportedError(
                f"Schema {schema} has views, which cannot be copied: {', '.join(views)}.",
                hint="Drop them, and create them again at the destination.",
            )
        found = sorted(tables_at(connection, lake.name, schema, snapshot), key=lambda table: table.name)
        return tuple(_TableReader(lake, connection, TableId(schema, each.name), snapshot).read(each) for each in found)


def differences(one: Table, other: Table) -> list[str]:
    """Return the differences that keep rows of one table from being written to the other."""
    found: list[str] = []
    names = [sql.fold(column.name) for column in one.columns]
    others = {sql.fold(column.name): column for column in other.columns}
    for column in one.columns:
        twin = others.get(sql.fold(column.name))
        if twin is None:
            found.append(f"column {column.name!r} is missing")
        elif types.normal(twin.type) != types.normal(column.type):
            found.append(f"column {column.name!r} is {twin.type}, not {column.type}")
        elif twin.nullable != column.nullable:
            found.append(f"column {column.name!r} {'may' if twin.nullable else 'must not'} be NULL")
        elif twin.default != column.default:
            found.append(f"column {column.name!r} has default {twin.default or 'NULL'}, not {column.default or 'NULL'}")
    found += [f"column {column.name!r} is unexpected" for key, column in others.items() if key not in names]
    if not found and list(others) != names:
        found.append("its columns are in another order")
    if _keys(one) != _keys(other):
        found.append(f"it is partitioned by {_keys_text(other)}, not {_keys_text(one)}")
    return found


def _keys(table: Table) -> list[tuple[str, str]]:
    return [(sql.fold(key.column), key.transform) for key in table.partition_by]


def _keys_text(table: Table) -> str:
    return ", ".join(f"{key.transform}({key.column})" for key in table.partition_by) or "nothing"


def _statement(lake: Lake, name: str) -> str:
    return sql.statement(PACKAGE, name, metadata=metadata_of(lake.name))


@dataclass(frozen=True, slots=True)
class _TableReader:
    """Reads one table at a snapshot."""

    lake: Lake
    connection: duckdb.DuckDBPyConnection
    id: TableId
    snapshot: int

    def read(self, found: CatalogTable) -> SnapshotTable:
        table = Table(
            id=self.id,
            uuid=found.uuid,
            folder=self._absolute(found.folder, self.lake.address.data_path),
            columns=self._columns(),
            partition_by=tuple(
                PartitionKey(column=name, transform=transform) for name, transform in found.partition_by
            ),
            sort_by=tuple(
                SortKey(expression=expression, descending=way == "DESC", nulls_first=nulls == "NULLS_FIRST")
                for expression, way, nulls in found.sort_by
            ),
        )
        self._refuse_inlined(found.id)
        return SnapshotTable(
            table=table,
            fields=_fields(found.columns, {sql.fold(column.name): column.type for column in table.columns}),
            files=tuple(self._files(table, found.id, partition=found.partition_id)),
        )

    def _columns(self) -> tuple[Column, ...]:
        source = f"{sql.qualified(self.lake.name, self.id.schema, self.id.name)} AT (VERSION => {self.snapshot})"
        rows = self.connection.execute(f"DESCRIBE FROM {source}").fetchall()
        return tuple(
            Column(
                name=name,
                type=types.normal(kind),
                nullable=null == "YES",
                default=None if default in (None, "NULL") else default,
            )
            for name, kind, null, _, default, _ in rows
        )

    def _files(self, table: Table, number: int, *, partition: int | None) -> Iterable[SnapshotFile]:
        given = {"snapshot": self.snapshot, "table": number}
        names = self._names(number)
        found = []
        for row in self.connection.execute(_statement(self.lake, "snapshot_files"), given).fetchall():
            path, relative, size, rows, is_partial, mapping, split, values, secret, kind, delete_kind, *deletes = row
            odd = next((each for each in (kind, delete_kind) if each not in (None, "parquet")), None)
            if secret or odd is not None:
                what = "encrypted" if secret else f"a {odd} file"
                raise NotSupportedError(f"{path} of table {table.id} is {what}, and cannot be read without the lake.")
            found.append(
                SnapshotFile(
                    path=self._absolute(path, table.folder) if relative else path,
                    bytes=size,
                    rows=rows,
                    is_partial=is_partial,
                    names=None if mapping is None else names.get(mapping, ()),
                    partition=tuple(values or ()) if split == partition else None,
                    deletes=self._absolute(deletes[0], table.folder) if deletes[1] else deletes[0],
                    deletes_are_partial=bool(deletes[2]),
                )
            )
        self._check(found)
        return found

    def _check(self, found: Sequence[SnapshotFile]) -> None:
        """Verify the result against DuckLake's own list: newer versions may change the catalog."""
        listed = self.connection.execute(
            "SELECT data_file, delete_file FROM ducklake_list_files(?, ?, schema => ?, snapshot_version => ?)",
            [self.lake.name, self.id.name, self.id.schema, self.snapshot],
        ).fetchall()
        if sorted(listed, key=str) != sorted(((each.path, each.deletes) for each in found), key=str):
            raise InvariantError(f"DuckLake's list of files of {self.id} at {self.snapshot} differs from its catalog.")

    def _names(self, number: int) -> dict[int, tuple[FileName, ...]]:
        rows = self.connection.execute(_statement(self.lake, "snapshot_names"), {"table": number}).fetchall()
        below: defaultdict[tuple[int, int | None], list[tuple[Any, ...]]] = defaultdict(list)
        for mapping, column, name, target, parent, in_path in rows:
            below[mapping, parent].append((column, name, target, in_path))

        def named(mapping: int, parent: int | None) -> tuple[FileName, ...]:
            return tuple(
                FileName(name=name, field_id=target, in_path=in_path, children=named(mapping, column))
                for column, name, target, in_path in below[mapping, parent]
            )

        return {mapping: named(mapping, None) for mapping in {row[0] for row in rows}}

    def _refuse_inlined(self, number: int) -> None:
        """Refuse tables with rows or deletions that are only in the catalog: they would be lost."""
        metadata = metadata_of(self.lake.name)
        query = f"SELECT table_name FROM {sql.identifier(metadata)}.ducklake_inlined_data_tables WHERE table_id = ?"
        kept = [name for (name,) in self.connection.execute(query, [number]).fetchall()]
        if any(self._has_inlined(name, "AND coalesce(end_snapshot > $1, true)") for name in kept) or self._has_inlined(
            f"ducklake_inlined_delete_{number}"
        ):
            raise InputError(
                f"Table {self.id} has rows or deletions in the catalog itself, not in a file.",
                hint=f"CALL ducklake_flush_inlined_data('{self.lake.name}'), then use a newer snapshot.",
            )

    def _has_inlined(self, name: str, condition: str = "") -> bool:
        table = sql.qualified(metadata_of(self.lake.name), name)
        try:
            found = self.connection.execute(
                f"SELECT 1 FROM {table} WHERE begin_snapshot <= $1 {condition} LIMIT 1", [self.snapshot]
            )
        except duckdb.CatalogException:
            # DuckLake creates the table with the first inlined deletion, and does not list it.
            return False
        return found.fetchone() is not None

    @staticmethod
    def _absolute(path: str, folder: str) -> str:
        return path if path.startswith("/") or "://" in path else f"{folder.rstrip('/')}/{path}"


def _fields(columns: Sequence[CatalogColumn], kinds: dict[str, str]) -> tuple[SnapshotField, ...]:
    below: defaultdict[int | None, list[tuple[int, str, str | None]]] = defaultdict(list)
    for column in columns:
        below[column.parent].append((column.id, column.name, column.initial))

    def under(parent: int | None) -> tuple[SnapshotField, ...]:
        return tuple(
            SnapshotField(
                id=number,
                name=name,
                type=kinds.get(sql.fold(name)) if parent is None else None,
                initial=initial,
                children=under(number),
            )
            for number, name, initial in below[parent]
        )

    return under(None)
