"""Restores the tables of a schema to a snapshot, inside an open transaction.

Changes are kept to a minimum, because a table that is created again is another one to the ledger:

    nothing of it has changed        it stays
    columns were added or changed    they are dropped or changed back, as far as ALTER TABLE can
    rows changed                     all are deleted, and inserted as they were
    anything else                    the table is created again with its partitioning and order, and replaces the other

In the first three cases it remains the table that units were delivered to: rows delivered before
the snapshot are not delivered again, and rows delivered after it are lost but count as delivered.
The audit reports the missing rows. A table that is created again has no deliveries: the audit
reports that the old one was dropped, and a file that was delivered to it and still exists is
delivered again. Producers and their watermarks always stay, so that the queue delivers no row
twice.

Tables that the snapshot does not have are dropped. Views are not touched.

The consequences for deliveries are returned, for the caller to report after the commit.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from catchment.errors import BackupMissingError, CorruptInputError, InvariantError
from catchment.foundation import files, sql
from catchment.lake.catalog_snapshot import CatalogColumn, CatalogTable, changed_since, find_snapshot, tables_at
from catchment.schema import ddl
from catchment.schema.lake_inspect import at, count_rows, described
from catchment.schema.ops import NEW_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMark:
    """A snapshot as named in a file; its time distinguishes it from snapshots of other lakes."""

    snapshot: int
    taken_at: str

    @classmethod
    def read(cls, path: Path) -> "SnapshotMark":
        """Read it from a file. Raises CorruptInputError if the file does not name a snapshot."""
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            return cls(snapshot=int(facts["snapshot"]), taken_at=str(facts["taken_at"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptInputError(f"{path} does not name a snapshot of a lake.", path=str(path)) from error

    def write(self, path: Path) -> None:
        """Write it to a file, durably."""
        files.write_text(path, self.text())

    def text(self) -> str:
        """Return the file's content."""
        return json.dumps({"snapshot": self.snapshot, "taken_at": self.taken_at}) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedDeliveries:
    """Units on which the ledger and the table no longer agree, and the number of their rows.

    Either their rows are lost although they count as delivered, or, with `again`, their rows exist
    although they do not.
    """

    table: str
    units: int
    rows: int
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A schema of a lake at a snapshot, seen through a connection."""

    connection: duckdb.DuckDBPyConnection
    lake: str
    schema: str
    snapshot: int

    def tables(self) -> list[CatalogTable]:
        """Return the schema's tables at that time."""
        return tables_at(self.connection, self.lake, self.schema, self.snapshot)

    def source(self, table: str) -> str:
        """Return a FROM clause for the table at that time."""
        return at(self.lake, self.schema, table, snapshot=self.snapshot)

    def name(self, table: str) -> str:
        """Return the table's qualified name."""
        return sql.qualified(self.lake, self.schema, table)


def newest(connection: duckdb.DuckDBPyConnection, lake_name: str) -> SnapshotMark:
    """Return the lake's current snapshot."""
    found = find_snapshot(connection, lake_name)
    if found is None:
        raise InvariantError("The lake has no snapshot.")
    return SnapshotMark(snapshot=found.id, taken_at=found.taken_at.isoformat())


def refuse_expired(connection: duckdb.DuckDBPyConnection, lake_name: str, mark: SnapshotMark, *, named_by: str) -> None:
    """Raise BackupMissingError unless the lake still has the snapshot."""
    found = find_snapshot(connection, lake_name, mark.snapshot)
    if found is None:
        raise BackupMissingError(
            f"{named_by} names snapshot {mark.snapshot} of {mark.taken_at}, which the lake no longer has.",
            hint="Maintenance expires snapshots. Raise CATCHMENT_LAKE_SNAPSHOT_KEEP_HOURS to keep them longer.",
            snapshot=mark.snapshot,
        )
    taken_at = found.taken_at.isoformat()
    if taken_at != mark.taken_at:
        raise CorruptInputError(
            f"{named_by} names snapshot {mark.snapshot} of {mark.taken_at}; the lake's is of {taken_at}.",
            hint="It belongs to another lake. Use a backup of this one.",
        )


def restore(then: Moment) -> tuple[DivergedDeliveries, ...]:
    """Restore every table, in a transaction that has not changed any of them yet."""
    wanted = then.tables()
    newest_id = newest(then.connection, then.lake).snapshot
    present = {table.name: table for table in replace(then, snapshot=newest_id).tables()}
    changed = changed_since(then.connection, then.lake, then.snapshot)
    rows = {table.name: count_rows(then.connection, then.source(table.name)) for table in wanted}
    actions_by_table = {table.name: _in_place(table, present.get(table.name)) for table in wanted}
    # The old rows are read before anything is changed: even at a snapshot, DuckLake omits rows that
    # the transaction has deleted, and returns none of a table whose name it has given to another
    # one, without an error.
    for table in wanted:
        if actions_by_table[table.name] is None:
            _recreate(then, table)
        elif table.id in changed:
            _copy_rows(then, table)
    for name in present:
        if actions_by_table.get(name) is None:
            then.connection.execute(f"DROP TABLE {then.name(name)}")
    for table in wanted:
        steps = actions_by_table[table.name]
        if steps is None:
            new = then.name(NEW_PREFIX + table.name)
            then.connection.execute(f"ALTER TABLE {new} RENAME TO {sql.identifier(table.name)}")
        else:
            _put_back(then, table, steps, rows_changed=table.id in changed)
    for name, count in rows.items():
        now = count_rows(then.connection, then.name(name))
        if now != count:
            raise InvariantError(f"{name} had {count} rows at snapshot {then.snapshot}, and would have {now} now.")
    return tuple(
        _diverged_deliveries(then, {table.uuid: (table.name, actions_by_table[table.name] is None) for table in wanted})
    )


def layout(table: CatalogTable, name: str) -> tuple[str, ...]:
    """Return the statements that partition and sort the table called `name` like this one."""
    actions: list[str] = []
    if table.partition_by:
        actions.append(f"SET PARTITIONED BY ({', '.join(_partition_key(*key) for key in table.partition_by)})")
    if table.sort_by:
        keys = (f"{expression} {way} {nulls.replace('_', ' ')}" for expression, way, nulls in table.sort_by)
        actions.append(f"SET SORTED BY ({', '.join(keys)})")
    return tuple(f"ALTER TABLE {name} {action}" for action in actions)


def _diverged_deliveries(then: Moment, tables: dict[str, tuple[str, bool]]) -> Iterator[DivergedDeliveries]:
    """Yield affected units. `tables` has, by uuid, the name and whether the table was recreated."""
    text = sql.statement("catchment.schema", "lake_deliveries_around", lake=then.lake)
    found = then.connection.execute(text, {"snapshot": then.snapshot, "schema": then.schema}).fetchall()
    for uuid, is_since, units, rows in found:
        name, is_new = tables.get(uuid, (None, False))
        if name is not None and is_new != is_since:
            yield DivergedDeliveries(table=name, units=units, rows=rows, again=is_new)


def _in_place(then: CatalogTable, now: CatalogTable | None) -> list[str] | None:
    """Return the ALTER TABLE actions that restore the table, or None if they cannot."""
    if now is None or (then.uuid, then.partition_by, then.sort_by) != (now.uuid, now.partition_by, now.sort_by):
        return None
    current = {column.id: column for column in now.columns}
    kept = [current.get(column.id) for column in then.columns]
    steps = [
        f"DROP COLUMN {sql.identifier(column.name)}"
        for column in now.columns
        if column.parent is None and column.id not in {each.id for each in then.columns}
    ]
    names = {column.name for column in kept if column is not None}
    for was, is_ in zip(then.columns, kept, strict=True):
        changed = None if is_ is None else _column_steps(was, is_, names)
        if changed is None:
            return None
        steps += changed
    known = {column.id for column in then.columns}
    grown = any(column.parent in known and column.id not in known for column in now.columns)
    return None if grown else steps


def _column_steps(then: CatalogColumn, now: CatalogColumn, names: set[str]) -> list[str] | None:
    steps: list[str] = []
    if (then.type, then.parent) != (now.type, now.parent) or (now.nullable and not then.nullable):
        return None
    if then != now and then.parent is not None:
        return None
    if now.name != then.name:
        if then.name in names:
            return None
        steps.append(f"RENAME COLUMN {sql.identifier(now.name)} TO {sql.identifier(then.name)}")
    if now.default != then.default:
        kind, _, value = then.default.partition(":")
        if kind != "literal":
            return None
        action = "DROP DEFAULT" if value == "NULL" else f"SET DEFAULT {sql.literal(value)}"
        steps.append(f"ALTER COLUMN {sql.identifier(then.name)} {action}")
    if then.nullable and not now.nullable:
        steps.append(f"ALTER COLUMN {sql.identifier(then.name)} DROP NOT NULL")
    return steps


def _put_back(then: Moment, table: CatalogTable, steps: list[str], *, rows_changed: bool) -> None:
    name = then.name(table.name)
    if rows_changed:
        then.connection.execute(f"DELETE FROM {name}")
    for step in steps:
        then.connection.execute(f"ALTER TABLE {name} {step}")
    if rows_changed:
        copy_name, columns = _copy_name(table), _columns(table)
        then.connection.execute(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {copy_name}")
        then.connection.execute(f"DROP TABLE {copy_name}")


def _copy_rows(then: Moment, table: CatalogTable) -> None:
    then.connection.execute(
        f"CREATE TEMP TABLE {_copy_name(table)} AS SELECT {_columns(table)} FROM {then.source(table.name)}"
    )


def _copy_name(table: CatalogTable) -> str:
    return sql.qualified("temp", "main", NEW_PREFIX + table.name)


def _recreate(then: Moment, table: CatalogTable) -> None:
    shape = described(then.connection, then.lake, then.schema, table.name, snapshot=then.snapshot)
    new = NEW_PREFIX + table.name
    create = ddl.create_sql(replace(shape, name=new)).removeprefix(f"CREATE TABLE {sql.identifier(new)}")
    then.connection.execute(f"CREATE TABLE {then.name(new)}{create}")
    for statement in layout(table, then.name(new)):
        then.connection.execute(statement)
    columns = _columns(table)
    then.connection.execute(f"INSERT INTO {then.name(new)} ({columns}) SELECT {columns} FROM {then.source(table.name)}")


def _columns(table: CatalogTable) -> str:
    return sql.identifiers(column.name for column in table.columns if column.parent is None)


def _partition_key(column: str, transform: str) -> str:
    buckets = re.fullmatch(r"bucket\((\d+)\)", transform)
    if buckets:
        return f"bucket({buckets[1]}, {sql.identifier(column)})"
    return sql.identifier(column) if transform == "identity" else f"{transform}({sql.identifier(column)})"
