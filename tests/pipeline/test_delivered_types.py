"""Every type of DuckLake: unchanged by rewrite, adopt and insert, or refused before any write."""

from collections.abc import Iterable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.errors import TypeConflictError
from catchment.foundation import sql
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.types import Column
from catchment.pipeline import Format, Input, Mode, Unit
from tests.conftest import MakeSettings
from tests.sample_events import Units, create_table, deliverer, event_files, rows_of, source_of, write_parquet

ODD_TEXTS = (
    "''", "'{SNAPSHOT_ID}'", "'{DATA_PATH}/{METADATA_CATALOG}'", "'it''s'", "'a\"b'", "'line\nline'", "'tab\t'",
    "'ünï ☃'", "'NULL'", "'%2F'", "' '", "'\\'",
)  # fmt: skip

# For each type, values as SQL; NULL is added to every list.
VALUES: dict[str, tuple[str, ...]] = {
    "BOOLEAN": ("true", "false"),
    "TINYINT": ("-128", "0", "127"),
    "SMALLINT": ("-32768", "32767"),
    "INTEGER": ("-2147483648", "2147483647"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807"),
    "UTINYINT": ("0", "255"),
    "USMALLINT": ("0", "65535"),
    "UINTEGER": ("0", "4294967295"),
    "UBIGINT": ("0", "18446744073709551615"),
    "FLOAT": ("1.5", "'-0.0'", "'nan'", "'inf'", "'-inf'", "3.4028235e38"),
    "DOUBLE": ("1.5", "'-0.0'", "'nan'", "'inf'", "'-inf'", "1.7976931348623157e308", "5e-324"),
    "DECIMAL(4,1)": ("-999.9", "0.1"),
    "DECIMAL(9,3)": ("-999999.999",),
    "DECIMAL(18,0)": ("999999999999999999",),
    "DECIMAL(38,10)": ("'9999999999999999999999999999.9999999999'",),
    "VARCHAR": ODD_TEXTS,
    "BLOB": ("''::BLOB", "'\\x00\\xFF'::BLOB"),
    "JSON": ('\'{"a": [1, null, "{SNAPSHOT_ID}"]}\'', "'null'"),
    "UUID": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",),
    "DATE": ("'0001-01-01'", "'2026-02-28'", "'9999-12-31'"),
    "TIME": ("'00:00:00'", "'23:59:59.999999'"),
    "TIMESTAMP": ("'1970-01-01'", "'2026-03-29 02:30:00.123456'", "'0001-01-01'"),
    "TIMESTAMP_S": ("'2026-01-01 12:34:56'", "'1969-12-31 23:59:59'", "'9999-12-31'"),
    "TIMESTAMP_MS": ("'2026-01-01 12:34:56.789'",),
    "TIMESTAMP_NS": ("'2026-01-01 12:34:56.123456789'",),
    "TIMESTAMP WITH TIME ZONE": ("'2026-03-29 02:30:00.123456+02'", "'2026-01-01 00:00:00-11'"),
    "INTEGER[]": ("[]", "[1, NULL, 3]"),
    "VARCHAR[][]": ("[['a', ''], []]", "[NULL]"),
    "STRUCT(a INTEGER, b VARCHAR)": ("{'a': 1, 'b': 'x'}", "{'a': NULL, 'b': '{SNAPSHOT_ID}'}"),
    "MAP(VARCHAR, INTEGER)": ("MAP {'a': 1, 'b': NULL}", "MAP {}"),
    "STRUCT(a STRUCT(b DOUBLE[], c TIMESTAMP)[], d MAP(INTEGER, STRUCT(e DATE)))": (
        "{'a': [{'b': ['nan'::DOUBLE, 1.0], 'c': TIMESTAMP '2026-01-01'}], 'd': MAP {1: {'e': DATE '2026-01-01'}}}",
        "{'a': [], 'd': NULL}",
    ),
}

# Types that no registered file carries, with values that DuckLake keeps.
INSERTED: dict[str, tuple[str, ...]] = {
    "HUGEINT": ("-9007199254740992", "0", "170141183460469212842221372237303250944"),
    "UHUGEINT": ("0", "340282366920938425684442744474606501888"),
    "INTERVAL": ("INTERVAL '0' SECOND", "INTERVAL '1 year 2 months 3 days 04:05:06.789'"),
    "TIME WITH TIME ZONE": ("'00:00:00+00'", "'23:59:59.999999+00'"),
    "VARIANT": ("1::VARIANT", "'x'::VARIANT", "{'a': [1, 2], 'b': DATE '2026-01-01'}::VARIANT"),
    "GEOMETRY": ("'POINT(1 2)'", "'POLYGON((0 0, 1 0, 1 1, 0 0))'", "'POINT EMPTY'"),
    "HUGEINT[]": ("[]", "[1, NULL]"),
    "STRUCT(a INTEGER, b STRUCT(c INTERVAL))": ("{'a': 1, 'b': {'c': INTERVAL '1' DAY}}", "{'a': NULL, 'b': NULL}"),
    "MAP(VARCHAR, UHUGEINT)": ("MAP {'a': 1, 'b': NULL}", "MAP {}"),
}

# Values of such types that DuckLake's files change, as DuckDB writes them.
CHANGED = (
    ("HUGEINT", "9007199254740993"),
    ("HUGEINT", "170141183460469231731687303715884105727"),
    ("UHUGEINT", "340282366920938463463374607431768211455"),
    ("INTERVAL", "INTERVAL '0.0001' SECOND"),
    ("INTERVAL", "INTERVAL '-1' DAY"),
    ("TIME WITH TIME ZONE", "'12:00:00+05:30'"),
    ("HUGEINT[]", "[1, 9007199254740993]"),
    ("STRUCT(a INTEGER, b STRUCT(c INTERVAL))", "{'a': 1, 'b': {'c': INTERVAL '-1' MONTH}}"),
    ("MAP(VARCHAR, UHUGEINT)", "MAP {'a': 9007199254740993}"),
)

REFUSED = (
    "TIME_NS", "BIT", "BIGNUM", "INTEGER[3]", "ENUM('a', 'b')", "UNION(n INTEGER, s VARCHAR)", "VARIANT[]",
    "STRUCT(a INTEGER, b STRUCT(c VARIANT))", "GEOMETRY[]", "MAP(VARCHAR, BIT)",
)  # fmt: skip


# DuckDB reads every timestamp of a Parquet file as microseconds or finer, and those do not go into
# coarser unchanged.
NOT_FROM_PARQUET = ("TIMESTAMP_S", "TIMESTAMP_MS")


def _rows(kinds: Iterable[str]) -> str:
    """One wide row set with a column per type, each running through its values."""
    known = VALUES | INSERTED
    picks = [_pick(f"c{at}", kind, (*known[kind], "NULL")) for at, kind in enumerate(kinds)]
    return f"SELECT n, {', '.join(picks)} FROM range(40) r(n)"


def _pick(name: str, kind: str, values: tuple[str, ...]) -> str:
    listed = ", ".join(f"({value})::{kind}" for value in values)
    return f"([{listed}])[1 + (n % {len(values)})::INTEGER] AS {name}"


def _check(lake: Lake, query: str) -> None:
    with duckdb.connect() as connection:
        # As text, because NaN equals nothing in Python; DuckDB's text of a value is exact.
        expected = connection.execute(f"SELECT COLUMNS(*)::VARCHAR FROM ({query}) ORDER BY n::INTEGER").fetchall()
        kinds = [(row[0], row[1]) for row in connection.execute(f"DESCRIBE {query}").fetchall()]
    assert rows_of(lake, "SELECT COLUMNS(*)::VARCHAR FROM events ORDER BY n::INTEGER") == expected
    assert rows_of(lake, "SELECT column_name, column_type FROM (DESCRIBE events)") == kinds
    assert lake.audit().ok


def _create(lake: Lake, kinds: Iterable[str]) -> None:
    columns = (Column(name=f"c{at}", type=kind) for at, kind in enumerate(kinds))
    create_table(lake, columns=(Column(name="n", type="BIGINT"), *columns))


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, make_settings: MakeSettings) -> Settings:
    return make_settings(request.param)


def _in_a_database(path: Path, query: str) -> Units:
    """A unit with what the query returns, in a file that keeps every type."""
    with duckdb.connect(str(path), config={"storage_compatibility_version": "latest"}) as connection:
        connection.execute(f"CREATE TABLE everything AS {query}")
    source = Input(uri=str(path), bytes=path.stat().st_size, format=Format.DUCKDB, relation="everything")
    return Units(Unit(id="all", source="all", inputs=(source,)))


def test_every_type_comes_back_as_it_went_in_when_rewritten(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    _create(lake, VALUES)
    report = deliverer(lake, settings).run(_in_a_database(tmp_path / "all.db", _rows(VALUES)), mode=Mode.REWRITE)
    assert report.ok, report.failures
    assert report.insert_reason is None
    _check(lake, _rows(VALUES))


def test_every_type_that_no_file_carries_comes_back_as_it_went_in_when_inserted(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    _create(lake, INSERTED)
    report = deliverer(lake, settings).run(_in_a_database(tmp_path / "all.db", _rows(INSERTED)))
    assert report.ok, report.failures
    assert report.insert_reason == "column 'c0' is HUGEINT, which registered files cannot carry"
    _check(lake, _rows(INSERTED))


@pytest.mark.parametrize("kind", INSERTED)
def test_a_type_is_inserted_exactly_if_ducklake_registers_no_file_with_it(
    kind: str, sqlite_lake: Lake, tmp_path: Path
) -> None:
    # Should a later DuckLake register it, this fails, and it need not be inserted any more.
    _create(sqlite_lake, [kind])
    path = write_parquet(tmp_path / "one.parquet", _rows([kind]))
    with sqlite_lake.cursor() as cursor:
        call = f"CALL ducklake_add_data_files('lake', 'events', {sql.literal(str(path))})"
        if "INTERVAL" in kind:
            # These are registered, without any statistics of theirs: they are inserted out of
            # caution.
            cursor.execute(call)
        else:
            with pytest.raises(duckdb.Error, match="Failed to map column"):
                cursor.execute(call)


@pytest.mark.parametrize(("kind", "value"), CHANGED)
def test_a_value_that_ducklake_would_change_fails_its_unit(
    kind: str, value: str, sqlite_lake: Lake, make_settings: MakeSettings, tmp_path: Path
) -> None:
    _create(sqlite_lake, [kind])
    source = _in_a_database(tmp_path / "all.db", f"SELECT 1::BIGINT AS n, ({value})::{kind} AS c0")
    (failure,) = deliverer(sqlite_lake, make_settings()).run(source).failures
    assert "which DuckLake would change" in failure.reason
    assert rows_of(sqlite_lake, "SELECT * FROM events") == []
    with sqlite_lake.cursor() as cursor:
        # Should a later DuckLake keep it, this fails, and it can be delivered.
        try:
            cursor.execute(f"INSERT INTO events VALUES (1, ({value})::{kind})")
            (row,) = cursor.execute(f"SELECT c0 IS NOT DISTINCT FROM ({value})::{kind} FROM events").fetchall()
        except duckdb.Error:
            return
        assert row == (False,)


def test_every_type_of_a_parquet_file_comes_back_as_it_went_in(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    kinds = [kind for kind in VALUES if kind not in NOT_FROM_PARQUET]
    _create(lake, kinds)
    path = write_parquet(tmp_path / "all.parquet", _rows(kinds))
    report = deliverer(lake, settings).run(source_of([path]), mode=Mode.REWRITE)
    assert report.ok, report.failures
    _check(lake, _rows(kinds))


def test_every_type_comes_back_as_it_went_in_when_adopted(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    # A file with a token at either end of a column's order is not adopted: here they are written
    # small.
    kinds = [kind for kind in VALUES if kind not in NOT_FROM_PARQUET]
    query = _rows(kinds).replace("{SNAPSHOT_ID}", "{snapshot_id}").replace("{DATA_PATH}/{METADATA_CATALOG}", "{path}")
    _create(lake, kinds)
    path = write_parquet(tmp_path / "all.parquet", query)
    report = deliverer(lake, settings).run(source_of([path]), mode=Mode.ADOPT, digests=True)
    assert report.ok, report.failures
    _check(lake, query)


@pytest.mark.parametrize("kind", NOT_FROM_PARQUET)
@pytest.mark.parametrize("mode", [Mode.REWRITE, Mode.ADOPT])
def test_a_parquet_file_for_a_column_of_coarse_timestamps_is_refused_in_words(
    mode: Mode, kind: str, sqlite_lake: Lake, make_settings: MakeSettings, tmp_path: Path
) -> None:
    _create(sqlite_lake, [kind])
    path = write_parquet(tmp_path / "s.parquet", _rows([kind]))
    (failure,) = deliverer(sqlite_lake, make_settings()).run(source_of([path]), mode=mode).failures
    assert f"TIMESTAMP, which does not go into {kind} unchanged" in failure.reason
    assert rows_of(sqlite_lake, "SELECT * FROM events") == []


def test_a_file_whose_statistics_hold_a_token_is_rewritten_without_them(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake, columns=(Column(name="s", type="VARCHAR"), Column(name="t", type="STRUCT(a VARCHAR)")))
    query = "SELECT unnest(['a', '{SNAPSHOT_ID}']) AS s, {'a': '{DATA_PATH}'} AS t"
    path = write_parquet(tmp_path / "a.parquet", query)
    (refused,) = deliverer(lake, settings).run(source_of([path]), mode=Mode.ADOPT).failures
    assert "DuckLake would replace" in refused.reason
    assert deliverer(lake, settings).run(source_of([path]), mode=Mode.REWRITE).delivered == 1
    token = "{SNAPSHOT_ID}"
    for condition, found in (("s = 'a'", "a"), ("s > 'b'", token), (f"s = '{token}'", token)):
        assert rows_of(lake, f"SELECT s FROM events WHERE {condition}") == [(found,)]
    assert len(rows_of(lake, "SELECT s FROM events WHERE t.a = '{DATA_PATH}'")) == 2


def test_a_file_without_statistics_is_rewritten_because_ducklake_would_forget_those_of_the_table(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    bare = tmp_path / "bare.parquet"
    pq.write_table(pa.table({"id": [50], "kind": ["k50"]}), bare, write_statistics=False)
    (refused,) = deliverer(lake, settings).run(source_of([bare]), mode=Mode.ADOPT).failures
    assert refused.rewritable
    assert "no statistics" in refused.reason
    others = event_files(tmp_path / "in", 2)
    for path in (others[0], bare, others[1]):
        assert deliverer(lake, settings).run(source_of([path]), mode=Mode.AUTO).delivered == 1
    for number in (3, 13, 50):
        assert rows_of(lake, f"SELECT id FROM events WHERE id = {number}") == [(number,)]


def test_a_partition_value_that_ducklake_would_replace_fails_its_unit(
    sqlite_lake: Lake, make_settings: MakeSettings, tmp_path: Path
) -> None:
    columns = (Column(name="id", type="BIGINT"), Column(name="kind", type="VARCHAR"))
    create_table(sqlite_lake, columns=columns, partition_by=("kind",))
    good = write_parquet(tmp_path / "good.parquet", "SELECT 1::BIGINT AS id, 'a' AS kind")
    bad = write_parquet(tmp_path / "bad.parquet", "SELECT 2::BIGINT AS id, '{SNAPSHOT_ID}' AS kind")
    report = deliverer(sqlite_lake, make_settings()).run(source_of([good, bad]), mode=Mode.REWRITE)
    assert [failure.path for failure in report.failures] == [str(bad)]
    assert rows_of(sqlite_lake) == [(1,)]


@pytest.mark.parametrize("mode", [Mode.REWRITE, Mode.ADOPT])
def test_filters_find_nan(mode: Mode, lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(lake, columns=(Column(name="x", type="DOUBLE"), Column(name="s", type="VARCHAR")))
    path = write_parquet(tmp_path / "a.parquet", "FROM (VALUES (1.0::DOUBLE, 'a'), ('nan'::DOUBLE, 'b')) v(x, s)")
    deliverer(lake, settings).run(source_of([path]), mode=mode)
    assert rows_of(lake, "SELECT s FROM events WHERE x > 5") == [("b",)]
    assert rows_of(lake, "SELECT s FROM events WHERE x = 'nan'::DOUBLE") == [("b",)]


@pytest.mark.parametrize("kind", REFUSED)
def test_a_type_that_would_not_survive_is_refused_before_anything_is_written(kind: str, sqlite_lake: Lake) -> None:
    with pytest.raises(TypeConflictError, match="cannot be delivered") as caught:
        create_table(sqlite_lake, columns=(Column(name="c", type=kind),))
    assert "'c'" in caught.value.message
    assert caught.value.hint
    assert sqlite_lake.tables() == ()


def test_every_type_is_either_delivered_or_refused() -> None:
    with duckdb.connect() as connection:
        names = {row[0] for row in connection.execute("SELECT DISTINCT logical_type FROM duckdb_types()").fetchall()}
    covered = {kind.partition("(")[0].partition("[")[0] for kind in (*VALUES, *INSERTED, *REFUSED)} | {"LIST", "ARRAY"}
    # Not types of columns: NULL of its own, and names that only the parser knows.
    leftover = names - covered - {"NULL", "SQLNULL", '"NULL"', "POINTER", "LAMBDA", "TYPE"}
    assert not leftover
