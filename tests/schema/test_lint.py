"""Findings about scripts, from their effect on a real database."""

import sqlite3
from contextlib import closing

import pytest

from catchment.schema.execute import count_rows, execute
from catchment.schema.inspect import inspect
from catchment.schema.lint import Effect, LintFinding, Risk, lint
from catchment.schema.scripts import Script, ScriptName

DATABASE = """
CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, email TEXT);
CREATE TABLE logs (id INTEGER PRIMARY KEY, line TEXT);
INSERT INTO users (name, email) VALUES ('Ada', 'a'), ('Grace', 'g'), ('Edsger', 'e');
"""
REBUILD = """
CREATE TABLE _new (id INTEGER PRIMARY KEY, {columns});
INSERT INTO _new SELECT id, {values} FROM users;
DROP TABLE users;
ALTER TABLE _new RENAME TO users;
"""
# The other way to rebuild: the old table is renamed, and dropped last.
ASIDE = """
ALTER TABLE users RENAME TO "to old";
CREATE TABLE users (id INTEGER PRIMARY KEY, {columns});
INSERT INTO users SELECT id, {values} FROM "to old";
DROP TABLE "to old";
"""


def _lint(text: str, *, rows_big: int = 100) -> list[LintFinding]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(DATABASE)
        connection.execute("BEGIN")
        before = inspect(connection)
        names = [table.name for table in before.tables]
        rows_before = dict(zip(names, count_rows(connection, names), strict=True))
        acts = execute(connection, Script(name=ScriptName(number=1, slug="a"), raw=text))
        after = inspect(connection)
        names = [table.name for table in after.tables]
        rows_after = dict(zip(names, count_rows(connection, names), strict=True))
    effect = Effect(acts=acts, before=before, after=after, rows_before=rows_before, rows_after=rows_after)
    return list(lint(effect, rows_big=rows_big))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "CREATE TABLE more (id INTEGER PRIMARY KEY, n INT NOT NULL)",
        "ALTER TABLE users ADD COLUMN city TEXT",
        "ALTER TABLE users ADD COLUMN city TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE users RENAME COLUMN name TO full_name",
        "ALTER TABLE users RENAME TO people",
        "INSERT INTO users (name) VALUES ('Alan')",
        "CREATE INDEX by_name ON users (name)",
        REBUILD.format(columns="name TEXT, email TEXT", values="name, email"),
        REBUILD.format(columns="full_name TEXT, email TEXT", values="name, email"),
        ASIDE.format(columns="full_name TEXT, email TEXT", values="name, email"),
        "CREATE TABLE more (id INTEGER PRIMARY KEY); INSERT OR REPLACE INTO more VALUES (1)",
        "ALTER TABLE users RENAME TO replaced; ALTER TABLE replaced RENAME TO people",
    ],
)
def test_changes_that_lose_nothing_are_not_reported(text: str) -> None:
    assert _lint(text) == []


@pytest.mark.parametrize(
    ("text", "risk", "said"),
    [
        ("\nDROP TABLE users", Risk.DATA_LOSS, "The table users is dropped, with 3 rows."),
        ("\nALTER TABLE users DROP COLUMN name", Risk.DATA_LOSS, "users.name is dropped, with its values in 3 rows"),
        ("\nDELETE FROM users WHERE id > 1", Risk.DATA_LOSS, "2 rows of users are deleted; 1 are left."),
        ("\nDELETE FROM users WHERE id > 9", Risk.DATA_LOSS, "may be deleted"),
        (
            "ALTER TABLE users RENAME TO old;\nDROP TABLE old",
            Risk.DATA_LOSS,
            "The table users is dropped, with 3 rows.",
        ),
        (
            "ALTER TABLE users RENAME TO a; ALTER TABLE a RENAME TO main;\nALTER TABLE main DROP COLUMN name",
            Risk.DATA_LOSS,
            "users.name is dropped",
        ),
        (ASIDE.format(columns="name TEXT", values="name"), Risk.DATA_LOSS, "users.email is dropped"),
        ("\nINSERT OR REPLACE INTO users VALUES (1, 'x', 'y')", Risk.DATA_LOSS, "Rows of users that conflict"),
        ("\nREPLACE INTO users VALUES (1, 'x', 'y')", Risk.DATA_LOSS, "Rows of users that conflict"),
        ("\nDELETE FROM logs", Risk.DATA_LOSS, "Rows of logs may be deleted"),
        ("\nUPDATE users SET name = upper(name)", Risk.IRREVERSIBLE, "users.name are overwritten"),
        (REBUILD.format(columns="name TEXT", values="name"), Risk.DATA_LOSS, "users.email is dropped"),
        (REBUILD.format(columns="name TEXT, email BLOB", values="name, email"), Risk.IRREVERSIBLE, "becomes BLOB"),
        (
            REBUILD.format(columns="name TEXT NOT NULL, email TEXT", values="name, email"),
            Risk.NOT_NULL,
            "users.name may not be NULL and has no default",
        ),
    ],
)
def test_a_risk_is_found_with_its_sentence(text: str, risk: Risk, said: str) -> None:
    (found,) = _lint(text)
    assert found.risk is risk
    assert said in found.message
    assert found.line == 2 or "CREATE TABLE" in text


def test_a_new_required_column_is_found_on_an_empty_copy_too() -> None:
    (found,) = _lint("ALTER TABLE logs ADD COLUMN level TEXT NOT NULL")
    assert (found.risk, "logs.level" in found.message) == (Risk.NOT_NULL, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("UPDATE users SET name = 'x'", "is updated"),
        ("DELETE FROM users WHERE id = 9", "has rows deleted"),
        ("CREATE INDEX by_name ON users (name)", "is read completely"),
        ("ALTER TABLE users DROP COLUMN name", "is rewritten"),
        (REBUILD.format(columns="name TEXT, email TEXT", values="name, email"), "is rebuilt"),
    ],
)
def test_work_on_a_big_table_is_a_long_lock(text: str, said: str) -> None:
    (found,) = [finding for finding in _lint(text, rows_big=3) if finding.risk is Risk.LONG_LOCK]
    assert said in found.message
    assert "3 rows" in found.message


def test_a_table_that_is_made_again_without_its_rows_has_lost_them() -> None:
    found = _lint("DROP TABLE users; CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, email TEXT)")
    assert "3 rows of users are deleted; 0 are left." in [finding.message for finding in found]
