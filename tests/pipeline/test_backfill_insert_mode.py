"""Backfills of tables that accept no registered files: rows are inserted once."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.pipeline import ParquetFiles
from tests.pipeline.two_lakes import Scene, make_scene
from tests.sample_events import deliverer, rows_of, write_parquet
from tests.shortcuts.made_lakes import make_encrypted


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield make_scene(stack, tmp_path, "duckdb")


@pytest.mark.parametrize("transforms", ["year(ts), month(ts)", "bucket(4, id)", "tag, day(ts)"])
def test_tables_split_by_transforms_stay_split_and_their_rows_are_inserted(scene: Scene, transforms: str) -> None:
    scene.do(
        "CREATE TABLE t7.p (id BIGINT, ts TIMESTAMP, tag VARCHAR)",
        "INSERT INTO t7.p VALUES (0, '2026-01-01', 'before it was split')",
        f"ALTER TABLE t7.p SET PARTITIONED BY ({transforms})",
        "INSERT INTO t7.p SELECT i, TIMESTAMP '1969-11-30' + i * INTERVAL '9 days', 'x' || i % 3 FROM range(40) r(i)",
        "INSERT INTO t7.p VALUES (NULL, NULL, NULL)",
        "DELETE FROM t7.p WHERE id % 7 = 3",
        "ALTER TABLE t7.p ADD COLUMN late INTEGER DEFAULT 5",
    )
    plan = scene.backfill().plan("t7", scene.source.newest_snapshot(), "m1")
    assert any("its rows are inserted, because it is partitioned by" in line for line in plan.explain())
    scene.run()
    assert scene.assert_same() == 36
    assert set(scene.modes()) == {"insert"}
    assert rows_of(scene.target, "SELECT id FROM t7.p WHERE ts >= '1970-06-01' ORDER BY id") == rows_of(
        scene.source, "SELECT id FROM t7.p WHERE ts >= '1970-06-01' ORDER BY id"
    )


@pytest.mark.parametrize("parts", ["year(ts)", "hour(ts)"])
def test_files_of_tables_split_by_one_part_of_a_date_are_adopted(scene: Scene, parts: str) -> None:
    table = TableId("t7", "p")
    scene.do("CREATE TABLE t7.p (id BIGINT, ts TIMESTAMP)", f"ALTER TABLE t7.p SET PARTITIONED BY ({parts})")
    rows = "SELECT i::BIGINT AS id, TIMESTAMP '1969-11-30' + i * INTERVAL '9 hours' AS ts FROM range({}, {}) r(i)"
    scene.do(f"INSERT INTO t7.p {rows.format(0, 200)}", "INSERT INTO t7.p VALUES (NULL, NULL)")
    registered = write_parquet(scene.folder / "in" / "a.parquet", rows.format(200, 300))
    assert deliverer(scene.source, scene.settings).run(ParquetFiles([registered], table)).insert_reason is None
    scene.do("DELETE FROM t7.p WHERE id = 7")
    scene.run()
    assert scene.assert_same() == 300
    assert scene.modes()["adopt"] >= 2
    late = "SELECT id FROM t7.p WHERE ts >= '1970-01-02' ORDER BY id"
    assert rows_of(scene.target, late) == rows_of(scene.source, late)


def test_types_that_no_file_carries_are_inserted(scene: Scene) -> None:
    scene.do(
        "CREATE TABLE t7.k (id BIGINT, v VARIANT, g GEOMETRY, h HUGEINT, i INTERVAL, z TIMETZ, s TIMESTAMP_S)",
        """INSERT INTO t7.k VALUES
           (1, {'a': 1}::VARIANT, 'POINT(1 2)', 5, INTERVAL '1 month 2 days', '01:02:03+00', '2026-01-01'),
           (2, NULL, NULL, NULL, NULL, NULL, NULL)""",
        "INSERT INTO t7.k VALUES (3, 'x'::VARIANT, 'POINT EMPTY', -5, INTERVAL '0' DAY, '00:00:00+00', '1969-01-01')",
        "DELETE FROM t7.k WHERE id = 2",
    )
    scene.run()
    shown = "SELECT COLUMNS(*)::VARCHAR FROM t7.k ORDER BY id"
    assert rows_of(scene.target, shown) == rows_of(scene.source, shown)
    assert scene.assert_same() == 2


def test_rows_are_inserted_into_an_encrypted_target(tmp_path: Path) -> None:
    with ExitStack() as stack:
        scene = make_scene(stack, tmp_path, "duckdb")
        settings = Settings(home=tmp_path / "secret", lake_catalog=SecretStr(f"duckdb:{tmp_path / 'secret' / 'c.db'}"))
        make_encrypted(settings)
        scene = replace(scene, target=stack.enter_context(Lake.from_settings(settings)), settings=settings)
        scene.fill(0, 10, 20)
        scene.run()
        assert scene.assert_same() == 20
        assert scene.modes() == {"insert": 2}
