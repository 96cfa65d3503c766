"""Plans a migration of lake tables: in-place changes, and instructions for other changes.

DuckLake 1.5 can create, drop and rename tables and columns, add a column with a constant default,
widen a type, set and drop a default, drop NOT NULL, and set NOT NULL if its statistics show that no
row is NULL. The planner tests that in a transaction that is rolled back. DuckLake has no statistics
of a table without rows, nor of a column in files that are older than the column: then the table is
created again, or the column is written to all rows first.

A type is changed only if every value stays the same. DuckLake itself would also turn VARCHAR into
JSON, so that reading a text that is not JSON fails later, and BIGINT into DOUBLE, which cannot
represent all of its digits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import duckdb

from catchment.foundation import sql
from catchment.lake import types
from catchment.schema import ddl
from catchment.schema.ddl import Aspect
from catchment.schema.diff import ColumnChange, ModelDiff, TableDiff
from catchment.schema.ops import (
    NEW_PREFIX,
    AddColumnOp,
    AlterColumnOp,
    DropColumnOp,
    Manual,
    Op,
    RebuildTableOp,
    alter_sql,
    arranged,
    both_sides,
    needs_value,
)
from catchment.schema.structure import DeclaredColumn, DeclaredTable, Structure

Trial = Callable[[str], str | None]

_UPDATED = (
    "All rows of {0} are rewritten: DuckLake can make a column NOT NULL only if it has statistics of every file.",
    "This fails if {0} has no rows.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeProbe:
    """Queries of a plan to the lake: why it refuses a statement, and numbers of rows and NULLs.

    `layout` returns the statements that partition and sort a table of another name like this one.
    """

    refusal: Trial
    rows: Callable[[str], int]
    nulls: Callable[[str, str], int]
    layout: Callable[[str, str], tuple[str, ...]]


def plan(difference: ModelDiff, expected: Structure, actual: Structure, *, lake: LakeProbe) -> tuple[Op, ...]:
    """Return the operations, in order."""

    def plan_table(change: TableDiff) -> list[Op]:
        wanted, present = both_sides(change, expected, actual)
        if _must_be_rebuilt(change, lake):
            return [_rebuild(change, wanted, present, lake)]
        return [
            *(op for column in change.added for op in _added(change.table, column)),
            *(op for each in change.changed for op in _changed(change.table, each, lake)),
            *(_dropped(change.table, column, lake) for column in change.dropped),
        ]

    return arranged(difference, plan_table=plan_table)


def refusal_in(connection: duckdb.DuckDBPyConnection) -> Trial:
    """Return a function that tries a statement on a connection without an open transaction."""

    def try_statement(statement: str) -> str | None:
        connection.execute("BEGIN")
        try:
            connection.execute(statement)
        except (duckdb.ProgrammingError, duckdb.NotSupportedError, duckdb.DataError, duckdb.IntegrityError) as error:
            return str(error).partition(": ")[2].partition("\n")[0].rstrip(".") + "."
        finally:
            connection.execute("ROLLBACK")
        return None

    return try_statement


def _must_be_rebuilt(change: TableDiff, lake: LakeProbe) -> bool:
    """Return whether a column becomes NOT NULL in an empty table, which needs a new table."""
    demands = any(not column.nullable for column in change.added) or any(map(_is_stricter, change.changed))
    blocked = any(Aspect.TYPE in each.aspects and not _is_wider(each) for each in change.changed)
    return demands and not blocked and lake.rows(change.table) == 0


def _rebuild(change: TableDiff, wanted: DeclaredTable, present: DeclaredTable, lake: LakeProbe) -> RebuildTableOp:
    kept = [column for column in present.columns if wanted.find(column.name)]
    columns = tuple(_as_wanted(column, wanted) for column in kept) + change.added
    new = NEW_PREFIX + present.name
    statements = [ddl.create_sql(DeclaredTable(name=new, columns=columns)), *lake.layout(present.name, new)]
    unknown = tuple(column.name for column in change.added if needs_value(column))
    copies = [(column.name, sql.identifier(column.name)) for column in kept]
    return RebuildTableOp(
        table=present.name,
        statement=";\n".join(statements),
        copies=(*copies, *((name, "NULL") for name in unknown)),
        changed=tuple(each.actual.name for each in change.changed),
        added=tuple(column.name for column in change.added),
        dropped=tuple(column.name for column in change.dropped),
        unknown=unknown,
    )


def _as_wanted(column: DeclaredColumn, wanted: DeclaredTable) -> DeclaredColumn:
    """Return the column as in the model; a default that the model does not declare is kept."""
    model = wanted.find(column.name) or column
    return replace(model, name=column.name, default=model.default or column.default)


def _added(table: str, column: DeclaredColumn) -> list[Op]:
    if column.nullable:
        return [AddColumnOp(table=table, column=column)]
    plain = replace(column, nullable=True)
    if needs_value(column):
        way = (
            alter_sql(AddColumnOp(table=table, column=plain)) + ";",
            f"UPDATE {sql.identifier(table)} SET {sql.identifier(column.name)} = …;",
            f"ALTER TABLE {sql.identifier(table)} ALTER COLUMN {sql.identifier(column.name)} SET NOT NULL;",
        )
        reason = f"{column.name} must not be NULL and has no default: existing rows need a value."
        return [_by_hand(table, reason, f"add {ddl.column_sql(column)}", way)]
    notes = tuple(note.format(table) for note in _UPDATED)
    return [
        AddColumnOp(table=table, column=plain),
        AlterColumnOp(table=table, column=column.name, actions=("SET NOT NULL",), fill=column.default, notes=notes),
    ]


def _dropped(table: str, column: DeclaredColumn, lake: LakeProbe) -> Op:
    drop = DropColumnOp(table=table, column=column.name)
    refusal = lake.refusal(alter_sql(drop))
    if refusal is None:
        return drop
    return _by_hand(
        table, f"DuckLake's error: {refusal}", f"drop {sql.identifier(column.name)}", (alter_sql(drop) + ";",)
    )


def _changed(table: str, change: ColumnChange, lake: LakeProbe) -> list[Op]:
    ops: list[Op] = []
    name = change.actual.name
    if Aspect.TYPE in change.aspects:
        ops.append(_retyped(table, change, lake))
    if Aspect.DEFAULT in change.aspects:
        default = change.expected.default or "NULL"
        action = "DROP DEFAULT" if default == "NULL" else f"SET DEFAULT {default}"
        ops.append(AlterColumnOp(table=table, column=name, actions=(action,)))
    if _is_stricter(change):
        ops.append(_stricter(table, name, lake))
    elif Aspect.NULLABILITY in change.aspects:
        ops.append(AlterColumnOp(table=table, column=name, actions=("DROP NOT NULL",)))
    return ops


def _retyped(table: str, change: ColumnChange, lake: LakeProbe) -> Op:
    wanted, name = change.expected.type, sql.identifier(change.actual.name)
    action = f"SET DATA TYPE {wanted}"
    refusal = "a value may change" if not _is_wider(change) else None
    refusal = refusal or lake.refusal(f"ALTER TABLE {sql.identifier(table)} ALTER COLUMN {name} {action}")
    if refusal is None:
        return AlterColumnOp(table=table, column=change.actual.name, actions=(action,))
    new = sql.identifier(NEW_PREFIX + change.actual.name)
    target = sql.identifier(table)
    way = (
        f"ALTER TABLE {target} ADD COLUMN {new} {wanted};",
        f"UPDATE {target} SET {new} = CAST({name} AS {wanted});",
        f"ALTER TABLE {target} DROP COLUMN {name};",
        f"ALTER TABLE {target} RENAME COLUMN {new} TO {name};",
    )
    reason = f"DuckLake cannot change {change.actual.type} to {wanted} in place: {refusal.rstrip('.')}."
    return _by_hand(table, reason, f"change {ddl.column_sql(change.expected)}", way)


def _stricter(table: str, column: str, lake: LakeProbe) -> Op:
    action = "SET NOT NULL"
    target, name = sql.identifier(table), sql.identifier(column)
    if lake.refusal(f"ALTER TABLE {target} ALTER COLUMN {name} {action}") is None:
        return AlterColumnOp(table=table, column=column, actions=(action,))
    nulls = lake.nulls(table, column)
    if nulls == 0:
        notes = tuple(note.format(table) for note in _UPDATED)
        return AlterColumnOp(table=table, column=column, actions=(action,), fill=name, notes=notes)
    way = (
        f"UPDATE {target} SET {name} = … WHERE {name} IS NULL;",
        f"ALTER TABLE {target} ALTER COLUMN {name} {action};",
    )
    return _by_hand(table, f"{column} is NULL in {nulls} rows.", f"change {name} {action}", way)


def _by_hand(table: str, reason: str, wanted: str, way: tuple[str, ...]) -> Manual:
    lines = ("One way to do it; a statement that fails changes nothing:", *(f"  {line}" for line in way))
    return Manual(table=table, reason=reason, wanted=(wanted,), way=lines)


def _is_stricter(change: ColumnChange) -> bool:
    return Aspect.NULLABILITY in change.aspects and not change.expected.nullable


def _is_wider(change: ColumnChange) -> bool:
    return types.fit(types.parse(change.actual.type), types.parse(change.expected.type)) is not types.Fit.NONE
