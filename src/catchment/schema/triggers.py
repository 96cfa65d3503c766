"""Triggers of a SQLite database that fail whenever they fire, because an object is missing.

SQLite stores a trigger as text, and resolves it when a statement fires it. ALTER TABLE checks
triggers, but not the columns that they write, and DROP TABLE checks none. So each is tested by
EXPLAIN of a write that fires it: SQLite compiles the write, and runs nothing.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from catchment.foundation import sql
from catchment.schema import ddl
from catchment.schema.sqlite_files import is_about_storage

_EVENTS = frozenset({"INSERT", "UPDATE", "DELETE"})
_SAVEPOINT = "one_trigger_at_a_time"
# A program registers these on its own connection.
_ABSENT = re.compile(r"no such (?P<kind>function|collation sequence): (?P<name>.+)", re.DOTALL)
_ONLY_THE_PROGRAM_CAN_TELL = re.compile(r"no such module: .+|.+\(\) may not be used as a window function", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trigger:
    """A trigger, the table or view whose writes fire it, and the kind of write."""

    name: str
    owner: str
    event: str
    creation: str

    @property
    def removal(self) -> str:
        return f"DROP TRIGGER {sql.qualified('main', self.name)}"


def failing(connection: sqlite3.Connection) -> dict[str, str]:
    """Return a description of every trigger that fails whenever it fires, by its folded name.

    Requires an open transaction, and changes nothing in it.
    """
    triggers = list(_triggers(connection))
    if all(_obstacle(connection, each) is None for each in triggers):
        return {}
    # A write fires all triggers of its table, and those of the tables that they write to. To know
    # which of them fails, and that none hides another, each is tried alone.
    found: dict[str, str] = {}
    with _without(connection, triggers):
        for each in triggers:
            connection.execute(each.creation)
            reason = _obstacle(connection, each)
            if reason:
                found[sql.fold(each.name)] = f"the trigger {each.name} on {each.owner} ({reason})"
            connection.execute(each.removal)
    return found


def _triggers(connection: sqlite3.Connection) -> Iterator[_Trigger]:
    # Temporary triggers end with the connection. Invalid bytes in a text do not matter for a trial.
    rows = connection.execute(
        "SELECT name, tbl_name, CAST(sql AS BLOB) FROM main.sqlite_schema WHERE type = 'trigger' ORDER BY name"
    )
    for name, owner, raw in rows.fetchall():
        text = raw.decode(errors="replace")
        # SQLite stores it as CREATE TRIGGER name [BEFORE | AFTER | INSTEAD OF] event …, without a
        # schema.
        words = ddl.tokens(text)
        event = next((token.word for token in words[3:6] if token.word in _EVENTS), None)
        if event is not None:
            # In main, even if a temporary table has the name of its table.
            creation = f"CREATE TRIGGER main.{text[words[2].start :]}"
            yield _Trigger(name=name, owner=owner, event=event, creation=creation)


@contextmanager
def _without(connection: sqlite3.Connection, triggers: list[_Trigger]) -> Iterator[None]:
    """Remove all triggers from the database for the duration of the block."""
    temporary = connection.execute("SELECT name FROM temp.sqlite_schema WHERE type = 'trigger'").fetchall()
    connection.execute(f"SAVEPOINT {_SAVEPOINT}")
    try:
        for (name,) in temporary:
            connection.execute(f"DROP TRIGGER {sql.qualified('temp', name)}")
        for each in triggers:
            connection.execute(each.removal)
        yield
    finally:
        # A full disk may have ended the transaction.
        if connection.in_transaction:
            connection.execute(f"ROLLBACK TO {_SAVEPOINT}")
            connection.execute(f"RELEASE {_SAVEPOINT}")


def _obstacle(connection: sqlite3.Connection, trigger: _Trigger) -> str | None:
    """Return why a write that fires the trigger cannot be compiled, or None if it can.

    An empty text means that only the program itself can tell. Missing functions and collations are
    registered for the trial, so that later errors are found.
    """
    registered: set[str] = set()
    with ExitStack() as stack:
        while True:
            try:
                connection.execute(f"EXPLAIN {_write(connection, trigger)}").close()
            except sqlite3.Error as error:
                if is_about_storage(error):
                    raise
                reason = str(error)
            else:
                return None
            # The registered function is a plain one: an error in it need not occur with the real
            # one.
            if _ONLY_THE_PROGRAM_CAN_TELL.fullmatch(reason) or any(f"{name}()" in reason for name in registered):
                return ""
            absent = _ABSENT.fullmatch(reason)
            if absent is None:
                return reason
            if absent["name"] in registered:
                return ""
            registered.add(absent["name"])
            stack.enter_context(_registered(connection, absent["kind"], absent["name"]))


def _write(connection: sqlite3.Connection, trigger: _Trigger) -> str:
    table = sql.qualified("main", trigger.owner)
    if trigger.event == "INSERT":
        return f"INSERT INTO {table} DEFAULT VALUES"
    if trigger.event == "DELETE":
        return f"DELETE FROM {table}"
    # A trigger may be for some columns only, and computed ones cannot be written.
    rows = connection.execute("SELECT name FROM pragma_table_xinfo(?, 'main') WHERE hidden = 0", (trigger.owner,))
    columns = [sql.identifier(name) for (name,) in rows.fetchall()]
    return f"UPDATE {table} SET {', '.join(f'{column} = {column}' for column in columns)}"


@contextmanager
def _registered(connection: sqlite3.Connection, kind: str, name: str) -> Iterator[None]:
    if kind == "function":
        connection.create_function(name, -1, lambda *_: None, deterministic=True)
    else:
        connection.create_collation(name, lambda one, other: (one > other) - (one < other))
    try:
        yield
    finally:
        if kind == "function":
            # `create_function` cannot unregister a function; SQLite identifies functions of all
            # kinds by name.
            connection.create_window_function(name, -1, None)
        else:
            connection.create_collation(name, None)
