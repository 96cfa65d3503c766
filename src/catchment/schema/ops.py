"""Operations of a migration as values, and the plan that turns a difference into them. Pure.

SQLite's ALTER TABLE supports few changes. Those are planned, after a test on an empty table in
memory. Otherwise the whole table is rebuilt from its own statement (`ddl.py`), and the new
statement is verified in memory to match the models before it becomes part of a plan. If that fails,
the script has instructions for the developer.

A plan that no developer has read neither deletes nor invents data: every possible rename becomes a
`Choice`.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from catchment.errors import InputError
from catchment.foundation import sql
from catchment.schema import ddl
from catchment.schema.diff import ColumnChange, ModelDiff, TableDiff, diff, reference_of
from catchment.schema.inspect import Dependents, inspect
from catchment.schema.sqlite_types import affinity
from catchment.schema.structure import DeclaredColumn, DeclaredTable, Reference, Structure

NEW_PREFIX = "_new_"
_ROWID_NAMES = ("rowid", "_rowid_", "oid")
_SQLITE_WAY = (
    "The way to do it: https://www.sqlite.org/lang_altertable.html#otheralter. Scripts are applied with foreign",
    "keys off; `keeps-rows` makes Catchment count the rows.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTableOp:
    """Create a table."""

    table: DeclaredTable


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTableOp:
    """Drop a table with its rows; views and triggers in `mentioned_by` would break."""

    table: str
    mentioned_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameTableOp:
    """Rename a table."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumnOp:
    """Add a column for which existing rows get a value: NULL or a constant."""

    table: str
    column: DeclaredColumn
    reference: Reference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumnOp:
    """Drop a column with its values; views and triggers in `mentioned_by` would break."""

    table: str
    column: str
    mentioned_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumnOp:
    """Rename a column."""

    table: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterColumnOp:
    """Change a column in place by ALTER COLUMN `actions`, which only DuckLake supports.

    The expression `fill` is written to all rows first.
    """

    table: str
    column: str
    actions: tuple[str, ...]
    fill: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A column whose values SQLite converts: the script fails if one cannot be converted to `type`."""

    column: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTableOp:
    """Create a table under another name, copy the rows, and replace the old table by it.

    `statement` creates the table called `_new_<table>`. `copies` are the filled columns, with their
    expressions. `unknown` are columns that need a value which is not known. `key` pairs an old row
    with its new one, for the `guards`. `numbers` is a column that becomes an alias of the rowid:
    SQLite would assign a number to a NULL.
    """

    table: str
    statement: str
    copies: tuple[tuple[str, str], ...]
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    guards: tuple[Guard, ...] = ()
    key: tuple[str, ...] = ()
    numbers: str | None = None
    dependents: Dependents = field(default_factory=Dependents)
    lost_indexes: tuple[str, ...] = ()
    keeps_sequence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Manual:
    """A change of a table that cannot be generated: the reason, the result, and a way to do it."""

    table: str
    reason: str
    wanted: tuple[str, ...]
    way: tuple[str, ...] = _SQLITE_WAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a choice; `score` is set if it is a guess."""

    title: str
    ops: tuple["Op", ...]
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A decision for the developer, who chooses one of the options. The best guess is first.

    The last option, that nothing was renamed, is complete. After any other option, the remaining
    changes are in the next generated script.
    """

    subject: str
    question: str
    options: tuple[Option, ...]


Op = (
    CreateTableOp
    | DropTableOp
    | RenameTableOp
    | AddColumnOp
    | DropColumnOp
    | RenameColumnOp
    | AlterColumnOp
    | RebuildTableOp
    | Manual
    | Choice
)


def plan(
    difference: ModelDiff,
    expected: Structure,
    actual: Structure,
    *,
    dependents: Mapping[str, Dependents],
) -> tuple[Op, ...]:
    """Return the operations for SQLite, in order.

    `dependents` are those of every table in `actual`: a rebuild would lose missing ones.
    """
    return arranged(
        difference,
        plan_table=lambda change: _plan_table(change, expected, actual, dependents[change.table]),
        mentioned_by=lambda table: _mentions_of(dependents[table], table),
    )


def arranged(
    difference: ModelDiff,
    *,
    plan_table: Callable[[TableDiff], list[Op]],
    mentioned_by: Callable[[str], tuple[str, ...]] = lambda _: (),
) -> tuple[Op, ...]:
    """Return the operations in order: tables after those that they refer to, drops, then choices.

    `plan_table` returns the operations for a table that stays, if no column was renamed.
    """
    maybe_new = {candidate.new for candidate in difference.renames}
    maybe_old = {candidate.old for candidate in difference.renames}
    creates = [CreateTableOp(table=table) for table in _referred_first(difference.missing)]
    drops = [
        DropTableOp(table=table.name, mentioned_by=mentioned_by(table.name))
        for table in reversed(_referred_first(difference.extra))
    ]
    ops: list[Op] = [op for op in creates if op.table.name not in maybe_new]
    for change in difference.tables:
        ops += _table_ops(change, plan_table(change))
    ops += [op for op in drops if op.table not in maybe_old]
    if difference.renames:
        renames = [
            Option(
                title=f"{each.old} became {each.new}",
                ops=(RenameTableOp(old=each.old, new=each.new),),
                score=each.score,
            )
            for each in difference.renames
        ]
        rest: list[Op] = [op for op in creates if op.table.name in maybe_new]
        rest += [op for op in drops if op.table in maybe_old]
        ops.append(
            Choice(
                subject=_listed(maybe_old),
                question=f"no model has {_listed(maybe_old)}, and {_listed(maybe_new)} would be new. Renamed?",
                options=(*renames, Option(title="nothing was renamed; the old rows are deleted", ops=tuple(rest))),
            )
        )
    return tuple(ops)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _referred_first(tables: Sequence[DeclaredTable]) -> list[DeclaredTable]:
    """Return the tables, each after those that it refers to, as far as possible."""
    by_name = {sql.fold(table.name): table for table in tables}
    done: dict[str, DeclaredTable] = {}
    entered: set[str] = set()

    def visit(table: DeclaredTable) -> None:
        key = sql.fold(table.name)
        if key in entered:
            return
        entered.add(key)
        for reference in table.references:
            other = by_name.get(sql.fold(reference.table))
            if other is not None:
                visit(other)
        done[key] = table

    for table in tables:
        visit(table)
    return list(done.values())


def _table_ops(change: TableDiff, all_ops: list[Op]) -> list[Op]:
    if not change.renames:
        return all_ops
    open_names = {name for candidate in change.renames for name in (candidate.old, candidate.new)}
    # An addition that is certainly not a rename does not depend on the choice, unless it is part of
    # a rebuild.
    independent = [op for op in all_ops if isinstance(op, AddColumnOp) and op.column.name not in open_names]
    if not all(isinstance(op, AddColumnOp | DropColumnOp) for op in all_ops):
        independent = []
    old, new = ({getattr(each, side) for each in change.renames} for side in ("old", "new"))
    options = [
        Option(
            title=f"{each.old} became {each.new}",
            ops=(RenameColumnOp(table=change.table, old=each.old, new=each.new),),
            score=each.score,
        )
        for each in change.renames
    ]
    last = Option(
        title="nothing was renamed; the old values are deleted",
        ops=tuple(op for op in all_ops if op not in independent),
    )
    choice = Choice(
        subject=change.table,
        question=f"{change.table}: the model has no {_listed(old)}, and {_listed(new)} would be new. Renamed?",
        options=(*options, last),
    )
    return [*independent, choice]


def _plan_table(change: TableDiff, expected: Structure, actual: Structure, dependents: Dependents) -> list[Op]:
    """Return the operations for a table if no column was renamed."""
    wanted, present = both_sides(change, expected, actual)
    added = [
        AddColumnOp(table=present.name, column=column, reference=reference_of(wanted, column.name, expected))
        for column in change.added
    ]
    dropped = [
        DropColumnOp(table=present.name, column=column.name, mentioned_by=_mentions_of(dependents, column.name))
        for column in change.dropped
    ]
    simple = not change.changed and not any(needs_value(op.column) or op.column.primary_key for op in added)
    try:
        _refuse_quoted(change, dependents)
        if simple and _is_altered(present, dependents, [*map(alter_sql, added), *map(alter_sql, dropped)]):
            return [*added, *dropped]
        return [_rebuild(change, expected, actual, dependents)]
    except (InputError, sqlite3.Error) as error:
        return [Manual(table=present.name, reason=_sentence(error), wanted=_wanted(change, added))]


def _refuse_quoted(change: TableDiff, dependents: Dependents) -> None:
    """Raise InputError if a view or trigger has a dropped column in double quotes."""
    for column in change.dropped:
        for each in (*dependents.views, *dependents.triggers):
            if ddl.quotes(each.sql, column.name):
                quoted = sql.identifier(column.name)
                raise InputError(
                    f"{each.name} has {quoted} in quotes, which SQLite treats as a text once the column is dropped."
                )


def both_sides(change: TableDiff, expected: Structure, actual: Structure) -> tuple[DeclaredTable, DeclaredTable]:
    """Return the table as the models declare it, and as it is."""
    wanted, present = expected.find(change.table), actual.find(change.table)
    if wanted is None or present is None:
        raise InputError(f"{change.table} is not in both structures that were compared.")
    return wanted, present


def alter_sql(op: AddColumnOp | DropColumnOp | RenameColumnOp | RenameTableOp) -> str:
    """Return the ALTER TABLE statement of an operation."""
    match op:
        case AddColumnOp():
            return f"ALTER TABLE {sql.identifier(op.table)} ADD COLUMN {ddl.column_sql(op.column, op.reference)}"
        case DropColumnOp():
            return f"ALTER TABLE {sql.identifier(op.table)} DROP COLUMN {sql.identifier(op.column)}"
        case RenameColumnOp():
            names = f"{sql.identifier(op.old)} TO {sql.identifier(op.new)}"
            return f"ALTER TABLE {sql.identifier(op.table)} RENAME COLUMN {names}"
        case RenameTableOp():
            return f"ALTER TABLE {sql.identifier(op.old)} RENAME TO {sql.identifier(op.new)}"


def _mentions_of(dependents: Dependents, name: str) -> tuple[str, ...]:
    return tuple(each.name for each in (*dependents.views, *dependents.triggers) if ddl.mentions(each.sql, name))


def needs_value(column: DeclaredColumn) -> bool:
    """Return whether existing rows need a value for the column that is not known."""
    has_default = column.default is not None and column.default.upper() != "NULL"
    return not column.nullable and not has_default and not column.primary_key


def _is_altered(table: DeclaredTable, dependents: Dependents, statements: Sequence[str]) -> bool:
    """Return whether SQLite supports it; also True if untestable: a failing ALTER does no harm."""
    with closing(sqlite3.connect(":memory:")) as memory:
        try:
            memory.execute(_statement_of(table))
            for index in dependents.indexes:
                memory.execute(index.sql)
        except sqlite3.Error:
            return True
        try:
            for statement in statements:
                memory.execute(statement)
        except sqlite3.Error:
            return False
    return True


def _statement_of(table: DeclaredTable) -> str:
    return table.ddl or ddl.create_sql(table)


def _rebuild(change: TableDiff, expected: Structure, actual: Structure, dependents: Dependents) -> RebuildTableOp:
    wanted, present = both_sides(change, expected, actual)
    statement = _new_statement(change, wanted, present, expected)
    verified = _verified(statement, wanted, expected, actual, present)
    dropped_names = {sql.fold(column.name) for column in change.dropped}
    copied = [
        column for column in present.columns if sql.fold(column.name) not in dropped_names and not column.generated
    ]
    unknown = tuple(column.name for column in change.added if needs_value(column))
    key, numbering = _row_key(present, verified)
    guards = tuple(
        Guard(column=each.actual.name, type=each.expected.type) for each in change.changed if _is_converted(each)
    )
    keyed = {sql.fold(name) for name in key}
    if guards and not key:
        raise InputError("Its columns hide the rowid, which is needed to check a conversion.")
    if not _alias(verified) and any(sql.fold(guard.column) in keyed for guard in guards):
        raise InputError("The type of its primary key changes, which is needed to find rows.")
    kept = _kept_dependents(present, dependents, change)
    copies = [*numbering, *((column.name, sql.identifier(column.name)) for column in copied)]
    return RebuildTableOp(
        table=present.name,
        statement=statement,
        copies=(*copies, *((name, "NULL") for name in unknown)),
        changed=tuple(each.actual.name for each in change.changed),
        added=tuple(column.name for column in change.added),
        dropped=tuple(column.name for column in change.dropped),
        unknown=unknown,
        guards=guards,
        key=key,
        numbers=_new_alias(present, verified),
        dependents=kept,
        lost_indexes=tuple(index.name for index in dependents.indexes if index not in kept.indexes),
        keeps_sequence=ddl.has_word(present.ddl, "AUTOINCREMENT"),
    )


def _new_statement(change: TableDiff, wanted: DeclaredTable, present: DeclaredTable, expected: Structure) -> str:
    edits = [
        ddl.ColumnEdit(column=each.expected, aspects=each.aspects, reference=each.expected_reference)
        for each in change.changed
    ]
    if any(column.primary_key for column in change.added) and any(column.primary_key for column in present.columns):
        raise InputError("Its primary key is not `id`.")
    return ddl.edited(
        _statement_of(present),
        name=NEW_PREFIX + present.name,
        edits=edits,
        added=[ddl.column_sql(column, reference_of(wanted, column.name, expected)) for column in change.added],
        dropped=[column.name for column in change.dropped],
    )


def _verified(
    statement: str, wanted: DeclaredTable, expected: Structure, actual: Structure, present: DeclaredTable
) -> DeclaredTable:
    """Return the table that the statement creates; InputError if it does not match the model."""
    with closing(sqlite3.connect(":memory:")) as memory:
        memory.execute(statement)
        made = replace(inspect(memory).tables[0], name=present.name)
    others = tuple(table for table in actual.tables if table is not present)
    left = diff(expected, Structure(tables=(*others, made)))
    names = {sql.fold(column.name) for column in made.columns}
    computed = {sql.fold(column.name) for column in present.columns if column.generated}
    if any(each.table == wanted.name or each.table == made.name for each in left.tables) or not computed <= names:
        raise InputError("Its statement could not be changed to match the model.")
    return made


def _is_converted(change: ColumnChange) -> bool:
    before, after = (_class(column.type) for column in (change.actual, change.expected))
    return before != after and after != "BLOB"


def _class(declared: str) -> str:
    # Stored values of the two are equal.
    found = affinity(declared)
    return "NUMERIC" if found == "INTEGER" else found


def _alias(table: DeclaredTable) -> str | None:
    """Return the column that is an alias of the rowid, if there is one."""
    keys = [column for column in table.columns if column.primary_key]
    is_alias = len(keys) == 1 and keys[0].type.upper() == "INTEGER" and not _is_without_rowid(table)
    return keys[0].name if is_alias else None


def _new_alias(present: DeclaredTable, made: DeclaredTable) -> str | None:
    """Return the column that becomes an alias of the rowid and was none before."""
    alias, before = _alias(made), _alias(present)
    is_old = before is not None and alias is not None and sql.fold(alias) == sql.fold(before)
    return None if alias is None or is_old or present.find(alias) is None else alias


def _is_without_rowid(table: DeclaredTable) -> bool:
    words = [token.word for token in ddl.tokens(table.ddl)]
    return "WITHOUT" in words and words[words.index("WITHOUT") + 1 :][:1] == ["ROWID"]


def _row_key(present: DeclaredTable, made: DeclaredTable) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    """Return how old and new rows are paired, and the copy of the rowid if no column has it."""
    if _is_without_rowid(present):
        return tuple(column.name for column in present.columns if column.primary_key), []
    alias = _alias(made)
    rowid = next((name for name in _ROWID_NAMES if present.find(name) is None and made.find(name) is None), None)
    if alias is not None:
        is_new = present.find(alias) is None
        if is_new and rowid is None:
            raise InputError("Its columns hide the rowid.")
        return (alias,), [(alias, rowid or "")] if is_new else []
    return ((rowid,), [(rowid, rowid)]) if rowid is not None else ((), [])


def _kept_dependents(present: DeclaredTable, dependents: Dependents, change: TableDiff) -> Dependents:
    """Return the dependents without indexes of dropped columns.

    Raises InputError if the table's statement needs such a column. SQLite might accept that: it
    treats a name in double quotes that is not a column as a text.
    """
    if not change.dropped:
        return dependents
    marks = {column.name: f"_gone_{place}_" for place, column in enumerate(change.dropped)}
    table, *indexes = _renamed(present, dependents, marks)
    rest = ddl.edited(table, name=present.name, dropped=list(marks.values()))
    for name, mark in marks.items():
        if ddl.mentions(rest, mark):
            raise InputError(f"Its own statement needs {name}, which is dropped.")
    kept = tuple(
        index
        for index, text in zip(dependents.indexes, indexes, strict=True)
        if not any(ddl.mentions(text, mark) for mark in marks.values())
    )
    return replace(dependents, indexes=kept)


def _renamed(table: DeclaredTable, dependents: Dependents, names: Mapping[str, str]) -> list[str]:
    """Return the statements of the table and its indexes, with columns renamed by SQLite itself."""
    with closing(sqlite3.connect(":memory:")) as memory:
        for statement in (_statement_of(table), *(index.sql for index in dependents.indexes)):
            memory.execute(statement)
        for old, new in names.items():
            memory.execute(alter_sql(RenameColumnOp(table=table.name, old=old, new=new)))
        found = dict(memory.execute("SELECT name, sql FROM sqlite_schema").fetchall())
    return [found[name] for name in (table.name, *(index.name for index in dependents.indexes))]


def _sentence(error: Exception) -> str:
    text = str(error)
    return text if text.endswith(".") else f"SQLite's error: {text}."


def _wanted(change: TableDiff, added: Sequence[AddColumnOp]) -> tuple[str, ...]:
    lines = [f"add {ddl.column_sql(op.column, op.reference)}" for op in added]
    lines += [f"drop {sql.identifier(column.name)}" for column in change.dropped]
    for each in change.changed:
        lines.append(f"change {ddl.column_sql(each.expected, each.expected_reference)}")
    return tuple(lines)
