"""Applying a script: with its record or not at all; forbidden statements; concurrent processes."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from catchment.errors import LockTimeoutError, ScriptError, StateError
from catchment.foundation import faults
from catchment.schema import LakeEngine, applied_scripts
from catchment.schema.applied_scripts import AppliedScript
from catchment.schema.check import State
from catchment.schema.migratable import Replaceable, TableAccess
from catchment.schema.migrate import Migrate
from catchment.schema.scripts import Script
from catchment.schema.sqlite_engine import SqliteEngine
from tests.repo.source_tree import ROOT
from tests.schema.projects import (
    IMPATIENT,
    Scene,
    apply_text,
    database_with,
    dump,
    generated,
    model,
    scene,
)
from tests.shortcuts import warm

NOTE = model("note", {"title": str})
TABLE = "CREATE TABLE note (id INTEGER PRIMARY KEY, title TEXT NOT NULL, email TEXT);"
INDEXED = f"{TABLE} CREATE INDEX by_email ON note (email); INSERT INTO note VALUES (1, 'a', 'x@y');"
RECORD = "_Migrations (number, filename, script, started_at, finished_at)"
MISMATCH = """CREATE TABLE user (id INTEGER PRIMARY KEY, name TEXT);
    CREATE TABLE post (id INTEGER PRIMARY KEY, author TEXT REFERENCES user (name)); INSERT INTO post VALUES (1, 'a');"""

NEXT = "004.next.sql"
BACKUP = "mydb.sqlite.bak/pre_004.mydb.sqlite.bak"
KEEPS = """
-- keeps-rows: users
CREATE TABLE _new_users (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL DEFAULT '');
INSERT INTO _new_users SELECT * FROM users{condition};
DROP TABLE users;
ALTER TABLE _new_users RENAME TO users;
"""


def _apply(here: Scene, text: str) -> None:
    here.migrate.apply(here.write(NEXT, text))


def _fails(here: Scene, text: str, why: str) -> ScriptError:
    """The script is refused with that sentence, and the database holds what it held."""
    before = here.content()
    with pytest.raises(ScriptError, match=why) as failed:
        _apply(here, text)
    assert here.content() == before
    assert here.check().pending == [NEXT]
    assert failed.value.hint
    return failed.value


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("COMMIT", r"begins or ends a transaction \(COMMIT\)"),
        ("END", r"begins or ends a transaction \(COMMIT\)"),
        ("BEGIN", r"begins or ends a transaction \(BEGIN\)"),
        ("ROLLBACK", r"begins or ends a transaction \(ROLLBACK\)"),
        ("/* now */ cOmMiT -- done", r"begins or ends a transaction \(COMMIT\)"),
        ("SAVEPOINT a", "uses a savepoint"),
        ("ATTACH ':memory:' AS other", "attaches another database"),
        ("DETACH main", "detaches a database"),
        ("VACUUM", "cannot VACUUM from within a transaction"),
        ("PRAGMA foreign_keys = ON", "has PRAGMA foreign_keys"),
        ("PRAGMA writable_schema = ON", "has PRAGMA writable_schema"),
        ("PRAGMA user_version = 7", "has PRAGMA user_version"),
        ("DELETE FROM _migrations", "changes _migrations"),
        ("INSERT INTO _migrations VALUES (9, '', '', '', '')", "changes _migrations"),
        ("DROP TABLE _Migrations", "changes _migrations"),
        ("ALTER TABLE _migrations ADD COLUMN x", "changes _migrations"),
        ("CREATE TRIGGER t AFTER INSERT ON _migrations BEGIN SELECT 1; END", "changes _migrations"),
        ("UPDATE users SET name = ?", "binding"),
        ("CREATE TABLE", "syntax error"),
        ("CREATE TRIGGER t AFTER INSERT ON users BEGIN SELECT 1;", "syntax error"),
    ],
)
def test_a_forbidden_statement_fails_the_script_and_changes_nothing(tmp_path: Path, statement: str, why: str) -> None:
    here = scene("steady", tmp_path)
    error = _fails(here, f"-- first\nDELETE FROM profiles;\n{statement};\nDELETE FROM users;", why)
    assert f"{NEXT}, line 3: " in error.message


@pytest.mark.parametrize("word", ["'COMMIT;'", '"PRAGMA foreign_keys=OFF;"'])
def test_a_script_may_hold_such_words_as_text(tmp_path: Path, word: str) -> None:
    here = scene("steady", tmp_path)
    _apply(here, f"-- COMMIT; VACUUM;\nCREATE TABLE words (word TEXT DEFAULT {word}); /* ROLLBACK; */")
    assert here.rows("SELECT count(*) FROM _migrations") == [(4,)]


def test_a_script_may_query(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    _apply(here, "PRAGMA table_info(users); SELECT * FROM users; UPDATE users SET name = 'x' RETURNING id;")
    assert here.rows("SELECT DISTINCT name FROM users") == [("x",)]


def test_the_body_of_a_trigger_stays_whole(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    _apply(
        here,
        """
        CREATE TABLE changes (what TEXT);
        CREATE TRIGGER noted AFTER UPDATE ON users BEGIN
            INSERT INTO changes VALUES ('one; ' || CASE WHEN new.name = 'x' THEN 'x' ELSE 'y' END);
            INSERT INTO changes VALUES ('two');
        END;
        UPDATE users SET name = 'x' WHERE id = 1
        """,
    )
    assert here.rows("SELECT what FROM changes") == [("one; x",), ("two",)]


@pytest.mark.parametrize("text", ["", "\n\n", "-- nothing to do\n", ";;", "/* nothing"], ids=range(5))
def test_an_empty_script_is_applied_and_recorded(tmp_path: Path, text: str) -> None:
    here = scene("steady", tmp_path)
    _apply(here, text)
    result = here.check()
    assert (result.state, result.applied[-1]) == (State.CURRENT, NEXT)


def test_a_failing_script_leaves_everything_and_a_backup_that_can_be_used(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    before = here.content()
    _fails(here, "DROP TABLE profiles;\nINSERT INTO users (name) VALUES ('new');\nSELECT nonsense;", "no such column")
    backup = here.path.parent / BACKUP
    assert dump(backup) == before
    here.run("DELETE FROM profiles")
    here.migrate.restore("pre_004")
    assert here.content() == before


def test_a_script_that_fails_time_and_again_has_one_backup(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    for _ in range(3):
        _fails(here, "SELECT nonsense", "no such column")
    assert [backup.name for backup in here.migrate.backups()] == ["pre_004.mydb.sqlite.bak"]


def test_a_script_that_rolls_back_by_a_conflict_clause_changes_nothing(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    _fails(here, "DELETE FROM profiles; INSERT OR ROLLBACK INTO users (id, name) VALUES (1, 'x');", "UNIQUE")


def test_foreign_keys_are_off_while_it_runs_and_hold_when_it_is_done(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    _apply(here, KEEPS.format(condition=""))
    assert here.rows("SELECT count(*) FROM users JOIN profiles ON owner = users.id") == [(2,)]
    here = scene("pending", tmp_path)
    here.migrate.apply("003.add_profile.sql")
    _fails(
        here,
        "INSERT INTO profiles (owner) VALUES (77)",
        "leaves profiles with 1 row that refers to a missing row of users",
    )


def test_rows_that_referred_to_nothing_before_are_not_held_against_it(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    here.run("INSERT INTO profiles (owner) VALUES (77)")
    _apply(here, "ALTER TABLE profiles ADD COLUMN city TEXT")
    assert here.rows("SELECT count(*) FROM _migrations") == [(4,)]


def test_a_table_that_keeps_its_rows_must_have_them_all(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    lost = KEEPS.format(condition=" WHERE id <> 2")
    _fails(here, "DELETE FROM profiles;" + lost, "to keep the rows of users; there were 2, now 1")
    _fails(here, "-- keeps-rows: nowhere\nSELECT 1", "to keep the rows of a table: no such table")


def test_an_unsound_database_is_not_committed(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    # The check holds when the row comes, and no more when others have come after it.
    statements = "CREATE TABLE c (n CHECK (total_changes() < 2)); INSERT INTO c VALUES (1)"
    _fails(here, f"{statements}; UPDATE users SET name = 'x'", "not sound: CHECK constraint failed in c")


def test_an_interruption_after_the_commit_does_not_undo_it(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with faults.armed("schema.after_commit", interrupt), pytest.raises(KeyboardInterrupt):
        _apply(here, "ALTER TABLE users ADD COLUMN city TEXT")
    assert here.check().applied[-1] == NEXT


def test_a_busy_database_is_a_bounded_wait_and_changes_nothing(tmp_path: Path) -> None:
    here = scene("pending", tmp_path, busy=IMPATIENT)
    before = here.content()
    with closing(sqlite3.connect(here.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LockTimeoutError, match="in use"):
            here.migrate.apply("003.add_profile.sql")
    assert here.content() == before
    here.migrate.apply("003.add_profile.sql")
    assert here.check().state is State.CURRENT


def test_a_database_that_is_busy_for_a_while_is_waited_for(tmp_path: Path) -> None:
    here = scene("pending", tmp_path)
    with closing(sqlite3.connect(here.path, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        # The backup only reads, so it comes through; then the other one is done.
        with faults.armed("schema.after_backup", other.rollback):
            here.migrate.apply("003.add_profile.sql")
    assert here.check().state is State.CURRENT


def test_readers_do_not_fail_a_migration_that_outlasts_them(tmp_path: Path) -> None:
    here = scene("pending", tmp_path)
    with closing(sqlite3.connect(here.path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM users").fetchall()
        with faults.armed("schema.before_commit", reader.rollback):
            here.migrate.apply("003.add_profile.sql")
    assert here.check().state is State.CURRENT


def test_waiting_too_long_for_another_applier_is_an_error(tmp_path: Path) -> None:
    here = scene("pending", tmp_path)
    second = Migrate(SqliteEngine(here.path, lock_timeout_s=0.01), here.models)
    with here.engine.locked(), pytest.raises(LockTimeoutError):
        second.apply("003.add_profile.sql")
    assert second.check().state is State.PENDING, "a check does not wait"


def test_the_state_is_looked_at_again_under_the_lock(tmp_path: Path) -> None:
    here = scene("pending", tmp_path)
    first, second = here.migrate, Migrate(SqliteEngine(here.path), here.models)
    pending = second.check().pending
    first.apply("003.add_profile.sql")
    with pytest.raises(StateError, match="CURRENT"):
        second.apply(pending[0])


APPLIER = """
import sys
from catchment.errors import StateError
from tests.schema.scenarios.steady.models import MODELS
from catchment.schema.sqlite_engine import SqliteEngine
from catchment.schema.migrate import Migrate
migrate = Migrate(SqliteEngine(sys.argv[1]), MODELS)
pending = migrate.check().pending
print("ready", flush=True)
sys.stdin.readline()
for script in pending:
    try:
        migrate.apply(script)
        print("applied", script)
    except StateError:
        print("refused", script)
"""


def test_two_appliers_at_once_apply_every_script_once(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    here.path.unlink()
    here.write("004.count.sql", "CREATE TABLE counted (n); INSERT INTO counted VALUES (1);")
    command = [sys.executable, "-c", APPLIER, str(here.path)]
    started = [warm.Process(command, cwd=ROOT, stdin=warm.PIPE, stdout=warm.PIPE) for _ in range(2)]
    for each in started:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in started:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    said = "".join(each.communicate(timeout=60)[0] for each in started)
    assert [each.returncode for each in started] == [0, 0]
    assert (said.count("applied"), said.count("refused")) == (4, 4), said
    assert here.rows("SELECT count(*), max(number) FROM _migrations") == [(4, 4)]
    assert here.rows("SELECT n FROM counted") == [(1,)]


def test_a_script_that_fails_does_not_take_back_what_others_committed_meanwhile(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)

    def others() -> None:
        here.run("CREATE TABLE cache (k)", "INSERT INTO users (name) VALUES ('Alan')")

    with faults.armed("schema.after_backup", others), pytest.raises(ScriptError, match="nowhere") as failed:
        apply_text(here, "DELETE FROM users; INSERT INTO nowhere VALUES (1)")
    assert here.rows("SELECT name FROM users ORDER BY id") == [("Ada",), ("Grace",), ("Alan",)]
    assert here.rows("SELECT count(*) FROM cache") == [(0,)]
    assert "pre_004.mydb.sqlite.bak" in (failed.value.hint or "")
    assert [backup.name for backup in here.migrate.backups()] == ["pre_004.mydb.sqlite.bak"]


class Damaging(SqliteEngine):
    """An engine whose disk fails: after a script the file is damaged."""

    def apply(self, script: Script) -> tuple[TableAccess, ...]:
        self.path.write_bytes(b"this is no database" * 1_000)
        raise ScriptError("It broke.")


def test_a_database_that_a_failure_has_damaged_is_its_backup_again(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    before = here.content()
    here.engine = Damaging(here.path)
    with pytest.raises(ScriptError, match="It broke") as failed:
        apply_text(here, "SELECT 1")
    assert here.content() == before
    assert "damaged" in (failed.value.hint or "")


def test_a_lake_is_never_put_back_by_a_script_that_fails() -> None:
    assert issubclass(SqliteEngine, Replaceable)
    assert not issubclass(LakeEngine, Replaceable)


def test_a_script_that_was_generated_after_other_scripts_fails_and_changes_nothing(tmp_path: Path) -> None:
    here = database_with(tmp_path, f"{TABLE} INSERT INTO note VALUES (1, 'a', 'x@y');", NOTE)
    apply_text(here, "SELECT 1")
    generated(here)
    here.migrate.restore("pre_001.mydb.sqlite.bak")
    apply_text(here, "ALTER TABLE note DROP COLUMN email")
    before = here.content()
    with pytest.raises(ScriptError, match="no such column"):
        here.migrate.apply(here.check().pending[0])
    assert here.content() == before


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
def test_a_script_cannot_hide_the_table_of_applied_scripts(tmp_path: Path, statement: str, is_first: bool) -> None:
    here = database_with(tmp_path, TABLE, NOTE)
    if not is_first:
        apply_text(here, "INSERT INTO note (title) VALUES ('x')")
    with pytest.raises(ScriptError):
        apply_text(here, f"{statement}; INSERT INTO note (title) VALUES ('y')")
    assert here.rows("SELECT count(*) FROM note WHERE title = 'y'") == [(0,)]


def test_the_record_is_kept_in_the_database_itself() -> None:
    entry = AppliedScript(number=1, filename="001.a.sql", script="", started_at="", finished_at="")
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE TEMP TABLE {RECORD}")
        applied_scripts.record(connection, entry)
        assert applied_scripts.read(connection) == (entry,)
        assert connection.execute("SELECT number FROM main._migrations").fetchall() == [(1,)]


def test_a_temporary_table_does_not_stand_in_for_one_whose_rows_are_kept(tmp_path: Path) -> None:
    here = database_with(tmp_path, INDEXED, NOTE)
    with pytest.raises(ScriptError, match="there were 1, now 0"):
        apply_text(here, "-- keeps-rows: note\nCREATE TEMP TABLE note AS SELECT 1; DELETE FROM main.note")


def test_a_foreign_key_that_could_not_be_checked_before_does_not_fail_a_script(tmp_path: Path) -> None:
    here = database_with(tmp_path, MISMATCH)
    apply_text(here, "ALTER TABLE user ADD COLUMN mail TEXT")
    assert here.check().applied == ["001.next.sql"]
    with pytest.raises(ScriptError, match="cannot be checked: foreign key mismatch"):
        apply_text(here, "CREATE TABLE tag (name TEXT REFERENCES user (mail)); INSERT INTO tag VALUES ('x')")


def test_rows_that_already_break_a_check_do_not_fail_a_script(tmp_path: Path) -> None:
    unsound = "PRAGMA ignore_check_constraints = ON; CREATE TABLE c (n CHECK (n > 0)); INSERT INTO c VALUES (-1);"
    here = database_with(tmp_path, f"{TABLE} {unsound}")
    apply_text(here, "ALTER TABLE note ADD COLUMN n INT")
    assert here.check().applied == ["001.next.sql"]
