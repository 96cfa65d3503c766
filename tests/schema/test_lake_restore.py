"""Restores of lake tables whose files were merged, and the units that a restore reports."""

from pathlib import Path

import pytest

from catchment.foundation import events
from catchment.foundation.events import Event
from catchment.foundation.settings import Settings
from catchment.lake import Lake, maintenance
from catchment.pipeline import ParquetFiles
from tests.conftest import MakeSettings
from tests.sample_events import EVENTS, deliverer, event_files
from tests.schema.projects import LakeScene, model

BARE = model("events", {"kind": str | None})


def _deliver(lake: Lake, settings: Settings, sources: list[Path]) -> None:
    deliverer(lake, settings).run(ParquetFiles(sources, EVENTS))


@pytest.mark.parametrize("catalog", ["duckdb", "sqlite"])
def test_a_restore_finds_rows_and_deletions_that_maintenance_has_merged_with_later_ones(
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
        # As many go as come, so that counting them would not do. One stays, or its file would be
        # seen to go.
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
        assert heard[-2].facts["reason"].endswith("their rows are lost, but they count as delivered.")
        heard.clear()
        here.run("ALTER TABLE events DROP COLUMN kind")
        here.migrate.restore(backup.name)
        assert _warnings(heard) == [("events", 1, 10)]
        assert heard[-2].facts["reason"].endswith("files that still exist can be delivered again.")


def _warnings(heard: list[Event]) -> list[tuple[str, int, int]]:
    told = [event.facts for event in heard if event.verb == "deliveries_parted"]
    return [(facts["table"], facts["units"], facts["rows"]) for facts in told]
