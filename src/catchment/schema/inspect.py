"""Structure of a SQLite database, as SQLite itself reports it, without parsing statements."""

import sqlite3
from dataclasses import dataclass

from catchment.foundation import sql
from catchment.schema import ddl
from catchment.schema.structure import DeclaredColumn, DeclaredTable, Reference, Structure

MIGRATIONS_TABLE = "_migrations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependent:
    """An index, trigger or view: its name, its table or view, and the statement that created it."""

    name: str
    owner: str
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependents:
    """Objects that depend on a table, in the order of their creation.

    Views and triggers are those that mention the table, or a view that does. `autoincrement` is the
    highest id that was ever assigned, if the table remembers it.
    """

    indexes: tuple[Dependent, ...] = ()
    triggers: tuple[Dependent, ...] = ()
    views: tuple[Dependent, ...] = ()
    autoincrement: int | None = None


def inspect(connection: sqlite3.Connection) -> Structure:
    """Return the tables of the database, without views, virtual tables and internal tables."""
    statements = {name: text for _, name, _, text in _schema(connection, "table")}
    names = [
        name
        for schema, name, kind in connection.execute("SELECT schema, name, type FROM pragma_table_list").fetchall()
        if schema == "main" and kind == "table" and name in statements and not _is_hidden(name)
    ]
    order = list(statements)
    return Structure(
        tables=tuple(
            DeclaredTable(
                name=name,
                columns=_columns(connection, name),
                references=_references(connection, name),
                ddl=statements[name],
            )
            for name in sorted(names, key=order.index)
        )
    )


def dependents(connection: sqlite3.Connection, table: str) -> Dependents:
    """Return the objects that must be created again with the table."""
    key = sql.fold(table)
    views = _schema(connection, "view")
    names = {key}
    while True:
        found = {sql.fold(name) for _, name, _, text in views if any(ddl.mentions(text, each) for each in names)}
        if found <= names:
            break
        names |= found
    return Dependents(
        indexes=tuple(
            Dependent(name=name, owner=owner, sql=text)
            for _, name, owner, text in _schema(connection, "index")
            if sql.fold(owner) == key
        ),
        triggers=tuple(
            Dependent(name=name, owner=owner, sql=text)
            for _, name, owner, text in _schema(connection, "trigger")
            if any(ddl.mentions(text, each) for each in names)
        ),
        views=tuple(
            Dependent(name=name, owner=owner, sql=text) for _, name, owner, text in views if sql.fold(name) in names
        ),
        autoincrement=_autoincrement(connection, table),
    )


def all_dependents(connection: sqlite3.Connection, structure: Structure) -> dict[str, Dependents]:
    """Return the `dependents` of every table, by name."""
    return {table.name: dependents(connection, table.name) for table in structure.tables}


def _schema(connection: sqlite3.Connection, kind: str) -> list[tuple[str, str, str, str]]:
    # Indexes without a statement are those that SQLite creates for UNIQUE and PRIMARY KEY: they
    # come with their table.
    rows = connection.execute(
        "SELECT type, name, tbl_name, sql FROM main.sqlite_schema WHERE type = ? AND sql IS NOT NULL ORDER BY rowid",
        (kind,),
    )
    return rows.fetchall()


def _is_hidden(name: str) -> bool:
    return sql.fold(name).startswith("sqlite_") or sql.fold(name) == MIGRATIONS_TABLE


def _columns(connection: sqlite3.Connection, table: str) -> tuple[DeclaredColumn, ...]:
    rows = connection.execute(
        'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?, ?) ORDER BY cid',
        (table, "main"),
    )
    # A column with hidden = 2 or 3 is computed, but visible.
    return tuple(
        DeclaredColumn(
            name=name,
            type=declared,
            nullable=not notnull,
            default=default,
            primary_key=place,
            generated=hidden in (2, 3),
        )
        for name, declared, notnull, default, place, hidden in rows.fetchall()
        if hidden != 1
    )


def _references(connection: sqlite3.Connection, table: str) -> tuple[Reference, ...]:
    rows = connection.execute(
        'SELECT id, "table", "from", "to", on_delete, on_update FROM pragma_foreign_key_list(?, ?) ORDER BY id, seq',
        (table, "main"),
    )
    grouped: dict[int, list[tuple[str, str, str | None, str, str]]] = {}
    for number, *rest in rows.fetchall():
        other, column, target, on_delete, on_update = rest
        grouped.setdefault(number, []).append((other, column, target, on_delete, on_update))
    # SQLite numbers foreign keys from the last one written to the first.
    return tuple(
        Reference(
            columns=tuple(column for _, column, *_ in parts),
            table=parts[0][0],
            targets=tuple(target for _, _, target, *_ in parts if target is not None),
            on_delete=parts[0][3],
            on_update=parts[0][4],
        )
        for _, parts in sorted(grouped.items(), reverse=True)
    )


def _autoincrement(connection: sqlite3.Connection, table: str) -> int | None:
    kept = connection.execute("SELECT 1 FROM main.sqlite_schema WHERE name = 'sqlite_sequence'").fetchone()
    if kept is None:
        return None
    found = connection.execute("SELECT seq FROM main.sqlite_sequence WHERE name = ? COLLATE NOCASE", (table,))
    row = found.fetchone()
    return None if row is None else int(row[0])
