"""Reads a data file of another lake in a worker, with deletions and column names of a snapshot.

DuckLake identifies columns by number: its own files carry the numbers, registered files have a
mapping from names. A name alone is not enough: a column may have been renamed, and its old name
given to another one.
"""

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb

from catchment.foundation import sql
from catchment.lake import types
from catchment.lake.snapshot_schema import FileName, SnapshotField
from catchment.pipeline.work import Input, LakeFile

# DuckLake's own columns in its files: the snapshot and the row id of a row, if several files were
# merged or rows updated.
_SNAPSHOT = "_ducklake_internal_snapshot_id"
_OWN_IDS_MIN = 2_147_483_000
# DuckDB's name for a row's position in its file, and Catchment's if the file has a column of that
# name.
_PLACE = "file_row_number"
_OWN_PLACE = "catchment__place"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A column of the file, or a part of a nested one: `kind` is `list`, `map`, `struct` or empty."""

    name: str
    field_id: int | None
    kind: str = ""
    in_path: bool = False
    children: tuple["_Node", ...] = ()


def query(connection: duckdb.DuckDBPyConnection, source: Input) -> str:
    """Return a query for the file's rows at the snapshot, with the table's columns and types."""
    return _File(connection, source, _required(source)).query()


def obstacle(connection: duckdb.DuckDBPyConnection, source: Input) -> str | None:
    """Return why the file cannot be adopted; None for a file that does not come from a lake."""
    if source.lake_file is None:
        return None
    return source.lake_file.obstacle or _File(connection, source, source.lake_file).difference()


def _required(source: Input) -> LakeFile:
    assert source.lake_file is not None
    return source.lake_file


class _File:
    """A file under inspection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, source: Input, how: LakeFile) -> None:
        self._connection = connection
        self._source = source
        self._how = how
        rows = connection.execute(_SCHEMA, [glob.escape(source.uri)]).fetchall()
        root = _node(iter(rows))
        nodes = root.children if how.names is None else _named(root.children, how.names)
        self._own = [node for node in nodes if (node.field_id or 0) >= _OWN_IDS_MIN]
        self._nodes = {node.field_id: node for node in nodes if node not in self._own and node.field_id is not None}
        self._unknown = [node.name for node in nodes if node.field_id is None]
        self._hides_place = any(sql.fold(node.name) == _PLACE for node in root.children)

    def query(self) -> str:
        how = self._how
        chosen = [
            f"CAST({_expression(field, self._nodes.get(field.id))} AS {field.type}) AS {sql.identifier(field.name)}"
            for field in how.fields
        ]
        where = ["true"]
        if how.is_partial:
            where.append(f"{sql.identifier(_SNAPSHOT)} <= {how.snapshot}")
        if how.deletes is not None:
            later = f" WHERE {sql.identifier(_SNAPSHOT)} <= {how.snapshot}" if how.deletes_are_partial else ""
            positions = f"SELECT pos FROM {_read(how.deletes)}{later}"
            where.append(f"{_OWN_PLACE if self._hides_place else _PLACE} NOT IN ({positions})")
        return f"SELECT {', '.join(chosen)} FROM {self._read()} WHERE {' AND '.join(where)}"

    def difference(self) -> str | None:
        """Return how the file differs from a file of the table that is written now, or None."""
        fields = {field.id: field for field in self._how.fields}
        if self._own:
            return f"it contains DuckLake's own column {self._own[0].name}, which registered files must not have"
        if self._unknown or not self._nodes.keys() <= fields.keys():
            gone = [*self._unknown, *(node.name for number, node in self._nodes.items() if number not in fields)]
            return f"it contains a column {gone[0]!r} that the table no longer has"
        for field in self._how.fields:
            node = self._nodes.get(field.id)
            if node is None:
                return f"it is older than column {field.name!r}"
            if not _is_plain(field, node):
                return f"column {field.name!r} had another name or structure when it was written"
        described = self._connection.execute(f"DESCRIBE FROM {self._read()}").fetchall()
        have = {sql.fold(row[0]): types.normal(row[1]) for row in described}
        for field in self._how.fields:
            kind = have[sql.fold(field.name)]
            if not self._nodes[field.id].in_path and kind != types.normal(field.type or ""):
                return f"column {field.name!r} is {kind}, not {field.type}"
        return None

    def _read(self) -> str:
        keys = [node.name for node in self._nodes.values() if node.in_path]
        if self._how.deletes is None:
            return _read(self._source.uri, keys=keys)
        if self._hides_place:
            # Numbered in reading order, which is the order of the file.
            rows = _read(self._source.uri, keys=keys)
            return f"(SELECT *, row_number() OVER () - 1 AS {_OWN_PLACE} FROM {rows})"
        return _read(self._source.uri, keys=keys, numbered=True)


_SCHEMA = "SELECT name, num_children, converted_type, field_id FROM parquet_schema(?)"


def _node(rows: Iterator[tuple[Any, ...]]) -> _Node:
    """Read the next node of the footer's schema, with all its descendants."""
    name, count, converted, field_id = next(rows)
    children = tuple(_node(rows) for _ in range(count or 0))
    kind = {"LIST": "list", "MAP": "map", "MAP_KEY_VALUE": "map"}.get(converted or "", "struct" if children else "")
    if kind in ("list", "map") and len(children) == 1 and children[0].children:
        children = children[0].children
    return _Node(name=name, field_id=field_id, kind=kind, children=children)


def _named(nodes: Sequence[_Node], names: Sequence[FileName]) -> tuple[_Node, ...]:
    """Return the nodes with their mapped field numbers, and nodes for the fields in the path."""
    known = {sql.fold(each.name): each for each in names}
    found = []
    for node in nodes:
        name = known.get(sql.fold(node.name))
        if name is None:
            found.append(replace(node, field_id=None))
        elif not name.in_path:
            found.append(replace(node, field_id=name.field_id, children=_named(node.children, name.children)))
    in_path = (each for each in names if each.in_path)
    return (*found, *(_Node(name=each.name, field_id=each.field_id, in_path=True) for each in in_path))


def _is_plain(field: SnapshotField, node: _Node) -> bool:
    """Return whether the file has the column as it is now, including all nested fields."""
    parts = zip(field.children, node.children, strict=False)
    return (
        (field.id, sql.fold(field.name)) == (node.field_id, sql.fold(node.name))
        and len(field.children) == len(node.children)
        and all(_is_plain(*each) for each in parts)
    )


def _expression(field: SnapshotField, node: _Node | None, access: str | None = None, depth: int = 0) -> str:
    """Return an expression for the field's value, with the current names of its nested fields."""
    if node is None:
        return sql.literal(field.initial)
    value = access or sql.identifier(node.name)
    if _is_plain(field, node) or not field.children:
        return value
    inner = {child.field_id: child for child in node.children}
    item = f"item{depth}"

    def part(of: str, child: SnapshotField) -> str:
        found = inner.get(child.id)
        access = None if found is None else f"struct_extract({of}, {sql.literal(found.name)})"
        return _expression(child, found, access, depth + 1)

    def packed(of: str) -> str:
        return (
            f"struct_pack({', '.join(f'{sql.identifier(each.name)} := {part(of, each)}' for each in field.children)})"
        )

    if node.kind == "list":
        element = _expression(field.children[0], node.children[0], item, depth + 1)
        return f"list_transform({value}, lambda {item}: {element})"
    if node.kind == "map":
        return f"map_from_entries(list_transform(map_entries({value}), lambda {item}: {packed(item)}))"
    return f"CASE WHEN {value} IS NOT NULL THEN {packed(value)} END"


def _read(path: str, *, keys: Sequence[str] = (), numbered: bool = False) -> str:
    options = [sql.literal(glob.escape(path))]
    if keys:
        hive = ", ".join(f"{sql.literal(key)}: 'VARCHAR'" for key in keys)
        options.append(f"hive_partitioning = true, hive_types = {{{hive}}}")
    else:
        options.append("hive_partitioning = false")
    if numbered:
        options.append(f"{_PLACE} = true")
    return f"read_parquet({', '.join(options)})"
