"""The text of a CREATE TABLE: unchanged parts stay as written."""

import sqlite3
from contextlib import closing

import pytest

from catchment.errors import InputError
from catchment.schema import ddl
from catchment.schema.ddl import Aspect, ColumnEdit
from catchment.schema.structure import DeclaredColumn, Reference

STATEMENTS = [
    "CREATE TABLE t (a)",
    "create table if not exists main . t(a,b)",
    """CREATE TABLE "odd ""name" ("a b" INTEGER, [c,d] TEXT, `e``f` BLOB, 'g' REAL)""",
    "CREATE TABLE t (a UNSIGNED BIG INT, b DECIMAL(10, 5), c VARCHAR ( 20 ), d DOUBLE PRECISION, e 'odd type')",
    "CREATE TABLE t (a INT CONSTRAINT c PRIMARY KEY DESC ON CONFLICT FAIL, b TEXT NOT NULL ON CONFLICT IGNORE NULL)",
    "CREATE TABLE t (a DEFAULT -1, b DEFAULT +2.5e3, c DEFAULT (max(1, 2)), d DEFAULT 'x,y)', e DEFAULT x'00')",
    "CREATE TABLE t (a CHECK (a IN ('(', ',')), b COLLATE NOCASE UNIQUE, c AS (a || ')') STORED)",
    "CREATE TABLE t (a, d GENERATED ALWAYS AS (1))",
    "CREATE TABLE t (a REFERENCES u ON DELETE SET NULL ON UPDATE NO ACTION MATCH FULL NOT DEFERRABLE)",
    "CREATE TABLE t (a, b, CONSTRAINT k PRIMARY KEY (a, b), UNIQUE (b) ON CONFLICT FAIL, FOREIGN KEY (a) REFERENCES u)",
    "CREATE TABLE t ( -- first, (\n a INT /* , ) */, -- second\n b TEXT -- last\n) WITHOUT ROWID, STRICT",
]


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_statement_without_changes_keeps_every_token_but_the_name(text: str) -> None:
    made = ddl.edited(text, name="n")
    body = text[text.index("(") :]
    assert made == f'CREATE TABLE "n" {body}'


EVERYTHING = frozenset({Aspect.TYPE, Aspect.NULLABILITY, Aspect.DEFAULT, Aspect.REFERENCES})
CHANGED = 'NOT NULL DEFAULT 5 REFERENCES "o" ("id")'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a", f"a NEW {CHANGED}"),
        ("'A' x ( 5 )", f"'A' NEW {CHANGED}"),
        ("a CHECK(a)-- why", f"a NEW CHECK(a) {CHANGED}-- why"),
        ("a INT DEFAULT(0)UNIQUE", f"a NEW UNIQUE {CHANGED}"),
        ("a INT CONSTRAINT n NOT NULL ON CONFLICT FAIL COLLATE c", f"a NEW COLLATE c {CHANGED}"),
        ("a INT REFERENCES u (x) ON DELETE SET DEFAULT NOT DEFERRABLE UNIQUE", f"a NEW UNIQUE {CHANGED}"),
        ("a INT NULL -- why\n DEFAULT -1 UNIQUE", f"a NEW -- why\n UNIQUE {CHANGED}"),
    ],
)
def test_a_column_is_changed_in_what_differs_and_its_neighbours_are_not(before: str, after: str) -> None:
    edit = ColumnEdit(
        column=DeclaredColumn(name="a", type="NEW", nullable=False, default="5"),
        aspects=EVERYTHING,
        reference=Reference(columns=("a",), table="o", targets=("id",)),
    )
    rest = "\n, b TEXT DEFAULT 'a', CHECK (a > 0)"
    gone = ", CONSTRAINT f FOREIGN KEY (a) REFERENCES u (x)"
    made = ddl.edited(f"CREATE TABLE t ({before}{rest}{gone}) STRICT", name="n", edits=[edit], added=["z REAL"])
    assert made == f'CREATE TABLE "n" ({after}{rest.replace(", CHECK", ", z REAL, CHECK")}) STRICT'


@pytest.mark.parametrize(
    "text",
    ["", "CREATE VIEW v AS SELECT (1)", "CREATE TABLE t (a", "CREATE TABLE t (a,)", "CREATE TABLE t AS SELECT (1)"],
)
def test_a_text_that_is_not_create_table_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        ddl.edited(text, name="n")


@pytest.mark.parametrize(
    "piece", ["a INT WHAT (1) NOT NULL FOO", "a INT CHECK (", "a INT NOT NULL ON", "a CONSTRAINT x"]
)
def test_a_column_that_is_not_understood_is_refused(piece: str) -> None:
    edit = ColumnEdit(column=DeclaredColumn(name="a", type="TEXT"), aspects=frozenset({Aspect.TYPE}))
    with pytest.raises(InputError):
        ddl.edited(f"CREATE TABLE t ({piece})", name="n", edits=[edit])


def test_a_name_is_mentioned_in_any_quotes_and_not_in_comments() -> None:
    assert all(
        ddl.mentions(text, "Users") for text in ("SELECT users.a", 'FROM "USERS"', "[users]", "`Users`", "'users'")
    )
    assert not ddl.mentions("-- users\n/* users */ user_s", "users")


def test_columns_and_tables_are_written_as_sqlite_reads_them() -> None:
    column = DeclaredColumn(name='a "b"', type="TEXT", nullable=False, default="lower('X')")
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE TABLE t ({ddl.column_sql(column)})")
        connection.execute("INSERT INTO t DEFAULT VALUES")
        assert connection.execute("SELECT * FROM t").fetchall() == [("x",)]
