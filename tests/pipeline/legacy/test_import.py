"""The legacy import: every oddity of a tree, every mode, and reasons for files that stay out."""

import os
from datetime import date
from pathlib import Path

import pytest

from catchment.errors import CorruptInputError, InputError, LockTimeoutError
from catchment.foundation import faults, files
from catchment.foundation.ids import TableId
from catchment.lake import Lake, extensions
from catchment.lake.maintenance import maintain
from catchment.lake.types import Column
from catchment.pipeline.legacy.folders import ImportFolders, ImportPhase
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.pipeline.legacy.report import LegacyReport
from catchment.pipeline.work import Mode, Task
from catchment.testing import InlineRunner
from tests.conftest import MakeSettings
from tests.pipeline.legacy.generated_tree import BLOCKING, LegacyTable, Odd, TreeShape, make_legacy_home, snapshot_tree
from tests.pipeline.legacy.legacy_home import (
    ADOPT_ALL,
    ADOPT_NOTHING,
    LOG,
    SMALL,
    CutError,
    MakeScene,
    Scene,
    assert_backed_up,
    assert_imported,
    assert_nothing_left,
    clean_leaf,
    columns_of,
    cut_off,
    lake_rows,
    leaf_of,
    make_scene,
    without,
)
from tests.sample_events import NOW, write_parquet
from tests.shortcuts.made_lakes import new_lake

GOOD = sorted(set(Odd) - BLOCKING)
BROKEN = sorted(BLOCKING - {Odd.CONFLICT})


@pytest.mark.parametrize("odd", GOOD)
def test_every_row_of_an_odd_tree_arrives_as_it_was(odd: Odd, make: MakeScene) -> None:
    scene = make(odd)
    report = scene.job().run()
    assert (report.phase, report.ok, report.failures) == (ImportPhase.DONE, True, ())
    assert report.rows == len(scene.rows[LOG])
    assert_imported(scene)


@pytest.mark.parametrize(("catalog", "mode"), [("sqlite", Mode.AUTO), ("postgres", Mode.REWRITE)])
def test_all_oddities_at_once_go_in_both_ways_on_every_catalog(
    mode: Mode, catalog: str, tmp_path: Path, make_settings: MakeSettings
) -> None:
    settings = make_settings(catalog)
    tables = (*SMALL, LegacyTable(name="nginx_access_log", shape=TreeShape.ACCESS_LOG, leaves=2, files_per_leaf=2))
    with new_lake(settings) as lake:
        scene = make_scene(tmp_path, lake, settings, odd=GOOD, tables=tables)
        report = scene.job(ImportOptions(mode=mode), adopt_bytes_min=ADOPT_ALL).run()
        assert report.ok, report.failures
        assert_imported(scene)


@pytest.mark.parametrize("odd", sorted(BLOCKING))
def test_a_leaf_that_cannot_go_in_stays_whole_and_the_others_go_in(odd: Odd, make: MakeScene) -> None:
    scene = make(odd)
    leaf = leaf_of(scene, odd)
    sentences = [text for text in scene.job().plan().problems if leaf.path in text]
    report = scene.job().run()
    assert (report.phase, report.ok) == (ImportPhase.IMPORTING, False)
    assert [failure.leaf for failure in report.failures] == [leaf.path]
    assert lake_rows(scene) == without(scene, odd)
    at = f"{leaf.path}/"
    inside = {name: facts for name, facts in scene.before.items() if name.startswith(at)}
    left = snapshot_tree(scene.place.migrating)
    assert {name: facts for name, facts in left.items() if name.startswith(at)} == inside
    assert not scene.folder(leaf).exists()
    named = "error_message" if odd is Odd.CONFLICT else leaf.unreadable[0]
    assert named in report.failures[0].reason
    assert any(named in text for text in sentences)
    assert scene.job().status().failures == report.failures
    again = scene.job().run()
    assert (again.rows, again.failures) == (0, report.failures)
    assert lake_rows(scene) == without(scene, odd)
    assert scene.job().verify().ok


@pytest.mark.parametrize(("odd", "when"), [*((odd, "at once") for odd in BROKEN), (Odd.TRUNCATED_FILE, "later")])
def test_a_broken_file_is_quarantined_on_request_and_its_leaf_finishes(odd: Odd, when: str, make: MakeScene) -> None:
    scene = make(odd)
    leaf = leaf_of(scene, odd)
    if when == "later":
        assert not scene.job().run().ok
    report = scene.job(ImportOptions(quarantine=True)).run()
    assert report.ok, report.failures
    assert report.quarantined == (f"{leaf.path}/{leaf.unreadable[0]}",)
    assert scene.job().status().quarantined == report.quarantined
    assert_imported(scene)


def test_a_leaf_of_broken_files_only_is_quarantined_whole(make: MakeScene) -> None:
    scene = make(tables=(LegacyTable(name=LOG, leaves=2, rows_per_file=10),))
    for leaf in scene.home.leaves:
        (scene.home.data / leaf.path / leaf.files[0]).write_bytes(b"")
    before = snapshot_tree(scene.home.data)
    report = scene.job(ImportOptions(quarantine=True)).run()
    assert (report.ok, report.failures, len(report.quarantined)) == (True, (), 2)
    assert snapshot_tree(scene.place.migrated) == before
    assert scene.job().verify().ok


def _spoil(path: Path) -> None:
    """Damage the pages and leave the footer: only reading the data shows it."""
    content = bytearray(path.read_bytes())
    content[4:400] = b"\xff" * 396
    path.write_bytes(content)


@pytest.mark.parametrize(("files_per_leaf", "adopt_bytes_min"), [(1, ADOPT_ALL), (2, ADOPT_NOTHING)])
def test_damaged_pages_under_a_good_footer_are_named_and_quarantined_on_request(
    files_per_leaf: int, adopt_bytes_min: int, make: MakeScene
) -> None:
    scene = make(tables=(LegacyTable(name=LOG, leaves=3, files_per_leaf=files_per_leaf, rows_per_file=10),))
    leaf = scene.home.leaves[1]
    good = [row for row in scene.rows[LOG] if row[0] not in _ids_of_file(scene, leaf.path, leaf.files[0])]
    others = [row for row in scene.rows[LOG] if row[0] not in _ids_of_leaf(scene, leaf.path)]
    _spoil(scene.home.data / leaf.path / leaf.files[0])
    before = snapshot_tree(scene.home.data)
    report = scene.job(adopt_bytes_min=adopt_bytes_min).run()
    assert [failure.leaf for failure in report.failures] == [leaf.path]
    assert leaf.files[0] in report.failures[0].reason
    assert lake_rows(scene) == others
    mended = scene.job(ImportOptions(quarantine=True), adopt_bytes_min=adopt_bytes_min).run()
    assert (mended.ok, mended.failures) == (True, ())
    assert mended.quarantined == (f"{leaf.path}/{leaf.files[0]}",)
    assert lake_rows(scene) == good
    assert snapshot_tree(scene.place.migrated) == before
    assert_nothing_left(scene)
    assert scene.job().verify().ok


def _ids_of_file(scene: Scene, leaf: str, name: str) -> set[str]:
    return _ids(f"{scene.home.data}/{leaf}/{name}")


def _ids_of_leaf(scene: Scene, leaf: str) -> set[str]:
    return _ids(f"{scene.home.data}/{leaf}/*.parquet")


def _ids(files_pattern: str) -> set[str]:
    with extensions.scratch() as connection:
        return {row[0] for row in connection.execute(f"SELECT tp_id FROM '{files_pattern}'").fetchall()}


@pytest.mark.parametrize("adopt_bytes_min", [ADOPT_ALL, ADOPT_NOTHING])
def test_values_of_folders_come_out_right_in_the_lake(adopt_bytes_min: int, make: MakeScene) -> None:
    scene = make(Odd.LEADING_ZEROS, Odd.ENCODED_VALUES, Odd.NULL_VALUES, Odd.GUESSED_KEYS)
    assert scene.job(adopt_bytes_min=adopt_bytes_min).run().ok
    keys = "tp_partition, tp_index, tp_date, tp_table"
    day = date(2024, 1, 1)
    assert set(scene.execute(f"SELECT DISTINCT {keys} FROM {LOG} WHERE tp_partition NOT IN ('prod', 'dev')")) == {
        ("odd_leading_zeros", "000123456789", day, LOG),
        ("team/a b", "100%", day, LOG),
        ("a=b", "x+y", day, LOG),
        ("%2F", 'it\'s "odd"', day, LOG),
        ("über", "\t", day, LOG),
        ("team a & b", "it's ü+1", day, LOG),
        ("odd_null_values", None, day, LOG),
        ("odd_null_values", "web-00", None, LOG),
    }
    # A filter on a key finds the same rows as a look at all of them: files carry the value in their
    # path.
    for condition in ("tp_index = '000123456789'", "tp_index IS NULL", "tp_date IS NULL", "tp_partition = '%2F'"):
        assert scene.execute(f"SELECT count(*) FROM {LOG} WHERE {condition}") == [(10,)]
    assert_imported(scene)


def test_the_columns_are_the_view_s_and_what_files_have_more_is_added(make: MakeScene) -> None:
    drift = (Odd.MISSING_COLUMN, Odd.EXTRA_COLUMN, Odd.WIDER_NUMBER, Odd.WIDER_ITEMS, Odd.OTHER_ORDER)
    scene = make(*drift)
    (table,) = scene.job().plan().tables
    told = {leaf: finding for finding in table.findings for leaf in finding.leaves}
    assert scene.home.data.exists(), "nothing has moved yet"
    assert any("tp_usernames" in finding.missing for finding in table.findings)
    assert any(finding.extra == ("tp_tags",) for finding in table.findings)
    assert any("session_seconds (INTEGER to BIGINT)" in finding.widened for finding in table.findings)
    assert {leaf_of(scene, odd).path for odd in drift} <= set(told)
    assert scene.job().run().ok
    columns = columns_of(scene)
    assert columns["tp_tags"] == "VARCHAR[]"
    assert columns["session_seconds"] == "BIGINT"
    assert columns["resources"] == 'STRUCT(arn VARCHAR, "type" VARCHAR, note VARCHAR)[]'
    assert (columns["tp_index"], columns["tp_date"], columns["tp_table"]) == ("VARCHAR", "DATE", "VARCHAR")
    assert_imported(scene)


def test_files_that_are_not_imported_are_reported_and_kept(make: MakeScene) -> None:
    scene = make(Odd.LEFTOVERS, Odd.WRONG_DEPTH, Odd.TABLE_WITHOUT_VIEW, Odd.VIEW_WITHOUT_DATA)
    problems = "\n".join(scene.job().plan().problems)
    for named in ("stray.parquet", "old_tmp.parquet.tmp", "tp_table=half_collected_log", "forgotten_log"):
        assert named in problems
    report = scene.job().run()
    assert report.ok
    assert {Path(path).name for path in report.strays} >= {"stray.parquet", "tp_table=half_collected_log"}
    assert {each.name for each in scene.lake.tables()} == {LOG}
    assert_imported(scene)


def test_large_files_are_adopted_and_crumbs_are_coalesced(make: MakeScene) -> None:
    large = LegacyTable(name=LOG, leaves=2, rows_per_file=2_000)
    scene = make(Odd.CRUMBS, tables=(large,))
    crumbs = leaf_of(scene, Odd.CRUMBS)
    least = min((scene.home.data / leaf.path / leaf.files[0]).stat().st_size for leaf in scene.home.leaves[:2])
    assert scene.job(adopt_bytes_min=least).run().ok
    assert scene.modes() == {leaf.path: "rewrite" if leaf == crumbs else "adopt" for leaf in scene.home.leaves}
    listed = scene.execute(f"SELECT data_file FROM ducklake_list_files('lake', '{LOG}')")
    assert len(listed) == 3, "forty crumbs became one file"
    assert_imported(scene)


def test_an_adopted_file_and_its_backup_are_one_and_each_deletes_its_own_name_only(make: MakeScene) -> None:
    scene = make(tables=(LegacyTable(name=LOG, leaves=3, rows_per_file=10),))
    assert scene.job(ImportOptions(mode=Mode.ADOPT)).run().ok
    inodes = {path.stat().st_ino for path in scene.place.migrated.rglob("*.parquet")}
    lakes = {Path(row[0]) for row in scene.execute(f"SELECT data_file FROM ducklake_list_files('lake', '{LOG}')")}
    assert {path.stat().st_ino for path in lakes} == inodes
    assert_imported(scene)
    scene.execute(f"DELETE FROM {LOG}")
    for _ in range(2):
        maintain(scene.lake, NOW)
    assert not any(path.exists() for path in lakes), "upkeep took the lake's names"
    assert_backed_up(scene)


def test_a_table_is_partitioned_as_the_caller_says(make: MakeScene) -> None:
    scene = make(Odd.NULL_VALUES)
    options = ImportOptions(partition_by=("aws_region",))
    assert scene.job(options).run().ok
    table = scene.lake.table(TableId("main", LOG))
    assert [key.column for key in table.partition_by] == ["aws_region"]
    assert_imported(scene, options)


def test_a_partition_key_that_no_column_has_is_refused_before_anything_moves(make: MakeScene) -> None:
    scene = make()
    with pytest.raises(InputError, match="no column nowhere"):
        scene.job(ImportOptions(partition_by=("nowhere",))).run()
    assert snapshot_tree(scene.home.data) == scene.before


def test_a_second_run_imports_nothing(make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    snapshots = scene.execute("SELECT count(*) FROM lake.snapshots()")
    again = scene.job().run()
    assert (again.ok, again.rows, again.leaves) == (True, 0, 0)
    assert scene.execute("SELECT count(*) FROM lake.snapshots()") == snapshots
    assert_imported(scene)


@pytest.mark.parametrize("point", ["deliver.after_commit", "retire.before_unit"])
def test_committed_leaves_that_were_not_moved_are_only_moved(point: str, make: MakeScene) -> None:
    scene = make()
    with faults.armed(point, cut_off), pytest.raises(CutError):
        scene.job().run()
    assert scene.count() == len(scene.rows[LOG])
    assert all(scene.folder(leaf, scene.place.migrating).exists() for leaf in scene.home.leaves)
    report = scene.job().run()
    assert (report.ok, report.rows, report.tables[0].already) == (True, 0, len(scene.home.leaves))
    assert_imported(scene)


@pytest.mark.parametrize("upkeep", [False, True])
def test_a_stopped_import_finishes_its_commit_and_goes_on_from_there(upkeep: bool, make: MakeScene) -> None:
    scene = make(tables=(LegacyTable(name=LOG, leaves=6, rows_per_file=10),))
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 2

    report = scene.job(units_per_commit_max=2).run(stop=stop)
    assert (report.phase, report.stopped, report.failures) == (ImportPhase.IMPORTING, True, ())
    assert scene.count() == report.rows == 40
    status = scene.job().status()
    assert (status.phase, status.leaves_imported, status.leaves_left) == (ImportPhase.IMPORTING, 4, 2)
    assert scene.job().verify().ok
    if upkeep:
        maintain(scene.lake, NOW)
    again = scene.job().run()
    assert (again.ok, again.rows, again.stopped) == (True, 20, False)
    assert_imported(scene)


def test_maintenance_after_an_import_changes_neither_the_rows_nor_the_verification(make: MakeScene) -> None:
    scene = make(Odd.CRUMBS, Odd.WIDER_ITEMS)
    assert scene.job().run().ok
    for _ in range(2):
        maintain(scene.lake, NOW)
    assert_imported(scene)


def test_a_second_import_at_the_same_time_is_refused(make: MakeScene) -> None:
    scene = make()

    def again(_: Task) -> None:
        with pytest.raises(LockTimeoutError, match="Another import"):
            scene.job().run()
        with pytest.raises(LockTimeoutError, match="Another import"):
            scene.job().undo()

    assert scene.job(runner=InlineRunner(after_task=again)).run().ok
    assert_imported(scene)


def test_an_import_that_has_no_room_is_refused_before_anything_moves(
    make: MakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make()
    monkeypatch.setattr(files, "free_bytes", lambda _: 1_000_000)
    assert any("MB are free" in text for text in scene.job().plan().problems)
    with pytest.raises(InputError, match="MB are free"):
        scene.job().run()
    assert snapshot_tree(scene.home.data) == scene.before
    assert scene.count() == 0


def test_planning_changes_nothing(make: MakeScene) -> None:
    scene = make(*GOOD)
    planned = scene.job().plan()
    assert snapshot_tree(scene.home.home / "data") == {"default/": (0, "")} | {
        f"default/{name}": facts for name, facts in scene.before.items()
    }
    assert not scene.place.migration.exists()
    assert not scene.lake.tables()
    assert planned.leaves == sum(bool(leaf.files) for leaf in scene.home.leaves if leaf.table == LOG)
    assert sum(table.row_count for table in planned.tables) == len(scene.rows[LOG])
    assert "\n".join(planned.explain())
    assert scene.job().run(planned).ok
    assert_imported(scene)


def test_a_file_that_comes_after_the_plan_is_imported_as_well(make: MakeScene) -> None:
    scene = make()
    planned = scene.job().plan()
    leaf = clean_leaf(scene)
    late = scene.home.data / leaf.path / "late.parquet"
    source = scene.home.data / leaf.path / leaf.files[0]
    write_parquet(late, f"SELECT * REPLACE ('late' || tp_id AS tp_id) FROM '{source}'")
    before = snapshot_tree(scene.home.data)
    assert scene.job().run(planned).ok
    assert scene.count() == len(scene.rows[LOG]) + 10
    assert snapshot_tree(scene.place.migrated) == before
    assert scene.job().verify().ok


def test_a_commit_that_one_leaf_spoils_is_tried_without_it(make: MakeScene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make(tables=(LegacyTable(name=LOG, leaves=7, rows_per_file=10),))
    culprit = scene.home.leaves[4]
    commit = Lake.commit

    def picky(lake: Lake, value: object) -> None:
        for change in getattr(value, "changes", ()):
            if any(each.source == culprit.path for each in getattr(change, "deliveries", ())):
                raise InputError("The lake does not like one of the files.")
        commit(lake, value)  # type: ignore[arg-type]

    monkeypatch.setattr(Lake, "commit", picky)
    report = scene.job().run()
    assert [(failure.leaf, failure.reason) for failure in report.failures] == [
        (culprit.path, "The lake does not like one of the files.")
    ]
    assert scene.count() == 60
    assert scene.folder(culprit, scene.place.migrating).exists()
    monkeypatch.undo()
    assert scene.job().run().ok
    assert_imported(scene)


def test_new_data_goes_into_the_same_table_once_and_the_first_backup_stays_whole(make: MakeScene) -> None:
    scene = make(Odd.TRUNCATED_FILE)
    assert scene.job(ImportOptions(quarantine=True)).run().ok
    # The same leaves again, with rows of their own, as a day is that was collected in two goes.
    later = make_legacy_home(
        scene.home.home / "next", tables=SMALL, seed=1, odd=frozenset({Odd.EXTRA_COLUMN, Odd.LEADING_ZEROS})
    )
    for path in later.data.rglob("*.parquet"):
        scene_rows = (
            f"SELECT * REPLACE ('second' || tp_id AS tp_id) FROM read_parquet('{path}', hive_partitioning=false)"
        )
        write_parquet(path.with_suffix(".new"), scene_rows).replace(path)
    scene.place.data.rmdir()
    later.data.rename(scene.place.data)
    second = snapshot_tree(scene.place.data)
    assert scene.job().detect() is ImportPhase.READY
    assert scene.job().run().ok
    assert columns_of(scene)["tp_tags"] == "VARCHAR[]"
    ids = [row[0] for row in scene.execute(f"SELECT tp_id FROM {LOG}")]
    assert len(ids) == len(set(ids)) == len(scene.rows[LOG]) + sum(leaf.rows for leaf in later.leaves)
    assert [row for row in lake_rows(scene) if not row[0].startswith("second")] == scene.rows[LOG]
    assert snapshot_tree(scene.place.migration / "earlier" / "001" / "default") == scene.before
    assert snapshot_tree(scene.place.migrated) == second
    assert_nothing_left(scene)
    proof = scene.job().verify()
    assert proof.ok, proof.mismatches
    with pytest.raises(InputError, match="existed before the import"):
        scene.job().undo()
    scene.execute(f"UPDATE {LOG} SET event_name = 'x' WHERE tp_id = (SELECT min(tp_id) FROM {LOG})")
    assert not scene.job().verify().ok


def test_rows_that_were_there_before_the_import_stay_and_are_no_mismatch(make: MakeScene) -> None:
    scene = make()
    scene.execute(f"CREATE TABLE {LOG} (tp_id VARCHAR, note VARCHAR)")
    scene.execute(f"INSERT INTO {LOG} VALUES ('mine', 'keep me')")
    (table,) = scene.job().plan().tables
    assert table.exists
    assert scene.job().run().ok
    assert scene.execute(f"SELECT note FROM {LOG} WHERE tp_id = 'mine'") == [("keep me",)]
    assert scene.count() == len(scene.rows[LOG]) + 1
    proof = scene.job().verify()
    assert proof.ok, proof.mismatches
    with pytest.raises(InputError, match="existed before the import"):
        scene.job().undo()
    assert_backed_up(scene)


def test_data_that_was_collected_while_an_import_was_interrupted_is_an_error_that_says_what_to_do(
    make: MakeScene,
) -> None:
    scene = make()
    with faults.armed("retire.before_unit", cut_off), pytest.raises(CutError):
        scene.job().run()
    (scene.place.data / "tailpipe.db").write_bytes(b"new")
    for act in (lambda: scene.job().run(), lambda: scene.job().plan(), lambda: scene.job().detect()):
        with pytest.raises(InputError, match="is both in") as caught:
            act()
        assert "Move" in str(caught.value.hint)
    # What the hint says.
    scene.place.data.rename(scene.home.home / "away")
    assert scene.job().run().ok
    assert_imported(scene)


@pytest.mark.parametrize("workspace", ["", "default", "with space"])
def test_the_level_of_the_workspace_is_optional(workspace: str, make: MakeScene) -> None:
    scene = make(workspace=workspace)
    assert scene.place.workspace == workspace
    assert scene.job().run().ok
    assert ImportFolders.tailpipe(scene.home.home) == scene.place
    assert_imported(scene)


def test_a_data_folder_that_is_a_link_is_imported_and_put_back(make: MakeScene) -> None:
    scene = make(workspace="")
    elsewhere = scene.home.home.parent / "elsewhere"
    scene.home.data.rename(elsewhere)
    scene.home.data.symlink_to(elsewhere)
    assert scene.job().run().ok
    assert_imported(scene)
    scene.job().undo()
    assert scene.home.data.is_symlink()
    assert snapshot_tree(elsewhere) == scene.before


def test_any_hive_tree_is_imported_with_keys_and_types(make: MakeScene, tmp_path: Path) -> None:
    scene = make()
    tree = tmp_path / "a=b" / "lake of=files"
    for year, shop in ((2024, "07"), (2025, "__HIVE_DEFAULT_PARTITION__")):
        query = f"SELECT i AS id, 'n{year}' AS name FROM range(10) r(i)"
        write_parquet(tree / f"year={year}" / f"shop={shop}" / "x.parquet", query)
    (tree / "readme.txt").write_text("kept")
    before = snapshot_tree(tree)
    scene.place = ImportFolders.tree(tree)
    keys = (Column(name="year", type="INTEGER"), Column(name="shop", type="VARCHAR"))
    options = ImportOptions(keys=keys, table="sales")
    assert scene.job(options).detect() is ImportPhase.READY
    report = scene.job(options).run()
    assert report.ok, report.failures
    assert columns_of(scene, "sales") == {"id": "BIGINT", "name": "VARCHAR", "year": "INTEGER", "shop": "VARCHAR"}
    assert scene.execute("SELECT year, shop, count(*) FROM sales GROUP BY ALL ORDER BY ALL") == [
        (2024, "07", 10),
        (2025, None, 10),
    ]
    assert snapshot_tree(scene.place.migrated) == before
    assert_nothing_left(scene)
    assert scene.job(options).verify().ok
    scene.job(options).undo()
    assert snapshot_tree(tree) == before
    assert not scene.lake.tables()


@pytest.mark.parametrize("named", ["aws_region", "tp_index"])
def test_a_folder_above_the_tree_that_would_stand_in_for_a_value_keeps_every_leaf_out(
    named: str, make: MakeScene, tmp_path: Path
) -> None:
    scene = make()
    above = tmp_path / f"{named}=mars"
    above.mkdir()
    scene.home.home.rename(above / "tp")
    scene.place = ImportFolders.tailpipe(above / "tp")
    report = scene.job().run()
    assert {failure.leaf for failure in report.failures} == {leaf.path for leaf in scene.home.leaves}
    assert all(f"{named}=" in failure.reason for failure in report.failures)
    # What the sentence says: the tree is moved, and the import goes on.
    (above / "tp").rename(scene.home.home)
    scene.place = ImportFolders.tailpipe(scene.home.home)
    assert scene.job().run().ok
    assert_imported(scene)


def test_a_run_leaves_its_report_and_a_log_of_what_it_did(make: MakeScene) -> None:
    scene = make(Odd.LEFTOVERS, Odd.CONFLICT)
    report = scene.job().run()
    assert LegacyReport.from_facts(scene.job().last_report()) == report
    verbs = [line.split()[1] for line in scene.place.log.read_text().splitlines()]
    assert verbs == ["legacy_started", "legacy_moved", "legacy_finished"]
    scene.job().run()
    scene.job().undo()
    verbs = [line.split()[1] for line in scene.place.log.read_text().splitlines()]
    assert verbs[3:] == ["legacy_started", "legacy_finished", "legacy_undone"]


def test_a_symbolic_link_to_a_folder_is_reported_and_not_followed(make: MakeScene, tmp_path: Path) -> None:
    scene = make()
    leaf = clean_leaf(scene)
    elsewhere = tmp_path / "elsewhere"
    (scene.home.data / leaf.path).rename(elsewhere)
    (scene.home.data / leaf.path).symlink_to(elsewhere)
    assert any(leaf.path in text for text in scene.job().plan().problems)
    report = scene.job().run()
    assert leaf.path in report.strays
    assert os.readlink(scene.folder(leaf)) == str(elsewhere)  # noqa: PTH115


def test_leaves_are_inserted_into_a_table_that_takes_no_registered_files(make: MakeScene) -> None:
    scene = make()
    scene.execute(f"CREATE TABLE {LOG} (tp_id VARCHAR, tp_timestamp TIMESTAMP)")
    scene.execute(f"ALTER TABLE {LOG} SET PARTITIONED BY (year(tp_timestamp), month(tp_timestamp))")
    plan = scene.job().plan()
    assert plan.problems == ()
    reason = "it is partitioned by year(tp_timestamp), month(tp_timestamp), which registered files cannot carry"
    assert [(table.mode, table.insert_reason) for table in plan.tables] == [(Mode.INSERT, reason)]
    assert any(f"{len(scene.home.leaves)} to be inserted, because {reason}." in line for line in plan.explain())
    assert scene.job().run().ok
    assert_imported(scene)


def test_a_database_that_cannot_be_read_is_an_error_and_nothing_moves(make: MakeScene) -> None:
    scene = make()
    scene.home.database.write_bytes(b"rubbish")
    before = snapshot_tree(scene.home.data)
    with pytest.raises(CorruptInputError, match="cannot be read"):
        scene.job().run()
    assert snapshot_tree(scene.home.data) == before


def test_keys_that_duckdb_reads_as_null_and_dates_in_two_spellings_go_in_as_it_reads_them(make: MakeScene) -> None:
    scene = make()
    source = scene.home.data / clean_leaf(scene).path / clean_leaf(scene).files[0]
    spelled = {"null": "2024-01-01", "%4EULL": "2024-01-01", "": "2024-01-01", "1": "2024-1-1", "2": "soon"}
    for index, day in spelled.items():
        leaf = scene.home.data / f"tp_table={LOG}" / "tp_partition=q" / f"tp_index={index}" / f"tp_date={day}"
        write_parquet(leaf / "x.parquet", f"SELECT * FROM read_parquet('{source}', hive_partitioning = false)")
    report = scene.job().run()
    assert [failure.reason for failure in report.failures] == ["'soon' is not exactly a DATE, which tp_date is"]
    found = scene.execute(f"SELECT tp_index, tp_date, count(*) FROM {LOG} WHERE tp_partition = 'q' GROUP BY ALL")
    assert set(found) == {(index, date(2024, 1, 1), 10) for index in (None, "NULL", "", "1")}
    assert scene.job().verify().ok
