"""Erasing a dropped schema deletes its files at once, and none that any other snapshot needs."""

from pathlib import Path

import duckdb
import pytest

from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.erase import Erased, erase
from catchment.lake.maintenance import maintain
from tests.sample_events import NOW, create_table, deliverer, event_files, rows_of, source_of

OURS, OTHERS, LIKE = TableId("t7", "events"), TableId("main", "events"), TableId("t70", "events")


def _files(lake: Lake, schema: str) -> list[Path]:
    return sorted(Path(lake.address.data_path, schema).rglob("*.parquet"))


def _run(lake: Lake, *statements: str) -> None:
    with lake.write() as connection:
        for statement in statements:
            connection.execute(statement)


def _make(lake: Lake, *tables: TableId) -> None:
    for table in tables:
        _run(lake, f"CREATE SCHEMA IF NOT EXISTS {table.schema}")
        create_table(lake, table)
        _run(lake, f"INSERT INTO {table} SELECT range, 'a kind' FROM range(1000)")


def test_files_of_dropped_tables_are_deleted_and_no_other_table_loses_its_present_or_past(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    _make(lake, OURS, OTHERS, LIKE)
    deliverer(lake, settings).run(source_of(event_files(tmp_path / "in", 3), OURS))
    # Files of every kind: with deletions, merged, no longer in any table, and waiting to be
    # deleted.
    _run(lake, f"DELETE FROM {OURS} WHERE id < 10", f"DELETE FROM {OTHERS} WHERE id < 10")
    maintain(lake, NOW)
    _run(lake, f"DELETE FROM {OURS} WHERE id < 20")
    _run(lake, "CREATE TABLE t7.old (a INTEGER)", "INSERT INTO t7.old FROM range(500)", "DROP TABLE t7.old")
    past = lake.newest_snapshot()
    assert len(_files(lake, "t7")) > 2
    ours, sizes = _files(lake, "t7"), sum(path.stat().st_size for path in _files(lake, "t7"))
    _run(lake, f"DROP TABLE {OURS}", "DROP SCHEMA t7")
    # Its folder has a file that no snapshot knows: its writer may not have finished.
    stray = Path(lake.address.data_path, "t7", "stray.parquet")
    stray.write_bytes(b"x")
    found = erase(lake, "t7")
    assert (found.files, found.bytes, found.files_elsewhere) == (len(ours), sizes, 0)
    assert (found.snapshots > 0, found.snapshot_last) == (True, past)
    assert _files(lake, "t7") == [stray]
    assert rows_of(lake, f"SELECT count(*) FROM {OTHERS}") == [(990,)]
    assert rows_of(lake, f"SELECT count(*) FROM {OTHERS} AT (VERSION => {past})") == [(990,)]
    assert rows_of(lake, f"SELECT count(*) FROM {LIKE}") == [(1000,)]
    with pytest.raises(duckdb.IOException):
        rows_of(lake, f"SELECT sum(id) FROM {OURS} AT (VERSION => {past})")
    assert lake.audit().ok
    assert erase(lake, "t7") == Erased(
        snapshots=found.snapshots, snapshot_first=found.snapshot_first, snapshot_last=found.snapshot_last
    )
    # Maintenance misses none of them, and the rest goes with the snapshots.
    assert maintain(lake, NOW).ok
    assert erase(lake, "t7") == Erased()
    assert lake.audit().ok


def test_tables_that_are_there_are_not_touched_however_often_they_were_renamed(sqlite_lake: Lake) -> None:
    _make(sqlite_lake, OURS)
    _run(sqlite_lake, "CREATE TABLE t7.gone AS FROM range(1000)", "ALTER TABLE t7.events RENAME TO kept")
    _run(sqlite_lake, "DROP TABLE t7.gone", "ALTER TABLE t7.kept RENAME TO kept_again")
    assert erase(sqlite_lake, "t7").files == 1
    assert rows_of(sqlite_lake, "SELECT count(*) FROM t7.kept_again") == [(1000,)]
    assert sqlite_lake.audit().ok


def test_registered_files_outside_of_the_data_path_are_counted_and_kept(sqlite_lake: Lake, tmp_path: Path) -> None:
    _make(sqlite_lake, OURS)
    (file,) = event_files(tmp_path / "in", 1)
    _run(sqlite_lake, f"CALL ducklake_add_data_files('lake', 'events', '{file}', schema => 't7')")
    _run(sqlite_lake, f"DROP TABLE {OURS}")
    found = erase(sqlite_lake, "t7")
    assert (found.files, found.files_elsewhere) == (1, 1)
    assert file.exists()


def test_a_schema_that_never_was_leaves_nothing_to_erase(sqlite_lake: Lake) -> None:
    assert erase(sqlite_lake, "t7") == Erased()
