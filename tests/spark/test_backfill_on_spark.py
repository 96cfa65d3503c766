"""Backfills on Spark: its workers read the source's files, and neither of the two catalogs."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import SecretStr

from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.digest import table_digest
from catchment.lake.snapshot_schema import schema_at
from catchment.pipeline import Deliverer, SparkRunner
from catchment.pipeline.backfill import Backfill

SCHEMA = "t7"
STATEMENTS = (
    f"CREATE SCHEMA {SCHEMA}",
    f"CREATE TABLE {SCHEMA}.events (id BIGINT NOT NULL, kind VARCHAR, part STRUCT(a INTEGER)[])",
    f"CREATE TABLE {SCHEMA}.days (id BIGINT, day DATE)",
    f"ALTER TABLE {SCHEMA}.days SET PARTITIONED BY (day)",
    *(
        f"INSERT INTO {SCHEMA}.events SELECT i, 'k' || i, [{{'a': i}}, NULL] FROM range({at}, {at + 1000}) r(i)"
        for at in range(0, 6000, 1000)
    ),
    f"INSERT INTO {SCHEMA}.days SELECT i, DATE '2026-01-01' + (i % 4)::INTEGER FROM range(400) r(i)",
    f"DELETE FROM {SCHEMA}.events WHERE id % 100 = 7 AND id < 3000",
    f"ALTER TABLE {SCHEMA}.events RENAME COLUMN kind TO sort",
    f"INSERT INTO {SCHEMA}.events SELECT i, 'new', NULL FROM range(6000, 7000) r(i)",
)


# A DuckDB file is locked by the process that has it open: a worker that asked a catalog for
# anything would fail.
@pytest.mark.parametrize("catalog", ["duckdb", "sqlite"])
def test_spark_copies_a_schema_once(catalog: str, spark_runner: SparkRunner, tmp_path: Path) -> None:
    with ExitStack() as stack:
        lakes = {}
        for side in ("source", "target"):
            settings = Settings(
                home=tmp_path / side, lake_catalog=SecretStr(f"{catalog}:{tmp_path / side / 'catalog'}")
            )
            lakes[side] = stack.enter_context(Lake.from_settings(settings))
        source, target = lakes["source"], lakes["target"]
        with source.cursor() as cursor:
            for statement in STATEMENTS:
                cursor.execute(statement)
        snapshot = source.newest_snapshot()
        with source.cursor() as cursor:
            cursor.execute("CALL lake.merge_adjacent_files()")
        backfill = Backfill(source, Deliverer(target, spark_runner, settings))
        plan = backfill.plan(SCHEMA, snapshot, "move")
        first, again = backfill.run(plan), backfill.run(plan)
        assert (first.rows, again.rows, again.files) == (400 + 7000 - 30, 0, 0)
        for past in schema_at(source, SCHEMA, snapshot):
            name, columns = past.table.id, past.table.columns
            with source.snapshot() as one, target.snapshot() as other:
                there = table_digest(other, target.name, name, columns)
                assert there == table_digest(one, source.name, name, columns, snapshot=snapshot)
        assert target.audit().ok
