"""SIGKILL at every crash point of a legacy import, and at random moments, then resume or undo."""

import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from catchment.foundation import faults
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline.legacy.folders import ImportPhase
from tests.pipeline.legacy.generated_tree import LegacyTable, Odd, TreeShape, snapshot_tree
from tests.pipeline.legacy.legacy_home import LOG, Scene, assert_imported, make_scene
from tests.repo.source_tree import ROOT
from tests.shortcuts import warm

# The points that an import comes to. `retire.between_inputs` is of sources whose units are files: a
# leaf is one rename.
PREPARE = ("legacy.before_prepare", "legacy.after_move", "legacy.after_tables")
DELIVER = tuple(point for point in faults.POINTS if point.startswith("deliver."))
RETIRE = ("retire.before_unit", "retire.after_unit")
FINALIZE = ("legacy.before_finalize", "legacy.between_moves", "legacy.after_finalize")
UNDO = ("legacy.after_drop", "legacy.between_moves")
KILLED = frozenset((*PREPARE, *FINALIZE, *UNDO))

TABLES = (
    LegacyTable(name=LOG, leaves=3, files_per_leaf=2, rows_per_file=10),
    LegacyTable(name="nginx_access_log", shape=TreeShape.ACCESS_LOG, leaves=2, rows_per_file=10),
)
# One commit takes three leaves of each table, so there are two of them.
ODD = (Odd.EMPTY_LEAF, Odd.LEFTOVERS, Odd.TABLE_WITHOUT_VIEW, Odd.EXTRA_COLUMN, Odd.LEADING_ZEROS, Odd.WAL)
SEEDS = range(30)


@pytest.fixture(scope="module")
def lake_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lake, Settings]]:
    """One lake for this module, whose tables every test drops again."""
    home = tmp_path_factory.mktemp("lake")
    settings = Settings(home=home, lake_catalog=SecretStr(f"sqlite:{home / 'catalog.sqlite'}"))
    with Lake.from_settings(settings) as lake:
        yield lake, settings


@pytest.fixture
def scene(tmp_path: Path, lake_home: tuple[Lake, Settings]) -> Iterator[Scene]:
    lake, settings = lake_home
    yield make_scene(tmp_path, lake, settings, tables=TABLES, odd=ODD)
    with lake.cursor() as cursor:
        for table in lake.tables():
            cursor.execute(f"DROP TABLE {table}")


def _run(scene: Scene, act: str, when: str, nth: int) -> int:
    """Run the child, which is killed, or succeeds if it ends before."""
    url = scene.settings.catalog_url.get_secret_value()
    command = [sys.executable, "-m", "tests.crash.legacy_child", act, str(scene.home.home), str(scene.settings.home)]
    ended = warm.run([*command, url, when, str(nth)], cwd=ROOT, timeout=120)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode


def _kill(scene: Scene, act: str, when: str, nth: int = 1) -> None:
    assert _run(scene, act, when, nth) == -signal.SIGKILL


def _rows(scene: Scene) -> int:
    return sum(scene.count(table) for table in scene.rows)


def _assert_mid_flight(scene: Scene, point: str) -> None:
    """The point is where its name says: what it is between has happened, and has not happened."""
    place, rows = scene.place, _rows(scene)
    left, done = (len(list(root.rglob("tp_date=*"))) for root in (place.migrating, place.migrated))
    all_rows, leaves = sum(map(len, scene.rows.values())), len(scene.home.leaves)
    match point:
        case "legacy.before_prepare":
            assert snapshot_tree(place.data) == scene.before
            assert rows == 0
        case "legacy.after_move":
            assert not place.data.exists()
            assert snapshot_tree(place.migrating) == scene.before
        case "deliver.after_commit" | "retire.before_unit":
            assert 0 < rows < all_rows
            assert (left, done) == (leaves, 0)
        case "retire.after_unit":
            assert 0 < rows < all_rows
            assert (left, done) == (leaves - 1, 1)
        case "deliver.before_clean":
            # What can be adopted goes first, in a job of its own.
            assert 0 < rows <= all_rows
            assert 0 < done < leaves
        case "legacy.before_finalize":
            assert rows == all_rows
            assert (place.migrating / place.marker).exists()
        case "legacy.between_moves":
            assert rows == all_rows
            assert (place.migrating / place.marker).exists()
            assert (left, done) != (leaves, 0)
        case "legacy.after_finalize":
            assert snapshot_tree(place.migrated) == scene.before
            assert not place.journal().done
        case _:
            assert (rows, left, done) == (0, leaves, 0)


@pytest.mark.parametrize("point", [*PREPARE, *DELIVER, *RETIRE, *FINALIZE])
def test_an_import_killed_anywhere_is_complete_and_exactly_once_after_resuming(point: str, scene: Scene) -> None:
    _kill(scene, "run", point)
    _assert_mid_flight(scene, point)
    assert scene.job().run().ok
    assert_imported(scene)
    assert scene.job().run().rows == 0


def test_an_import_killed_after_its_marker_has_moved_leaves_no_files(scene: Scene) -> None:
    _kill(scene, "run", "marker")
    assert not (scene.place.migrating / scene.place.marker).exists()
    assert scene.job().run().ok
    assert_imported(scene)


def test_an_import_killed_right_after_it_made_its_tables_can_be_undone(scene: Scene) -> None:
    _kill(scene, "run", "legacy.after_tables")
    assert len(scene.lake.tables()) == len(TABLES)
    assert len(scene.job().undo()) == len(TABLES)
    assert not scene.lake.tables()
    assert snapshot_tree(scene.home.data) == scene.before


@pytest.mark.parametrize("point", UNDO)
def test_an_undo_killed_anywhere_is_finished_by_an_undo(point: str, scene: Scene) -> None:
    # Half of an import: the tree lies in both folders, and is put together again.
    _kill(scene, "run", "retire.after_unit", 2)
    _kill(scene, "undo", point)
    assert scene.job().detect() is ImportPhase.UNDOING
    assert not scene.lake.tables()
    scene.job().undo()
    assert snapshot_tree(scene.home.data) == scene.before
    assert scene.job().detect() is ImportPhase.READY
    audit = scene.lake.audit()
    assert audit.ok, audit.findings
    assert scene.job().run().ok
    assert_imported(scene)


@pytest.mark.parametrize("nth", [9])
def test_a_move_to_another_file_system_killed_in_the_middle_is_finished(
    nth: int, scene: Scene, other_file_system: Path
) -> None:
    scene.place.migration.symlink_to(other_file_system)
    _kill(scene, "run", "legacy.between_moves", nth)
    assert (scene.place.data / scene.place.marker).exists()
    assert 0 < len(snapshot_tree(scene.place.migrating)) < len(scene.before)
    assert scene.job().detect() is ImportPhase.READY
    assert scene.job().run().ok
    assert_imported(scene)
    _kill(scene, "undo", "legacy.between_moves", nth)
    assert scene.job().detect() is ImportPhase.UNDOING
    scene.job().undo()
    assert snapshot_tree(scene.home.data) == scene.before
    scene.place.migration.unlink()


def _kill_at_random(scene: Scene, seed: int) -> None:
    """Kill one import after the other at random moments, until one ends."""
    luck = random.Random(seed)
    killed = 0
    for _ in range(luck.randint(1, 4)):
        when, nth = ("any", luck.randint(1, 40)) if luck.random() < 0.6 else ("delay", luck.randint(0, 400))
        if _run(scene, "run", when, nth) == 0:
            break
        killed += 1
    report = scene.job().run()
    assert report.ok, (seed, killed, report)
    assert_imported(scene)
    if luck.random() < 0.5:
        _run(scene, "undo", "any", luck.randint(1, 5))
        if scene.job().detect() is not ImportPhase.READY:
            scene.job().undo()
        assert snapshot_tree(scene.home.data) == scene.before
        assert not scene.lake.tables()


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_an_import_killed_at_random_moments_ends_up_the_same(seed: int, scene: Scene) -> None:
    _kill_at_random(scene, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_thirty_imports_killed_at_random_moments_end_up_the_same(seed: int, scene: Scene) -> None:
    _kill_at_random(scene, seed)


def test_every_crash_point_of_the_import_is_killed() -> None:
    assert {point for point in faults.POINTS if point.startswith("legacy.")} == KILLED
