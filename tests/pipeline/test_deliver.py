"""Deliveries: every row of every kind of input arrives, and a bad unit affects only itself."""

from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.errors import InputError, PreconditionError, TypeConflictError
from catchment.foundation import faults, sql
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.settings import Settings
from catchment.lake import Commit, Lake
from catchment.lake.commit import AddColumn
from catchment.lake.types import Column
from catchment.pipeline import DeliveryReport, Format, Input, Mode, ParquetFiles, Retirement, Unit
from catchment.pipeline.deliver import Deliverer
from catchment.pipeline.plan import Plan
from catchment.testing import InlineRunner
from tests.conftest import MakeSettings
from tests.sample_events import (
    EVENT_COLUMNS,
    EVENTS,
    Units,
    assert_exactly_once,
    create_table,
    deliverer,
    event_files,
    once,
    rows_of,
    source_of,
    write_parquet,
)

BOTH = pytest.mark.parametrize("mode", [Mode.REWRITE, Mode.ADOPT])


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    return make_settings("duckdb")


def _unit(name: str, *paths: Path, **facts: object) -> Unit:
    inputs = tuple(Input(uri=str(path), bytes=path.stat().st_size, **facts) for path in paths)  # type: ignore[arg-type]
    return Unit(id=name, source=name, inputs=inputs)


def _run(lake: Lake, settings: Settings, *units: Unit, mode: Mode = Mode.REWRITE, **options: bool) -> DeliveryReport:
    return deliverer(lake, settings).run(Units(*units), mode=mode, **options)


@BOTH
def test_every_row_arrives_once_and_a_second_run_does_nothing(
    mode: Mode, lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    source = source_of(event_files(tmp_path / "in", 7))
    first, again = (deliverer(lake, settings).run(source, mode=mode) for _ in range(2))
    assert (first.delivered, first.skipped, first.rows) == (7, 0, 70)
    assert first.files == (7 if mode is Mode.ADOPT else 1)
    assert (again.delivered, again.skipped, again.files) == (0, 7, 0)
    assert_exactly_once(lake, 7)


def test_an_adopted_file_is_a_second_name_for_the_source(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(lake)
    (path,) = event_files(tmp_path / "in", 1)
    _run(lake, settings, _unit("u", path), mode=Mode.ADOPT)
    (listed,) = rows_of(lake, "SELECT data_file FROM ducklake_list_files('lake', 'events')")
    assert Path(str(listed[0])).stat().st_ino == path.stat().st_ino
    path.unlink()
    assert len(rows_of(lake)) == 10


def test_digests_of_a_unit_are_the_same_whichever_way_it_came(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(lake)
    create_table(lake, TableId("main", "other"))
    files = event_files(tmp_path / "in", 3)
    deliverer(lake, settings).run(source_of(files), mode=Mode.REWRITE)
    deliverer(lake, settings).run(source_of(files, TableId("main", "other")), mode=Mode.ADOPT, digests=True)
    with lake.ledger() as ledger:
        digests = {(each.source, each.table.name): each.digest for each in ledger.deliveries()}
    assert all(digests.values())
    assert len(set(digests.values())) == 3
    assert all(digests[str(path), "events"] == digests[str(path), "other"] for path in files)


def test_a_corrupt_file_fails_its_own_unit_with_its_path(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 4)
    damaged = {1: b"", 2: files[2].read_bytes()[:40] + b"\0" * 60 + files[2].read_bytes()[100:]}
    for at, content in damaged.items():
        files[at].write_bytes(content)
    for mode, digests in ((Mode.REWRITE, False), (Mode.ADOPT, True)):
        report = deliverer(lake, settings).run(source_of(files), mode=mode, digests=digests)
        assert {failure.path for failure in report.failures} == {str(files[1]), str(files[2])}
        assert all(failure.path in failure.reason for failure in report.failures)
    assert rows_of(lake) == [(n,) for n in (*range(10), *range(30, 40))]
    assert lake.audit().ok


def test_a_unit_spread_over_tasks_fails_whole_and_no_other_unit_fails(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 8)
    files[7].write_bytes(b"not parquet")
    # Large enough by its own account to be cut over two tasks: the broken part and a good one lie
    # in different tasks.
    spread = tuple(Input(uri=str(files[at]), bytes=20_000_000) for at in (3, 7))
    others = [_unit(f"u{at}", files[at]) for at in (0, 1, 2, 4, 5, 6)]
    report = _run(lake, settings, *others, Unit(id="spread", source="spread", inputs=spread))
    assert [failure.unit_id for failure in report.failures] == ["spread"]
    assert rows_of(lake) == [(n,) for n in (*range(30), *range(40, 70))]
    assert lake.audit().ok


def test_arrow_and_duckdb_files_are_read_like_parquet(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(lake)
    table = pa.table({"kind": ["a", "b"], "id": pa.array([1, 2], pa.int32())})
    arrow = tmp_path / "slice.arrow"
    with pa.OSFile(str(arrow), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    buffer = tmp_path / "segment.db"
    with duckdb.connect(str(buffer)) as connection:
        connection.execute("CREATE TABLE q AS SELECT 3::BIGINT AS id, 'c' AS kind")
    parquet = write_parquet(tmp_path / "p.parquet", "SELECT 4::SMALLINT AS id, 'd' AS kind")
    report = _run(
        lake,
        settings,
        _unit("arrow", arrow, format=Format.ARROW),
        _unit("duckdb", buffer, format=Format.DUCKDB, relation="q"),
        _unit("parquet", parquet),
    )
    assert (report.delivered, report.files) == (3, 1)
    assert rows_of(lake, "SELECT id, kind FROM events ORDER BY id") == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    with lake.ledger() as ledger:
        assert {each.unit_id: each.rows for each in ledger.deliveries()} == {"arrow": 2, "duckdb": 1, "parquet": 1}


def test_columns_match_by_name_widen_and_take_defaults(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    columns = (
        Column(name="id", type="BIGINT"),
        Column(name="price", type="DECIMAL(12,4)"),
        Column(name="note", type="VARCHAR", default="'none'"),
        Column(name="nested", type="STRUCT(a BIGINT, b VARCHAR)[]"),
    )
    create_table(lake, columns=columns)
    small = write_parquet(tmp_path / "1.parquet", "SELECT 1.5::DECIMAL(4,2) AS PRICE, 7::TINYINT AS Id")
    nested = write_parquet(
        tmp_path / "2.parquet", "SELECT 8::INTEGER AS id, [{'a': 1::SMALLINT}] AS nested, 'x' AS note"
    )
    assert _run(lake, settings, _unit("small", small), _unit("nested", nested)).delivered == 2
    assert rows_of(lake, "SELECT id, price::VARCHAR, note, nested FROM events ORDER BY id") == [
        (7, "1.5000", "none", None),
        (8, None, "x", [{"a": 1, "b": None}]),
    ]


@BOTH
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT 1.5::DOUBLE AS id, 'k' AS kind", "DOUBLE, which does not go into BIGINT unchanged"),
        ("SELECT '7' AS id, 'k' AS kind", "VARCHAR, which does not go into BIGINT unchanged"),
        ("SELECT 1::BIGINT AS id, 'k' AS kind, 5 AS surprise", "no column 'surprise'"),
    ],
)
def test_a_type_that_does_not_fit_is_refused_with_an_explanation(
    mode: Mode, query: str, reason: str, lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    path = write_parquet(tmp_path / "odd.parquet", query)
    report = _run(lake, settings, _unit("odd", path), *[_unit(p.name, p) for p in event_files(tmp_path, 1)], mode=mode)
    (failure,) = report.failures
    assert reason in failure.reason
    assert report.delivered == 1
    assert_exactly_once(lake, 1)


@BOTH
def test_null_in_a_column_that_must_not_be_null_fails_its_unit(
    mode: Mode, lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake, columns=(Column(name="id", type="BIGINT", nullable=False), Column(name="kind", type="VARCHAR")))
    bad = write_parquet(tmp_path / "bad.parquet", "SELECT unnest([5, NULL])::BIGINT AS id, 'k' AS kind")
    good = [_unit(path.name, path) for path in event_files(tmp_path / "in", 2)]
    report = _run(lake, settings, good[0], _unit("bad", bad), good[1], mode=mode)
    assert [failure.unit_id for failure in report.failures] == ["bad"]
    assert "NULL" in report.failures[0].reason
    assert_exactly_once(lake, 2)


@BOTH
def test_files_without_rows_are_delivered_as_units_without_files(
    mode: Mode, lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    empty = write_parquet(tmp_path / "e.parquet", "SELECT 1::BIGINT AS id, 'k' AS kind WHERE false")
    report = _run(lake, settings, _unit("empty", empty), mode=mode)
    assert (report.delivered, report.rows, report.files) == (1, 0, 0)
    assert lake.audit().ok


def test_a_partitioned_table_gets_files_split_and_pruned_by_its_keys(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    columns = (
        Column(name="id", type="BIGINT"),
        Column(name="day", type="DATE"),
        Column(name="kind", type="VARCHAR"),
    )
    create_table(lake, columns=columns, partition_by=("kind", "day"))
    kinds = ["plain", "with space", "sl/ash", "a=b", "50%", "ünï", "00123", None]
    values = ", ".join(f"({at}, {sql.literal(kind)})" for at, kind in enumerate(kinds))
    query = (
        "SELECT (n * 10 + i)::BIGINT AS id, DATE '2026-01-01' + n::INTEGER AS day, k AS kind "
        f"FROM range(2) r(n), (VALUES {values}) v(i, k)"
    )
    files = [
        write_parquet(tmp_path / f"{n}.parquet", f"SELECT * FROM ({query}) WHERE id // 10 = {n}") for n in range(2)
    ]
    report = _run(lake, settings, *[_unit(f"u{n}", path) for n, path in enumerate(files)])
    assert (report.delivered, report.files) == (2, 16)
    with duckdb.connect() as connection:
        expected = connection.execute(f"SELECT id, day, kind FROM ({query}) ORDER BY id").fetchall()
    assert rows_of(lake, "SELECT id, day, kind FROM events ORDER BY id") == expected
    for at, kind in enumerate(kinds):
        condition = "kind IS NULL" if kind is None else f"kind = {sql.literal(kind)}"
        assert rows_of(lake, f"SELECT id FROM events WHERE {condition} ORDER BY id") == [(at,), (10 + at,)]
    with lake.cursor() as cursor:
        plan = str(
            cursor.execute(
                "EXPLAIN ANALYZE SELECT * FROM events WHERE kind = 'plain' AND day = '2026-01-01'"
            ).fetchall()
        )
    assert "Total Files Read: 1" in plan


def test_hive_folders_are_adopted_by_a_table_with_the_same_keys(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(
        lake, columns=(Column(name="id", type="BIGINT"), Column(name="code", type="VARCHAR")), partition_by=("code",)
    )
    path = write_parquet(tmp_path / "code=00123" / "a.parquet", "SELECT 1::BIGINT AS id")
    for mode, unit in ((Mode.ADOPT, "adopted"), (Mode.REWRITE, "rewritten")):
        report = _run(lake, settings, _unit(unit, path, hive_keys=("code",)), mode=mode)
        assert report.delivered == 1, report.failures
    assert rows_of(lake, "SELECT id, code FROM events") == [(1, "00123"), (1, "00123")]


def test_a_sorted_table_gets_sorted_files(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(lake)
    with lake.write() as connection:
        connection.execute("ALTER TABLE events SET SORTED BY (id DESC)")
    files = event_files(tmp_path / "in", 3)
    assert _run(lake, settings, *[_unit(path.name, path) for path in files]).delivered == 3
    (listed,) = rows_of(lake, "SELECT data_file FROM ducklake_list_files('lake', 'events')")
    with duckdb.connect() as connection:
        stored = connection.execute("SELECT id FROM read_parquet(?)", [listed[0]]).fetchall()
    assert stored == [(n,) for n in reversed(range(30))]
    with lake.ledger() as ledger:
        assert len({each.digest for each in ledger.deliveries()}) == 3
    assert_exactly_once(lake, 3)


def test_large_outputs_are_cut_near_the_target_size(lake: Lake, make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings("duckdb", lake_target_file_bytes=1024 * 1024)
    create_table(lake)
    query = "SELECT i AS id, md5(i::VARCHAR) || md5((i * 7)::VARCHAR) AS kind FROM range(500_000) r(i)"
    path = write_parquet(tmp_path / "big.parquet", query)
    report = deliverer(lake, settings).run(Units(_unit("big", path)), mode=Mode.REWRITE)
    assert report.files > 3
    assert rows_of(lake, "SELECT count(*), sum(id) FROM events") == [(500_000, 499_999 * 250_000)]


def test_units_go_in_batches_of_a_bounded_size(lake: Lake, make_settings: MakeSettings, tmp_path: Path) -> None:
    create_table(lake)
    work = Deliverer(lake, InlineRunner(), make_settings("duckdb"), units_per_commit_max=3)
    work.run(source_of(event_files(tmp_path / "in", 8)))
    with lake.ledger() as ledger:
        assert len({each.snapshot_id for each in ledger.deliveries()}) == 3
    assert_exactly_once(lake, 8)


def _auto(lake: Lake, make_settings: MakeSettings, path: Path) -> tuple[DeliveryReport, set[str]]:
    work = deliverer(lake, make_settings("duckdb"))
    work.bounds = replace(work.bounds, adopt_bytes_min=0)
    report = work.run(Units(_unit(path.name, path)), mode=Mode.AUTO)
    with lake.ledger() as ledger:
        return report, {each.mode for each in ledger.deliveries()}


def test_auto_rewrites_files_whose_statistics_may_hide_nan(
    lake: Lake, make_settings: MakeSettings, tmp_path: Path
) -> None:
    create_table(lake, columns=(Column(name="x", type="DOUBLE"),))
    path = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"x": [1.0, float("nan")]}), path)
    report, modes = _auto(lake, make_settings, path)
    assert (report.delivered, modes) == (1, {"rewrite"})
    assert len(rows_of(lake, "SELECT x FROM events WHERE x > 5")) == 1


def test_auto_rewrites_lists_and_timestamps_of_old_writers(
    lake: Lake, make_settings: MakeSettings, tmp_path: Path
) -> None:
    create_table(lake, columns=(Column(name="tags", type="INTEGER[]"), Column(name="ts", type="TIMESTAMP")))
    path = tmp_path / "old.parquet"
    old = pa.table({"tags": pa.array([[1, 2]], pa.list_(pa.int32())), "ts": pa.array([0], pa.timestamp("ns"))})
    pq.write_table(old, path, use_compliant_nested_type=False, use_deprecated_int96_timestamps=True)
    report, modes = _auto(lake, make_settings, path)
    assert (report.delivered, modes) == (1, {"rewrite"})
    assert rows_of(lake, "SELECT tags, ts::VARCHAR FROM events") == [([1, 2], "1970-01-01 00:00:00")]


def test_a_file_that_lacks_a_column_is_rewritten_because_filters_would_miss_its_rows(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    deliverer = Deliverer(lake, InlineRunner(), settings)
    whole = write_parquet(tmp_path / "whole.parquet", "SELECT 1::BIGINT AS id, 'k' AS kind")
    lacking = write_parquet(tmp_path / "lacking.parquet", "SELECT 2::BIGINT AS id")
    deliverer.run(ParquetFiles([whole], EVENTS), mode=Mode.ADOPT)
    refused = deliverer.run(ParquetFiles([lacking], EVENTS), mode=Mode.ADOPT)
    assert [failure.rewritable for failure in refused.failures] == [True]
    assert deliverer.run(ParquetFiles([lacking], EVENTS), mode=Mode.AUTO).ok
    with lake.cursor() as cursor:
        assert cursor.execute("SELECT id FROM lake.main.events WHERE kind IS NULL").fetchall() == [(2,)]
        assert cursor.execute("SELECT count(kind) FROM lake.main.events").fetchall() == [(1,)]


def test_a_file_that_lacks_a_column_with_a_first_value_is_adopted_and_reads_that_value(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake, columns=(EVENT_COLUMNS[0], Column(name="origin", type="VARCHAR", default="'it''s'")))
    lacking = write_parquet(tmp_path / "lacking.parquet", "SELECT 2::BIGINT AS id")
    report = Deliverer(lake, InlineRunner(), settings).run(ParquetFiles([lacking], EVENTS), mode=Mode.ADOPT)
    assert report.ok
    with lake.cursor() as cursor:
        assert cursor.execute("FROM lake.main.events WHERE origin = 'it''s'").fetchall() == [(2, "it's")]
        assert cursor.execute("SELECT count(*) FROM lake.main.events WHERE origin IS NULL").fetchall() == [(0,)]


def test_auto_adopts_files_that_can_be_adopted(lake: Lake, make_settings: MakeSettings, tmp_path: Path) -> None:
    create_table(lake)
    _, modes = _auto(lake, make_settings, event_files(tmp_path, 1)[0])
    assert modes == {"adopt"}
    assert_exactly_once(lake, 1)


def test_a_table_altered_under_a_delivery_stops_it_and_the_next_run_delivers(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 2)

    def alter(_: object) -> None:
        lake.commit(Commit(message="alter", changes=(AddColumn(table=EVENTS, column=Column(name="x", type="DATE")),)))

    running = Deliverer(lake, InlineRunner(after_task=alter), settings)
    with pytest.raises(PreconditionError):
        running.run(source_of(files))
    assert rows_of(lake) == []
    deliverer(lake, settings).run(source_of(files))
    assert_exactly_once(lake, 2)


def test_a_unit_that_another_producer_delivers_meanwhile_is_there_once(
    sqlite_lake: Lake, make_settings: MakeSettings, tmp_path: Path
) -> None:
    create_table(sqlite_lake)
    (file,) = event_files(tmp_path / "in", 1)
    mine, other = Units(_unit("one", file)), Units(_unit("one", file))
    other.producer = ProducerId("test", "units", "other")
    work = deliverer(sqlite_lake, make_settings())
    plan = work.plan(mine)
    assert work.run(other).delivered == 1
    report = work.deliver(plan, mine.retire)
    assert (report.delivered, report.skipped) == (0, 1)
    assert len(rows_of(sqlite_lake)) == 10


def test_units_that_another_process_delivers_meanwhile_are_taken_out_of_the_batch(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 5)
    others = deliverer(lake, settings)
    meanwhile = [source_of(files[1:3]), source_of(files[3:4])]

    def deliver_some(_: object) -> None:
        if meanwhile:
            others.run(meanwhile.pop())

    report = Deliverer(lake, InlineRunner(after_task=deliver_some), settings).run(source_of(files))
    assert (report.delivered, report.skipped) == (2, 3)
    assert_exactly_once(lake, 5)


def test_units_with_a_place_that_the_producer_has_left_are_skipped(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 3)
    units = [replace(_unit(f"u{n}", file), seqs=(n * 10 + 1, n * 10 + 10)) for n, file in enumerate(files)]
    assert _run(lake, settings, *units[:2]).delivered == 2
    assert _run(lake, settings, *units).skipped == 2
    assert_exactly_once(lake, 3)


def test_a_table_altered_between_two_deliveries_is_as_it_is_now(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(lake)
    assert _run(lake, settings, _unit("before", *event_files(tmp_path / "in", 2))).delivered == 1
    lake.commit(Commit(message="more", changes=(AddColumn(table=EVENTS, column=Column(name="x", type="DATE")),)))
    file = write_parquet(tmp_path / "new.parquet", "SELECT 99::BIGINT AS id, 'k' AS kind, DATE '2024-05-06' AS x")
    assert _run(lake, settings, _unit("after", file)).delivered == 1
    assert rows_of(lake, "SELECT count(*), max(x)::VARCHAR FROM events") == [(21, "2024-05-06")]


def test_a_plan_explains_itself_and_changes_nothing(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 3)
    deliverer(lake, settings).run(source_of(files[:1]))
    plan: Plan = deliverer(lake, settings).plan(source_of(files))
    text = " ".join(plan.explain())
    assert "2 units" in text
    assert "1 unit in the lake already" in text
    assert len(rows_of(lake)) == 10


def test_a_table_that_was_dropped_and_made_again_gets_its_files_again(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    files = event_files(tmp_path / "in", 2)
    create_table(lake)
    deliverer(lake, settings).run(source_of(files))
    with lake.write() as connection:
        connection.execute("DROP TABLE events")
    create_table(lake)
    assert deliverer(lake, settings).run(source_of(files)).delivered == 2
    assert rows_of(lake) == [(n,) for n in range(20)]
    report = lake.audit()
    assert report.ok, report.findings
    assert "was dropped" in report.notes[0]


def test_a_table_with_a_column_that_ducklake_cannot_write_gets_nothing(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    with lake.write() as connection:
        connection.execute("CREATE TABLE events (id BIGINT, kind VARCHAR, gap TIME_NS)")
    with pytest.raises(TypeConflictError, match="cannot write it to Parquet"):
        deliverer(lake, settings).run(source_of(event_files(tmp_path / "in", 1)))


def test_the_lakes_own_files_are_no_source(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(lake)
    deliverer(lake, settings).run(source_of(event_files(tmp_path / "in", 1)))
    own = list(Path(lake.address.data_path).rglob("main/**/*.parquet"))
    with pytest.raises(InputError, match="own data path"):
        deliverer(lake, settings).run(source_of(own))
    assert_exactly_once(lake, 1)


@BOTH
def test_a_file_that_is_replaced_between_plan_and_reading_is_not_delivered_under_its_old_name(
    mode: Mode, lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 2)
    work = deliverer(lake, settings)
    plan = work.plan(source_of(files), mode)
    write_parquet(files[1], "SELECT 10 + i AS id, 'new' AS kind FROM range(10) r(i)")
    report = work.deliver(plan, source_of(files).retire)
    assert [failure.path for failure in report.failures] == [str(files[1])]
    assert "changed since it was planned" in report.failures[0].reason
    assert work.run(source_of(files)).delivered == 1
    assert_exactly_once(lake, 2)


def test_a_file_that_is_replaced_after_reading_is_not_removed_with_the_old_one(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    (path,) = event_files(tmp_path / "in", 1)
    source = ParquetFiles([path], EVENTS, retirement=Retirement.REMOVE)

    def replace_it() -> None:
        write_parquet(path, "SELECT 10 + i AS id, 'new' AS kind FROM range(10) r(i)")

    with faults.armed("deliver.after_commit", once(replace_it)):
        deliverer(lake, settings).run(source)
    assert path.exists()
    deliverer(lake, settings).run(source)
    assert not path.exists()
    assert_exactly_once(lake, 2)


def test_one_file_under_two_names_of_its_folder_is_one_unit(lake: Lake, settings: Settings, tmp_path: Path) -> None:
    create_table(lake)
    files = event_files(tmp_path / "in", 2)
    (tmp_path / "elsewhere").mkdir()
    deliverer(lake, settings).run(source_of(files))
    roundabout = [tmp_path / "elsewhere" / ".." / "in" / path.name for path in files]
    assert deliverer(lake, settings).run(source_of(roundabout)).skipped == 2
    with pytest.raises(InputError, match="twice"):
        deliverer(lake, settings).run(source_of([files[0], roundabout[0]]))
    assert_exactly_once(lake, 2)


@pytest.mark.parametrize("value", ["NULL", "null", "__HIVE_DEFAULT_PARTITION__"])
def test_a_partition_value_that_would_be_read_as_null_fails_its_unit(
    value: str, lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    columns = (Column(name="id", type="BIGINT"), Column(name="kind", type="VARCHAR"))
    create_table(lake, columns=columns, partition_by=("kind",))
    good = write_parquet(tmp_path / "good.parquet", "SELECT 1::BIGINT AS id, '' AS kind")
    bad = write_parquet(tmp_path / "bad.parquet", f"SELECT 2::BIGINT AS id, {sql.literal(value)} AS kind")
    report = _run(lake, settings, _unit("good", good), _unit("bad", bad))
    assert [failure.unit_id for failure in report.failures] == ["bad"]
    assert rows_of(lake, "SELECT id, kind FROM events") == [(1, "")]


@BOTH
def test_null_in_a_nested_column_that_must_not_be_null_fails_its_unit(
    mode: Mode, lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(
        lake, columns=(Column(name="id", type="BIGINT"), Column(name="tags", type="INTEGER[]", nullable=False))
    )
    bad = write_parquet(tmp_path / "bad.parquet", "SELECT 1::BIGINT AS id, unnest([[1], NULL])::INTEGER[] AS tags")
    (failure,) = _run(lake, settings, _unit("bad", bad), mode=mode).failures
    assert "tags" in failure.reason
    assert rows_of(lake) == []


def test_a_unit_without_files_is_delivered_as_nothing(lake: Lake, settings: Settings) -> None:
    create_table(lake)
    assert _run(lake, settings, Unit(id="empty", source="empty", inputs=())).delivered == 1
    assert lake.audit().ok


@pytest.mark.parametrize("mode", [Mode.ADOPT, Mode.REWRITE])
def test_a_file_whose_name_is_a_pattern_is_read_by_its_name_and_not_as_one(
    lake: Lake, settings: Settings, tmp_path: Path, mode: Mode
) -> None:
    create_table(lake)
    (good,) = event_files(tmp_path / "in*", 1, rows=1)
    odd = write_parquet(tmp_path / "in*" / "0000[0].parquet", "SELECT 1::BIGINT AS id, 'k1' AS kind")
    report = deliverer(lake, settings).run(source_of([good, odd]), mode=mode)
    assert report.ok
    assert rows_of(lake, "SELECT id, kind FROM events ORDER BY id") == [(0, "k0"), (1, "k1")]


def test_files_of_two_schemas_go_into_a_table_sorted_by_an_expression(
    lake: Lake, settings: Settings, tmp_path: Path
) -> None:
    create_table(lake)
    with lake.write() as connection:
        connection.execute("ALTER TABLE events SET SORTED BY (lower(kind))")
    narrow = write_parquet(tmp_path / "n.parquet", "SELECT 1::INTEGER AS id, 'B' AS kind")
    wide = write_parquet(tmp_path / "w.parquet", "SELECT 0::BIGINT AS id, 'a' AS kind")
    report = _run(lake, settings, _unit("narrow", narrow), _unit("wide", wide))
    assert report.delivered == 2, report.failures
    assert rows_of(lake) == [(0,), (1,)]


def test_a_plan_that_lost_units_to_a_rival_is_written_again_when_its_neighbour_is_refused(
    sqlite_lake: Lake, make_settings: MakeSettings, tmp_path: Path
) -> None:
    other = TableId("main", "other")
    create_table(sqlite_lake)
    create_table(sqlite_lake, other)
    files = event_files(tmp_path / "in", 2)
    mine, neighbours = source_of(files), source_of(event_files(tmp_path / "others", 1), other)
    work = deliverer(sqlite_lake, make_settings())
    orders = [(work.plan(source, Mode.REWRITE), source.retire) for source in (mine, neighbours)]

    def rival() -> None:
        work.run(source_of(files[:1]), mode=Mode.REWRITE)
        with sqlite_lake.write() as connection:
            connection.execute("ALTER TABLE other ADD COLUMN note VARCHAR")

    with faults.armed("deliver.after_place", once(rival)):
        first, second = work.deliver_together(orders)
    assert (first.delivered, first.skipped, first.error) == (1, 1, None)
    assert isinstance(second.error, PreconditionError)
    assert rows_of(sqlite_lake, "SELECT id FROM other") == []
    assert_exactly_once(sqlite_lake, 2)
