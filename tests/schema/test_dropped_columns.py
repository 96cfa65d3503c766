"""Dropped columns of SQLite tables: indexes, views and triggers that name them."""

from pathlib import Path

import pytest

from catchment.errors import ScriptError
from catchment.schema import State
from tests.schema.projects import apply_text, become_current, database_with, generated, model

NOTE = model("note", {"title": str})
TABLE = "CREATE TABLE note (id INTEGER PRIMARY KEY, title TEXT NOT NULL, email TEXT);"
INDEXED = f"{TABLE} CREATE INDEX by_email ON note (email); INSERT INTO note VALUES (1, 'a', 'x@y');"
# SQLite would not drop a column that is UNIQUE: the table is rebuilt.
UNIQUE = TABLE.replace("email TEXT", "email TEXT UNIQUE")


@pytest.mark.parametrize(
    "index",
    [
        "CREATE UNIQUE INDEX email ON note (title)",
        "CREATE INDEX kept ON note (title) WHERE title <> 'email'",
        "CREATE INDEX kept ON note (title /* email */)",
        "CREATE UNIQUE INDEX kept ON note (lower(title))",
    ],
)
def test_an_index_that_only_mentions_a_dropped_column_is_kept(tmp_path: Path, index: str) -> None:
    here = database_with(tmp_path, f"{UNIQUE} {index};", NOTE)
    become_current(here)
    assert here.rows("SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL") == [(index,)]


def test_an_index_of_a_column_called_as_its_table_goes_and_the_others_stay(tmp_path: Path) -> None:
    statements = """CREATE TABLE note (id INTEGER PRIMARY KEY, title TEXT NOT NULL, note TEXT UNIQUE);
        CREATE UNIQUE INDEX by_title ON note (title); CREATE INDEX by_note ON note (note);
        CREATE INDEX in_note ON note (title) WHERE "note" IS NOT NULL; CREATE INDEX of_note ON note (lower(note));"""
    here = database_with(tmp_path, statements, NOTE)
    assert "The index in_note is dropped with them." in become_current(here)
    assert here.rows("SELECT name FROM sqlite_schema WHERE type = 'index'") == [("by_title",)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('CREATE VIEW mails AS SELECT id, "email" FROM note', 'mails has "email" in quotes'),
        (
            'CREATE TRIGGER noted AFTER INSERT ON note BEGIN UPDATE note SET title = "EMAIL"; END',
            'noted has "email" in quotes',
        ),
    ],
)
@pytest.mark.parametrize("statements", [TABLE, INDEXED, UNIQUE], ids=["altered", "indexed", "rebuilt"])
def test_a_dropped_column_that_a_view_or_trigger_has_in_quotes_is_left_to_the_developer(
    tmp_path: Path, more: str, said: str, statements: str
) -> None:
    here = database_with(tmp_path, f"{statements} {more};", NOTE)
    text = generated(here)
    assert "-- undecided: note" in text
    assert said in text


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("TRIGGER", 'CREATE TRIGGER noted AFTER DELETE ON note BEGIN SELECT old."email"; END'),
        ("TRIGGER", 'CREATE TRIGGER noted AFTER INSERT ON note BEGIN SELECT new . "EMAIL"; END'),
        ("VIEW", 'CREATE VIEW noted AS SELECT id, "note"."email" FROM note'),
    ],
)
@pytest.mark.parametrize("statements", [TABLE, INDEXED, UNIQUE], ids=["altered", "indexed", "rebuilt"])
def test_a_dropped_column_that_is_in_quotes_after_a_dot_is_dropped_once_nothing_refers_to_it(
    tmp_path: Path, kind: str, more: str, statements: str
) -> None:
    here = database_with(tmp_path, f"{statements} {more};", NOTE)
    assert "-- undecided" not in generated(here)
    before = here.content()
    with pytest.raises(ScriptError, match="noted"):
        here.migrate.apply(here.check().pending[0])
    assert here.content() == before
    here.script(here.check().pending[0]).unlink()
    apply_text(here, f"DROP {kind} noted")
    become_current(here)


IN_QUOTES = f'{INDEXED} CREATE VIEW mails AS SELECT id, "email" FROM note;'


def test_an_undecided_drop_in_another_option_does_not_block_a_rename(tmp_path: Path) -> None:
    here = database_with(tmp_path, IN_QUOTES, model("note", {"title": str, "mail": str | None}))
    text = generated(here).replace("-- undecided: note\n", "", 1).replace("-- ALTER", "ALTER")
    assert "\n-- -- undecided: note\n" in text
    here.migrate.apply(here.write(here.check().pending[0], text))
    assert here.check().state is State.CURRENT
    assert here.rows("SELECT * FROM mails") == [(1, "x@y")]


def test_once_a_view_is_gone_that_has_a_column_in_quotes_the_column_can_go(tmp_path: Path) -> None:
    here = database_with(tmp_path, IN_QUOTES, NOTE)
    assert "-- undecided: note" in generated(here)
    here.migrate.apply(here.write(here.check().pending[0], "DROP VIEW mails;"))
    become_current(here)
    assert here.rows("SELECT * FROM note") == [(1, "a")]


@pytest.mark.parametrize(
    "piece", ["CHECK (\"email\" <> 'title')", 'upper TEXT GENERATED ALWAYS AS (upper("email"))', 'UNIQUE ("email")']
)
def test_a_dropped_column_that_its_table_has_in_quotes_is_left_to_the_developer(tmp_path: Path, piece: str) -> None:
    here = database_with(tmp_path, f"{TABLE[:-2]}, {piece});", NOTE)
    assert "-- undecided: note" in generated(here)


def test_a_text_that_spells_a_dropped_column_does_not_block_the_drop(tmp_path: Path) -> None:
    here = database_with(tmp_path, f"{UNIQUE[:-2]}, CHECK (title <> 'email'));", NOTE)
    become_current(here)
    assert here.rows("SELECT sql LIKE '%<> _email_)%' FROM sqlite_schema WHERE name = 'note'") == [(1,)]
