"""Tables that accept no registered files: rows are inserted exactly once, as a plain INSERT does.

Every table has a twin, to which the same rows come by a plain INSERT of DuckLake itself.
"""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from catchment.errors import ConflictError, InputError
from catchment.foundation import faults
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.staging import FOLDER
from catchment.pipeline import Mode
from catchment.queue import dead_letter_actions
from tests.conftest import MakeSettings
from tests.queue.queues import LAYOUTS_ON_DISK, QueueScene
from tests.sample_events import deliverer, once, rows_of, source_of, write_parquet

TABLE = TableId("main", "delivered")
COLUMNS = (
    "id BIGINT, kind VARCHAR, ts TIMESTAMP, seen TIMESTAMP, day DATE, year INTEGER, uuid UUID, amount DECIMAL(9,2), "
    "zoned TIMESTAMPTZ"
)
# NULL, a year before Christ, dates before 1970, and texts that folders have trouble with.
ROWS = """
SELECT i::BIGINT AS id,
       ([NULL, 'a', '', 'a=b', 'a/b', 'ünï', '{"a": 1}', 'NULL'])[1 + (i % 8)::INTEGER] AS kind,
       ([NULL, '2024-02-29 23:59:59.999999', '1969-12-31 23:59:59', '0044-03-15 (BC) 01:02:03', '1800-01-01 00:00:00',
         '9999-12-31 12:00:00'])[1 + (i % 6)::INTEGER]::TIMESTAMP AS ts,
       (TIMESTAMP '2023-12-30' + (i * INTERVAL '7 hours')) AS seen,
       (DATE '1969-12-25' + i::INTEGER) AS day,
       (i % 3)::INTEGER AS year,
       CASE WHEN i % 5 > 0 THEN ('00000000-0000-0000-0000-' || lpad(i::VARCHAR, 12, '0'))::UUID END AS uuid,
       ((i - 20) * 1.25)::DECIMAL(9,2) AS amount,
       ('2024-01-01 00:00:00+00'::TIMESTAMPTZ + i * INTERVAL '1 hour') AS zoned
FROM range(60) r(i)
"""
TRANSFORMS = (
    "year(ts)",
    "year(ts), month(ts)",
    "year(seen), month(seen), day(seen), hour(seen)",
    "day(day)",
    "hour(seen)",
    "kind, year(ts)",
    "year(ts), year(seen)",
    "year, year(ts)",
    "day(zoned)",
    *(f"bucket(4, {name})" for name in ("id", "kind", "ts", "day", "uuid", "amount")),
    "bucket(4, id), bucket(8, id), id",
)
CONDITIONS = (
    "ts = '2024-02-29 23:59:59.999999'",
    "ts < '1970-01-01'",
    "ts IS NULL",
    "seen >= '2024-01-05'",
    "day = '1969-12-31'",
    "kind = 'a=b'",
    "kind IS NULL",
    "kind = 'NULL'",
    "id = 17",
    "id IN (3, 40)",
    "uuid = '00000000-0000-0000-0000-000000000007'",
    "amount = 1.25",
    "zoned > '2024-01-02 00:00:00+00'",
    "year = 1",
)


def make_twins(lake: Lake, columns: str, *changes: str) -> None:
    """Two tables that are the same."""
    with lake.cursor() as cursor:
        for name in ("delivered", "twin"):
            cursor.execute(f"CREATE TABLE {name} ({columns})")
            for change in changes:
                cursor.execute(change.replace("{}", name))


def insert(lake: Lake, query: str) -> None:
    """Have the twin get what the query returns."""
    with lake.cursor() as cursor:
        cursor.execute(f"INSERT INTO twin BY NAME {query}")


def partitions(lake: Lake, name: str) -> list[tuple[object, ...]]:
    """How many rows the table's files have, by the values that DuckLake has of them."""
    query = f"""
        SELECT coalesce(v.parts, []), sum(f.record_count)::BIGINT
        FROM __ducklake_metadata_lake.ducklake_data_file f
        JOIN __ducklake_metadata_lake.ducklake_table t ON t.table_id = f.table_id AND t.table_name = '{name}'
        LEFT JOIN (
            SELECT data_file_id, list((partition_key_index, partition_value) ORDER BY partition_key_index) AS parts
            FROM __ducklake_metadata_lake.ducklake_file_partition_value GROUP BY ALL
        ) v USING (data_file_id)
        WHERE t.end_snapshot IS NULL AND f.end_snapshot IS NULL
        GROUP BY ALL ORDER BY ALL
    """
    return rows_of(lake, query)


def assert_twins(lake: Lake, conditions: tuple[str, ...] = ()) -> None:
    """Both tables hold the same, find the same, and are split the same way; and the ledger agrees."""
    for condition in ("true", *conditions):
        found, expected = (
            rows_of(lake, f"SELECT COLUMNS(*)::VARCHAR FROM {name} WHERE {condition} ORDER BY ALL")
            for name in ("delivered", "twin")
        )
        assert found == expected, condition
    assert rows_of(lake, "SELECT count(*) FROM twin") != [(0,)]
    assert partitions(lake, "delivered") == partitions(lake, "twin")
    report = lake.audit()
    assert report.ok, report.findings
    assert not report.notes


def staged(lake: Lake) -> list[Path]:
    return [*(Path(lake.address.data_path) / FOLDER).rglob("*.parquet")]


@pytest.mark.parametrize("transforms", TRANSFORMS)
def test_a_table_split_by_transforms_is_as_if_inserted(
    transforms: str, lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    make_twins(lake, COLUMNS, f"ALTER TABLE {{}} SET PARTITIONED BY ({transforms})")
    insert(lake, ROWS)
    report = deliverer(lake, settings).run(source_of([write_parquet(tmp_path / "a.parquet", ROWS)], TABLE))
    assert report.ok, report.failures
    assert (report.delivered, report.rows) == (1, 60)
    assert_twins(lake, CONDITIONS)
    assert staged(lake) == []


@pytest.mark.parametrize("parts", ["year(ts)", "month(ts)", "day(ts)", "hour(seen)", "year(ts), month(born)"])
def test_a_table_split_by_one_part_of_a_date_takes_files_and_is_as_if_inserted(
    parts: str, lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    make_twins(
        lake,
        "id BIGINT, kind VARCHAR, ts TIMESTAMP, seen TIMESTAMP, born DATE",
        f"ALTER TABLE {{}} SET PARTITIONED BY ({parts})",
    )
    last = "SELECT 99, '', TIMESTAMP 'infinity', NULL, NULL"
    query = f"SELECT id, kind, ts, seen, day AS born FROM ({ROWS}) UNION ALL {last}"
    insert(lake, query)
    report = deliverer(lake, settings).run(source_of([write_parquet(tmp_path / "a.parquet", query)], TABLE))
    assert report.ok, report.failures
    assert report.insert_reason is None
    conditions = (each for each in CONDITIONS if each.partition(" ")[0] in ("ts", "seen", "kind", "id"))
    assert_twins(lake, (*conditions, "born = '1969-12-31'", "ts = 'infinity'", "year(ts) = 2024", "month(born) = 1"))


def test_text_that_ducklake_takes_for_a_token_goes_into_a_table_split_by_one_part_of_a_date(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    make_twins(lake, "id BIGINT, kind VARCHAR, ts TIMESTAMP", "ALTER TABLE {} SET PARTITIONED BY (year(ts))")
    query = "SELECT i AS id, ['a', '{SNAPSHOT_ID}', 'b'][1 + i] AS kind, now()::TIMESTAMP AS ts FROM range(3) r(i)"
    assert deliverer(lake, settings).run(source_of([write_parquet(tmp_path / "a.parquet", query)], TABLE)).ok
    for kind, number in (("a", 0), ("b", 2)):
        assert rows_of(lake, f"SELECT id FROM delivered WHERE kind = '{kind}'") == [(number,)]


def test_two_files_into_a_table_split_by_transforms_are_delivered_once_each(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    make_twins(lake, COLUMNS, "ALTER TABLE {} SET PARTITIONED BY (year(ts), month(ts))")
    halves = [f"FROM ({ROWS}) WHERE id {half}" for half in ("< 30", ">= 30")]
    for half in halves:
        insert(lake, half)
    paths = [write_parquet(tmp_path / f"{at}.parquet", half) for at, half in enumerate(halves)]
    for _ in range(2):
        report = deliverer(lake, settings).run(source_of(paths, TABLE))
        assert report.ok, report.failures
    assert (report.delivered, report.skipped) == (0, 2)
    assert_twins(lake, CONDITIONS)
    modes = rows_of(lake, "SELECT DISTINCT mode FROM _catchment.deliveries WHERE rows > 0")
    assert modes == [("insert",)]


def test_an_insert_that_meets_a_conflict_is_done_again(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    make_twins(lake, COLUMNS, "ALTER TABLE {} SET PARTITIONED BY (bucket(4, id))")
    insert(lake, ROWS)
    source = source_of([write_parquet(tmp_path / "a.parquet", ROWS)], TABLE)

    def lose() -> None:
        raise ConflictError("lost a race")

    with faults.armed("deliver.before_commit", once(lose)):
        report = deliverer(lake, settings).run(source)
    assert report.ok, report.failures
    assert_twins(lake)
    assert staged(lake) == []


def test_null_in_a_column_that_must_not_be_fails_its_unit_and_no_other(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    make_twins(lake, "id BIGINT NOT NULL, ts TIMESTAMP", "ALTER TABLE {} SET PARTITIONED BY (year(ts), month(ts))")
    good = "SELECT i::BIGINT AS id, TIMESTAMP '2024-01-01' AS ts FROM range(3) r(i)"
    bad = "SELECT NULL::BIGINT AS id, TIMESTAMP '2024-01-01' AS ts"
    paths = [write_parquet(tmp_path / f"{at}.parquet", query) for at, query in enumerate((good, bad))]
    report = deliverer(lake, settings).run(source_of(paths, TABLE))
    assert [failure.path for failure in report.failures] == [str(paths[1])]
    assert "'id' is NULL" in report.failures[0].reason
    insert(lake, good)
    assert_twins(lake)


def test_defaults_fill_columns_that_files_lack(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    make_twins(
        lake,
        "id BIGINT, kind VARCHAR DEFAULT 'none', n INTEGER DEFAULT 7, ts TIMESTAMP",
        "ALTER TABLE {} SET PARTITIONED BY (bucket(2, id))",
        "ALTER TABLE {} ADD COLUMN late INTEGER DEFAULT 3",
    )
    query = "SELECT i::BIGINT AS id FROM range(20) r(i)"
    insert(lake, query)
    report = deliverer(lake, settings).run(source_of([write_parquet(tmp_path / "a.parquet", query)], TABLE))
    assert report.ok, report.failures
    assert_twins(lake, ("kind = 'none'", "n = 7", "late = 3", "ts IS NULL"))


def in_file_order(lake: Lake, name: str) -> list[tuple[object, ...]]:
    return rows_of(lake, f"SELECT id FROM {name} ORDER BY filename, file_row_number")


@pytest.mark.parametrize("mode", [Mode.REWRITE, Mode.INSERT])
def test_a_sorted_table_s_files_are_in_its_order(mode: Mode, lake: Lake, settings: Settings, tmp_path: Path) -> None:
    make_twins(lake, COLUMNS, "ALTER TABLE {} SET SORTED BY (kind DESC NULLS FIRST, id ASC)")
    insert(lake, ROWS)
    source = source_of([write_parquet(tmp_path / "a.parquet", f"FROM ({ROWS}) ORDER BY hash(id)")], TABLE)
    assert deliverer(lake, settings).run(source, mode=mode).ok
    assert in_file_order(lake, "delivered") == in_file_order(lake, "twin")
    assert_twins(lake, CONDITIONS)


def test_a_table_that_is_sorted_or_split_later_is_so_from_then_on(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    make_twins(lake, COLUMNS)
    halves = [f"FROM ({ROWS}) WHERE id {half} ORDER BY hash(id)" for half in ("< 30", ">= 30")]
    changes = ("SET SORTED BY (id DESC)", "SET PARTITIONED BY (year(ts), month(ts))")
    for at, (half, change) in enumerate(zip(halves, changes, strict=True)):
        insert(lake, half)
        path = write_parquet(tmp_path / f"{at}.parquet", half)
        assert deliverer(lake, settings).run(source_of([path], TABLE)).ok
        with lake.cursor() as cursor:
            for name in ("delivered", "twin"):
                cursor.execute(f"ALTER TABLE {name} {change}")
    insert(lake, ROWS)
    assert deliverer(lake, settings).run(source_of([write_parquet(tmp_path / "c.parquet", ROWS)], TABLE)).ok
    assert_twins(lake, CONDITIONS)


@pytest.mark.parametrize("transforms", ["", "ALTER TABLE {} SET PARTITIONED BY (bucket(4, id))"])
def test_comments_views_and_rows_in_the_catalog_are_no_obstacle(
    transforms: str, lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    changes = [each for each in (transforms,) if each]
    make_twins(
        lake,
        COLUMNS,
        *changes,
        "CALL lake.set_option('data_inlining_row_limit', 50, table_name => '{}')",
        "COMMENT ON TABLE {} IS 'a table'",
        "COMMENT ON COLUMN {}.id IS 'a number'",
        "CREATE VIEW {}_seen AS SELECT id, seen FROM {} WHERE id > 5",
        f"INSERT INTO {{}} BY NAME FROM ({ROWS}) WHERE id < 10",
        "DELETE FROM {} WHERE id = 3",
        f"INSERT INTO {{}} BY NAME FROM ({ROWS}) WHERE id < 10",
        "DELETE FROM {} WHERE id = 4",
    )
    assert rows_of(lake, "SELECT count(*) FROM delivered WHERE filename LIKE 'ducklake_inlined_data_%'") == [(17,)]
    many = f"SELECT * REPLACE (id + 100 AS id) FROM ({ROWS})"
    insert(lake, many)
    report = deliverer(lake, settings).run(source_of([write_parquet(tmp_path / "a.parquet", many)], TABLE))
    assert report.ok, report.failures
    assert_twins(lake, CONDITIONS)
    seen = "SELECT count(*), sum(id) FROM {}_seen"
    assert rows_of(lake, seen.format("delivered")) == rows_of(lake, seen.format("twin"))
    assert lake.table(TABLE).id == TABLE


@pytest.fixture(params=LAYOUTS_ON_DISK)
def queue(request: pytest.FixtureRequest, make_settings: MakeSettings) -> Iterator[QueueScene]:
    scene = QueueScene(request.param, make_settings("sqlite", queue_layout=request.param))
    yield scene
    scene.close()


QUEUED = pa.table(
    {
        "id": pa.array(range(20), pa.int64()),
        "ts": pa.array([None if n % 4 == 0 else n * 10**15 for n in range(20)], pa.timestamp("us")),
    }
)


def test_the_queue_flushes_into_tables_split_by_transforms_beside_plain_ones(queue: QueueScene) -> None:
    split = "ALTER TABLE {} SET PARTITIONED BY (year(ts), month(ts), bucket(4, id))"
    with queue.lake.cursor() as cursor:
        cursor.execute("CREATE TABLE plain (id BIGINT, ts TIMESTAMP)")
    make_twins(queue.lake, "id BIGINT, ts TIMESTAMP", split)
    for name in ("delivered", "plain"):
        queue.coordinator.enqueue(TableId("main", name), QUEUED)
    flushed = queue.coordinator.force_flush_all()
    assert not [error for table in flushed.tables for error in table.errors]
    with queue.lake.cursor() as cursor:
        cursor.execute("INSERT INTO twin FROM plain")
    assert_twins(queue.lake, ("ts IS NULL", "id = 3"))
    assert rows_of(queue.lake, "SELECT count(*) FROM plain") == [(20,)]


def test_a_value_that_ducklake_would_change_is_refused_by_the_queue(queue: QueueScene) -> None:
    with queue.lake.cursor() as cursor:
        cursor.execute("CREATE TABLE delivered (id BIGINT, lasted INTERVAL)")
    month_day_nano = [(1, 2, 3_000_000), (0, 0, 1_000), (0, -1, 0)]
    rows = pa.table({"id": [1, 2, 3], "lasted": pa.array(month_day_nano, pa.month_day_nano_interval())})
    for bad in (1, 2):
        with pytest.raises(InputError, match="would change"):
            queue.coordinator.enqueue(TABLE, rows.slice(bad, 1))
    queue.coordinator.enqueue(TABLE, rows.slice(0, 1))
    queue.coordinator.force_flush_all()
    assert rows_of(queue.lake, "SELECT id, lasted::VARCHAR FROM delivered") == [(1, "1 month 2 days 00:00:00.003")]


def test_text_with_a_token_of_ducklake_fails_its_unit_because_filters_would_miss_other_rows(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    make_twins(lake, "id BIGINT, s VARCHAR", "ALTER TABLE {} SET PARTITIONED BY (bucket(3, id))")
    queries = ["SELECT 1::BIGINT AS id, '{SNAPSHOT_ID}' AS s", "SELECT id, s FROM (VALUES (2, 'a'), (3, 'b')) v(id, s)"]
    paths = [write_parquet(tmp_path / f"{at}.parquet", query) for at, query in enumerate(queries)]
    report = deliverer(lake, settings).run(source_of(paths, TABLE))
    assert [failure.path for failure in report.failures] == [str(paths[0])]
    assert "column 's' contains {SNAPSHOT_ID}, which DuckLake would change" in report.failures[0].reason
    assert rows_of(lake, "SELECT id FROM delivered WHERE s = 'b'") == [(3,)]
    insert(lake, " UNION ALL ".join(queries))
    # Should a later DuckLake keep such text, this fails, and it can be inserted.
    assert rows_of(lake, "SELECT id FROM twin WHERE s = 'b'") == []


@pytest.mark.parametrize("text", ["good", "{SNAPSHOT_ID}"])
def test_a_dead_letter_is_tried_again_unless_ducklake_would_change_it(text: str, queue: QueueScene) -> None:
    def do(*statements: str) -> None:
        with queue.lake.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    do(
        "CREATE TABLE delivered (id BIGINT, s VARCHAR, must INTEGER)",
        "ALTER TABLE delivered SET PARTITIONED BY (bucket(4, id))",
        "INSERT INTO delivered VALUES (0, 'z', 0)",
    )
    rows = pa.table({"id": [1, 2], "s": ["a", text], "must": pa.array([1, None], pa.int32())})
    queue.coordinator.enqueue(TABLE, rows)
    do("ALTER TABLE delivered ALTER must SET NOT NULL")
    queue.coordinator.force_flush_all()
    (letter,) = queue.lake.dead_letters()
    do("ALTER TABLE delivered ALTER must DROP NOT NULL")
    retried = dead_letter_actions.retry(queue.lake)
    if text == "good":
        assert retried.delivered == (letter.id,)
        assert rows_of(queue.lake, "SELECT id FROM delivered ORDER BY id") == [(0,), (1,), (2,)]
    else:
        assert "does not keep the value of column 's'" in retried.refused[letter.id]
        assert rows_of(queue.lake, "SELECT id FROM delivered WHERE s = 'a'") == [(1,)]


NUMBERS = "SELECT i::DOUBLE AS x, {'d': i::DOUBLE} AS s FROM range(10) r(i)"
SOME_NAN = "SELECT if(i > 3000, 'nan'::DOUBLE, i::DOUBLE) AS x, {'d': x} AS s FROM range(5000) r(i)"
ALL_NAN = "SELECT 'nan'::DOUBLE AS x, {'d': 'nan'::DOUBLE} AS s"
NAN_CONDITIONS = ("x > 100000", "x = 'nan'::DOUBLE", "x < 5", "s.d > 100000", "isnan(s.d)", "x BETWEEN 4000 AND 'nan'")


@pytest.mark.parametrize(
    "queries",
    [(NUMBERS, SOME_NAN), (SOME_NAN, NUMBERS), (ALL_NAN, NUMBERS), (NUMBERS, ALL_NAN)],
    ids=["some after none", "none after some", "none after all", "all after none"],
)
@pytest.mark.parametrize("mode", [Mode.ADOPT, Mode.REWRITE, Mode.INSERT])
def test_filters_find_nan_in_whichever_order_files_came(
    mode: Mode, queries: tuple[str, ...], sqlite_lake: Lake, make_settings: MakeSettings, tmp_path: Path
) -> None:
    make_twins(sqlite_lake, "x DOUBLE, s STRUCT(d DOUBLE)")
    work = deliverer(sqlite_lake, make_settings())
    for at, query in enumerate(queries):
        insert(sqlite_lake, query)
        path = write_parquet(tmp_path / f"{at}.parquet", query)
        assert work.run(source_of([path], TABLE), mode=mode).ok
    both = " UNION ALL ".join(queries)
    for condition in NAN_CONDITIONS:
        with duckdb.connect() as connection:
            expected = connection.execute(f"SELECT count(*) FROM ({both}) WHERE {condition}").fetchall()
        assert rows_of(sqlite_lake, f"SELECT count(*) FROM delivered WHERE {condition}") == expected, condition
    assert_twins(sqlite_lake)
