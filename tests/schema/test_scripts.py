"""Names and texts of migration scripts."""

from pathlib import Path

import pytest

from catchment.errors import ScriptError
from catchment.schema.scripts import (
    Script,
    ScriptName,
    normalised,
    read_folder,
    tables_made,
    with_warning,
    without_warning,
)


def _script(text: str) -> Script:
    return Script(name=ScriptName(number=1, slug="a"), raw=text)


@pytest.mark.parametrize(
    ("filename", "number", "slug"),
    [
        ("001.create_users.sql", 1, "create_users"),
        ("999.a.b.sql", 999, "a.b"),
        ("1000.later.sql", 1000, "later"),
        ("12345.much later.sql", 12345, "much later"),
    ],
)
def test_a_name_is_a_number_and_what_the_script_is_about(filename: str, number: int, slug: str) -> None:
    name = ScriptName.parse(filename)
    assert name == ScriptName(number=number, slug=slug)
    assert str(name) == filename


@pytest.mark.parametrize(
    "filename",
    [
        "1.a.sql",
        "01.a.sql",
        "0001.a.sql",
        "001.sql",
        "001..sql",
        "001a.sql",
        "001.a.SQL",
        "001.a.sql\n",
        "\u0660\u0660\u0661.a.sql",
    ],
)
def test_other_names_are_not_names_of_scripts(filename: str) -> None:
    assert ScriptName.parse(filename) is None


def test_numbers_are_ordered_as_numbers() -> None:
    names = [ScriptName.parse(name) for name in ("1000.a.sql", "999.b.sql", "001.c.sql")]
    assert [str(name) for name in sorted(name for name in names if name)] == ["001.c.sql", "999.b.sql", "1000.a.sql"]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a;\r\nb;\r\n", "a;\nb;\n"),
        ("a;", "a;\n"),
        ("a;\n\n\n", "a;\n"),
        ("\ufeffa;\n", "a;\n"),
        ("\r\n", ""),
        ("", ""),
        ("a\rb\n", "a\rb\n"),
    ],
)
def test_line_ends_are_normalized(text: str, same: str) -> None:
    assert normalised(text) == same


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        (" -- only\n/* comments */ ;; ", []),
        ("SELECT 1", [("SELECT 1", 1)]),
        ("SELECT 1; SELECT 2;", [("SELECT 1;", 1), ("SELECT 2;", 1)]),
        ("-- a; b\nSELECT ';' /* ; */;\n\n-- c\nSELECT 2", [("SELECT ';' /* ; */;", 2), ("SELECT 2", 5)]),
        ('SELECT "a;b", [c;d], `e;f`;', [('SELECT "a;b", [c;d], `e;f`;', 1)]),
        (
            "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; SELECT CASE 1 WHEN 1 THEN 2 END; END; SELECT 3;",
            [
                ("CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; SELECT CASE 1 WHEN 1 THEN 2 END; END;", 1),
                ("SELECT 3;", 1),
            ],
        ),
        ("SELECT 1;\n'open", [("SELECT 1;", 1), ("'open", 2)]),
    ],
)
def test_a_script_is_split_into_statements_as_sqlite_does(text: str, statements: list[tuple[str, int]]) -> None:
    assert [(each.text.rstrip("\n"), each.line) for each in _script(text).statements()] == statements


def test_tables_that_keep_their_rows_are_named_by_whole_lines() -> None:
    text = "-- keeps-rows: users\n-- keeps-rows:  my table \r\n-- -- keeps-rows: not\nSELECT '-- keeps-rows: no';\n"
    assert _script(text).keeps_rows() == ("users", "my table")


def test_an_undecided_script_is_refused_until_its_mark_is_removed() -> None:
    with pytest.raises(ScriptError, match="a, b"):
        _script("-- undecided: a\n-- x\n-- undecided: b\n").refuse_undecided()
    _script("-- -- undecided: a\nSELECT 1;").refuse_undecided()


def test_a_warning_comes_and_goes_without_a_trace() -> None:
    raw = "SELECT 1;\r\n"
    warned = with_warning(raw, ["one", "two"])
    assert with_warning(warned, ["one", "two"]) == warned
    assert without_warning(warned) == raw
    assert Script(name=ScriptName(number=1, slug="a"), raw=warned).text == "SELECT 1;\n"


def test_a_folder_is_read_into_scripts_and_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "002.b.sql").write_text("b")
    (tmp_path / "1000.c.sql").write_text("c")
    (tmp_path / "001.a.sql").write_bytes(b"\xff")
    (tmp_path / "003.nul.sql").write_bytes(b"\x00")
    (tmp_path / "004.folder.sql").mkdir()
    (tmp_path / "wrong.sql").write_text("")
    (tmp_path / "notes.txt").write_text("")
    folder = read_folder(tmp_path)
    assert [script.filename for script in folder.scripts] == ["002.b.sql", "1000.c.sql"]
    assert [(str(each.name), each.reason) for each in folder.unreadable] == [
        ("001.a.sql", "it is not UTF-8 (byte 0)"),
        ("003.nul.sql", "it contains a NUL character"),
        ("004.folder.sql", "Is a directory"),
    ]
    assert folder.misnamed == ("wrong.sql",)
    assert sorted(folder.numbers) == [1, 2, 3, 4, 1000]


def test_a_missing_folder_is_empty(tmp_path: Path) -> None:
    assert read_folder(tmp_path / "nowhere").numbers == []


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["CREATE TABLE users (id INTEGER);"], {"users"}),
        (['create table if not exists main."Two Words" (a INT);'], {"two words"}),
        (['CREATE OR REPLACE TABLE "a""b" AS SELECT 1;'], {'a"b'}),
        (["ALTER TABLE theirs ADD COLUMN b INT;"], {"theirs"}),
        (["CREATE TABLE a (x INT);", "DROP TABLE IF EXISTS a;"], set()),
        (['CREATE TABLE "new_a" (x INT); DROP TABLE a; ALTER TABLE "new_a" RENAME TO "a";'], {"new_a", "a"}),
        (["ALTER TABLE a RENAME COLUMN b TO c;"], {"a"}),
        (["-- CREATE TABLE nothing (a INT);\nSELECT 1 AS users;"], set()),
        ([], set()),
    ],
)
def test_the_tables_that_scripts_created_are_found(texts: list[str], names: set[str]) -> None:
    assert tables_made(texts) == names
