"""Columns of SQLite tables compared with a model's: types, names, ids and computed columns."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from catchment.errors import ScriptError
from catchment.schema import State, TableRow
from tests.schema.projects import apply_text, become_current, database_with, generated, model

NOTE = model("note", {"title": str})
TYPED = "CREATE TABLE t (id INTEGER PRIMARY KEY, a {0})"


def test_ids_of_models_whose_names_look_like_types_are_kept_as_numbers(tmp_path: Path) -> None:
    others = [type(name, (TableRow,), {}) for name in ("Chart", "Context", "Realm", "Blob", "Doubt", "User", "Point")]
    use = type("Use", (TableRow,), {"__annotations__": {other.__name__.lower(): other for other in others}})
    here = database_with(tmp_path, "", *others, use)
    become_current(here)
    big = 9007199254740993
    values = ", ".join([str(big)] * (len(others) + 1))
    here.run(f"INSERT INTO Use VALUES ({values})")
    assert here.rows("SELECT * FROM Use") == [(big,) * (len(others) + 1)]
    types = here.rows("SELECT type FROM pragma_table_info('Use') WHERE name IN ('user', 'point', 'chart') ORDER BY 1")
    assert types == [("Chart_ID INTEGER",), ("Point_ID",), ("User_ID",)]


def test_a_relation_that_was_kept_as_text_is_turned_into_a_number(tmp_path: Path) -> None:
    chart = type("Chart", (TableRow,), {})
    use = type("Use", (TableRow,), {"__annotations__": {"chart": chart}})
    statements = """CREATE TABLE Chart (id INTEGER PRIMARY KEY); INSERT INTO Chart VALUES (7);
        CREATE TABLE Use (id INTEGER PRIMARY KEY, chart Chart_ID NOT NULL REFERENCES Chart (id));
        INSERT INTO Use VALUES (1, 7);"""
    here = database_with(tmp_path, statements, chart, use)
    become_current(here)
    assert here.rows("SELECT chart, typeof(chart) FROM Use") == [(7, "integer")]


def test_names_are_alike_by_the_letters_of_ascii_only(tmp_path: Path) -> None:
    size = type("Size", (TableRow,), {"__annotations__": {"größe": int | None, "GRÖßE": int | None}})
    here = database_with(tmp_path, 'CREATE TABLE SIZE (id INTEGER PRIMARY KEY, "GRÖSSE" INTEGER)', size)
    (changed,) = here.check().model_diff.tables
    assert [column.name for column in changed.added] == ["größe", "GRÖßE"]
    assert [column.name for column in changed.dropped] == ["GRÖSSE"]


def test_a_computed_column_is_not_the_plain_one_of_a_model(tmp_path: Path) -> None:
    statements = "CREATE TABLE note (id INTEGER PRIMARY KEY, a TEXT, title TEXT NOT NULL AS (coalesce(a, '')))"
    here = database_with(tmp_path, statements, model("note", {"a": str | None, "title": str}))
    assert here.check().model_diff.describe() == ("note.title: computed in the database, a plain column in the model",)
    assert "title is computed from other columns" in generated(here)


@pytest.mark.parametrize("key", ["id INT PRIMARY KEY", "id INTEGER"])
def test_a_row_without_an_id_is_not_given_one(tmp_path: Path, key: str) -> None:
    statements = f"CREATE TABLE note ({key}, title TEXT NOT NULL); INSERT INTO note VALUES (7, 'a');"
    here = database_with(tmp_path, f"{statements} INSERT INTO note VALUES (NULL, 'b'), (NULL, 'c');", NOTE)
    generated(here)
    with pytest.raises(ScriptError, match=r"note\.id: a row without a value"):
        here.migrate.apply(here.check().pending[0])
    here.run("UPDATE note SET id = rowid + 10 WHERE id IS NULL")
    here.migrate.apply(here.check().pending[0])
    assert here.check().state is State.CURRENT
    assert here.rows("SELECT id, title FROM note ORDER BY id") == [(7, "a"), (12, "b"), (13, "c")]


def test_bytes_that_are_no_text_do_not_keep_a_script_from_being_generated(tmp_path: Path) -> None:
    statements = "CREATE TABLE note (id INTEGER PRIMARY KEY, titel TEXT NOT NULL);"
    here = database_with(tmp_path, f"{statements} INSERT INTO note VALUES (1, CAST(x'fc' AS TEXT));", NOTE)
    assert "titel became title" in generated(here)


@pytest.mark.parametrize(
    ("kind", "spellings"),
    [
        (int, ["INT", "int", "Integer"]),
        (float, ["DOUBLE", "double precision", "FLOAT"]),
        (str, ["VARCHAR(20)", "varchar ( 20 )", "CHAR(3)", "NVARCHAR(9)", "CHARACTER VARYING(7)", "CLOB", "TEXT(5)"]),
        (bool, ["BOOLEAN"]),
        (datetime, ["TIMESTAMP", "timestamp"]),
    ],
)
def test_a_synonym_of_the_models_type_is_not_a_difference(tmp_path: Path, kind: Any, spellings: list[str]) -> None:
    for place, spelling in enumerate(spellings):
        folder = tmp_path / str(place)
        folder.mkdir()
        here = database_with(folder, "CREATE TABLE t (id INTEGER PRIMARY KEY)", model("t", {"a": kind | None}))
        apply_text(here, f"ALTER TABLE t ADD COLUMN a {spelling}")
        assert here.check().state is State.CURRENT, spelling


@pytest.mark.parametrize(
    ("kind", "spelling"),
    [(str, "STRING"), (str, "INT"), (int, "REAL"), (float, "DECIMAL(9,2)"), (int, "INT(5)"), (bool, "INT")],
)
def test_a_type_with_another_meaning_is_a_difference(tmp_path: Path, kind: Any, spelling: str) -> None:
    here = database_with(tmp_path, TYPED.format(spelling), model("t", {"a": kind | None}))
    assert here.check().state is State.DRIFT
