"""SIGKILL at every crash point of migrations: the database is as before or after, and can go on."""

import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr

from catchment.foundation import faults
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.schema.check import State
from tests.repo.source_tree import ROOT
from tests.schema.projects import LakeScene, Scene, dump, scene
from tests.shortcuts import warm

APPLYING = ("schema.before_backup", "schema.after_backup", "schema.before_commit", "schema.after_commit")
RESTORING = ("schema.before_backup", "schema.between_restore")
WRITING = ("schema.before_script",)
KILLED = frozenset((*APPLYING, *RESTORING, *WRITING))
THIRD = "003.add_profile.sql"
# Enough to make SQLite write pages of an open transaction into the file.
ROWS = 4_000
FILL = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS}) "


def _killed(act: str, scenario: str, here: Scene, point: str) -> None:
    """Run the child until it is killed at the point; anything else it does is a failure."""
    command = [sys.executable, "-m", "tests.crash.schema_child", act, scenario, str(here.path), point]
    ended = warm.run(command, cwd=ROOT, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def _killed_on_lake(act: str, home: Path, url: str, point: str) -> None:
    command = [sys.executable, "-m", "tests.crash.schema_lake_child", act, str(home), url, point]
    ended = warm.run(command, cwd=ROOT, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def _fill(here: Scene, journal: str) -> None:
    with closing(here.engine.connection) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("CREATE TABLE counters (n INTEGER)")
        connection.execute("INSERT INTO counters VALUES (0)")
        connection.execute("CREATE TABLE big (text TEXT)")
        connection.execute(f"INSERT INTO big {FILL} SELECT hex(zeroblob(500)) || i FROM n")
        connection.commit()
    here.engine.close()


def _traces(here: Scene) -> int:
    """How much of the killed transaction lies beside the database."""
    found = [here.path.with_name(here.path.name + suffix) for suffix in ("-journal", "-wal")]
    return sum(path.stat().st_size for path in found if path.exists())


def test_every_crash_point_of_the_schema_is_killed() -> None:
    assert {point for point in faults.POINTS if point.startswith("schema.")} == KILLED


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("point", APPLYING)
def test_a_script_whose_applier_is_killed_is_applied_exactly_once(tmp_path: Path, point: str, journal: str) -> None:
    here = scene("pending", tmp_path)
    _fill(here, journal)
    text = here.script(THIRD).read_text()
    here.write(THIRD, f"{text}UPDATE counters SET n = n + 1;\nUPDATE big SET text = 'new' || text;\n")
    before = here.content()
    _killed("apply", "pending", here, point)
    if point == "schema.before_commit":
        assert _traces(here) > ROWS * 500, "the transaction was really on its way"
    is_committed = point == "schema.after_commit"
    result = here.check()
    assert (result.pending, result.errors, result.divergent) == ([] if is_committed else [THIRD], [], [])
    if not is_committed:
        assert here.content() == before
        here.migrate.apply(THIRD)
    assert here.rows("SELECT number FROM _migrations") == [(1,), (2,), (3,)]
    assert here.rows("SELECT n FROM counters") == [(1,)]
    assert here.rows("SELECT count(*), sum(text LIKE 'new%') FROM big") == [(ROWS, ROWS)]
    assert here.rows("SELECT name FROM users ORDER BY id") == [("Ada",), ("Grace",)]
    assert not [name for name in here.files() if ".part" in name]


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("point", RESTORING)
def test_a_restore_that_is_killed_leaves_the_old_database_and_can_be_done_again(
    tmp_path: Path, point: str, journal: str
) -> None:
    here = scene("diverged_with_ref", tmp_path)
    _fill(here, journal)
    before = here.content()
    # The reference is big and different on every page.
    other = scene("pending", tmp_path)
    _fill(other, "delete")
    other.run("UPDATE big SET text = 'reference' || text", "DROP TABLE counters")
    here.engine.reference.write_bytes(other.path.read_bytes())
    _killed("restore", "diverged_with_ref", here, point)
    if point == "schema.between_restore" and journal == "delete":
        assert _traces(here) > 0, "the transaction was really on its way"
    assert here.check().state is State.DIVERGED
    assert here.content() == before
    assert here.rows("PRAGMA integrity_check") == [("ok",)]
    here.migrate.restore()
    assert here.content() == dump(here.engine.reference)
    assert here.rows("PRAGMA integrity_check") == [("ok",)]
    result = here.check()
    assert result.pending == [THIRD]


def test_a_script_whose_writing_is_killed_is_not_there_and_is_written_under_the_same_name(tmp_path: Path) -> None:
    here = scene("model_changed", tmp_path)
    _killed("generate", "model_changed", here, "schema.before_script")
    assert here.check().state is State.DRIFT
    path = here.migrate.generate()
    assert path is not None
    assert path.name == "003.add_age.sql"
    assert not [name for name in here.files() if ".part" in name]


def test_a_deleted_script_whose_writing_back_is_killed_comes_back_with_the_next_check(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    text = here.script(THIRD).read_text()
    here.script(THIRD).unlink()
    _killed("check", "steady", here, "schema.before_script")
    assert not here.script(THIRD).exists()
    assert here.check().written_back == [THIRD]
    assert here.script(THIRD).read_text() == text


@pytest.mark.parametrize("catalog", ["duckdb", "sqlite"])
@pytest.mark.parametrize("point", APPLYING)
def test_a_script_of_a_lake_whose_applier_is_killed_is_applied_exactly_once(
    tmp_path: Path, point: str, catalog: str
) -> None:
    url = f"{catalog}:{tmp_path / f'catalog.{catalog}'}"
    settings = Settings(home=tmp_path, lake_catalog=SecretStr(url))
    with Lake.from_settings(settings) as lake:
        here = LakeScene(lake=lake, folder=tmp_path)
        here.write("001.create.sql", "CREATE TABLE t (id BIGINT NOT NULL);\nINSERT INTO t VALUES (1);\n")
        here.migrate.apply("001.create.sql")
        here.write("002.add.sql", "ALTER TABLE t ADD COLUMN a BIGINT DEFAULT 7;\nINSERT INTO t VALUES (2, 8);\n")
        before = here.content()
    _killed_on_lake("apply", tmp_path, url, point)
    with Lake.from_settings(settings) as lake:
        here = LakeScene(lake=lake, folder=tmp_path)
        is_committed = point == "schema.after_commit"
        assert here.check().pending == ([] if is_committed else ["002.add.sql"])
        if not is_committed:
            assert here.content() == before
            here.migrate.apply("002.add.sql")
        assert here.rows("SELECT number FROM _catchment._migrations ORDER BY number") == [(1,), (2,)]
        assert here.rows("FROM t ORDER BY id") == [(1, 7), (2, 8)]
        assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("point", RESTORING)
def test_a_restore_of_a_lake_that_is_killed_changes_nothing_and_can_be_done_again(tmp_path: Path, point: str) -> None:
    url = f"sqlite:{tmp_path / 'catalog.sqlite'}"
    settings = Settings(home=tmp_path, lake_catalog=SecretStr(url))
    with Lake.from_settings(settings) as lake:
        here = LakeScene(lake=lake, folder=tmp_path)
        here.write("001.create.sql", "CREATE TABLE t (id BIGINT NOT NULL);\nINSERT INTO t VALUES (1);\n")
        here.migrate.apply("001.create.sql")
        here.migrate.backup()
        wanted = here.content()
        here.run("INSERT INTO t VALUES (2)", "CREATE TABLE u (id BIGINT)")
        before = here.content()
    _killed_on_lake("restore", tmp_path, url, point)
    with Lake.from_settings(settings) as lake:
        here = LakeScene(lake=lake, folder=tmp_path)
        assert here.content() == before
        here.migrate.restore("manual_001")
        assert here.content() == wanted
