"""Migrations of lake tables where they once went wrong: tables made anew, files that upkeep merged, first scripts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from catchment.errors import ScriptError
from catchment.foundation import events, faults
from catchment.foundation.events import Event
from catchment.foundation.settings import Settings
from catchment.lake import Lake, maintenance
from catchment.lake.locks import CommitLock
from catchment.pipeline import ParquetFiles
from tests.conftest import MakeSettings
from tests.sample_events import EVENTS, deliverer, event_files, rows_of
from tests.schema.lake_projects import LakeScene, model

BARE = model("events", {"kind": str | None})
COUNTED = model("events", {"kind": str | None, "n": int}, n=3)


class _Nobody(CommitLock):
    """A lock that keeps nobody out."""

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        yield


@pytest.fixture
def unlocked(make_settings: MakeSettings) -> Iterator[Lake]:
    """A lake whose writers nothing keeps apart."""
    with Lake(Lake.from_settings(make_settings("duckdb")).address, commit_lock=_Nobody()) as lake:
        yield lake


def _deliver(lake: Lake, settings: Settings, sources: list[Path]) -> None:
    deliverer(lake, settings).run(ParquetFiles(sources, EVENTS))


def test_a_script_that_was_generated_without_rows_is_refused_where_there_are_some_and_nothing_comes_twice(
    tmp_path: Path, make_settings: MakeSettings
) -> None:
    settings = make_settings("duckdb")
    with Lake.from_settings(settings) as lake:
        here = LakeScene(lake=lake, folder=tmp_path / "schema")
        here.become(BARE)
        here.models = [COUNTED]
        script = here.generate()
        assert 'DROP TABLE "events"' in script.read_text()
        sources = event_files(tmp_path / "in", 2)
        _deliver(lake, settings, sources)
        before = (here.content(), here.uuids())
        said = "it drops events, which has 20 rows here, to create it again"
        assert said in (here.migrate.rehearse().trials[0].error or "")
        with pytest.raises(ScriptError, match=said) as refused:
            here.migrate.apply(script.name)
        assert "generate it again on a lake in which events has rows" in (refused.value.hint or "")
        assert (here.content(), here.uuids()) == before
        script.unlink()
        here.migrate.apply(here.generate().name)
        assert here.settled()
        _deliver(lake, settings, sources)
        assert rows_of(lake) == [(n,) for n in range(20)]
        assert lake.audit().ok


ANEW = (
    "DROP TABLE held;\nCREATE TABLE held (a BIGINT);\n",
    "CREATE OR REPLACE TABLE held AS SELECT a, 1 AS b FROM held;\n",
    'CREATE TABLE n AS FROM held;\nDROP TABLE IF EXISTS main."HELD";\nALTER TABLE n RENAME TO "Held";\n',
    "ALTER TABLE held RENAME TO old;\nCREATE TABLE held AS FROM old;\nDROP TABLE old;\n",
    "CREATE TABLE n AS FROM held;\nDELETE FROM held;\nDROP TABLE held;\nALTER TABLE n RENAME TO held;\n",
)


def test_a_table_with_rows_is_not_made_anew_however_a_script_says_it(sqlite_lake: Lake, tmp_path: Path) -> None:
    here = LakeScene(lake=sqlite_lake, folder=tmp_path / "schema")
    here.run("CREATE TABLE held (a BIGINT)", "INSERT INTO held VALUES (1), (2)")
    before = (here.content(), here.uuids())
    for script in ANEW:
        here.write("001.again.sql", script)
        with pytest.raises(ScriptError, match="which has 2 rows here, to create it again"):
            here.migrate.apply("001.again.sql")
        assert (here.content(), here.uuids()) == before, script


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("DROP TABLE held;\n", {"empty"}),
        ("DROP TABLE held;\nALTER TABLE empty RENAME TO other;\n", {"other"}),
        ("DROP TABLE empty;\nCREATE TABLE empty (b BIGINT);\n", {"held", "empty"}),
        ("ALTER TABLE held RENAME TO old;\nCREATE TABLE held (a BIGINT);\n", {"held", "old", "empty"}),
        ("CREATE TABLE n (a BIGINT);\nINSERT INTO n FROM held;\nDROP TABLE n;\n", {"held", "empty"}),
    ],
)
def test_a_table_is_dropped_when_a_script_says_so_and_made_anew_when_it_is_empty(
    sqlite_lake: Lake, tmp_path: Path, script: str, names: set[str]
) -> None:
    here = LakeScene(lake=sqlite_lake, folder=tmp_path / "schema")
    here.run("CREATE TABLE held (a BIGINT)", "INSERT INTO held VALUES (1), (2)", "CREATE TABLE empty (a BIGINT)")
    here.write("001.drop.sql", script)
    here.migrate.apply("001.drop.sql")
    assert set(here.content()["tables"]) == names


@pytest.mark.parametrize("catalog", ["duckdb", "sqlite"])
def test_a_restore_finds_rows_and_deletions_that_upkeep_has_merged_with_later_ones(
    tmp_path: Path, make_settings: MakeSettings, catalog: str
) -> None:
    settings = make_settings(catalog)
    with Lake.from_settings(settings) as lake:
        here = LakeScene(lake=lake, folder=tmp_path / "schema")
        here.become(BARE)
        sources = event_files(tmp_path / "in", 4)
        _deliver(lake, settings, sources[:1])
        here.run("DELETE FROM events WHERE id = 3")
        _deliver(lake, settings, sources[:2])
        before, uuids, backup = here.content(), here.uuids(), here.migrate.backup()
        # As many go as come, so that counting them would not do. One stays, or its file would be seen to go.
        here.run("DELETE FROM events WHERE id < 9")
        here.run("INSERT INTO events SELECT 50 + i, 'late' FROM range(8) r(i)")
        report = maintenance.maintain(lake, maintenance.Ages.from_settings(settings))
        assert report.steps[0].count == 2, "upkeep merged nothing"
        after = here.content()
        assert len(after["tables"]["events"][1]) == len(before["tables"]["events"][1])
        here.migrate.restore(backup.name)
        assert here.content() == before
        assert here.uuids() == uuids
        maintenance.maintain(lake, maintenance.Ages.from_settings(settings))
        here.migrate.restore(here.migrate.backups()[0].name)
        assert here.content() == after
        _deliver(lake, settings, sources[:2])
        assert here.content() == after
        assert lake.audit().ok


def test_a_restore_finds_deletions_that_ducklake_has_merged_by_itself(sqlite_lake: Lake, tmp_path: Path) -> None:
    here = LakeScene(lake=sqlite_lake, folder=tmp_path / "schema")
    here.run("CREATE TABLE t (id BIGINT)", "INSERT INTO t FROM range(9)")
    here.run("DELETE FROM t WHERE id = 1")
    before, backup = here.content(), here.migrate.backup()
    here.run("DELETE FROM t WHERE id = 2")
    here.migrate.restore(backup.name)
    assert here.content() == before


@pytest.mark.parametrize("is_restored", [False, True])
def test_of_two_who_apply_the_first_script_of_a_schema_one_commits(
    unlocked: Lake, tmp_path: Path, is_restored: bool
) -> None:
    LakeScene(lake=unlocked, folder=tmp_path / "main").become(model("t0", {"a": int | None}))
    one, other = (LakeScene(lake=unlocked, folder=tmp_path / name, schema="shop") for name in ("one", "other"))
    with unlocked.write() as connection:
        connection.execute("CREATE SCHEMA lake.shop")
    one.run("CREATE TABLE t (id BIGINT)")
    for here in (one, other):
        here.write("001.first.sql", "INSERT INTO t VALUES (1);\n")
    if is_restored:
        one.migrate.apply("001.first.sql")
        one.migrate.restore("pre_001")
    turns = iter([lambda: other.migrate.apply("001.first.sql")])
    racing = faults.armed("schema.before_commit", lambda: next(turns, lambda: None)())
    with racing, pytest.raises(ScriptError, match="just been applied by another process"):
        one.migrate.apply("001.first.sql")
    assert one.rows("FROM t") == [(1,)]
    assert [record.number for record in one.engine.observe().history] == [1]


def test_a_script_that_is_applied_during_a_restore_goes_with_its_record(unlocked: Lake, tmp_path: Path) -> None:
    LakeScene(lake=unlocked, folder=tmp_path / "main").become(model("t0", {"a": int | None}))
    with unlocked.write() as connection:
        connection.execute("CREATE SCHEMA lake.shop")
    one, other = (LakeScene(lake=unlocked, folder=tmp_path / name, schema="shop") for name in ("one", "other"))
    one.run("CREATE TABLE t (id BIGINT)")
    before, backup = one.content(), one.migrate.backup()
    other.write("001.first.sql", "INSERT INTO t VALUES (1);\n")
    turns = iter([lambda: other.migrate.apply("001.first.sql")])
    with faults.armed("schema.between_restore", lambda: next(turns, lambda: None)()):
        one.migrate.restore(backup.name)
    assert one.content() == before


def test_a_restore_warns_of_units_whose_rows_are_gone_and_of_those_that_could_come_again(
    tmp_path: Path, make_settings: MakeSettings
) -> None:
    settings = make_settings("sqlite")
    heard: list[Event] = []
    with Lake.from_settings(settings) as lake, events.listening(heard.append):
        here = LakeScene(lake=lake, folder=tmp_path / "schema")
        here.become(BARE)
        sources = event_files(tmp_path / "in", 3)
        _deliver(lake, settings, sources[:1])
        backup = here.migrate.backup()
        here.migrate.restore(backup.name)
        assert not _warnings(heard), "nothing was delivered since"
        _deliver(lake, settings, sources)
        here.migrate.restore(backup.name)
        assert _warnings(heard) == [("events", 2, 20)]
        assert heard[-2].facts["reason"].endswith("their rows are gone, and they count as delivered.")
        heard.clear()
        here.run("ALTER TABLE events DROP COLUMN kind")
        here.migrate.restore(backup.name)
        assert _warnings(heard) == [("events", 1, 10)]
        assert heard[-2].facts["reason"].endswith("files that still exist can be delivered again.")


def _warnings(heard: list[Event]) -> list[tuple[str, int, int]]:
    told = [event.facts for event in heard if event.verb == "deliveries_parted"]
    return [(facts["table"], facts["units"], facts["rows"]) for facts in told]
