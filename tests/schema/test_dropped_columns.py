"""What a cold review found in migrations of SQLite files, each as the situation in which it showed."""

import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from catchment.errors import ScriptError
from catchment.foundation import faults
from catchment.schema import Development, LakeEngine, SqliteEngine, State, TableRow, applied_scripts, develop
from catchment.schema.applied_scripts import AppliedScript
from catchment.schema.migratable import Replaceable, TableAccess
from catchment.schema.scripts import Script
from tests.schema.scenario_copies import Scene, scene


def _model(table: str, annotations: dict[str, Any]) -> type[TableRow]:
    return type(table.title(), (TableRow,), {"__tablename__": table, "__annotations__": annotations})


NOTE = _model("note", {"title": str})
TABLE = "CREATE TABLE note (id INTEGER PRIMARY KEY, title TEXT NOT NULL, email TEXT);"
INDEXED = f"{TABLE} CREATE INDEX by_email ON note (email); INSERT INTO note VALUES (1, 'a', 'x@y');"
# SQLite would not drop a column that is UNIQUE: the table is rebuilt.
UNIQUE = TABLE.replace("email TEXT", "email TEXT UNIQUE")


def _scene(folder: Path, statements: str, *models: type[TableRow]) -> Scene:
    path = folder / "mydb.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)
    return Scene(engine=SqliteEngine(path), models=list(models))


def _apply(here: Scene, text: str) -> None:
    here.migrate.apply(here.write(f"{len(here.check().applied) + 1:03d}.next.sql", text))


def _generated(here: Scene) -> str:
    path = here.migrate.generate()
    assert path is not None
    return path.read_text()


def _become(here: Scene) -> str:
    text = _generated(here)
    here.migrate.apply(here.check().pending[0])
    assert here.check().state is State.CURRENT
    return text


def test_a_script_that_fails_does_not_take_back_what_others_committed_meanwhile(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)

    def others() -> None:
        here.run("CREATE TABLE cache (k)", "INSERT INTO users (name) VALUES ('Alan')")

    with faults.armed("schema.after_backup", others), pytest.raises(ScriptError, match="nowhere") as failed:
        _apply(here, "DELETE FROM users; INSERT INTO nowhere VALUES (1)")
    assert here.rows("SELECT name FROM users ORDER BY id") == [("Ada",), ("Grace",), ("Alan",)]
    assert here.rows("SELECT count(*) FROM cache") == [(0,)]
    assert "pre_004.mydb.sqlite.bak" in (failed.value.hint or "")
    assert [backup.name for backup in here.migrate.backups()] == ["pre_004.mydb.sqlite.bak"]


class Damaging(SqliteEngine):
    """An engine whose disk fails: after a script the file is no database any more."""

    def apply(self, script: Script) -> tuple[TableAccess, ...]:
        self.path.write_bytes(b"this is no database" * 1_000)
        raise ScriptError("It broke.")


def test_a_database_that_a_failure_has_damaged_is_its_backup_again(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    before = here.content()
    here.engine = Damaging(here.path)
    with pytest.raises(ScriptError, match="It broke") as failed:
        _apply(here, "SELECT 1")
    assert here.content() == before
    assert "damaged" in (failed.value.hint or "")


def test_a_lake_is_never_put_back_by_a_script_that_fails() -> None:
    assert issubclass(SqliteEngine, Replaceable)
    assert not issubclass(LakeEngine, Replaceable)


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
    here = _scene(tmp_path, f"{UNIQUE} {index};", NOTE)
    _become(here)
    assert here.rows("SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL") == [(index,)]


def test_an_index_of_a_column_called_as_its_table_goes_and_the_others_stay(tmp_path: Path) -> None:
    statements = """CREATE TABLE note (id INTEGER PRIMARY KEY, title TEXT NOT NULL, note TEXT UNIQUE);
        CREATE UNIQUE INDEX by_title ON note (title); CREATE INDEX by_note ON note (note);
        CREATE INDEX in_note ON note (title) WHERE "note" IS NOT NULL; CREATE INDEX of_note ON note (lower(note));"""
    here = _scene(tmp_path, statements, NOTE)
    assert "The index in_note goes" in _become(here)
    assert here.rows("SELECT name FROM sqlite_schema WHERE type = 'index'") == [("by_title",)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('CREATE VIEW mails AS SELECT id, "email" FROM note', 'mails has "email" in quotes'),
        (
            'CREATE TRIGGER told AFTER INSERT ON note BEGIN UPDATE note SET title = "EMAIL"; END',
            'told has "email" in quotes',
        ),
    ],
)
@pytest.mark.parametrize("statements", [TABLE, INDEXED, UNIQUE], ids=["altered", "indexed", "rebuilt"])
def test_a_dropped_column_that_a_view_or_trigger_has_in_quotes_is_left_to_a_person(
    tmp_path: Path, more: str, said: str, statements: str
) -> None:
    here = _scene(tmp_path, f"{statements} {more};", NOTE)
    text = _generated(here)
    assert "-- undecided: note" in text
    assert said in text


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("TRIGGER", 'CREATE TRIGGER told AFTER DELETE ON note BEGIN SELECT old."email"; END'),
        ("TRIGGER", 'CREATE TRIGGER told AFTER INSERT ON note BEGIN SELECT new . "EMAIL"; END'),
        ("VIEW", 'CREATE VIEW told AS SELECT id, "note"."email" FROM note'),
    ],
)
@pytest.mark.parametrize("statements", [TABLE, INDEXED, UNIQUE], ids=["altered", "indexed", "rebuilt"])
def test_a_dropped_column_that_is_in_quotes_behind_a_dot_is_dropped_once_nobody_needs_it(
    tmp_path: Path, kind: str, more: str, statements: str
) -> None:
    here = _scene(tmp_path, f"{statements} {more};", NOTE)
    assert "-- undecided" not in _generated(here)
    before = here.content()
    with pytest.raises(ScriptError, match="told"):
        here.migrate.apply(here.check().pending[0])
    assert here.content() == before
    here.script(here.check().pending[0]).unlink()
    _apply(here, f"DROP {kind} told")
    _become(here)


IN_QUOTES = f'{INDEXED} CREATE VIEW mails AS SELECT id, "email" FROM note;'


def test_what_another_option_would_leave_to_a_person_does_not_hold_up_a_rename(tmp_path: Path) -> None:
    here = _scene(tmp_path, IN_QUOTES, _model("note", {"title": str, "mail": str | None}))
    text = _generated(here).replace("-- undecided: note\n", "", 1).replace("-- ALTER", "ALTER")
    assert "\n-- -- undecided: note\n" in text
    here.migrate.apply(here.write(here.check().pending[0], text))
    assert here.check().state is State.CURRENT
    assert here.rows("SELECT * FROM mails") == [(1, "x@y")]


def test_once_a_view_is_gone_that_has_a_column_in_quotes_the_column_can_go(tmp_path: Path) -> None:
    here = _scene(tmp_path, IN_QUOTES, NOTE)
    assert "-- undecided: note" in _generated(here)
    here.migrate.apply(here.write(here.check().pending[0], "DROP VIEW mails;"))
    _become(here)
    assert here.rows("SELECT * FROM note") == [(1, "a")]


def test_a_script_that_was_generated_after_other_scripts_fails_and_changes_nothing(tmp_path: Path) -> None:
    here = _scene(tmp_path, f"{TABLE} INSERT INTO note VALUES (1, 'a', 'x@y');", NOTE)
    _apply(here, "SELECT 1")
    _generated(here)
    here.migrate.restore("pre_001.mydb.sqlite.bak")
    _apply(here, "ALTER TABLE note DROP COLUMN email")
    before = here.content()
    with pytest.raises(ScriptError, match="no such column"):
        here.migrate.apply(here.check().pending[0])
    assert here.content() == before


@pytest.mark.parametrize(
    "piece", ["CHECK (\"email\" <> 'title')", 'upper TEXT GENERATED ALWAYS AS (upper("email"))', 'UNIQUE ("email")']
)
def test_a_dropped_column_that_its_table_has_in_quotes_is_left_to_a_person(tmp_path: Path, piece: str) -> None:
    here = _scene(tmp_path, f"{TABLE[:-2]}, {piece});", NOTE)
    assert "-- undecided: note" in _generated(here)


def test_a_text_that_spells_a_dropped_column_is_no_reason_to_refuse(tmp_path: Path) -> None:
    here = _scene(tmp_path, f"{UNIQUE[:-2]}, CHECK (title <> 'email'));", NOTE)
    _become(here)
    assert here.rows("SELECT sql LIKE '%<> _email_)%' FROM sqlite_schema WHERE name = 'note'") == [(1,)]


RECORD = "_Migrations (number, filename, script, started_at, finished_at)"


@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE TEMP TABLE {RECORD}",
        f"CREATE TEMP VIEW {RECORD} AS SELECT 1, 2, 3, 4, 5",
        f"CREATE VIEW {RECORD} AS SELECT 1, 2, 3, 4, 5",
        "CREATE TEMP TRIGGER t BEFORE INSERT ON main._migrations BEGIN SELECT RAISE(IGNORE); END",
        "CREATE TRIGGER _migrations AFTER INSERT ON note BEGIN SELECT 1; END",
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_nothing_may_stand_in_front_of_the_record(tmp_path: Path, statement: str, is_first: bool) -> None:
    here = _scene(tmp_path, TABLE, NOTE)
    if not is_first:
        _apply(here, "INSERT INTO note (title) VALUES ('x')")
    with pytest.raises(ScriptError):
        _apply(here, f"{statement}; INSERT INTO note (title) VALUES ('y')")
    assert here.rows("SELECT count(*) FROM note WHERE title = 'y'") == [(0,)]


def test_the_record_is_kept_in_the_database_itself() -> None:
    entry = AppliedScript(number=1, filename="001.a.sql", script="", started_at="", finished_at="")
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE TEMP TABLE {RECORD}")
        applied_scripts.record(connection, entry)
        assert applied_scripts.read(connection) == (entry,)
        assert connection.execute("SELECT number FROM main._migrations").fetchall() == [(1,)]


def test_a_temporary_table_does_not_stand_in_for_one_whose_rows_are_kept(tmp_path: Path) -> None:
    here = _scene(tmp_path, INDEXED, NOTE)
    with pytest.raises(ScriptError, match="there were 1, now 0"):
        _apply(here, "-- keeps-rows: note\nCREATE TEMP TABLE note AS SELECT 1; DELETE FROM main.note")


def test_ids_of_models_whose_names_look_like_types_are_kept_as_numbers(tmp_path: Path) -> None:
    others = [type(name, (TableRow,), {}) for name in ("Chart", "Context", "Realm", "Blob", "Doubt", "User", "Point")]
    use = type("Use", (TableRow,), {"__annotations__": {other.__name__.lower(): other for other in others}})
    here = _scene(tmp_path, "", *others, use)
    _become(here)
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
    here = _scene(tmp_path, statements, chart, use)
    _become(here)
    assert here.rows("SELECT chart, typeof(chart) FROM Use") == [(7, "integer")]


def test_names_are_alike_by_the_letters_of_ascii_only(tmp_path: Path) -> None:
    size = type("Size", (TableRow,), {"__annotations__": {"größe": int | None, "GRÖßE": int | None}})
    here = _scene(tmp_path, 'CREATE TABLE SIZE (id INTEGER PRIMARY KEY, "GRÖSSE" INTEGER)', size)
    (changed,) = here.check().model_diff.tables
    assert [column.name for column in changed.added] == ["größe", "GRÖßE"]
    assert [column.name for column in changed.dropped] == ["GRÖSSE"]


def test_a_computed_column_is_not_the_plain_one_of_a_model(tmp_path: Path) -> None:
    statements = "CREATE TABLE note (id INTEGER PRIMARY KEY, a TEXT, title TEXT NOT NULL AS (coalesce(a, '')))"
    here = _scene(tmp_path, statements, _model("note", {"a": str | None, "title": str}))
    assert here.check().model_diff.describe() == ("note.title: computed in the database, a plain column in the model",)
    assert "title is computed from other columns" in _generated(here)


@pytest.mark.parametrize("key", ["id INT PRIMARY KEY", "id INTEGER"])
def test_a_row_without_an_id_is_not_given_one(tmp_path: Path, key: str) -> None:
    statements = f"CREATE TABLE note ({key}, title TEXT NOT NULL); INSERT INTO note VALUES (7, 'a');"
    here = _scene(tmp_path, f"{statements} INSERT INTO note VALUES (NULL, 'b'), (NULL, 'c');", NOTE)
    _generated(here)
    with pytest.raises(ScriptError, match=r"note\.id: a row without a value"):
        here.migrate.apply(here.check().pending[0])
    here.run("UPDATE note SET id = rowid + 10 WHERE id IS NULL")
    here.migrate.apply(here.check().pending[0])
    assert here.check().state is State.CURRENT
    assert here.rows("SELECT id, title FROM note ORDER BY id") == [(7, "a"), (12, "b"), (13, "c")]


MISMATCH = """CREATE TABLE user (id INTEGER PRIMARY KEY, name TEXT);
    CREATE TABLE post (id INTEGER PRIMARY KEY, author TEXT REFERENCES user (name)); INSERT INTO post VALUES (1, 'a');"""


def test_a_foreign_key_that_could_not_be_checked_before_is_no_reason_to_refuse(tmp_path: Path) -> None:
    here = _scene(tmp_path, MISMATCH)
    _apply(here, "ALTER TABLE user ADD COLUMN mail TEXT")
    assert here.check().applied == ["001.next.sql"]
    with pytest.raises(ScriptError, match="cannot be checked: foreign key mismatch"):
        _apply(here, "CREATE TABLE tag (name TEXT REFERENCES user (mail)); INSERT INTO tag VALUES ('x')")


def test_rows_that_break_a_check_already_are_no_reason_to_refuse(tmp_path: Path) -> None:
    unsound = "PRAGMA ignore_check_constraints = ON; CREATE TABLE c (n CHECK (n > 0)); INSERT INTO c VALUES (-1);"
    here = _scene(tmp_path, f"{TABLE} {unsound}")
    _apply(here, "ALTER TABLE note ADD COLUMN n INT")
    assert here.check().applied == ["001.next.sql"]


def test_bytes_that_are_no_text_do_not_keep_a_script_from_being_generated(tmp_path: Path) -> None:
    statements = "CREATE TABLE note (id INTEGER PRIMARY KEY, titel TEXT NOT NULL);"
    here = _scene(tmp_path, f"{statements} INSERT INTO note VALUES (1, CAST(x'fc' AS TEXT));", NOTE)
    assert "titel became title" in _generated(here)


def _acts(done: Development) -> list[str]:
    return [step.act for step in done.steps]


@pytest.mark.parametrize(
    ("statements", "named"),
    [
        (
            "CREATE TABLE invoices (id INTEGER PRIMARY KEY, amount REAL); INSERT INTO invoices VALUES (1, 9.5);",
            "invoices",
        ),
        ("ALTER TABLE note ADD COLUMN mail TEXT; INSERT INTO note VALUES (1, 'a', 'm');", "note.mail"),
    ],
)
def test_develop_drops_nothing_that_has_rows_unless_it_is_told_to(tmp_path: Path, statements: str, named: str) -> None:
    here = _scene(tmp_path, f"CREATE TABLE note (id INTEGER PRIMARY KEY, title TEXT NOT NULL); {statements}", NOTE)
    before = here.content()
    done = develop(here.migrate)
    assert (_acts(done), done.result.state, here.content()) == ([], State.DRIFT, before)
    assert done.stopped is not None
    assert f"No model has {named}:" in done.stopped
    assert _acts(develop(here.migrate, allow_drops=True)) == ["generate", "apply"]
    assert here.check().state is State.CURRENT


def test_develop_drops_what_has_no_rows(tmp_path: Path) -> None:
    here = _scene(tmp_path, TABLE, NOTE)
    assert _acts(develop(here.migrate)) == ["generate", "apply"]


TYPED = "CREATE TABLE t (id INTEGER PRIMARY KEY, a {0})"


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
def test_a_type_that_is_another_word_for_that_of_the_model_is_no_difference(
    tmp_path: Path, kind: Any, spellings: list[str]
) -> None:
    for place, spelling in enumerate(spellings):
        folder = tmp_path / str(place)
        folder.mkdir()
        here = _scene(folder, "CREATE TABLE t (id INTEGER PRIMARY KEY)", _model("t", {"a": kind | None}))
        _apply(here, f"ALTER TABLE t ADD COLUMN a {spelling}")
        assert here.check().state is State.CURRENT, spelling


@pytest.mark.parametrize(
    ("kind", "spelling"),
    [(str, "STRING"), (str, "INT"), (int, "REAL"), (float, "DECIMAL(9,2)"), (int, "INT(5)"), (bool, "INT")],
)
def test_a_type_that_means_something_else_is_a_difference(tmp_path: Path, kind: Any, spelling: str) -> None:
    here = _scene(tmp_path, TYPED.format(spelling), _model("t", {"a": kind | None}))
    assert here.check().state is State.DRIFT


def test_a_rehearsal_is_one_of_the_database_where_the_reference_has_all_scripts(tmp_path: Path) -> None:
    here = scene("pending", tmp_path)
    pending = here.check().pending
    with closing(sqlite3.connect(here.path)) as old, closing(sqlite3.connect(here.engine.reference)) as new:
        old.backup(new)
    ahead = Scene(engine=SqliteEngine(here.engine.reference, scripts=here.engine.scripts), models=here.models)
    for script in pending:
        ahead.migrate.apply(script)
    assert (ahead.check().state, here.check().state) == (State.CURRENT, State.PENDING)
    before = here.content()
    tried = here.migrate.rehearse()
    assert ([trial.filename for trial in tried.trials], tried.ok) == (pending, True)
    assert here.content() == before
