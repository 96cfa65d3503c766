"""What a second reading of the legacy import found: each was a way to lose, double or misread rows."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from catchment.errors import InputError
from catchment.foundation import faults, files
from catchment.lake import Lake
from catchment.lake.types import Column
from catchment.pipeline.legacy.folders import ImportFolders, ImportPhase
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.pipeline.legacy.job import LegacyImport
from catchment.pipeline.legacy.report import Verification
from catchment.testing.legacy_tree import Odd, make_legacy_home, snapshot_tree
from tests.pipeline.legacy.legacy_home import (
    ADOPT_ALL,
    LOG,
    SMALL,
    CutError,
    MakeScene,
    Scene,
    assert_imported,
    clean_leaf,
    cut_off,
    lake_rows,
)
from tests.sample_events import write_parquet

COLLECTED_LATER = 7


def _collect_again(scene: Scene) -> None:
    """The program that writes the tree has gone on, with other rows in the same leaves."""
    home = make_legacy_home(scene.home.home.parent / "again", tables=SMALL, seed=COLLECTED_LATER)
    files.remove_tree(scene.place.data)
    shutil.copytree(home.data, scene.place.data)


def _undo_while(scene: Scene, monkeypatch: pytest.MonkeyPatch, happens: Any) -> LegacyImport:
    """A job in which something happens right after the lake was proven to be what was imported."""
    verify = LegacyImport._verify
    happened: list[object] = []

    def verify_then(job: LegacyImport, lake: Lake) -> Verification:
        proof = verify(job, lake)
        if not happened:
            happened.append(happens())
        return proof

    monkeypatch.setattr(LegacyImport, "_verify", verify_then)
    return scene.job()


def test_a_row_that_is_written_while_an_undo_proves_the_table_is_not_lost(
    make: MakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make()
    assert scene.job().run().ok
    job = _undo_while(scene, monkeypatch, lambda: scene.execute(f"INSERT INTO {LOG} (tp_id) VALUES ('live')"))
    with pytest.raises(InputError, match="differ from the import"):
        job.undo()
    assert scene.count() == len(scene.rows[LOG]) + 1
    assert scene.job().detect() is ImportPhase.DONE


def test_an_undo_whose_commit_failed_proves_the_tables_again(make: MakeScene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make()
    assert scene.job().run().ok

    def fails(*_: object) -> None:
        raise CutError

    with monkeypatch.context() as patch:
        patch.setattr(Lake, "commit", fails)
        with pytest.raises(CutError):
            scene.job().undo()
    assert scene.job().detect() is ImportPhase.UNDOING
    scene.execute(f"INSERT INTO {LOG} (tp_id) VALUES ('live')")
    with pytest.raises(InputError, match="differ from the import"):
        scene.job().undo()
    assert scene.count() == len(scene.rows[LOG]) + 1


def test_an_undo_leaves_a_table_alone_that_somebody_made_since_under_the_same_name(make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    with faults.armed("legacy.after_drop", cut_off), pytest.raises(CutError):
        scene.job().undo()
    scene.execute(f"CREATE TABLE {LOG} AS SELECT 1 AS mine")
    scene.job().undo()
    assert scene.execute(f"FROM {LOG}") == [(1,)]
    assert snapshot_tree(scene.place.data) == scene.before


def test_an_undo_is_refused_where_unmoved_leaves_went_into_a_table_that_had_rows(make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    _collect_again(scene)
    with faults.armed("retire.before_unit", cut_off), pytest.raises(CutError):
        scene.job().run()
    rows = scene.count()
    with pytest.raises(InputError, match="existed before"):
        scene.job().undo()
    assert scene.count() == rows
    assert scene.job().detect() is ImportPhase.IMPORTING


def test_an_undo_without_the_lake_is_refused_and_forgets_nothing(make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    with pytest.raises(InputError, match="There is no lake"):
        scene.job(has_lake=False).undo()
    assert scene.job().detect() is ImportPhase.DONE
    assert scene.job().verify().ok


def test_an_import_does_not_go_on_into_another_lake(make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    job = scene.job()
    job._data_path = scene.place.migration / "elsewhere"
    for act in (job.undo, job.verify):
        with pytest.raises(InputError, match="goes into the lake"):
            act()


def test_data_collected_after_a_kill_in_the_move_is_not_mixed_into_the_old_tree(make: MakeScene) -> None:
    scene = make(Odd.TRUNCATED_FILE)
    with faults.armed("legacy.after_move", cut_off), pytest.raises(CutError):
        scene.job().run()
    assert not scene.job().run().ok
    _collect_again(scene)
    with pytest.raises(InputError, match="is both in"):
        scene.job().run()
    assert scene.job(ImportOptions(quarantine=True)).folders.journal().tables_made.keys() == {f"main.{LOG}"}


def test_a_kill_at_the_very_end_does_not_hinder_the_next_import(make: MakeScene) -> None:
    scene = make()
    hits: list[int] = []

    def cut_at_the_marker() -> None:
        hits.append(1)
        if (scene.place.migrated / scene.place.marker).exists():
            raise CutError

    with faults.armed("legacy.between_moves", cut_at_the_marker), pytest.raises(CutError):
        scene.job().run()
    first = len(scene.rows[LOG])
    _collect_again(scene)
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


def test_the_lake_s_own_files_in_the_tree_stop_the_import_before_it_moves(make: MakeScene) -> None:
    scene = make()
    job = scene.job()
    job._own_files = (scene.home.data / "catalog.sqlite",)
    with pytest.raises(InputError, match="contains the other"):
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


def test_a_name_that_is_no_text_is_told_of_and_hinders_nothing(make: MakeScene) -> None:
    scene = make()
    leaf = clean_leaf(scene)
    odd = (scene.home.data / leaf.path).as_posix().encode() + b"/\xff.parquet"
    shutil.copyfile(scene.home.data / leaf.path / leaf.files[0], odd)
    assert any("\\udcff" in problem for problem in scene.job().plan().problems)
    assert scene.job().run().ok
    scene.before = snapshot_tree(scene.place.migrated)
    assert_imported(scene)
