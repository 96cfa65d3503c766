"""Backups of a SQLite file, restores from them, and rehearsals on copies."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from catchment.errors import BackupMissingError, CorruptInputError, LockTimeoutError
from catchment.foundation import faults
from catchment.schema.check import State
from catchment.schema.lint import Risk
from catchment.schema.migratable import BackupKind
from catchment.schema.migrate import Migrate
from catchment.schema.sqlite_engine import SqliteEngine
from tests.schema.projects import (
    IMPATIENT,
    Scene,
    dump,
    scene,
)

THIRD = "003.add_profile.sql"


def _names(here: Scene) -> list[str]:
    return [backup.name for backup in here.migrate.backups()]


def test_every_script_is_preceded_by_a_backup_under_its_number(tmp_path: Path) -> None:
    here = scene("scripts_only", tmp_path)
    for script in here.check().pending:
        here.migrate.apply(script)
    assert _names(here) == ["pre_002.mydb.sqlite.bak", "pre_001.mydb.sqlite.bak"]
    folder = here.path.with_name("mydb.sqlite.bak")
    assert here.rows("SELECT count(*) FROM sqlite_schema", folder / "pre_001.mydb.sqlite.bak") == [(0,)]
    assert here.rows("SELECT count(*) FROM _migrations", folder / "pre_002.mydb.sqlite.bak") == [(1,)]


def test_a_script_that_is_applied_again_does_not_replace_the_first_backup(tmp_path: Path) -> None:
    here = scene("diverged_with_ref", tmp_path)
    here.engine.reference.unlink()
    here.script(THIRD).unlink()
    here.migrate.check()
    here.write("004.more.sql", "CREATE TABLE more (n)")
    here.migrate.apply("004.more.sql")
    here.migrate.restore("pre_004")
    here.run("INSERT INTO users (name) VALUES ('between')")
    here.migrate.apply("004.more.sql")
    assert _names(here) == [
        "pre_004.2.mydb.sqlite.bak",
        "replaced_004.mydb.sqlite.bak",
        "pre_004.mydb.sqlite.bak",
    ]
    here.migrate.restore("pre_004.2")
    assert here.rows("SELECT count(*) FROM users") == [(3,)]
    here.migrate.restore("pre_004.mydb.sqlite.bak")
    assert here.rows("SELECT count(*) FROM users") == [(2,)]


def test_a_restore_backs_up_the_replaced_database(tmp_path: Path) -> None:
    here = scene("diverged_with_ref", tmp_path)
    before = here.content()
    here.migrate.restore()
    assert here.content() == dump(here.engine.reference)
    here.migrate.restore("replaced_003")
    assert here.content() == before


def test_the_reference_is_read_and_nothing_is_put_beside_it(tmp_path: Path) -> None:
    here = scene("diverged_with_ref", tmp_path)
    with closing(sqlite3.connect(here.engine.reference)) as reference:
        reference.execute("PRAGMA journal_mode = WAL")
    before = here.engine.reference.read_bytes()
    here.migrate.restore()
    assert here.engine.reference.read_bytes() == before
    assert not {name for name in here.files() if name.startswith("mydb.sqlite.ref-")}


def test_the_newest_of_each_kind_are_kept(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    here.engine = SqliteEngine(here.path, backups_keep=2)
    here.migrate.backup()
    for number in range(4, 8):
        here.migrate.apply(here.write(f"{number:03d}.more.sql", f"CREATE TABLE t{number} (n)"))
    assert _names(here) == [
        "pre_007.mydb.sqlite.bak",
        "pre_006.mydb.sqlite.bak",
        "manual_003.mydb.sqlite.bak",
    ]


def test_the_backup_that_is_restored_outlives_the_one_made_by_restoring_it(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    here.engine = SqliteEngine(here.path, backups_keep=1)
    first = here.content()
    here.migrate.restore(here.migrate.backup().name)
    here.run("DELETE FROM profiles")
    here.migrate.restore("manual_003")
    here.migrate.restore("replaced_003.2")
    assert here.rows("SELECT count(*) FROM profiles") == [(0,)]
    assert first != here.content()


def test_a_backup_that_changed_nothing_since_is_the_same_one(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    assert here.migrate.backup().name == here.migrate.backup().name
    here.run("DELETE FROM profiles")
    assert here.migrate.backup().name == "manual_003.2.mydb.sqlite.bak"
    assert [backup.kind for backup in here.migrate.backups()] == [BackupKind.MANUAL, BackupKind.MANUAL]


@pytest.mark.parametrize("name", ["pre_077", "../mydb.sqlite", "mydb.sqlite.ref", ""])
def test_only_backups_can_be_restored_by_name(tmp_path: Path, name: str) -> None:
    here = scene("steady", tmp_path)
    kept = here.migrate.backup()
    before = here.content()
    with pytest.raises(BackupMissingError) as refused:
        here.migrate.restore(name)
    assert kept.name in (refused.value.hint or "")
    assert here.content() == before


def test_a_damaged_backup_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    here = scene("diverged_with_ref", tmp_path)
    before = here.content()
    here.engine.reference.write_bytes(b"This is no database." * 500)
    with pytest.raises(CorruptInputError, match="not a SQLite database"):
        here.migrate.restore()
    assert here.content() == before
    assert _names(here) == []


def test_a_damaged_database_is_quarantined_and_a_backup_restored(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    before = here.content()
    kept = here.migrate.backup()
    here.path.write_bytes(b"This is no database." * 500)
    with pytest.raises(CorruptInputError):
        here.check()
    here.migrate.restore(kept.name)
    assert here.content() == before
    assert len(list(here.path.with_name("mydb.sqlite.bak").glob("damaged_*.mydb.sqlite"))) == 1


@pytest.mark.parametrize("page_size", [4096, 1024])
def test_a_database_with_a_wal_is_backed_up_with_it_and_restored_over_it(tmp_path: Path, page_size: int) -> None:
    here = scene("steady", tmp_path)
    kept = here.migrate.backup()
    with closing(sqlite3.connect(here.path)) as writer:
        writer.execute(f"PRAGMA page_size = {page_size}")
        writer.execute("VACUUM")
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("INSERT INTO users (name) VALUES ('only in the WAL')")
        writer.commit()
        assert here.path.with_name("mydb.sqlite-wal").stat().st_size > 0
        second = here.migrate.backup()
    here.migrate.restore(kept.name)
    assert here.rows("SELECT count(*) FROM users") == [(2,)]
    here.migrate.restore(second.name)
    assert here.rows("SELECT name FROM users WHERE id = 3") == [("only in the WAL",)]


def test_open_connections_see_the_restored_database(tmp_path: Path) -> None:
    here = scene("diverged_with_ref", tmp_path)
    own = here.engine.connection
    assert own.execute("SELECT count(*) FROM profiles").fetchone() == (2,)
    with closing(sqlite3.connect(here.path)) as other:
        other.execute("SELECT * FROM profiles").fetchall()
        here.migrate.restore()
        assert other.execute("SELECT name FROM sqlite_schema WHERE name = 'profiles'").fetchall() == []
    with pytest.raises(sqlite3.ProgrammingError):
        own.execute("SELECT 1")
    assert here.engine.connection.execute("SELECT count(*) FROM users").fetchone() == (2,)
    here.engine.close()


def test_a_restore_waits_within_a_bound_for_another_writer(tmp_path: Path) -> None:
    here = scene("diverged_with_ref", tmp_path, busy=IMPATIENT)
    before = here.content()
    with closing(sqlite3.connect(here.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LockTimeoutError):
            here.migrate.restore()
    assert here.content() == before


def test_a_rehearsal_shows_what_scripts_do_and_touches_nothing(tmp_path: Path) -> None:
    here = scene("pending", tmp_path)
    here.write("004.clean.sql", "DELETE FROM users WHERE id = 2;\nALTER TABLE users DROP COLUMN email;")
    before, files = here.content(), here.files()
    shown = here.migrate.rehearse()
    assert (here.content(), here.files()) == (before, files)
    assert shown.ok
    assert [trial.filename for trial in shown.trials] == [THIRD, "004.clean.sql"]
    added, cleaned = shown.trials
    assert [table.name for table in added.change.missing] == ["profiles"]
    assert (added.rows_before, added.rows_after) == ({"users": 2}, {"users": 2, "profiles": 0})
    assert [column.name for column in cleaned.change.tables[0].dropped] == ["email"]
    assert (cleaned.rows_before["users"], cleaned.rows_after["users"]) == (2, 1)
    assert all(trial.seconds >= 0 for trial in shown.trials)
    assert [(finding.risk, finding.line) for finding in shown.findings] == [(Risk.DATA_LOSS, 2), (Risk.DATA_LOSS, 1)]
    assert shown.after is not None
    assert shown.after.state is State.DRIFT
    assert "rows of users: 2 → 1" in shown.report()


def test_a_rehearsal_stops_at_the_script_that_fails_and_says_why(tmp_path: Path) -> None:
    here = scene("pending", tmp_path)
    here.write("004.wrong.sql", "\nSELECT nonsense")
    here.write("005.never.sql", "SELECT 1")
    shown = here.migrate.rehearse()
    assert not shown.ok
    assert [trial.error for trial in shown.trials] == [None, "004.wrong.sql, line 2: no such column: nonsense."]
    assert "004.wrong.sql: failed" in shown.report()


def test_a_rehearsal_starts_from_the_reference_if_there_is_one(tmp_path: Path) -> None:
    here = scene("diverged_with_ref", tmp_path)
    before = here.engine.reference.read_bytes()
    shown = here.migrate.rehearse()
    assert [trial.filename for trial in shown.trials] == [THIRD]
    assert shown.after is not None
    assert shown.after.state is State.CURRENT
    assert here.engine.reference.read_bytes() == before


def test_a_rehearsal_of_a_database_that_is_missing_starts_from_nothing(tmp_path: Path) -> None:
    here = scene("scripts_only", tmp_path)
    assert here.migrate.rehearse().ok
    assert not here.path.exists()


def test_a_rehearsed_script_runs_by_the_same_rules(tmp_path: Path) -> None:
    here = scene("pending", tmp_path)
    here.write("004.commits.sql", "COMMIT")
    assert "begins or ends a transaction" in (here.migrate.rehearse().trials[-1].error or "")


def test_files_of_a_killed_backup_are_removed_by_the_next_one(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)

    def stop() -> None:
        raise KeyboardInterrupt

    with faults.armed("schema.before_backup", stop), pytest.raises(KeyboardInterrupt):
        here.migrate.backup()
    assert _names(here) == []
    here.engine.backup(BackupKind.PRE, 4)
    assert [path.name for path in here.path.with_name("mydb.sqlite.bak").iterdir()] == ["pre_004.mydb.sqlite.bak"]


def test_a_hot_journal_is_rolled_back_before_reading(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    before = here.content()
    copied = tmp_path / "killed.sqlite"
    with closing(sqlite3.connect(here.path)) as writer:
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("INSERT INTO users (name) SELECT hex(zeroblob(3000)) FROM profiles, users, users b, users c")
        # What a power cut would leave: pages of an open transaction in the file, and the journal
        # that undoes them.
        copied.write_bytes(here.path.read_bytes())
        Path(f"{copied}-journal").write_bytes(here.path.with_name("mydb.sqlite-journal").read_bytes())
    result = Migrate(SqliteEngine(copied, scripts=here.engine.scripts), here.models).check()
    assert result.state is State.CURRENT
    assert dump(copied) == before


def test_a_rehearsal_uses_the_database_if_the_reference_has_all_scripts(tmp_path: Path) -> None:
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
