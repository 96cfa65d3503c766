"""A script that would leave a trigger failing at every write is refused, however it does so."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from catchment.errors import ScriptError
from catchment.schema import SqliteEngine, State, TableRow, triggers
from tests.schema.projects import Scene

TABLE = "CREATE TABLE note (id INTEGER PRIMARY KEY, title TEXT NOT NULL, email TEXT);"
LOG = "CREATE TABLE log (line TEXT, size INT);"
# SQLite would not drop a column that is UNIQUE: the table is rebuilt.
WAYS = {"altered": TABLE, "rebuilt": TABLE.replace("email TEXT", "email TEXT UNIQUE")}
TOLD = "CREATE TRIGGER noted AFTER INSERT ON note BEGIN {0}; END;"
WRITES = TOLD.format("UPDATE note SET email = new.title WHERE id = new.id")


class Note(TableRow):
    """A note."""

    __tablename__ = "note"
    title: str


class Log(TableRow):
    """Another table, with any columns."""

    __tablename__ = "log"


def _scene(folder: Path, statements: str, *models: type[TableRow]) -> Scene:
    path = folder / "mydb.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)
    return Scene(engine=SqliteEngine(path), models=list(models))


def _apply(here: Scene, text: str) -> None:
    here.migrate.apply(here.write(f"{len(here.check().applied) + 1:03d}.next.sql", text))


def _refused(here: Scene, text: str) -> str:
    """Why the script is refused; the database stays as it was, and its script does not stay."""
    before = here.content()
    with pytest.raises(ScriptError) as refusal:
        _apply(here, text)
    assert here.content() == before
    here.script(here.check().pending[0]).unlink()
    return refusal.value.message


@pytest.mark.parametrize("statements", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    "trigger",
    [
        WRITES,
        TOLD.format("INSERT INTO note (email) VALUES (1)"),
        TOLD.format("INSERT INTO Note (title, Email) SELECT 'a', 1"),
        TOLD.format("INSERT INTO note (id, title) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET email = 1"),
        TOLD.format("UPDATE note SET (title, [email]) = (SELECT 'a', 1)"),
        "CREATE TRIGGER noted BEFORE UPDATE OF title ON note BEGIN UPDATE note SET `EMAIL` = 1; END;",
        "CREATE TRIGGER noted AFTER DELETE ON note WHEN old.id > 1 BEGIN UPDATE note SET email = 1; END;",
        "CREATE TRIGGER noted AFTER DELETE ON log BEGIN UPDATE note SET email = 1; END;",
        """CREATE VIEW titles AS SELECT title FROM note;
           CREATE TRIGGER noted INSTEAD OF UPDATE ON titles BEGIN UPDATE note SET email = new.title; END;""",
    ],
)
def test_a_column_that_a_trigger_writes_is_dropped_once_the_trigger_is_gone(
    tmp_path: Path, statements: str, trigger: str
) -> None:
    here = _scene(tmp_path, f"{statements} CREATE TABLE log (id INTEGER PRIMARY KEY); {trigger}", Note, Log)
    path = here.migrate.generate()
    assert path is not None
    before = here.content()
    (trial,) = here.migrate.rehearse().trials
    assert trial.error is not None
    with pytest.raises(ScriptError, match="the trigger noted on ") as refusal:
        here.migrate.apply(path.name)
    assert "email" in refusal.value.message.lower()
    assert "Drop it in the same script" in trial.error
    assert here.content() == before
    path.unlink()
    _apply(here, "DROP TRIGGER noted")
    assert here.migrate.generate() is not None
    here.migrate.apply(here.check().pending[0])
    assert here.check().state is State.CURRENT
    here.run("INSERT INTO note (title) VALUES ('b')", "UPDATE note SET title = 'c'", "DELETE FROM note")


def test_a_script_that_recreates_the_trigger_applies(tmp_path: Path) -> None:
    here = _scene(tmp_path, TABLE + WRITES)
    anew = TOLD.format("UPDATE note SET title = 'b'")
    _apply(here, f"DROP TRIGGER noted; ALTER TABLE note DROP COLUMN email; {anew}")
    here.run("INSERT INTO note (title) VALUES ('a')")
    assert here.rows("SELECT * FROM note") == [(1, "b")]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("DROP TABLE log", "no such table: main.log"),
        ("ALTER TABLE log ADD COLUMN more", "table log has 3 columns but 2 values were supplied"),
        ("DROP TABLE log; CREATE TABLE log (line)", "table log has 1 columns but 2 values were supplied"),
        ("DROP TABLE log; CREATE TEMP TABLE log (line, size)", "no such table: main.log"),
    ],
)
def test_a_table_stays_as_a_trigger_of_another_one_needs_it(tmp_path: Path, script: str, why: str) -> None:
    here = _scene(tmp_path, TABLE + LOG + TOLD.format("INSERT INTO log VALUES (new.title, 1)"))
    assert f"the trigger noted on note ({why})" in _refused(here, script)
    _apply(here, f"{script}; DROP TRIGGER noted")


def test_every_trigger_that_fails_is_named_and_no_other_one(tmp_path: Path) -> None:
    several = """
        CREATE TRIGGER "the ""first"" one" AFTER INSERT ON note BEGIN UPDATE note SET email = 1; END;
        CREATE TRIGGER b_fires_it AFTER INSERT ON log BEGIN INSERT INTO note (title) VALUES (new.line); END;
        CREATE TRIGGER c_sound AFTER INSERT ON note BEGIN UPDATE note SET title = new.title; END;
        CREATE TRIGGER d_behind AFTER INSERT ON note BEGIN INSERT INTO note (email) VALUES (1); END;"""
    message = _refused(_scene(tmp_path, TABLE + LOG + several), "ALTER TABLE note DROP COLUMN email")
    assert "the trigger d_behind on note (" in message
    assert '; the trigger the "first" one on note (no such column: email). ' in message
    assert "b_fires_it" not in message
    assert "c_sound" not in message


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT NOT NULL, b ANY AS (a), c INT AS (a) STORED, gone INT) STRICT;",
        "CREATE TABLE t (a TEXT, b INT NOT NULL, gone, PRIMARY KEY (b, a)) WITHOUT ROWID;",
        'CREATE TABLE t ("a ""b"".c" TEXT NOT NULL, [select] NOT NULL CHECK ([select] > 0), gone);',
    ],
)
@pytest.mark.parametrize("event", ["INSERT", "UPDATE", "DELETE"])
def test_triggers_of_every_kind_of_table_are_tried(tmp_path: Path, table: str, event: str) -> None:
    trigger = "CREATE TRIGGER {0} AFTER {1} ON t BEGIN {2}; END;"
    here = _scene(tmp_path, table + trigger.format("sound", event, "SELECT 1"))
    _apply(here, "CREATE TABLE other (id)")
    here.run(trigger.format("noted", event, "UPDATE t SET gone = 1"))
    assert "the trigger noted on t (no such column: gone)" in _refused(here, "ALTER TABLE t DROP COLUMN gone")


BROKEN = TOLD.format("INSERT INTO log VALUES (1)")


@pytest.mark.parametrize(
    "script",
    ["ALTER TABLE log ADD COLUMN more", "DROP TABLE log", f"DROP TRIGGER noted; {BROKEN.replace('noted', 'Noted')}"],
)
def test_a_trigger_that_failed_before_does_not_fail_a_script(tmp_path: Path, script: str) -> None:
    here = _scene(tmp_path, TABLE + LOG + BROKEN)
    _apply(here, script)
    assert here.check().applied == ["001.next.sql"]


def test_a_broken_trigger_is_found_after_one_that_failed_before(tmp_path: Path) -> None:
    here = _scene(tmp_path, TABLE + LOG + BROKEN + WRITES.replace("noted", "writes"))
    message = _refused(here, "ALTER TABLE note DROP COLUMN email")
    assert "the trigger writes on note (no such column: email)" in message
    assert "noted" not in message


def test_functions_that_only_the_program_defines_do_not_fail_a_script(tmp_path: Path) -> None:
    used = "SELECT notify(new.id), notify(new.id, 1), best(new.id) OVER (), new.title COLLATE german > 'a'"
    here = _scene(tmp_path, TABLE)
    _apply(here, TOLD.format(used))
    _apply(here, TOLD.format("SELECT best(id) FILTER (WHERE id > 1) FROM note").replace("noted", "best"))
    _apply(here, "ALTER TABLE note ADD COLUMN more")
    with pytest.raises(ScriptError, match="no such function: notify"):
        _apply(here, "SELECT notify(1)")


def test_a_missing_column_is_reported_even_if_the_trigger_uses_functions_of_the_program(tmp_path: Path) -> None:
    used = "SELECT e(new.id), new.title COLLATE german > 'a'; UPDATE note SET email = 1"
    here = _scene(tmp_path, TABLE + TOLD.format(used))
    assert "noted on note (no such column: email)" in _refused(here, "ALTER TABLE note DROP COLUMN email")


def test_a_trigger_may_keep_an_index_of_words(tmp_path: Path) -> None:
    words = "CREATE VIRTUAL TABLE words USING fts5 (title);"
    here = _scene(tmp_path, TABLE + words + TOLD.format("INSERT INTO words (rowid, title) VALUES (new.id, new.title)"))
    _apply(here, "ALTER TABLE note DROP COLUMN email")
    here.run("INSERT INTO note (title) VALUES ('a')")
    assert "no such table: main.words" in _refused(here, "DROP TABLE words")


@pytest.mark.parametrize("kind", ["fts4", "fts5"])
def test_a_script_may_write_to_an_index_of_words(tmp_path: Path, kind: str) -> None:
    here = _scene(tmp_path, TABLE + f"CREATE VIRTUAL TABLE words USING {kind} (title);", Note)
    _apply(
        here, "INSERT INTO words (title) VALUES ('one'), ('two'); UPDATE words SET title = 'three' WHERE title = 'two';"
    )
    with closing(sqlite3.connect(here.engine.path)) as connection:
        assert connection.execute("SELECT count(*) FROM words WHERE words MATCH 'three'").fetchall() == [(1,)]


@pytest.mark.parametrize("pragma", ["page_size = 4096", "data_version = 1", "page_size(4096)"])
def test_a_script_sets_no_pragma(tmp_path: Path, pragma: str) -> None:
    assert "PRAGMA" in _refused(_scene(tmp_path, TABLE, Note), f"PRAGMA {pragma};")


@pytest.mark.parametrize("kind", ["fts4", "fts5"])
def test_looking_at_triggers_keeps_the_words_that_were_written_meanwhile(kind: str) -> None:
    words = f"CREATE VIRTUAL TABLE words USING {kind} (title); INSERT INTO words (title) VALUES ('before');"
    kept = TOLD.format("INSERT INTO words (title) VALUES (new.title)")
    broken = BROKEN.replace("noted", "broken").replace("ON note", "ON log")
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(TABLE + LOG + words + kept + broken)
        connection.execute("BEGIN")
        connection.execute("INSERT INTO note (title) VALUES ('during')")
        connection.execute("DELETE FROM words WHERE title MATCH 'before'")
        assert list(triggers.failing(connection)) == ["broken"]
        connection.execute("COMMIT")
        connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
        found = connection.execute("SELECT title FROM words WHERE words MATCH 'before OR during'").fetchall()
    assert found == [("during",)]


def test_a_temporary_trigger_goes_with_the_script(tmp_path: Path) -> None:
    here = _scene(tmp_path, TABLE + LOG)
    trigger = "CREATE TEMP TRIGGER noted AFTER INSERT ON main.note BEGIN UPDATE note SET email = 1; END"
    _apply(here, f"{trigger}; ALTER TABLE note DROP COLUMN email; CREATE TEMP TABLE note (id)")
    here.run("INSERT INTO note (title) VALUES ('a')")


def test_a_temporary_table_or_trigger_hides_nothing(tmp_path: Path) -> None:
    here = _scene(tmp_path, TABLE + WRITES)
    hiding = "CREATE TEMP TRIGGER noted AFTER INSERT ON main.note BEGIN SELECT 1; END; CREATE TEMP TABLE note (email)"
    assert "the trigger noted on note (" in _refused(here, f"ALTER TABLE note DROP COLUMN email; {hiding}")


def test_looking_at_triggers_leaves_them_as_they_were(tmp_path: Path) -> None:
    odd = TOLD.format("SELECT 'a -- b' /* c */\n ; UPDATE note SET title = 'x'").replace("noted", '"to ld"')
    here = _scene(tmp_path, f"{TABLE + LOG + odd} {BROKEN}")
    before = here.rows("SELECT * FROM sqlite_schema WHERE type = 'trigger'")
    assert len(before) == 2
    _apply(here, "INSERT INTO log (line) VALUES ('a')")
    assert here.rows("SELECT * FROM sqlite_schema WHERE type = 'trigger'") == before
    assert here.rows("SELECT count(*) FROM note") == [(0,)]
