"""Legacy homes as found: places of the database, interrupted moves and compactions, empty homes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from catchment.app import App
from catchment.cli.legacy import SourceOptions, _failure_lines, _status_lines, _Target
from catchment.errors import InputError
from catchment.foundation import faults
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline.legacy import known_imports
from catchment.pipeline.legacy.folders import DATABASE, ImportFolders, ImportPhase
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.status import StatusReader
from tests.pipeline.legacy.generated_tree import LegacyTable, Odd, TreeShape, snapshot_tree
from tests.pipeline.legacy.legacy_home import (
    LOG,
    SMALL,
    CutError,
    MakeScene,
    Scene,
    assert_backed_up,
    cut_off,
    lake_rows,
    leaf_of,
    make_scene,
)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeScene]:
    settings = Settings(home=tmp_path / "lake", lake_catalog=SecretStr(f"sqlite:{tmp_path / 'catalog.sqlite'}"))
    with Lake.from_settings(settings) as lake:
        yield lambda *odd, **more: make_scene(tmp_path, lake, settings, odd=odd, **more)


def _as_the_database_lies_beside(scene: Scene) -> None:
    """Have `tailpipe.db` in `data/`, and the tree in `data/default/`."""
    top = scene.home.home / "data"
    (top / "default" / DATABASE).rename(top / DATABASE)
    scene.place = ImportFolders.tailpipe(scene.home.home)
    scene.before = snapshot_tree(top)


def _assert_imported(scene: Scene) -> None:
    assert lake_rows(scene) == scene.rows[LOG]
    assert_backed_up(scene)
    proof = scene.job().verify()
    assert proof.ok, proof.mismatches
    assert proof.rows == len(scene.rows[LOG])
    assert scene.lake.audit().ok


def test_a_home_with_its_database_beside_the_workspaces_is_imported(make: MakeScene) -> None:
    scene = make()
    _as_the_database_lies_beside(scene)
    assert scene.job().detect() is ImportPhase.READY
    assert scene.job().plan().problems == ()
    assert scene.job().run().ok
    _assert_imported(scene)
    assert (scene.place.migration / "migrated" / "default" / f"tp_table={LOG}").is_dir()
    assert (scene.place.migration / "migrated" / DATABASE).is_file()
    scene.job().undo()
    assert snapshot_tree(scene.home.home / "data") == scene.before


def test_an_interrupted_import_with_its_database_beside_the_workspaces_goes_on(make: MakeScene) -> None:
    scene = make()
    _as_the_database_lies_beside(scene)
    scene.place.migration.mkdir()
    scene.place.data.rename(scene.place.migration / "migrating")
    scene.place = ImportFolders.tailpipe(scene.home.home)
    assert scene.job().detect() is ImportPhase.IMPORTING
    assert scene.job().run().ok
    _assert_imported(scene)


def test_a_database_beside_a_workspace_that_has_its_own_is_ambiguous(make: MakeScene) -> None:
    scene = make()
    top = scene.home.home / "data"
    (top / DATABASE).write_bytes((top / "default" / DATABASE).read_bytes())
    with pytest.raises(InputError, match="default"):
        ImportFolders.tailpipe(scene.home.home)
    scene.place = ImportFolders.tailpipe(scene.home.home, "default")
    assert scene.job().run().ok


@pytest.mark.parametrize("phase", [ImportPhase.READY, ImportPhase.IMPORTING])
def test_an_import_in_which_every_parquet_file_is_a_stray_is_refused_and_moves_nothing(
    phase: ImportPhase, make: MakeScene
) -> None:
    scene = make()
    tree = scene.home.data / f"tp_table={LOG}"
    tree.rename(scene.home.data / "deeper")
    before = snapshot_tree(scene.home.data)
    if phase is ImportPhase.IMPORTING:
        scene.place.migrating.parent.mkdir(parents=True)
        scene.home.data.rename(scene.place.migrating)
    planned = scene.job().plan()
    assert planned.refusals
    assert "None of 4 Parquet files" in planned.refusals[0]
    with pytest.raises(InputError, match="None of 4 Parquet files"):
        scene.job().run(planned)
    assert scene.job().detect() is phase
    assert snapshot_tree(scene.place.root) == before
    assert scene.lake.tables() == ()


def test_strays_may_be_the_rest_of_an_import(make: MakeScene) -> None:
    """All leaves were imported before the run was stopped; the strays go to the backup."""
    scene = make(Odd.TABLE_WITHOUT_VIEW)
    assert scene.job().run().ok
    scene.place.note(done=False)
    scene.place.migrating.mkdir(parents=True)
    for name in (DATABASE, "tp_table=half_collected_log"):
        (scene.place.migrated / name).rename(scene.place.migrating / name)
    assert scene.job().detect() is ImportPhase.IMPORTING
    assert scene.job().run().ok
    _assert_imported(scene)


def test_rows_of_a_compaction_that_was_cut_off_are_adopted_and_rewritten_alike(make: MakeScene) -> None:
    for adopt_bytes_min in (1, 1 << 40):
        scene = make(Odd.CUT_COMPACTION)
        assert scene.job(adopt_bytes_min=adopt_bytes_min).run().ok
        _assert_imported(scene)
        scene.job().undo()
        _remove(scene)


def _remove(scene: Scene) -> None:
    for path in sorted(scene.home.home.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_leaf_with_an_ambiguous_compaction_fails_until_it_is_resolved(make: MakeScene) -> None:
    scene = make(Odd.LEFTOVERS)
    leaf = leaf_of(scene, Odd.LEFTOVERS)
    cut_off = f"{leaf.path}/snap_20250101000000_000001.parquet.tmp"
    (scene.home.data / cut_off).write_bytes(b"half")
    report = scene.job().run()
    (failure,) = report.failures
    assert failure.leaf == leaf.path
    assert "compaction" in failure.reason
    assert not failure.unreadable
    (scene.place.migrating / cut_off).unlink()
    assert scene.job().run().ok
    _assert_imported(scene)


def test_a_file_with_capitals_in_its_ending_is_imported(make: MakeScene) -> None:
    scene = make()
    first = scene.home.leaves[0]
    folder = scene.home.data / first.path
    (folder / first.files[0]).rename(folder / "DATA.PARQUET")
    scene.before = snapshot_tree(scene.home.data)
    assert scene.job(adopt_bytes_min=1).run().ok
    _assert_imported(scene)


def test_a_plan_of_a_home_whose_move_was_interrupted_knows_the_moved_leaves(make: MakeScene) -> None:
    tables = (*SMALL, LegacyTable(name="nginx_access_log", shape=TreeShape.ACCESS_LOG, leaves=2))
    scene = make(tables=tables)
    moved = scene.place.migrating / "tp_table=nginx_access_log"
    moved.parent.mkdir(parents=True)
    (scene.home.data / moved.name).rename(moved)
    (problem,) = scene.job().plan().problems
    assert "2 leaves moved before a move was interrupted" in problem
    report = scene.job().run(scene.job().plan())
    assert report.ok
    assert {table.table for table in report.tables} == {f"main.{table.name}" for table in tables}


@pytest.mark.parametrize(("odd", "helps"), [(Odd.CONFLICT, False), (Odd.TRUNCATED_FILE, True)])
def test_the_quarantine_option_is_suggested_only_if_it_helps(odd: Odd, helps: bool, make: MakeScene) -> None:
    scene = make(odd)
    report = scene.job().run()
    again = scene.job().last_report()
    assert [each["unreadable"] for each in again["failures"]] == [helps]
    assert ("--quarantine" in "\n".join(_failure_lines(_target_of(scene), report.failures))) == helps
    assert scene.job(ImportOptions(quarantine=True)).run().ok == helps


def _reasons(scene: Scene) -> tuple[str, ...]:
    """What a status of the lake's home says about imports."""
    known_imports.remember(scene.settings.home, scene.place, ImportOptions())
    with App(scene.settings) as app, StatusReader(app) as reader:
        health = reader.status().health
    assert health.ok == (not health.reasons)
    return health.reasons


def test_a_status_says_nothing_of_an_import_that_is_done(make: MakeScene) -> None:
    scene = make(Odd.LEFTOVERS)
    assert scene.job().run().ok
    assert _reasons(scene) == ()
    lines = "\n".join(_status_lines(_target_of(scene), scene.job().status()))
    assert "everything is imported" in lines


def test_a_status_is_degraded_while_leaves_of_an_import_have_failed(make: MakeScene) -> None:
    scene = make(Odd.CONFLICT)
    assert not scene.job().run().ok
    (reason,) = _reasons(scene)
    assert "is not finished: 1 leaves failed" in reason


def test_a_status_is_degraded_while_an_import_that_was_killed_is_not_gone_on_with(make: MakeScene) -> None:
    scene = make()
    with faults.armed("deliver.before_commit", cut_off), pytest.raises(CutError):
        scene.job().run()
    (reason,) = _reasons(scene)
    assert "was stopped (importing)" in reason
    assert scene.job().run().ok
    assert _reasons(scene) == ()


def test_a_status_is_degraded_while_the_backup_has_a_table_that_was_left_out(make: MakeScene) -> None:
    scene = make(Odd.TABLE_WITHOUT_VIEW)
    assert scene.job().run().ok
    (reason,) = _reasons(scene)
    assert "Parquet files out" in reason
    lines = "\n".join(_status_lines(_target_of(scene), scene.job().status()))
    assert "everything is imported" not in lines
    assert "in no table" in lines
    (scene.place.migrated / "tp_table=half_collected_log").rename(scene.home.home / "mine")
    assert _reasons(scene) == ()


def _target_of(scene: Scene) -> _Target:
    return _Target(job=scene.job(), options=SourceOptions(home=scene.home.home))


def test_a_report_of_an_earlier_version_is_still_read(make: MakeScene) -> None:
    scene = make(Odd.CONFLICT)
    scene.job().run()
    facts = scene.job().last_report()
    for each in facts["failures"]:
        del each["unreadable"]
    scene.place.report.write_text(json.dumps(facts), encoding="utf-8")
    assert len(scene.job().status().failures) == 1
