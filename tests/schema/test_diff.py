"""The difference of two structures: what counts, what is ignored, and likely renames."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from catchment.schema.diff import ModelDiff, Samples, diff
from catchment.schema.inspect import Dependents, inspect
from catchment.schema.models import TableRow, sqlite_structure
from catchment.schema.ops import AddColumnOp, CreateTableOp, DropColumnOp, Manual, RebuildTableOp, plan
from catchment.schema.structure import DeclaredColumn, DeclaredTable, Structure


class Team(TableRow):
    """Is referred to."""

    name: str


class User(TableRow):
    """Is compared."""

    name: str
    age: int = 0
    active: bool = True
    note: str = "a"
    team: Team | None


TEAM = 'CREATE TABLE "Team" (id INTEGER PRIMARY KEY, name TEXT NOT NULL);'
USER = """CREATE TABLE User (id INTEGER PRIMARY KEY, name TEXT NOT NULL, age INTEGER NOT NULL DEFAULT 0,
    active BOOL NOT NULL DEFAULT TRUE, note TEXT NOT NULL DEFAULT 'a', team Team_ID REFERENCES Team (id));"""


def _actual(script: str) -> Structure:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(script)
        return inspect(connection)


def _diff(script: str, *models: type[TableRow], samples: Samples | None = None) -> ModelDiff:
    return diff(sqlite_structure(models or (Team, User)), _actual(script), samples=samples)


def _lines(script: str, *models: type[TableRow]) -> list[str]:
    return list(_diff(script, *models).describe())


def _user(**fields: Any) -> type[TableRow]:
    return type("User", (TableRow,), {"__annotations__": fields})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("INTEGER NOT NULL DEFAULT 0", "integer not null default (0)"),
        ("INTEGER NOT NULL DEFAULT 0", "INTEGER NOT NULL DEFAULT ((0.0))"),
        ("INTEGER NOT NULL DEFAULT 0", "INTEGER NOT NULL DEFAULT FALSE"),
        ("DEFAULT TRUE", "DEFAULT 1"),
        ("DEFAULT TRUE", "DEFAULT ( true )"),
        ("DEFAULT 'a'", 'DEFAULT "a"'),
        ("name TEXT NOT NULL,", "name\n  text /* hm */ NOT NULL DEFAULT 'anything',"),
        ("id INTEGER PRIMARY KEY,", "id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,"),
        ("REFERENCES Team (id)", "REFERENCES team"),
        ("REFERENCES Team (id)", "REFERENCES TEAM (ID) ON DELETE CASCADE"),
        ("team Team_ID REFERENCES Team (id)", "team team_id, FOREIGN KEY (team) REFERENCES Team (id)"),
        ("name TEXT NOT NULL,", "name TEXT NOT NULL UNIQUE COLLATE NOCASE CHECK (name <> '') REFERENCES Team (name),"),
        ("age INTEGER NOT NULL DEFAULT 0,", "older AS (age + 1), AGE INTEGER NOT NULL DEFAULT 0,"),
    ],
)
def test_properties_that_a_model_does_not_declare_are_not_differences(before: str, after: str) -> None:
    assert before in USER
    assert _lines(TEAM + USER.replace(before, after)) == []
    assert _diff(TEAM + USER.replace(before, after)).is_empty


def test_the_order_of_columns_is_not_a_difference() -> None:
    assert _diff("CREATE TABLE Team (name TEXT NOT NULL, id INTEGER PRIMARY KEY)", Team).is_empty


def test_a_hand_written_alter_reaches_the_model() -> None:
    script = "CREATE TABLE Team (id INTEGER PRIMARY KEY); ALTER TABLE Team ADD COLUMN name TEXT NOT NULL DEFAULT '';"
    assert _diff(script, Team).is_empty


def test_views_virtual_tables_and_temporary_tables_are_ignored() -> None:
    script = """CREATE TABLE _migrations (number INTEGER); CREATE VIEW seen AS SELECT 1;
        CREATE VIRTUAL TABLE words USING fts5 (word); CREATE TEMP TABLE passing (a);"""
    assert _diff(TEAM + script, Team).is_empty


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("name TEXT NOT NULL", "name BLOB NOT NULL", "User.name: BLOB in the database, TEXT in the model"),
        ("name TEXT NOT NULL", "name TEXT", "User.name: may be NULL in the database only"),
        ("DEFAULT 0", "DEFAULT 1", "User.age: default 1, in the model 0"),
        ("DEFAULT 0", "", "User.age: default NULL, in the model 0"),
        ("DEFAULT 'a'", "DEFAULT 'A'", "User.note: default 'A', in the model 'a'"),
        ("team Team_ID", "team Team_ID NOT NULL", "User.team: may be NULL in the model"),
        ("REFERENCES Team (id)", "", "User.team: refers to nothing, in the model to Team"),
        ("REFERENCES Team (id)", "REFERENCES User", "User.team: refers to User, in the model to Team"),
        ("INTEGER PRIMARY KEY", "INTEGER", "User.id: the primary key is different"),
        ("age INTEGER NOT NULL DEFAULT 0,", "", "User.age: the column is missing"),
        ("age INTEGER", "size INTEGER, age INTEGER", "User.size: the column is in no model"),
    ],
)
def test_a_difference_is_described_in_one_line(before: str, after: str, line: str) -> None:
    assert _lines(TEAM + USER.replace(before, after)) == [line]


def test_tables_of_one_side_only_are_reported() -> None:
    assert _lines("CREATE TABLE old (x BLOB);" + TEAM) == [
        "User: the table is missing",
        "old: the table is in no model",
    ]


def test_a_foreign_key_that_a_model_had_and_has_no_more_is_a_difference() -> None:
    found = _diff(
        TEAM + "CREATE TABLE User (id INTEGER PRIMARY KEY, team Team_ID REFERENCES Team)", Team, _user(team=int)
    )
    assert {str(aspect) for aspect in found.tables[0].changed[0].aspects} == {"type", "nullability", "references"}


def test_renames_are_ordered_by_type_place_and_name() -> None:
    script = "CREATE TABLE User (id INTEGER PRIMARY KEY, mail TEXT NOT NULL, photo BLOB, score REAL, nick TEXT);"
    found = _diff(script, _user(email=str, rating=float, picture=bytes)).tables[0].renames
    assert [(each.old, each.new) for each in found] == [
        ("mail", "email"),
        ("photo", "picture"),
        ("score", "rating"),
        ("nick", "email"),
    ]
    assert found[0].score > found[-1].score


def test_a_column_of_another_type_is_not_a_rename() -> None:
    found = _diff("CREATE TABLE User (id INTEGER PRIMARY KEY, a TEXT, b INTEGER)", _user(c=bytes)).tables[0]
    assert (len(found.dropped), len(found.added), found.renames) == (2, 1, ())


def test_a_primary_key_may_have_been_renamed_to_another_only() -> None:
    found = _diff("CREATE TABLE User (number INTEGER PRIMARY KEY, a INTEGER)", _user(b=int)).tables[0].renames
    assert {(each.old, each.new) for each in found} == {("number", "id"), ("a", "b")}


def test_values_decide_between_columns_that_are_alike() -> None:
    script = "CREATE TABLE User (id INTEGER PRIMARY KEY, a1 TEXT NOT NULL, a2 TEXT NOT NULL)"

    def best(samples: Samples | None) -> str:
        return _diff(script, _user(a=str), samples=samples).tables[0].renames[0].old

    assert best(None) == "a1"
    assert best({("User", "a1"): [1, 2], ("User", "a2"): ["x"]}) == "a2"
    assert best({("user", "A1"): [b"y"], ("USER", "a2"): ["x"]}) == "a2"


def test_a_table_that_shares_columns_may_be_the_same_by_another_name() -> None:
    found = _diff("CREATE TABLE People (id INTEGER PRIMARY KEY, name TEXT); CREATE TABLE Other (id, x);", Team)
    assert [(each.old, each.new, each.score) for each in found.renames] == [("People", "Team", 1.0)]


def test_tables_are_created_after_those_they_refer_to() -> None:
    class A(TableRow):
        b: "B"

    class B(TableRow):
        c: "C"

    class C(TableRow):
        a: A | None

    expected = sqlite_structure([A, B, C])
    ops = plan(diff(expected, Structure()), expected, Structure(), dependents={})
    assert [op.table.name for op in ops if isinstance(op, CreateTableOp)] == ["C", "B", "A"]


@pytest.mark.parametrize(
    ("columns", "kinds"),
    [
        ("name TEXT NOT NULL", [AddColumnOp]),
        ("name TEXT NOT NULL, age INTEGER NOT NULL DEFAULT 0, x BLOB", [DropColumnOp]),
        ("name TEXT NOT NULL, age INTEGER NOT NULL DEFAULT 0, x BLOB UNIQUE", [RebuildTableOp]),
        ("name TEXT NOT NULL, age INTEGER NOT NULL DEFAULT 0, x BLOB, CHECK (x <> name)", [Manual]),
        ("name TEXT, age INTEGER NOT NULL DEFAULT 0", [RebuildTableOp]),
        ("age INTEGER NOT NULL DEFAULT 0", [RebuildTableOp]),
    ],
)
def test_a_table_is_rebuilt_if_sqlite_would_not_alter_it(columns: str, kinds: list[type]) -> None:
    class User(TableRow):
        name: str
        age: int = 0

    expected, actual = sqlite_structure([User]), _actual(f"CREATE TABLE User (id INTEGER PRIMARY KEY, {columns})")
    hanging = {table.name: Dependents() for table in actual.tables}
    assert [type(op) for op in plan(diff(expected, actual), expected, actual, dependents=hanging)] == kinds


def test_rows_of_a_table_without_a_number_column_keep_their_numbers() -> None:
    expected = Structure(
        tables=(DeclaredTable(name="t", columns=(DeclaredColumn(name="a", type="TEXT", nullable=False),)),)
    )
    actual = _actual("CREATE TABLE t (a TEXT)")
    (op,) = plan(diff(expected, actual), expected, actual, dependents={"t": Dependents()})
    assert isinstance(op, RebuildTableOp)
    assert op.copies == (("rowid", "rowid"), ("a", '"a"'))


def test_a_statement_that_does_not_become_what_the_model_wants_is_refused() -> None:
    expected, actual = sqlite_structure([Team]), _actual("CREATE TABLE Team (id INTEGER PRIMARY KEY, name TEXT)")
    (table,) = actual.tables
    stale = Structure(tables=(replace(table, ddl="CREATE TABLE Team (id INTEGER PRIMARY KEY, called TEXT)"),))
    (op,) = plan(diff(expected, stale), expected, stale, dependents={"Team": Dependents()})
    assert isinstance(op, Manual)
    assert "could not be changed" in op.reason


def test_foreign_keys_are_seen_in_the_order_in_which_they_were_written() -> None:
    script = (
        "CREATE TABLE t (a REFERENCES x, b REFERENCES y (k) ON DELETE CASCADE, FOREIGN KEY (a, b) REFERENCES z (p, q))"
    )
    found = _actual(script).tables[0].references
    assert [(each.columns, each.table, each.targets, each.on_delete) for each in found] == [
        (("a",), "x", (), "NO ACTION"),
        (("b",), "y", ("k",), "CASCADE"),
        (("a", "b"), "z", ("p", "q"), "NO ACTION"),
    ]
