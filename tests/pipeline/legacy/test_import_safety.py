"""Legacy imports neither lose, double nor misread rows, in any state in which they are resumed."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from catchment.errors import InputError
from catchment.foundation import faults
from catchment.lake import Lake
from catchment.lake.types import Column
from catchment.pipeline.legacy.folders import ImportFolders
from catchment.pipeline.legacy.import_plan import ImportOptions
from tests.pipeline.legacy.generated_tree import Odd, snapshot_tree
from tests.pipeline.legacy.legacy_home import (
    ADOPT_ALL,
    LOG,
    CutError,
    MakeScene,
    Scene,
    assert_imported,
    clean_leaf,
    collect_again,
    cut_off,
    lake_rows,
)
from tests.sample_events import write_parquet


def test_an_import_does_not_go_on_into_another_lake(make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    job = scene.job()
    job._data_path = scene.place.migration / "elsewhere"
    for act in (job.undo, job.verify):
        with pytest.raises(InputError, match="was started for the lake"):
            act()


def test_data_collected_after_a_kill_in_the_move_is_not_mixed_into_the_old_tree(make: MakeScene) -> None:
    scene = make(Odd.TRUNCATED_FILE)
    with faults.armed("legacy.after_move", cut_off), pytest.raises(CutError):
        scene.job().run()
    assert not scene.job().run().ok
    collect_again(scene)
    with pytest.raises(InputError, match="is both in"):
        scene.job().run()
    assert scene.job(ImportOptions(quarantine=True)).folders.journal().tables_made.keys() == {f"main.{LOG}"}


def test_a_kill_at_the_very_end_does_not_block_the_next_import(make: MakeScene) -> None:
    scene = make()
    hits: list[int] = []

    def cut_at_the_marker() -> None:
        hits.append(1)
        if (scene.place.migrated / scene.place.marker).exists():
            raise CutError

    with faults.armed("legacy.between_moves", cut_at_the_marker), pytest.raises(CutError):
        scene.job().run()
    first = len(scene.rows[LOG])
    collect_again(scene)
    assert scene.job().run().ok
    assert scene.count() > first
    assert [root.name for root, _ in scene.place.earlier()] == ["default"]
    assert scene.job().verify().ok


def test_an_adopted_file_with_a_table_column_of_its_own_reads_as_its_folder_says(make: MakeScene) -> None:
    scene = make()
    leaf = clean_leaf(scene)
    path = scene.home.data / leaf.path / leaf.files[0]
    query = f"SELECT *, 'another' AS tp_table FROM read_parquet('{path}', hive_partitioning = false)"
    write_parquet(path.with_name("held.parquet"), query)
    (path.with_name("held.parquet")).replace(path)
    assert scene.job(adopt_bytes_min=ADOPT_ALL).run().ok
    assert scene.execute(f"SELECT DISTINCT tp_table FROM {LOG}") == [(LOG,)]
    assert scene.job().verify().ok


def test_a_table_that_would_lose_the_name_in_the_folder_takes_no_leaf(make: MakeScene) -> None:
    scene = make()
    scene.execute(f"CREATE TABLE {LOG} (tp_table VARCHAR)")
    plan = scene.job().plan()
    assert all("has no default" in why for table in plan.tables for why in table.blocked.values())
    assert plan.leaves == 0


@pytest.mark.parametrize("change", ["rename", "touch"])
def test_a_delivered_leaf_that_changed_before_it_was_moved_is_not_imported_again(make: MakeScene, change: str) -> None:
    scene = make()
    with faults.armed("retire.before_unit", cut_off), pytest.raises(CutError):
        scene.job().run()
    rows = scene.count()
    leaf = clean_leaf(scene)
    file = scene.place.migrating / leaf.path / leaf.files[0]
    if change == "rename":
        file.rename(file.with_name("given_up.parquet.invalid"))
    else:
        file.touch()
    report = scene.job().run()
    assert scene.count() == rows
    assert [failure.leaf for failure in report.failures] == [leaf.path]
    assert "already in the lake" in report.failures[0].reason


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        ("INTEGER", "1.7", False),
        ("INTEGER", "02", True),
        ("DATE", "2024-01-01 13:45:00", False),
        ("DATE", "2024-1-1", True),
    ],
)
def test_a_value_of_a_folder_that_a_cast_would_round_stops_its_leaf(
    sqlite_lake: Lake, make_settings: Any, tmp_path: Path, kind: str, value: str, fits: bool
) -> None:
    write_parquet(tmp_path / "tree" / f"k={value}" / "f.parquet", "SELECT 1 AS a")
    scene = Scene(
        home=None,  # type: ignore[arg-type]
        place=ImportFolders.tree(tmp_path / "tree"),
        settings=make_settings(),
        lake=sqlite_lake,
        before={},
        rows={},
    )
    report = scene.job(ImportOptions(keys=(Column(name="k", type=kind),), table="t")).run()
    assert report.ok is fits


def test_the_lakes_own_files_in_the_tree_stop_the_import_before_it_moves(make: MakeScene) -> None:
    scene = make()
    job = scene.job()
    job._own_files = (scene.home.data / "catalog.sqlite",)
    with pytest.raises(InputError, match="contains the lake's files"):
        job.run()
    assert snapshot_tree(scene.place.data) == scene.before


@pytest.mark.parametrize(
    "harm", ["DELETE FROM {} WHERE tp_id = '{}'", "UPDATE {} SET tp_source_type = 'x' WHERE tp_id = '{}'"]
)
def test_rows_of_a_leaf_that_are_gone_from_a_table_with_others_are_a_mismatch(make: MakeScene, harm: str) -> None:
    scene = make()
    assert scene.job().run().ok
    identity = lake_rows(scene)[0][0]
    note = scene.place.journal()
    scene.place.note(tables_made={})
    scene.execute(f"INSERT INTO {LOG} SELECT * REPLACE ('other' AS tp_id) FROM {LOG}")
    assert scene.job().verify().ok
    scene.execute(harm.format(LOG, identity))
    (mismatch,) = scene.job().verify().mismatches
    assert "1 of its rows" in mismatch.reason
    assert note.tables_made


def test_a_file_name_that_is_not_utf8_is_reported_and_blocks_nothing(make: MakeScene) -> None:
    scene = make()
    leaf = clean_leaf(scene)
    odd = (scene.home.data / leaf.path).as_posix().encode() + b"/\xff.parquet"
    shutil.copyfile(scene.home.data / leaf.path / leaf.files[0], odd)
    assert any("\\udcff" in problem for problem in scene.job().plan().problems)
    assert scene.job().run().ok
    scene.before = snapshot_tree(scene.place.migrated)
    assert_imported(scene)
