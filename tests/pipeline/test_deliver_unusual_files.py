"""Unusual files: filters find all of their rows, and a bad file affects no other."""

import os
from datetime import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.maintenance import maintain
from catchment.lake.types import Column
from catchment.pipeline import Input, Mode, ParquetFiles, Unit
from tests.conftest import MakeSettings
from tests.sample_events import (
    EVENTS,
    NOW,
    Units,
    assert_exactly_once,
    create_table,
    deliverer,
    event_files,
    rows_of,
    source_of,
    write_parquet,
)

BYTES = b"\xde\xad\xbe\xef"
BINARY = (Column(name="id", type="BIGINT"), Column(name="hash", type="BLOB"))


@pytest.fixture
def settings(make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr("catchment.pipeline.deliver.ADOPT_BYTES_MIN", 1)
    return make_settings()


def _binary_files(folder: Path, count: int) -> list[Path]:
    """Files of a writer that makes no filters of Bloom's."""
    folder.mkdir()
    paths = [folder / f"{number}.parquet" for number in range(count)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"id": [number] * 100, "hash": pa.array([BYTES] * 100)}), path)
    return paths


@pytest.mark.parametrize("mode", [Mode.REWRITE, Mode.ADOPT])
def test_invalid_utf8_in_a_text_column_is_found_by_filters_even_after_maintenance(
    mode: Mode, sqlite_lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(sqlite_lake, columns=BINARY)
    paths = _binary_files(tmp_path / "in", 2)
    for upto in (1, 2):
        deliverer(sqlite_lake, settings).run(source_of(paths[:upto]), mode=mode)
    wanted = r"SELECT count(*) FROM events WHERE hash = '\xDE\xAD\xBE\xEF'::BLOB"
    assert rows_of(sqlite_lake, wanted) == [(200,)]
    maintain(sqlite_lake, NOW)
    assert rows_of(sqlite_lake, wanted) == [(200,)]


def test_negative_zero_is_found_as_zero(sqlite_lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(sqlite_lake, columns=(Column(name="x", type="DOUBLE"),))
    path = write_parquet(tmp_path / "a.parquet", "SELECT unnest([-0.0::DOUBLE, 1.0, 2.0]) AS x")
    deliverer(sqlite_lake, settings).run(source_of([path]), mode=Mode.REWRITE)
    assert rows_of(sqlite_lake, "SELECT count(*) FROM events WHERE x = 0.0::DOUBLE") == [(1,)]


def test_merged_files_are_on_the_disk_before_they_take_the_place_of_others(
    sqlite_lake: Lake, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_table(sqlite_lake)
    paths = event_files(tmp_path / "in", 3)
    for upto in range(1, 4):
        deliverer(sqlite_lake, settings).run(source_of(paths[:upto]))
    synced: set[int] = set()
    sync, sync_data = os.fsync, os.fdatasync

    def record(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    def record_data(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        sync_data(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", record)
        patch.setattr(os, "fdatasync", record_data)
        maintain(sqlite_lake, NOW)
    (listed,) = rows_of(sqlite_lake, "SELECT data_file FROM ducklake_list_files('lake', 'events')")
    merged = Path(str(listed[0]))
    assert {merged.stat().st_ino, merged.parent.stat().st_ino} <= synced
    assert_exactly_once(sqlite_lake, 3)


@pytest.mark.parametrize(
    ("kind", "values", "reads"),
    [
        ("TIME", pa.array([time(1)], pa.time32("ms")), "01:00:00"),
        ("TIME[]", pa.array([[time(1)]], pa.list_(pa.time32("ms"))), "['01:00:00']"),
        ("FLOAT", pa.array([1.5], pa.float16()), "1.5"),
    ],
)
def test_a_file_that_ducklake_would_not_register_is_rewritten_and_delays_no_other_file(
    kind: str, values: pa.Array, reads: str, sqlite_lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(sqlite_lake, columns=(Column(name="id", type="BIGINT"), Column(name="x", type=kind)))
    good = write_parquet(tmp_path / "good.parquet", f"SELECT 2::BIGINT AS id, NULL::{kind} AS x")
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "x": values}), tmp_path / "odd.parquet")
    report = deliverer(sqlite_lake, settings).run(source_of([good, tmp_path / "odd.parquet"]))
    assert (report.delivered, report.failures) == (2, ())
    assert rows_of(sqlite_lake, "SELECT x::VARCHAR FROM events ORDER BY id") == [(reads,), (None,)]


@pytest.mark.parametrize("mode", [Mode.REWRITE, Mode.ADOPT])
def test_times_in_nanoseconds_are_refused_rather_than_cut(
    mode: Mode, sqlite_lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(sqlite_lake, columns=(Column(name="id", type="BIGINT"), Column(name="x", type="TIME")))
    good = write_parquet(tmp_path / "good.parquet", "SELECT 2::BIGINT AS id, TIME '01:00:00' AS x")
    fine = pa.table({"id": pa.array([1], pa.int64()), "x": pa.array([3_600_000_000_001], pa.time64("ns"))})
    pq.write_table(fine, tmp_path / "fine.parquet")
    report = deliverer(sqlite_lake, settings).run(source_of([good, tmp_path / "fine.parquet"]), mode=mode)
    assert report.delivered == 1
    assert ["nanoseconds" in failure.reason for failure in report.failures] == [True]


@pytest.mark.parametrize(
    ("kind", "values", "bad"),
    [
        ("VARCHAR", ["a", "{SNAPSHOT_ID}", "b"], "DuckLake would replace"),
        ("BIGINT", ["1", "abc", "__HIVE_DEFAULT_PARTITION__"], "k=abc, which is not a BIGINT"),
        ("DATE", ["2024-01-01", "2024-13-01", "2024-01-0%33"], "k=2024-13-01, which is not a DATE"),
    ],
)
def test_a_folder_that_names_no_value_of_the_key_fails_its_own_file(
    kind: str, values: list[str], bad: str, sqlite_lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(
        sqlite_lake, columns=(Column(name="k", type=kind), Column(name="v", type="BIGINT")), partition_by=("k",)
    )
    paths = [
        write_parquet(tmp_path / f"k={value}" / "a.parquet", f"SELECT {number}::BIGINT AS v")
        for number, value in enumerate(values)
    ]
    units = [
        Unit(id=str(path), source=str(path), inputs=(Input(uri=str(path), bytes=1, hive_keys=("k",)),))
        for path in paths
    ]
    report = deliverer(sqlite_lake, settings).run(Units(*units), mode=Mode.ADOPT)
    assert [(failure.path, bad in failure.reason) for failure in report.failures] == [(str(paths[1]), True)]
    assert rows_of(sqlite_lake, "SELECT v FROM events ORDER BY v") == [(0,), (2,)]


def test_the_reason_of_a_failed_file_quotes_no_statement(sqlite_lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(sqlite_lake, columns=(Column(name="k", type="BIGINT"), Column(name="v", type="BIGINT")))
    path = write_parquet(tmp_path / "k=abc" / "a.parquet", "SELECT 1::BIGINT AS v")
    unit = Unit(id="u", source="u", inputs=(Input(uri=str(path), bytes=1, hive_keys=("k",)),))
    (failure,) = deliverer(sqlite_lake, settings).run(Units(unit), mode=Mode.REWRITE).failures
    assert "Could not convert string 'abc'" in failure.reason
    assert "SELECT" not in failure.reason


@pytest.mark.parametrize("name", ["Ä", "ID", "é"])
def test_a_column_that_must_not_be_null_is_known_whatever_letters_its_name_has(
    name: str, sqlite_lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(sqlite_lake, columns=(Column(name=name, type="BIGINT", nullable=False),))
    path = write_parquet(tmp_path / "a.parquet", f'SELECT unnest([1, NULL])::BIGINT AS "{name}"')
    report = deliverer(sqlite_lake, settings).run(source_of([path]), mode=Mode.ADOPT)
    assert ["may contain NULL" in failure.reason for failure in report.failures] == [True]


def test_columns_are_those_of_the_files_that_were_named_and_of_no_others(tmp_path: Path) -> None:
    named = write_parquet(tmp_path / "x*.parquet", "SELECT 1 AS id")
    write_parquet(tmp_path / "x1.parquet", "SELECT 1 AS id, 'stranger' AS other")
    assert [column.name for column in ParquetFiles([named], EVENTS).columns()] == ["id"]
