"""DuckLake's catalog at a snapshot: its time, its tables, and the tables that changed since.

Read from the catalog's own tables, through a connection to the lake.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb

from catchment.foundation import sql
from catchment.lake.tables import PACKAGE, metadata_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSnapshot:
    """A snapshot of a lake."""

    id: int
    taken_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogColumn:
    """A column at a snapshot, as the catalog has it. `parent` is the column that it is part of.

    `default` is `literal:` or `expression:`, followed by its text. `initial` is the column's value,
    as text, for rows whose file is older than the column; comparisons ignore it.
    """

    id: int
    name: str
    type: str
    nullable: bool
    default: str
    parent: int | None
    initial: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """A table at a snapshot. `folder` is relative to the lake's data unless it is absolute.

    `partition_by` are columns with their transforms, `sort_by` expressions with their direction and
    the order of NULLs. `partition_id` is the catalog's number of that partitioning.
    """

    id: int
    uuid: str
    name: str
    folder: str
    columns: tuple[CatalogColumn, ...]
    partition_by: tuple[tuple[str, str], ...] = ()
    sort_by: tuple[tuple[str, str, str], ...] = ()
    partition_id: int | None = None


def tables_at(connection: duckdb.DuckDBPyConnection, lake_name: str, schema: str, snapshot: int) -> list[CatalogTable]:
    """Return the schema's tables at the snapshot, in the order of their creation."""
    text = sql.statement(PACKAGE, "snapshot_tables", metadata=metadata_of(lake_name))
    rows = connection.execute(text, {"snapshot": snapshot, "schema": schema}).fetchall()
    return [_table(*row) for row in rows]


def changed_since(connection: duckdb.DuckDBPyConnection, lake_name: str, snapshot: int) -> frozenset[int]:
    """Return the ids of the lake's tables whose rows have, or may have, changed since the snapshot."""
    text = sql.statement(PACKAGE, "snapshot_changed_tables", metadata=metadata_of(lake_name))
    return frozenset(table for (table,) in connection.execute(text, {"snapshot": snapshot}).fetchall())


def find_snapshot(
    connection: duckdb.DuckDBPyConnection, lake_name: str, number: int | None = None
) -> CatalogSnapshot | None:
    """Return the snapshot of that number, or the newest one; None if the lake does not have it."""
    chosen = "ORDER BY snapshot_id DESC LIMIT 1" if number is None else f"WHERE snapshot_id = {number}"
    # As a number: a time as text depends on the catalog and on the machine's time zone.
    row = connection.execute(
        "SELECT snapshot_id, epoch_us(snapshot_time::TIMESTAMPTZ) "
        f"FROM {sql.identifier(metadata_of(lake_name))}.ducklake_snapshot {chosen}"
    ).fetchone()
    if row is None:
        return None
    return CatalogSnapshot(id=row[0], taken_at=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row[1]))


def _table(
    number: int,
    uuid: str,
    name: str,
    folder: str,
    columns: Sequence[Any],
    keys: Sequence[Any] | None,
    order: Sequence[Any] | None,
) -> CatalogTable:
    fields = ("id", "name", "type", "nullable", "default", "parent", "initial")
    return CatalogTable(
        id=number,
        uuid=uuid,
        name=name,
        folder=folder,
        columns=tuple(CatalogColumn(**dict(zip(fields, column, strict=True))) for column in columns),
        partition_by=tuple((column, transform) for column, transform, _ in keys or ()),
        sort_by=tuple((expression, direction, nulls) for expression, direction, nulls in order or ()),
        partition_id=keys[0][2] if keys else None,
    )
