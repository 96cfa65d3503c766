"""What a migration does, as values, and the plan that leads from a difference to them; pure.

SQLite's ALTER TABLE does little. What it can do is planned as such, and whether it can is asked of SQLite, on an empty
table in memory. For the rest the whole table is rebuilt from its own statement (`ddl.py`), and the new statement
is proven in memory to be what the models want before it stands in a plan. Where that fails, the developer is told.

No data goes and none is invented by a plan that nobody read: whatever may be a rename becomes a `Choice`.
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
    "The way to do it: https://www.sqlite.org/lang_altertable.html#otheralter. The one who applies the script has",
    "foreign keys off; `keeps-rows` makes them count the rows.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTableOp:
    """Make a table."""

    table: DeclaredTable


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTableOp:
    """Drop a table with its rows; `mentioned_by` would be left behind: views, and triggers, which `apply` refuses."""

    table: str
    mentioned_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameTableOp:
    """Give a table another name."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumnOp:
    """Add a column that existing rows have a value for: NULL or a constant."""

    table: str
    column: DeclaredColumn
    reference: Reference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumnOp:
    """Drop a column with its values; SQLite refuses while one of `mentioned_by` reads it, `apply` if it writes it."""

    table: str
    column: str
    mentioned_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumnOp:
    """Give a column another name."""

    table: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterColumnOp:
    """Change a column in its place, which DuckLake can and SQLite cannot: each action is what ALTER COLUMN says.

    `fill` is what all rows are given first.
    """

    table: str
    column: str
    actions: tuple[str, ...]
    fill: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A column whose values SQLite converts: the script fails where one would not survive as `type`."""

    column: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTableOp:
    """Make a table anew under another name, copy its rows, and let it take the old one's place.

    `statement` makes the table called `_new_<table>`. `copies` are the columns that are filled, and from what.
    `unknown` are columns that need a value which nobody has given. `key` is how an old row finds its new one, for the
    `guards`. `numbers` is a column that becomes the row's number: a NULL in it would be given one.
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
    """A change of a table that cannot be generated: why, what is to become so, and how it may be done."""

    table: str
    reason: str
    wanted: tuple[str, ...]
    way: tuple[str, ...] = _SQLITE_WAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One of the ways to go on; `score` where it is a guess."""

    title: str
    ops: tuple["Op", ...]
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What only the developer knows: nothing of it happens until an option is chosen. The best guess is first.

    The last option is that nothing was renamed, and is whole. After another one, what is left is generated next.
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
    """What to do on SQLite, in order.

    `dependents` are those of every table in `actual`: a rebuild must know them all, or it would lose some.
    """
    return arranged(
        difference,
        settle=lambda change: _settled(change, expected, actual, dependents[change.table]),
        mentioned_by=lambda table: _mentioning(dependents[table], table),
    )


def arranged(
    difference: ModelDiff,
    *,
    settle: Callable[[TableDiff], list[Op]],
    mentioned_by: Callable[[str], tuple[str, ...]] = lambda _: (),
) -> tuple[Op, ...]:
    """What to do, in order: new tables before those that refer to them, dropped ones last, then what is to choose.

    `settle` says what is done to a table that stays, when no column was renamed.
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
        ops += _table_ops(change, settle(change))
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
                options=(*renames, Option(title="nothing was renamed; the old rows go", ops=tuple(rest))),
            )
        )
    return tuple(ops)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _referred_first(tables: Sequence[DeclaredTable]) -> list[DeclaredTable]:
    """Tables behind those they refer to, as far as there is such an order."""
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


def _table_ops(change: TableDiff, whole: list[Op]) -> list[Op]:
    if not change.renames:
        return whole
    open_names = {name for candidate in change.renames for name in (candidate.old, candidate.new)}
    # An addition that is surely none of the renames need not wait, unless all is one rebuild.
    sure = [op for op in whole if isinstance(op, AddColumnOp) and op.column.name not in open_names]
    if not all(isinstance(op, AddColumnOp | DropColumnOp) for op in whole):
        sure = []
    old, new = ({getattr(each, side) for each in change.renames} for side in ("old", "new"))
    options = [
        Option(
            title=f"{each.old} became {each.new}",
            ops=(RenameColumnOp(table=change.table, old=each.old, new=each.new),),
            score=each.score,
        )
        for each in change.renames
    ]
    last = Option(title="nothing was renamed; the old values go", ops=tuple(op for op in whole if op not in sure))
    choice = Choice(
        subject=change.table,
        question=f"{change.table}: the model has no {_listed(old)}, and {_listed(new)} would be new. Renamed?",
        options=(*options, last),
    )
    return [*sure, choice]


def _settled(change: TableDiff, expected: Structure, actual: Structure, hanging: Dependents) -> list[Op]:
    """The operations for a table when no column was renamed."""
    wanted, present = both_sides(change, expected, actual)
    added = [
        AddColumnOp(table=present.name, column=column, reference=reference_of(wanted, column.name, expected))
        for column in change.added
    ]
    dropped = [
        DropColumnOp(table=present.name, column=column.name, mentioned_by=_mentioning(hanging, column.name))
        for column in change.dropped
    ]
    simple = not change.changed and not any(needs_value(op.column) or op.column.primary_key for op in added)
    try:
        _refuse_quoted(change, hanging)
        if simple and _is_altered(present, hanging, [*map(alter_sql, added), *map(alter_sql, dropped)]):
            return [*added, *dropped]
        return [_rebuild(change, expected, actual, hanging)]
    except (InputError, sqlite3.Error) as error:
        return [Manual(table=present.name, reason=_sentence(error), wanted=_wanted(change, added))]


def _refuse_quoted(change: TableDiff, hanging: Dependents) -> None:
    """See that no view or trigger has a dropped column in double quotes: SQLite would go on with a text instead."""
    for column in change.dropped:
        for each in (*hanging.views, *hanging.triggers):
            if ddl.quotes(each.sql, column.name):
                quoted = sql.identifier(column.name)
                raise InputError(f"{each.name} has {quoted} in quotes, which SQLite takes for a text once it is gone.")


def both_sides(change: TableDiff, expected: Structure, actual: Structure) -> tuple[DeclaredTable, DeclaredTable]:
    """The table as the models want it, and as it is."""
    wanted, present = expected.find(change.table), actual.find(change.table)
    if wanted is None or present is None:
        raise InputError(f"{change.table} is not in both structures that the difference is said to be of.")
    return wanted, present


def alter_sql(op: AddColumnOp | DropColumnOp | RenameColumnOp | RenameTableOp) -> str:
    """The ALTER TABLE of an operation that is one."""
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


def _mentioning(hanging: Dependents, name: str) -> tuple[str, ...]:
    return tuple(each.name for each in (*hanging.views, *hanging.triggers) if ddl.mentions(each.sql, name))


def needs_value(column: DeclaredColumn) -> bool:
    """Whether rows that exist can have the column only when somebody says with what."""
    has_default = column.default is not None and column.default.upper() != "NULL"
    return not column.nullable and not has_default and not column.primary_key


def _is_altered(table: DeclaredTable, hanging: Dependents, statements: Sequence[str]) -> bool:
    """Whether SQLite would do it; True too where it cannot be tried, since an ALTER TABLE that fails harms nothing."""
    with closing(sqlite3.connect(":memory:")) as memory:
        try:
            memory.execute(_statement_of(table))
            for index in hanging.indexes:
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


def _rebuild(change: TableDiff, expected: Structure, actual: Structure, hanging: Dependents) -> RebuildTableOp:
    wanted, present = both_sides(change, expected, actual)
    statement = _new_statement(change, wanted, present, expected)
    proven = _proven(statement, wanted, expected, actual, present)
    gone = {sql.fold(column.name) for column in change.dropped}
    copied = [column for column in present.columns if sql.fold(column.name) not in gone and not column.generated]
    unknown = tuple(column.name for column in change.added if needs_value(column))
    key, numbering = _row_key(present, proven)
    guards = tuple(
        Guard(column=each.actual.name, type=each.expected.type) for each in change.changed if _is_converted(each)
    )
    keyed = {sql.fold(name) for name in key}
    if guards and not key:
        raise InputError("Its columns hide the numbers of its rows, by which a conversion would be checked.")
    if not _alias(proven) and any(sql.fold(guard.column) in keyed for guard in guards):
        raise InputError("The type of its primary key changes, and rows are found by that.")
    kept = _kept_dependents(present, hanging, change)
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
        numbers=_new_alias(present, proven),
        dependents=kept,
        lost_indexes=tuple(index.name for index in hanging.indexes if index not in kept.indexes),
        keeps_sequence=ddl.has_word(present.ddl, "AUTOINCREMENT"),
    )


def _new_statement(change: TableDiff, wanted: DeclaredTable, present: DeclaredTable, expected: Structure) -> str:
    edits = [
        ddl.ColumnEdit(column=each.expected, aspects=each.aspects, reference=each.expected_reference)
        for each in change.changed
    ]
    if any(column.primary_key for column in change.added) and any(column.primary_key for column in present.columns):
        raise InputError("It has another primary key than `id`.")
    return ddl.edited(
        _statement_of(present),
        name=NEW_PREFIX + present.name,
        edits=edits,
        added=[ddl.column_sql(column, reference_of(wanted, column.name, expected)) for column in change.added],
        dropped=[column.name for column in change.dropped],
    )


def _proven(
    statement: str, wanted: DeclaredTable, expected: Structure, actual: Structure, present: DeclaredTable
) -> DeclaredTable:
    """The table that the statement makes, once it is certain that it is what the model wants, and all else is there."""
    with closing(sqlite3.connect(":memory:")) as memory:
        memory.execute(statement)
        made = replace(inspect(memory).tables[0], name=present.name)
    others = tuple(table for table in actual.tables if table is not present)
    left = diff(expected, Structure(tables=(*others, made)))
    names = {sql.fold(column.name) for column in made.columns}
    computed = {sql.fold(column.name) for column in present.columns if column.generated}
    if any(each.table == wanted.name or each.table == made.name for each in left.tables) or not computed <= names:
        raise InputError("Its statement could not be changed as the model wants it.")
    return made


def _is_converted(change: ColumnChange) -> bool:
    before, after = (_class(column.type) for column in (change.actual, change.expected))
    return before != after and after != "BLOB"


def _class(declared: str) -> str:
    # To a value that is stored, the two mean the same.
    found = affinity(declared)
    return "NUMERIC" if found == "INTEGER" else found


def _alias(table: DeclaredTable) -> str | None:
    """The column that is the row's number, if there is one."""
    keys = [column for column in table.columns if column.primary_key]
    is_alias = len(keys) == 1 and keys[0].type.upper() == "INTEGER" and not _is_without_rowid(table)
    return keys[0].name if is_alias else None


def _new_alias(present: DeclaredTable, made: DeclaredTable) -> str | None:
    """The column that holds the row's number from now on, and held something else, or NULL, before."""
    alias, before = _alias(made), _alias(present)
    is_old = before is not None and alias is not None and sql.fold(alias) == sql.fold(before)
    return None if alias is None or is_old or present.find(alias) is None else alias


def _is_without_rowid(table: DeclaredTable) -> bool:
    words = [token.word for token in ddl.tokens(table.ddl)]
    return "WITHOUT" in words and words[words.index("WITHOUT") + 1 :][:1] == ["ROWID"]


def _row_key(present: DeclaredTable, made: DeclaredTable) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    """How old rows and new ones are paired, and the copy that keeps the rows' numbers where no column holds them."""
    if _is_without_rowid(present):
        return tuple(column.name for column in present.columns if column.primary_key), []
    alias = _alias(made)
    rowid = next((name for name in _ROWID_NAMES if present.find(name) is None and made.find(name) is None), None)
    if alias is not None:
        is_new = present.find(alias) is None
        if is_new and rowid is None:
            raise InputError("Its columns hide the numbers of its rows.")
        return (alias,), [(alias, rowid or "")] if is_new else []
    return ((rowid,), [(rowid, rowid)]) if rowid is not None else ((), [])


def _kept_dependents(present: DeclaredTable, hanging: Dependents, change: TableDiff) -> Dependents:
    """Without the indexes of columns that go: they have nothing to stand on.

    A statement of the table that needs such a column is refused, since SQLite would not do so: a name in double quotes
    that leads to no column is a text to it.
    """
    if not change.dropped:
        return hanging
    marks = {column.name: f"_gone_{place}_" for place, column in enumerate(change.dropped)}
    table, *indexes = _renamed(present, hanging, marks)
    rest = ddl.edited(table, name=present.name, dropped=list(marks.values()))
    for name, mark in marks.items():
        if ddl.mentions(rest, mark):
            raise InputError(f"Its own statement needs {name}, which is to go.")
    kept = tuple(
        index
        for index, text in zip(hanging.indexes, indexes, strict=True)
        if not any(ddl.mentions(text, mark) for mark in marks.values())
    )
    return replace(hanging, indexes=kept)


def _renamed(table: DeclaredTable, hanging: Dependents, names: Mapping[str, str]) -> list[str]:
    """The statements of the table and of its indexes with columns renamed: by SQLite, which knows who means them."""
    with closing(sqlite3.connect(":memory:")) as memory:
        for statement in (_statement_of(table), *(index.sql for index in hanging.indexes)):
            memory.execute(statement)
        for old, new in names.items():
            memory.execute(alter_sql(RenameColumnOp(table=table.name, old=old, new=new)))
        found = dict(memory.execute("SELECT name, sql FROM sqlite_schema").fetchall())
    return [found[name] for name in (table.name, *(index.name for index in hanging.indexes))]


def _sentence(error: Exception) -> str:
    text = str(error)
    return text if text.endswith(".") else f"SQLite says: {text}."


def _wanted(change: TableDiff, added: Sequence[AddColumnOp]) -> tuple[str, ...]:
    lines = [f"add {ddl.column_sql(op.column, op.reference)}" for op in added]
    lines += [f"drop {sql.identifier(column.name)}" for column in change.dropped]
    for each in change.changed:
        lines.append(f"change {ddl.column_sql(each.expected, each.expected_reference)}")
    return tuple(lines)
