"""Maintenance beside deliveries: rows stay exactly once, and no file in use is removed."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from catchment.foundation import faults
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.maintenance import Ages, MaintenanceReport, maintain
from catchment.lake.staging import Staging
from catchment.pipeline import Mode
from tests.conftest import MakeSettings
from tests.sample_events import NOW, assert_exactly_once, create_table, deliverer, event_files, once, rows_of, source_of

YEAR = Ages(snapshot=timedelta(days=365), orphan=timedelta(days=365))


def _counts(report: MaintenanceReport) -> dict[str, int]:
    return {step.name: step.count for step in report.steps}


def _tree(lake: Lake) -> list[str]:
    return sorted(str(path) for path in Path(lake.address.data_path).rglob("*") if path.is_file())


def test_merging_expiring_and_cleaning_between_deliveries_changes_nothing(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 6)
    for upto in range(1, 7):
        report = deliverer(lake, settings).run(source_of(files[:upto]))
        assert (report.delivered, report.skipped) == (1, upto - 1)
        maintain(lake, NOW)
        assert_exactly_once(lake, upto)
    live = rows_of(lake, "SELECT count(*) FROM ducklake_list_files('lake', 'events')")
    assert live == [(1,)]


def test_a_dry_run_says_what_would_be_done_and_does_nothing(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 3)
    for upto in range(1, 4):
        deliverer(lake, settings).run(source_of(files[:upto]))
    before, snapshots = _tree(lake), rows_of(lake, "SELECT snapshot_id FROM lake.snapshots()")
    looked = maintain(lake, NOW, dry_run=True)
    assert not looked.done
    assert (_tree(lake), rows_of(lake, "SELECT snapshot_id FROM lake.snapshots()")) == (before, snapshots)
    done = maintain(lake, NOW)
    assert [(step.name, step.subject) for step in looked.steps] == [(step.name, step.subject) for step in done.steps]
    assert _counts(looked)["merge"] == _counts(done)["merge"] == 3
    assert _counts(looked)["settle"] == _counts(done)["settle"] > 0
    assert _counts(looked)["expire"] > 0
    assert _counts(maintain(lake, YEAR, dry_run=True))["settle"] == 0


def test_an_unreadable_file_stops_maintenance_of_its_own_table_only(
    sqlite_lake: Lake, make_settings: MakeSettings, tmp_path: Path
) -> None:
    files = event_files(tmp_path / "in", 3)
    bad, good = TableId("main", "bad"), TableId("main", "good")
    for table in (bad, good):
        create_table(sqlite_lake, table)
        for upto in range(1, 4):
            deliverer(sqlite_lake, make_settings()).run(source_of(files[:upto], table))
    next(Path(sqlite_lake.address.data_path, "main", "bad").rglob("*.parquet")).write_bytes(b"")
    report = maintain(sqlite_lake, NOW)
    assert not report.ok
    assert [(step.name, step.subject, step.count, step.error is None) for step in report.steps[:2]] == [
        ("merge", "main.bad", 0, False),
        ("merge", "main.good", 3, True),
    ]
    assert [step.name for step in report.steps[2:]] == ["settle", "expire", "clean", "orphans"]
    assert {finding.kind for finding in sqlite_lake.audit().findings} == {"file_changed"}


def test_the_ledger_is_settled_but_never_compacted(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 3)
    for upto in range(1, 4):
        deliverer(lake, settings).run(source_of(files[:upto]))
        maintain(lake, NOW)
    with lake.cursor() as cursor:
        cursor.execute("CHECKPOINT lake")
    ledger_files = rows_of(
        lake, "SELECT count(*) FROM ducklake_list_files('lake', 'deliveries', schema => '_catchment')"
    )
    assert ledger_files == [(3,)]
    assert_exactly_once(lake, 3)


def test_files_of_a_running_delivery_are_left_alone_however_old_they_look(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 3)
    for path in files:
        os.utime(path, (0, 0))
    reports: list[MaintenanceReport] = []
    for point in ("deliver.after_write", "deliver.after_place"):
        with faults.armed(point, once(lambda: reports.append(maintain(lake, NOW)))):
            deliverer(lake, settings).run(source_of(files[: len(reports) + 1]), mode=Mode.ADOPT)
    assert [_counts(report)["orphans"] for report in reports] == [0, 0]
    assert_exactly_once(lake, 2)


@pytest.mark.parametrize("point", ["deliver.after_write", "deliver.after_place"])
@pytest.mark.parametrize("mode", [Mode.REWRITE, Mode.ADOPT])
def test_files_of_a_dead_delivery_are_removed_once_they_are_old(
    point: str, mode: Mode, sqlite_lake: Lake, make_settings: MakeSettings, tmp_path: Path
) -> None:
    lake, settings = sqlite_lake, make_settings()
    create_table(lake)
    files = event_files(tmp_path / "in", 3)

    def fail() -> None:
        raise KeyboardInterrupt

    with faults.armed(point, fail), pytest.raises(KeyboardInterrupt):
        deliverer(lake, settings).run(source_of(files), mode=mode)
    left = [path for path in _tree(lake) if path.endswith(".parquet")]
    assert left
    assert _counts(maintain(lake, YEAR))["orphans"] == 0
    assert _counts(maintain(lake, NOW, dry_run=True))["orphans"] == len(left)
    assert _counts(maintain(lake, NOW))["orphans"] == len(left)
    assert not [path for path in _tree(lake) if path.endswith(".parquet") and "/main/" in path]
    assert all(path.exists() for path in files)
    deliverer(lake, settings).run(source_of(files), mode=mode)
    maintain(lake, NOW)
    assert_exactly_once(lake, 3)


def test_a_live_job_is_seen_and_a_finished_one_is_gone(sqlite_lake: Lake) -> None:
    staging = Staging(sqlite_lake.address.data_path, clock=sqlite_lake.clock)
    with staging.job() as job:
        assert staging.live_jobs() == {job.job_id}
    assert staging.live_jobs() == frozenset()
    assert not job.path.exists()
