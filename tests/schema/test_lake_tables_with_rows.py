"""Scripts for lake tables that have rows: no script replaces such a table by a new one."""

from pathlib import Path

import pytest

from catchment.errors import ScriptError
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline import ParquetFiles
from tests.conftest import MakeSettings
from tests.sample_events import EVENTS, deliverer, event_files, rows_of
from tests.schema.projects import LakeScene, model

BARE = model("events", {"kind": str | None})
COUNTED = model("events", {"kind": str | None, "n": int}, n=3)
ANEW = (
    "DROP TABLE held;\nCREATE TABLE held (a BIGINT);\n",
    "CREATE OR REPLACE TABLE held AS SELECT a, 1 AS b FROM held;\n",
    'CREATE TABLE n AS FROM held;\nDROP TABLE IF EXISTS main."HELD";\nALTER TABLE n RENAME TO "Held";\n',
    "ALTER TABLE held RENAME TO old;\nCREATE TABLE held AS FROM old;\nDROP TABLE old;\n",
    "CREATE TABLE n AS FROM held;\nDELETE FROM held;\nDROP TABLE held;\nALTER TABLE n RENAME TO held;\n",
)


def _deliver(lake: Lake, settings: Settings, sources: list[Path]) -> None:
    deliverer(lake, settings).run(ParquetFiles(sources, EVENTS))


def test_a_script_generated_for_an_empty_table_is_refused_if_the_table_has_rows(
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


def test_a_table_with_rows_is_not_recreated_however_a_script_says_it(sqlite_lake: Lake, tmp_path: Path) -> None:
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
def test_a_script_can_drop_a_table_and_can_recreate_an_empty_one(
    sqlite_lake: Lake, tmp_path: Path, script: str, names: set[str]
) -> None:
    here = LakeScene(lake=sqlite_lake, folder=tmp_path / "schema")
    here.run("CREATE TABLE held (a BIGINT)", "INSERT INTO held VALUES (1), (2)", "CREATE TABLE empty (a BIGINT)")
    here.write("001.drop.sql", script)
    here.migrate.apply("001.drop.sql")
    assert set(here.content()["tables"]) == names
