"""Undoing a legacy import: the tree is as before, or nothing is touched and the error says why."""

import shutil
from typing import Any

import pytest

from catchment.errors import InputError
from catchment.foundation import faults
from catchment.lake import Lake
from catchment.lake.maintenance import maintain
from catchment.pipeline.legacy.folders import ImportPhase
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.pipeline.legacy.job import LegacyImport
from catchment.pipeline.legacy.report import Verification
from catchment.pipeline.work import Mode
from tests.pipeline.legacy.generated_tree import BLOCKING, LegacyTable, Odd, snapshot_tree
from tests.pipeline.legacy.legacy_home import (
    LOG,
    CutError,
    MakeScene,
    Scene,
    assert_backed_up,
    assert_imported,
    collect_again,
    cut_off,
)
from tests.sample_events import NOW, once


def _assert_undone(scene: Scene) -> None:
    assert snapshot_tree(scene.home.data) == scene.before
    assert not scene.lake.tables()
    assert scene.job().detect() is ImportPhase.READY
    audit = scene.lake.audit()
    assert audit.ok, audit.findings


@pytest.mark.parametrize(("workspace", "mode"), [("", Mode.REWRITE), ("default", Mode.AUTO)])
def test_an_undo_puts_the_tree_back_byte_for_byte_and_takes_the_tables_out(
    workspace: str, mode: Mode, make: MakeScene
) -> None:
    odd = {Odd.EMPTY_LEAF, Odd.LEFTOVERS, Odd.TABLE_WITHOUT_VIEW, Odd.WAL, Odd.STRANGE_NAMES, Odd.TRUNCATED_FILE}
    scene = make(*odd, workspace=workspace)
    assert scene.job(ImportOptions(mode=mode, quarantine=True)).run().ok
    assert scene.job().undo() == (f"main.{LOG}",)
    _assert_undone(scene)
    # The lake's own files go with the snapshots that show them, and take nothing of the tree along.
    for _ in range(2):
        maintain(scene.lake, NOW)
    assert snapshot_tree(scene.home.data) == scene.before
    # As if nothing had been: the same tree goes in again.
    assert scene.job(ImportOptions(quarantine=True)).run().ok
    assert_imported(scene)


@pytest.mark.parametrize(
    "change",
    [
        f"INSERT INTO {LOG} SELECT * FROM {LOG} LIMIT 1",
        f"INSERT INTO {LOG} BY NAME SELECT 'new' AS tp_id",
        f"UPDATE {LOG} SET event_name = 'changed' WHERE tp_id = (SELECT min(tp_id) FROM {LOG})",
        f"DELETE FROM {LOG} WHERE tp_id = (SELECT min(tp_id) FROM {LOG})",
    ],
)
def test_an_undo_is_refused_after_another_writer_changed_the_table(change: str, make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    scene.execute(change)
    there = scene.count()
    with pytest.raises(InputError, match="differ from the import"):
        scene.job().undo()
    assert scene.count() == there
    assert scene.job().detect() is ImportPhase.DONE
    assert_backed_up(scene)


def test_an_undo_is_refused_if_a_table_without_a_leaf_yet_has_rows(make: MakeScene) -> None:
    scene = make(tables=(LegacyTable(name=LOG, leaves=2, rows_per_file=10),))
    with faults.armed("deliver.before_write", cut_off), pytest.raises(CutError):
        scene.job().run()
    scene.execute(f"INSERT INTO {LOG} BY NAME SELECT 'mine' AS tp_id")
    with pytest.raises(InputError, match="differ from the import"):
        scene.job().undo()
    assert scene.count() == 1
    scene.execute(f"DELETE FROM {LOG}")
    scene.job().undo()
    _assert_undone(scene)


@pytest.mark.parametrize("name", ["tailpipe.db", "tp_table=new/x.parquet", "notes.txt"])
def test_an_undo_is_refused_while_the_data_folder_has_new_files(name: str, make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    new = scene.home.data / name
    new.parent.mkdir(parents=True, exist_ok=True)
    new.write_bytes(b"new")
    with pytest.raises(InputError, match="is not empty"):
        scene.job().undo()
    assert new.read_bytes() == b"new"
    assert scene.count() == len(scene.rows[LOG])
    shutil.rmtree(scene.home.data)
    scene.job().undo()
    _assert_undone(scene)


def test_without_an_import_there_is_nothing_to_undo(make: MakeScene) -> None:
    scene = make()
    with pytest.raises(InputError, match="no import to undo"):
        scene.job().undo()
    assert snapshot_tree(scene.home.data) == scene.before


@pytest.mark.parametrize("nth", [1, 3])
def test_an_import_that_was_cut_off_can_be_undone(nth: int, make: MakeScene) -> None:
    scene = make(Odd.EMPTY_LEAF, tables=(LegacyTable(name=LOG, leaves=4, rows_per_file=10),))
    reached: list[int] = []

    def cut() -> None:
        reached.append(1)
        if len(reached) == nth:
            raise CutError

    with faults.armed("retire.before_unit", cut), pytest.raises(CutError):
        scene.job().run()
    assert scene.job().status().leaves_imported == nth - 1
    scene.job().undo()
    _assert_undone(scene)


def test_an_import_that_was_cut_off_before_there_was_a_lake_can_be_undone(make: MakeScene) -> None:
    scene = make()
    with faults.armed("legacy.after_move", cut_off), pytest.raises(CutError):
        scene.job(has_lake=False).run()
    scene.job(has_lake=False).undo()
    _assert_undone(scene)


def test_an_import_with_a_leaf_that_stayed_out_can_be_undone(make: MakeScene) -> None:
    scene = make(*BLOCKING)
    assert not scene.job().run().ok
    scene.job().undo()
    _assert_undone(scene)


@pytest.mark.parametrize("stayed", [False, True])
def test_an_undo_that_was_cut_off_is_finished_by_an_undo_and_by_nothing_else(stayed: bool, make: MakeScene) -> None:
    scene = make(*([Odd.CONFLICT] if stayed else []))
    assert scene.job().run().ok is not stayed
    with faults.armed("legacy.after_drop", cut_off), pytest.raises(CutError):
        scene.job().undo()
    assert not scene.lake.tables()
    assert scene.job().status().phase is ImportPhase.UNDOING
    for act in (scene.job().run, scene.job().plan, scene.job().verify):
        with pytest.raises(InputError, match="undo was started"):
            act()
    scene.job().undo()
    _assert_undone(scene)


def test_an_undo_that_was_cut_off_between_two_folders_is_finished(make: MakeScene) -> None:
    scene = make(Odd.CONFLICT, Odd.EMPTY_LEAF)
    assert not scene.job().run().ok
    with faults.armed("legacy.between_moves", once(cut_off)), pytest.raises(CutError):
        scene.job().undo()
    scene.job().undo()
    _assert_undone(scene)


def test_an_undo_drops_only_the_tables_of_the_import(make: MakeScene) -> None:
    scene = make()
    scene.execute("CREATE TABLE mine AS SELECT 1 AS n")
    assert scene.job().run().ok
    scene.job().undo()
    assert scene.execute("SELECT n FROM mine") == [(1,)]
    assert [each.name for each in scene.lake.tables()] == ["mine"]
    assert snapshot_tree(scene.home.data) == scene.before


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


def test_an_undo_leaves_alone_a_table_that_was_created_since_under_the_same_name(make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    with faults.armed("legacy.after_drop", cut_off), pytest.raises(CutError):
        scene.job().undo()
    scene.execute(f"CREATE TABLE {LOG} AS SELECT 1 AS mine")
    scene.job().undo()
    assert scene.execute(f"FROM {LOG}") == [(1,)]
    assert snapshot_tree(scene.place.data) == scene.before


def test_an_undo_is_refused_if_unmoved_leaves_went_into_a_table_that_had_rows(make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    collect_again(scene)
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
