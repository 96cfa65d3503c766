"""The text of a migration: operations as a script that a developer reads, edits and applies.

A script contains statements and comments, but no BEGIN, COMMIT or PRAGMA: the process that applies
it opens the transaction, turns foreign keys off, and checks them before the commit. `-- keeps-rows:
<table>` before a rebuild declares that the table must have as many rows after it as before. `--
undecided: <subject>` marks an open choice, or a statement that must be written by hand; such a
script is not applied.

How a rebuild handles a column whose type changes: rows are copied as they are, and SQLite converts
values that fit the new type ('12' becomes 12 in an INTEGER column). A value that it cannot convert
stays as it was ('abc' stays text). A value whose conversion cannot be reversed ('007', 0.1 + 0.2 as
text) fails the script, which then changes nothing.
"""

import re
from collections.abc import Sequence
from typing import assert_never

from catchment.foundation import sql
from catchment.schema import ddl
from catchment.schema.inspect import Dependent
from catchment.schema.ops import (
    NEW_PREFIX,
    AddColumnOp,
    AlterColumnOp,
    Choice,
    CreateTableOp,
    DropColumnOp,
    DropTableOp,
    Guard,
    Manual,
    Op,
    Option,
    RebuildTableOp,
    RenameColumnOp,
    RenameTableOp,
    alter_sql,
)

KEEPS_ROWS = "-- keeps-rows: "
UNDECIDED = "-- undecided: "
_NAME_LETTERS_MAX = 48
_GUARD_TABLE = "_guard"

_HEADER = """\
-- Generated from the difference between models and database. Read it, change it as you like, then apply it.
--
-- To merge it with earlier scripts that production has not run yet:
--   1. rm those scripts and this one
--   2. restore the database from its .ref
--   3. generate again: one script then has all changes
--   4. apply that
"""


def script_text(ops: Sequence[Op]) -> str:
    """Return a script with these operations."""
    return "\n".join([_HEADER, *(f"{_rendered(op)}\n" for op in ops)])


def script_name(ops: Sequence[Op]) -> str:
    """Return a short name for a script, of lower-case letters, digits and underscores."""
    topics = [_topic(op) for op in ops]
    if not topics:
        return "nothing"
    verbs = {verb for verb, _, _ in topics}
    tables = list(dict.fromkeys(table for _, table, _ in topics))
    things = list(dict.fromkeys(thing for _, _, thing in topics))
    if len(verbs) == 1 and len(things) <= 2:
        return _slug(f"{verbs.pop()}_{'_and_'.join(things)}")
    if len(verbs) == 1 and verbs <= {"create", "drop"} and len(tables) == len(things):
        return _slug(f"{verbs.pop()}_{len(things)}_tables")
    if len(tables) <= 2:
        return _slug(f"change_{'_and_'.join(tables)}")
    return _slug(f"change_{len(tables)}_tables")


def _topic(op: Op) -> tuple[str, str, str]:
    """Return the action, its table, and the part of the table."""
    match op:
        case CreateTableOp():
            return "create", op.table.name, op.table.name
        case DropTableOp():
            return "drop", op.table, op.table
        case AddColumnOp():
            return "add", op.table, op.column.name
        case DropColumnOp():
            return "drop", op.table, op.column
        case RenameTableOp():
            return "rename", op.old, op.old
        case RenameColumnOp():
            return "rename", op.table, op.old
        case AlterColumnOp():
            return "change", op.table, op.column
        case RebuildTableOp():
            return _rebuild_topic(op)
        case Manual():
            return "change", op.table, op.table
        case Choice():
            first = op.options[0].ops[0]
            return _topic(first)
        case _:
            assert_never(op)


def _rebuild_topic(op: RebuildTableOp) -> tuple[str, str, str]:
    for verb, names in (("change", op.changed), ("add", op.added), ("drop", op.dropped)):
        others = len(op.changed) + len(op.added) + len(op.dropped) - len(names)
        if len(names) == 1 and not others:
            return verb, op.table, names[0]
    return "change", op.table, op.table


def _slug(text: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return plain[:_NAME_LETTERS_MAX].strip("_") or "change"


def _rendered(op: Op) -> str:
    match op:
        case CreateTableOp():
            return _statement(ddl.create_sql(op.table))
        case DropTableOp():
            notes = [f"The rows of {op.table} are deleted with it.", *_mention_notes(op.mentioned_by, op.table)]
            return _noted(notes, f"DROP TABLE {sql.identifier(op.table)}")
        case DropColumnOp():
            notes = [
                f"The values of {op.table}.{op.column} are deleted with it.",
                *_mention_notes(op.mentioned_by, op.column),
            ]
            return _noted(notes, alter_sql(op))
        case AddColumnOp() | RenameColumnOp() | RenameTableOp():
            return _statement(alter_sql(op))
        case AlterColumnOp():
            return _altered(op)
        case RebuildTableOp():
            return _rebuilt(op)
        case Manual():
            return _by_hand(op)
        case Choice():
            return _chosen(op)
        case _:
            assert_never(op)


def _statement(text: str) -> str:
    # A comment in the last line would swallow the semicolon.
    last = text.rpartition("\n")[2]
    return f"{text}\n;" if "--" in last else f"{text};"


def _comment(text: str) -> str:
    return f"-- {_flat(text)}"


def _flat(text: str) -> str:
    # A name may contain line ends; a comment may not.
    return " ".join(text.splitlines()).strip()


def _noted(notes: Sequence[str], statement: str) -> str:
    return "\n".join([*(_comment(note) for note in notes), _statement(statement)])


def _mention_notes(names: Sequence[str], what: str) -> list[str]:
    return [f"{name} mentions {what}: change or drop it first, or this may fail." for name in names]


def _altered(op: AlterColumnOp) -> str:
    table, column = sql.identifier(op.table), sql.identifier(op.column)
    parts = [_comment(note) for note in op.notes]
    parts += [] if op.fill is None else [_statement(f"UPDATE {table} SET {column} = {op.fill}")]
    parts += [_statement(f"ALTER TABLE {table} ALTER COLUMN {column} {action}") for action in op.actions]
    return "\n".join(parts)


def _by_hand(op: Manual) -> str:
    notes = [
        f"{op.table} cannot be changed by a generated script. {op.reason} Write the statements here:",
        *(f"  {line}" for line in op.wanted),
        *op.way,
    ]
    return "\n".join([UNDECIDED + _flat(op.table), *(_comment(note) for note in notes)])


def _chosen(op: Choice) -> str:
    lines = [
        UNDECIDED + _flat(op.subject),
        _comment(op.question),
        "-- None of this runs until you remove the `-- ` before the statements of one option, and the line",
        "-- `undecided`. Remaining changes are generated next. The likeliest option comes first.",
    ]
    for number, option in enumerate(op.options, 1):
        lines += ["--", _comment(f"[{number}] {option.title}{_scored(option)}")]
        for each in option.ops:
            lines += [f"-- {line}" if line else "--" for line in _rendered(each).split("\n")]
    return "\n".join([*lines, "--"])


def _scored(option: Option) -> str:
    return "" if option.score is None else f" (score {option.score:.2f})"


def _rebuilt(op: RebuildTableOp) -> str:
    """Follow SQLite's procedure: https://www.sqlite.org/lang_altertable.html#otheralter."""
    new = NEW_PREFIX + op.table
    parts = [KEEPS_ROWS + _flat(op.table), *(_comment(note) for note in _rebuild_notes(op))]
    parts += [_drop("TRIGGER", each) for each in op.dependents.triggers]
    # The one created last may depend on the others.
    parts += [_drop("VIEW", each) for each in reversed(op.dependents.views)]
    parts.append(_statement(op.statement))
    columns = sql.identifiers(column for column, _ in op.copies)
    values = ", ".join(source for _, source in op.copies)
    parts.append(f"INSERT INTO {sql.identifier(new)} ({columns})\nSELECT {values}\nFROM {sql.identifier(op.table)};")
    if op.numbers is not None:
        parts += _rowid_check(op, op.numbers)
    for guard in op.guards:
        parts += _conversion_check(op, guard)
    if op.keeps_sequence:
        parts += [
            "-- Keep the highest id that was ever assigned, so that none is assigned twice.",
            f"DELETE FROM sqlite_sequence WHERE name = {sql.literal(new)};",
            f"INSERT INTO sqlite_sequence (name, seq) SELECT {sql.literal(new)}, seq FROM sqlite_sequence "
            f"WHERE name = {sql.literal(op.table)};",
        ]
    parts.append(f"DROP TABLE {sql.identifier(op.table)};")
    parts.append(_statement(alter_sql(RenameTableOp(old=new, new=op.table))))
    made_again = (*op.dependents.indexes, *op.dependents.views, *op.dependents.triggers)
    parts += [_statement(each.sql) for each in made_again]
    if op.dropped and (op.dependents.views or op.dependents.triggers):
        parts += _dependents_check(op)
    return "\n".join(parts)


def _rebuild_notes(op: RebuildTableOp) -> list[str]:
    notes = [
        f"{op.table} is created again and its rows are copied, because ALTER TABLE cannot do this: "
        + ", ".join(
            f"{verb} {name}"
            for verb, names in (("change", op.changed), ("add", op.added), ("drop", op.dropped))
            for name in names
        )
        + "."
    ]
    notes += [f"The values of {op.table}.{name} are deleted." for name in op.dropped]
    notes += [f"The index {name} is dropped with them." for name in op.lost_indexes]
    notes += [
        f"{name} must not be NULL and has no default: while the table has rows this fails, and changes nothing, until "
        "you write a value for it in place of NULL."
        for name in op.unknown
    ]
    return notes


def _drop(kind: str, dependent: Dependent) -> str:
    return f"DROP {kind} {sql.identifier(dependent.name)};"


def _rowid_check(op: RebuildTableOp, name: str) -> list[str]:
    complaint = sql.identifier(f"{op.table}.{name}: a row without a value would be given one")
    table = sql.identifier(_GUARD_TABLE)
    return [
        _comment(f"Fails, and changes nothing, if {name} is NULL in some row: SQLite would assign a number to it."),
        f"CREATE TEMP TABLE {table} (unnamed INTEGER CONSTRAINT {complaint} CHECK (unnamed = 0));",
        f"INSERT INTO {table} SELECT count(*) FROM {sql.identifier(op.table)} WHERE {sql.identifier(name)} IS NULL;",
        f"DROP TABLE temp.{table};",
    ]


def _conversion_check(op: RebuildTableOp, guard: Guard) -> list[str]:
    column = sql.identifier(guard.column)
    paired = " AND ".join(f"now.{sql.identifier(name)} = was.{sql.identifier(name)}" for name in op.key)
    complaint = sql.identifier(f"{op.table}.{guard.column}: a value would not survive as {guard.type}")
    table = sql.identifier(_GUARD_TABLE)
    return [
        _comment(
            f"Fails, and changes nothing, if a value of {guard.column} would change as {guard.type}: convert "
            "it in the SELECT above, and remove this check. A word in a column of numbers is not converted: it stays."
        ),
        f"CREATE TEMP TABLE {table} (lost INTEGER CONSTRAINT {complaint} CHECK (lost = 0));",
        f"INSERT INTO {table}\n"
        f"SELECT count(*)\n"
        f"FROM {sql.identifier(op.table)} AS was JOIN {sql.identifier(NEW_PREFIX + op.table)} AS now ON {paired}\n"
        f"WHERE +was.{column} IS NOT CASE typeof(was.{column}) WHEN 'text' THEN CAST(now.{column} AS TEXT)\n"
        f"    WHEN 'blob' THEN now.{column} ELSE CAST(now.{column} AS NUMERIC) END;",
        f"DROP TABLE temp.{table};",
    ]


def _dependents_check(op: RebuildTableOp) -> list[str]:
    column = sql.identifier(op.copies[0][0])
    return [
        "-- Changes nothing, but fails if a view or a trigger still reads a dropped column. If a trigger writes one,",
        "-- the script is refused at its end.",
        f"ALTER TABLE {sql.identifier(op.table)} RENAME COLUMN {column} TO {column};",
    ]
