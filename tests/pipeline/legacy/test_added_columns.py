"""Columns that were added later: old files are still adopted, and no filter misses their rows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.commit import AddColumn
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.pipeline.work import Mode
from tests.conftest import MakeSettings
from tests.pipeline.legacy.generated_tree import LegacyTable, Odd
from tests.pipeline.legacy.legacy_home import ADOPT_ALL, LOG, Scene, assert_imported, leaf_of, make_scene
from tests.shortcuts.made_lakes import new_lake

TABLES = (LegacyTable(name=LOG, leaves=3, files_per_leaf=1, rows_per_file=10),)


@pytest.fixture(params=["duckdb", "sqlite"])
def scene(request: pytest.FixtureRequest, make_settings: MakeSettings, tmp_path: Path) -> Iterator[Scene]:
    settings: Settings = make_settings(request.param)
    with new_lake(settings) as lake:
        yield make_scene(tmp_path, lake, settings, odd=[Odd.EXTRA_COLUMN], tables=TABLES)


def test_files_from_before_a_column_came_are_adopted_and_read_as_null(scene: Scene) -> None:
    (table,) = scene.job(adopt_bytes_min=ADOPT_ALL).plan().tables
    assert [column.name for column in table.late] == ["tp_tags"]
    assert scene.job(adopt_bytes_min=ADOPT_ALL).run().ok
    assert set(scene.modes().values()) == {"adopt"}
    assert_imported(scene)
    rows = leaf_of(scene, Odd.EXTRA_COLUMN).rows
    total = len(scene.rows[LOG])
    tagged = scene.execute(f"SELECT count(tp_tags), count(*) FROM {LOG}")
    untagged = scene.execute(f"SELECT count(*) FROM {LOG} WHERE tp_tags IS NULL")
    assert tagged[0][1] == total
    assert 0 < tagged[0][0] <= rows
    assert untagged == [(total - tagged[0][0],)]


def test_a_crash_before_the_late_columns_are_added_is_mended_by_the_next_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Lake.commit

    def fails(lake: Lake, value: object) -> None:
        if any(isinstance(change, AddColumn) for change in value.changes):  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        commit(lake, value)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Lake, "commit", fails)
        with pytest.raises(KeyboardInterrupt):
            scene.job(adopt_bytes_min=ADOPT_ALL).run()
    assert scene.count() == TABLES[0].rows_per_file
    assert scene.job(adopt_bytes_min=ADOPT_ALL).run().ok
    assert set(scene.modes().values()) == {"adopt"}
    assert_imported(scene)


def test_rewritten_files_have_every_column(scene: Scene) -> None:
    (table,) = scene.job(ImportOptions(mode=Mode.REWRITE)).plan().tables
    assert table.late == ()
