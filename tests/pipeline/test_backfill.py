"""Backfills: the rows of a schema at a snapshot are in the other lake, each once."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from catchment.errors import FencedError, InputError, NotSupportedError
from catchment.foundation import faults
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake import Commit, Table
from catchment.lake.commit import CreateTable
from catchment.lake.maintenance import maintain
from catchment.lake.snapshot_schema import differences
from catchment.lake.tables import PartitionKey
from catchment.lake.types import Column
from catchment.pipeline import Mode, ParquetFiles
from catchment.pipeline.backfill import Backfill
from catchment.pipeline.plan import Plan
from tests.pipeline.two_lakes import A, Scene, make_scene
from tests.sample_events import NOW, deliverer, once, write_parquet


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield make_scene(stack, tmp_path, "duckdb")


@pytest.mark.parametrize("catalog", ["duckdb", "sqlite", "postgres"])
def test_every_kind_of_catalog_can_be_read_and_written(
    catalog: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = {}
    if catalog == "postgres":
        server = request.getfixturevalue("postgres")
        urls = {name: f"postgres:{server.new_database()}" for name in ("source", "target")}
    with ExitStack() as stack:
        scene = make_scene(stack, tmp_path, catalog, **urls)
        scene.fill(0, 10, 20)
        scene.do("DELETE FROM t7.a WHERE id = 3", "ALTER TABLE t7.a ADD COLUMN more INTEGER DEFAULT 7")
        scene.fill(20, 30)
        report = scene.run()
        assert (report.rows, scene.assert_same()) == (29, 29)
        assert scene.modes() == {"adopt": 1, "rewrite": 2}
        again = scene.run()
        assert (again.rows, again.tables[0].skipped) == (0, 3)


def test_files_are_adopted_as_they_are_and_stay_when_the_source_goes(scene: Scene) -> None:
    scene.fill(0, 10, 20)
    report = scene.run()
    assert (report.rows, report.files, scene.modes()) == (20, 2, {"adopt": 2})
    scene.assert_same()
    with scene.target.cursor() as cursor:
        listed = cursor.execute("SELECT data_file FROM ducklake_list_files('lake', 'a', schema => 't7')").fetchall()
        assert all(Path(path).stat().st_nlink == 2 for (path,) in listed)
        scene.do("DROP TABLE t7.a")
        maintain(scene.source, NOW)
        assert cursor.execute("SELECT count(*), sum(id) FROM t7.a").fetchone() == (20, 190)


def test_the_snapshot_counts_and_not_what_came_later(scene: Scene) -> None:
    scene.fill(0, 10, 20)
    scene.do("DELETE FROM t7.a WHERE id IN (1, 11)")
    snapshot = scene.source.newest_snapshot()
    scene.do("DELETE FROM t7.a WHERE id IN (2, 12)", "UPDATE t7.a SET kind = 'later'")
    scene.do("ALTER TABLE t7.a RENAME COLUMN kind TO sort", "ALTER TABLE t7.a ADD COLUMN late INTEGER DEFAULT 1")
    scene.run(snapshot)
    assert scene.assert_same(snapshot) == 18


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(["DELETE FROM t7.a WHERE id = 3", "DELETE FROM t7.a WHERE id IN (4, 14)"], id="deletes"),
        pytest.param(["UPDATE t7.a SET kind = 'new' WHERE id % 3 = 0"], id="update"),
        pytest.param(["ALTER TABLE t7.a RENAME COLUMN kind TO sort"], id="rename"),
        pytest.param(["ALTER TABLE t7.a ADD COLUMN more INTEGER DEFAULT 7"], id="default"),
        pytest.param(["ALTER TABLE t7.a ADD COLUMN more VARCHAR"], id="no default"),
        pytest.param(["ALTER TABLE t7.a DROP COLUMN kind"], id="drop"),
        pytest.param(
            ["ALTER TABLE t7.a DROP COLUMN kind", "ALTER TABLE t7.a ADD COLUMN kind VARCHAR"], id="drop and add"
        ),
        pytest.param(
            [
                "ALTER TABLE t7.a ADD COLUMN other VARCHAR",
                "ALTER TABLE t7.a RENAME COLUMN kind TO spare",
                "ALTER TABLE t7.a RENAME COLUMN other TO kind",
                "ALTER TABLE t7.a RENAME COLUMN spare TO other",
            ],
            id="swap",
        ),
        pytest.param(["ALTER TABLE t7.a ADD COLUMN n INTEGER", "ALTER TABLE t7.a ALTER n TYPE BIGINT"], id="promote"),
        pytest.param(["ALTER TABLE t7.a ALTER id DROP NOT NULL", "INSERT INTO t7.a (kind) VALUES ('y')"], id="null"),
        pytest.param(["CALL lake.merge_adjacent_files()"], id="merge"),
        pytest.param(["DELETE FROM t7.a WHERE id < 5", "CALL ducklake_rewrite_data_files('lake')"], id="rewrite"),
        pytest.param(
            ["CALL lake.merge_adjacent_files()", "DELETE FROM t7.a WHERE id IN (5, 15)", "UPDATE t7.a SET kind = 'z'"],
            id="merge and change",
        ),
    ],
)
def test_rows_arrive_as_the_source_reads_them(scene: Scene, changes: list[str]) -> None:
    scene.fill(0, 10, 20)
    scene.do(*changes)
    scene.do("INSERT INTO t7.a (id) VALUES (100)")
    snapshot = scene.source.newest_snapshot()
    scene.do("INSERT INTO t7.a (id) VALUES (101)", "DELETE FROM t7.a WHERE id = 19", "DELETE FROM t7.a WHERE id = 18")
    scene.do("CALL lake.merge_adjacent_files()")
    scene.run(snapshot)
    assert scene.assert_same(snapshot) > 10


def test_a_promoted_type_is_read_from_files_of_the_old_one(scene: Scene) -> None:
    scene.do("CREATE TABLE t7.p (n INTEGER, f FLOAT)", "INSERT INTO t7.p VALUES (1, 1.5), (NULL, 'nan'), (3, '-inf')")
    scene.do("ALTER TABLE t7.p ALTER n TYPE BIGINT", "ALTER TABLE t7.p ALTER f TYPE DOUBLE")
    scene.do("INSERT INTO t7.p VALUES (5000000000, 'nan')")
    scene.run()
    assert scene.assert_same() == 4


def test_nested_columns_follow_their_fields(scene: Scene) -> None:
    scene.do(
        "CREATE TABLE t7.n (s STRUCT(a INTEGER, b VARCHAR), l STRUCT(x INTEGER)[], m MAP(VARCHAR, STRUCT(y INTEGER)))",
        "INSERT INTO t7.n VALUES ({'a': 1, 'b': 'q'}, [{'x': 1}, NULL], MAP {'k': {'y': 1}}), (NULL, NULL, NULL)",
        "ALTER TABLE t7.n ADD COLUMN s.c INTEGER",
        "ALTER TABLE t7.n RENAME COLUMN s.a TO z",
        "INSERT INTO t7.n VALUES ({'z': 2, 'b': 'r', 'c': 5}, [], MAP {})",
        "ALTER TABLE t7.n DROP COLUMN s.b",
        "INSERT INTO t7.n VALUES ({'z': 3, 'c': 6}, [NULL], NULL)",
    )
    scene.run()
    assert scene.assert_same() == 4


def test_a_field_inside_a_list_or_a_map_may_be_new(scene: Scene) -> None:
    scene.do(
        "CREATE TABLE t7.n (id INTEGER, l STRUCT(x INTEGER)[], m MAP(VARCHAR, STRUCT(y INTEGER)))",
        "INSERT INTO t7.n VALUES (1, [{'x': 1}, NULL], MAP {'k': {'y': 1}, 'n': NULL}), (2, NULL, NULL)",
        "ALTER TABLE t7.n ADD COLUMN l.element.more VARCHAR",
        "ALTER TABLE t7.n RENAME COLUMN m.value.y TO z",
        "INSERT INTO t7.n VALUES (3, [{'x': 1, 'more': 'm'}], MAP {'k': {'z': 1}})",
    )
    scene.run()
    assert scene.assert_same() == 3


@pytest.mark.parametrize("merged", [False, True])
def test_partitioned_tables_stay_split(scene: Scene, merged: bool) -> None:
    scene.do("CREATE TABLE t7.p (id BIGINT, day DATE, tag VARCHAR)", "INSERT INTO t7.p VALUES (0, '2026-01-01', 'old')")
    scene.do("ALTER TABLE t7.p SET PARTITIONED BY (day, tag)")
    tags = ["plain", "a b", "x=y", "50%", "ü/ü"]
    for number, tag in enumerate(tags):
        scene.do(f"INSERT INTO t7.p VALUES ({number}, '2026-01-0{number + 1}', '{tag}'), ({number}, NULL, NULL)")
    if merged:
        scene.do("CALL lake.merge_adjacent_files()")
    scene.run()
    assert scene.assert_same() == 11
    assert [key.column for key in scene.target.table(TableId("t7", "p")).partition_by] == ["day", "tag"]
    with scene.target.cursor() as cursor:
        for tag in tags:
            assert cursor.execute("SELECT count(*) FROM t7.p WHERE tag = ?", [tag]).fetchone() == (1,)


def test_a_partition_that_no_folder_can_name_is_an_error_that_says_so(scene: Scene) -> None:
    scene.do("CREATE TABLE t7.p (id BIGINT, tag VARCHAR)", "ALTER TABLE t7.p SET PARTITIONED BY (tag)")
    scene.do("INSERT INTO t7.p VALUES (1, '{SNAPSHOT_ID}'), (2, 'plain')")
    with pytest.raises(InputError, match="text that DuckLake would replace or read as NULL"):
        scene.run()


def test_columns_may_be_called_like_what_duckdb_adds_to_files(scene: Scene) -> None:
    scene.do("CREATE TABLE t7.c (file_row_number BIGINT, filename VARCHAR, pos BIGINT)")
    scene.do("INSERT INTO t7.c SELECT 10 - i, 'f' || i, i FROM range(10) r(i)", "DELETE FROM t7.c WHERE pos IN (2, 3)")
    scene.run()
    assert scene.assert_same() == 8


def test_values_that_ducklake_would_garble_arrive(scene: Scene) -> None:
    scene.do(
        "CREATE TABLE t7.v (s VARCHAR, f DOUBLE)", "INSERT INTO t7.v VALUES ('{SNAPSHOT_ID}', 'nan'), (NULL, NULL)"
    )
    scene.run()
    assert scene.assert_same() == 2
    with scene.target.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM t7.v WHERE s = '{SNAPSHOT_ID}' AND f > 5").fetchone() == (1,)


@pytest.mark.parametrize("partition_by", [(), ("day",)])
def test_files_that_were_registered_are_known_by_their_names(scene: Scene, partition_by: tuple[str, ...]) -> None:
    columns = (Column(name="id", type="BIGINT"), Column(name="day", type="DATE"))
    table = TableId("t7", "r")
    keys = tuple(PartitionKey(column=name) for name in partition_by)
    create = CreateTable(table=table, columns=columns, partition_by=keys)
    scene.source.commit(Commit(message="create", changes=(create,)))
    paths = [
        write_parquet(
            scene.folder / "in" / f"day=2026-01-0{n}" / "f.parquet",
            f"SELECT i AS id, DATE '2026-01-0{n}' AS day FROM range(5) r(i)",
        )
        for n in (1, 2, 3)
    ]
    mode = Mode.REWRITE if partition_by else Mode.ADOPT
    deliverer(scene.source, scene.settings).run(ParquetFiles(paths, table), mode=mode)
    scene.run()
    assert (scene.assert_same(), scene.modes()) == (15, {"adopt": 3})
    scene.do("ALTER TABLE t7.r RENAME COLUMN id TO number", "ALTER TABLE t7.r ADD COLUMN id VARCHAR DEFAULT 'new'")
    with scene.target.cursor() as cursor:
        cursor.execute("DROP TABLE t7.r")
        cursor.execute("DROP TABLE t7.a")
    scene.run(token="m2")
    assert (scene.assert_same(), scene.modes()) == (15, {"adopt": 3, "rewrite": 3})


def test_tables_without_rows_keep_their_columns_order_and_defaults(scene: Scene) -> None:
    scene.do("CREATE TABLE t7.e (id BIGINT NOT NULL, moment TIMESTAMP, n INTEGER DEFAULT 5)")
    scene.do("ALTER TABLE t7.e SET SORTED BY (moment DESC NULLS LAST, id ASC NULLS FIRST)")
    report = scene.run()
    assert [str(each.table) for each in report.tables] == ["t7.a", "t7.e"]
    one, other = (lake.table(TableId("t7", "e")) for lake in (scene.source, scene.target))
    assert differences(one, other) == []
    assert (one.sort_by, len(one.sort_by)) == (other.sort_by, 2)
    assert scene.run().rows == 0


def _another(scene: Scene, definition: str) -> None:
    with scene.target.cursor() as cursor:
        cursor.execute("CREATE SCHEMA IF NOT EXISTS t7")
        cursor.execute(f"CREATE TABLE t7.a ({definition})")


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("id BIGINT NOT NULL", "'kind' is missing"),
        ("id INTEGER NOT NULL, kind VARCHAR DEFAULT 'none'", "'id' is INTEGER, not BIGINT"),
        ("id BIGINT, kind VARCHAR DEFAULT 'none'", "'id' may be NULL"),
        ("id BIGINT NOT NULL, kind VARCHAR", "'kind' has default NULL"),
        ("id BIGINT NOT NULL, kind VARCHAR DEFAULT 'none', x INTEGER", "'x' is unexpected"),
        ("kind VARCHAR DEFAULT 'none', id BIGINT NOT NULL", "another order"),
    ],
)
def test_a_table_of_another_shape_is_refused_before_anything_is_done(scene: Scene, definition: str, said: str) -> None:
    _another(scene, definition)
    scene.fill(0, 10)
    with pytest.raises(InputError, match=said):
        scene.backfill().plan("t7", scene.source.newest_snapshot(), "m1")


def test_a_table_that_has_rows_of_its_own_is_refused(scene: Scene) -> None:
    _another(scene, "id BIGINT NOT NULL, kind VARCHAR DEFAULT 'none'")
    scene.fill(0, 10)
    with scene.target.cursor() as cursor:
        cursor.execute("INSERT INTO t7.a VALUES (1, 'mine')")
    with pytest.raises(InputError, match="has 1 rows, of which this backfill delivered 0"):
        scene.run()


def test_tables_whose_rows_are_not_all_in_files_are_refused(scene: Scene) -> None:
    scene.fill(0, 10)
    scene.do("CALL lake.set_option('data_inlining_row_limit', 10, schema => 't7', table_name => 'a')")
    scene.do("INSERT INTO t7.a VALUES (100, 'inlined')")
    with pytest.raises(InputError, match="rows or deletions in the catalog itself"):
        scene.run()
    scene.do("CALL ducklake_flush_inlined_data('lake')", "CREATE VIEW t7.v AS SELECT * FROM t7.a")
    with pytest.raises(NotSupportedError, match=r"views.*: v\."):
        scene.run()
    scene.do("DROP VIEW t7.v")
    scene.run()
    assert scene.assert_same() == 11


def test_deletions_that_are_in_the_catalog_only_are_refused(scene: Scene) -> None:
    scene.fill(0, 10)
    scene.do("CALL lake.set_option('data_inlining_row_limit', 10, schema => 't7', table_name => 'a')")
    scene.do("DELETE FROM t7.a WHERE id = 4")
    with pytest.raises(InputError, match="deletions in the catalog itself"):
        scene.run()
    scene.do("CALL ducklake_flush_inlined_data('lake')")
    scene.run()
    assert scene.assert_same() == 9


def test_the_plan_says_what_would_be_done_and_does_nothing(scene: Scene) -> None:
    scene.fill(0, 10, 20, 30)
    scene.do("DELETE FROM t7.a WHERE id = 3")
    plan = scene.backfill().plan("t7", scene.source.newest_snapshot(), "m1")
    assert scene.target.find_table(A) is None
    assert "\n".join(plan.explain()).splitlines()[1:] == [
        "t7.a: to be created, 2 files to adopt if the columns match the table's, 1 to rewrite.",
        "t7.a: 1 file to rewrite: some of its rows are deleted.",
    ]
    assert plan.bytes == sum(unit.bytes for unit in plan.tables[0].units) > 0


def test_progress_grows_to_all_bytes(scene: Scene) -> None:
    scene.fill(0, 10, 20, 30)
    backfill = scene.backfill(units_per_commit_max=1)
    plan = backfill.plan("t7", scene.source.newest_snapshot(), "m1")
    heard: list[tuple[int, int]] = []
    backfill.run(plan, lambda done, total: heard.append((done, total)))
    assert heard == sorted(heard)
    assert (len(heard), heard[-1]) == (3, (plan.bytes, plan.bytes))


class _CrashError(Exception):
    """What a test makes happen."""


def _crash() -> None:
    raise _CrashError


@pytest.mark.parametrize(
    "point",
    [
        "deliver.before_write",
        "deliver.after_write",
        "deliver.after_place",
        "deliver.before_commit",
        "deliver.after_commit",
        "retire.before_unit",
        "retire.after_unit",
    ],
)
# The second time it is in the middle of its work, the first time at its beginning.
@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_run_that_was_stopped_is_finished_by_the_next(scene: Scene, point: str, times: int) -> None:
    scene.fill(0, 10, 20, 30, 40)
    scene.do("DELETE FROM t7.a WHERE id = 3", "CREATE TABLE t7.b AS SELECT 1 AS n")
    snapshot = scene.source.newest_snapshot()
    left = [times]

    def crash() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise _CrashError

    backfill = scene.backfill(units_per_commit_max=1)
    plan = backfill.plan("t7", snapshot, "m1")
    with faults.armed(point, crash), pytest.raises(_CrashError):
        backfill.run(plan)
    before = scene.modes()
    report = scene.run(snapshot)
    assert sum(table.copied for table in report.tables) == 5 - sum(before.values())
    assert scene.assert_same(snapshot) == 40


def test_a_run_that_was_stopped_before_its_marks_copies_nothing_again(scene: Scene) -> None:
    scene.fill(0, 10, 20)
    backfill = scene.backfill()
    plan = backfill.plan("t7", scene.source.newest_snapshot(), "m1")
    with faults.armed("deliver.before_clean", _crash), pytest.raises(_CrashError):
        backfill.run(plan)
    assert not backfill.plan("t7", plan.snapshot, "m1").is_complete
    assert (backfill.run(plan).rows, scene.assert_same()) == (0, 20)
    assert backfill.plan("t7", plan.snapshot, "m1").is_complete


def test_files_that_are_merged_between_two_runs_bring_no_row_twice(scene: Scene) -> None:
    scene.fill(0, 10, 20, 30, 40)
    snapshot = scene.source.newest_snapshot()
    backfill = scene.backfill(units_per_commit_max=2)
    plan = backfill.plan("t7", snapshot, "m1")
    with faults.armed("deliver.after_commit", once(_crash)), pytest.raises(_CrashError):
        backfill.run(plan)
    scene.fill(40, 50)
    scene.do("CALL lake.merge_adjacent_files()")
    plan = backfill.plan("t7", snapshot, "m1")
    assert plan.tables[0].is_stale
    assert "created again" in "\n".join(plan.explain())
    scene.run(snapshot)
    assert scene.assert_same(snapshot) == 40


def test_a_table_that_is_complete_stays_so_whatever_the_source_merges(scene: Scene) -> None:
    scene.fill(0, 10, 20)
    snapshot = scene.source.newest_snapshot()
    scene.run(snapshot)
    with scene.target.cursor() as cursor:
        cursor.execute("INSERT INTO t7.a VALUES (100, 'shipped since')")
        uuid = scene.target.table(A).uuid
        scene.fill(20, 30)
        scene.do("CALL lake.merge_adjacent_files()")
        assert scene.backfill().plan("t7", snapshot, "m1").is_complete
        scene.run(snapshot)
        assert cursor.execute("SELECT count(*) FROM t7.a").fetchone() == (21,)
    assert scene.target.table(A).uuid == uuid


def test_a_run_that_another_process_took_over_is_fenced(scene: Scene) -> None:
    scene.fill(0, 10, 20)
    snapshot = scene.source.newest_snapshot()

    def overtake() -> None:
        scene.do("CALL lake.merge_adjacent_files()")
        scene.run(snapshot)

    scene.fill(20, 30)
    backfill = scene.backfill()
    plan = backfill.plan("t7", snapshot, "m1")
    with faults.armed("deliver.after_place", once(overtake)), pytest.raises(FencedError):
        backfill.run(plan)
    assert scene.assert_same(snapshot) == 20
    assert backfill.run(plan).rows == 0
    assert scene.assert_same(snapshot) == 20


def test_a_run_that_is_overtaken_before_it_delivers_is_fenced(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.fill(0, 10, 20)
    snapshot = scene.source.newest_snapshot()
    scene.fill(20, 30)
    slow = deliverer(scene.target, scene.settings)

    def overtake() -> None:
        scene.do("CALL lake.merge_adjacent_files()")
        scene.run(snapshot)

    first, planned = once(overtake), slow.plan_units

    def plan_units(*given: Any, **named: Any) -> Plan:
        first()
        return planned(*given, **named)

    monkeypatch.setattr(slow, "plan_units", plan_units)
    backfill = Backfill(scene.source, slow)
    plan = backfill.plan("t7", snapshot, "m1")
    with pytest.raises(FencedError):
        backfill.run(plan)
    assert scene.assert_same(snapshot) == 20


def test_a_snapshot_that_has_expired_is_refused(scene: Scene) -> None:
    scene.fill(0, 10, 20)
    snapshot = scene.source.newest_snapshot()
    scene.fill(20, 30)
    maintain(scene.source, NOW)
    with pytest.raises(InputError, match=f"no snapshot {snapshot} any more"):
        scene.run(snapshot)
    assert scene.target.find_table(A) is None


def test_files_that_go_while_it_runs_are_an_error_and_nothing_counts_as_complete(scene: Scene) -> None:
    scene.fill(0, 10, 20)
    scene.do("DELETE FROM t7.a WHERE id = 15")
    snapshot = scene.source.newest_snapshot()
    scene.do("DROP TABLE t7.a", "CREATE TABLE t7.other (x INTEGER)")

    def lose() -> None:
        # The first time expires the snapshot, the second deletes its files.
        maintain(scene.source, NOW)
        maintain(scene.source, NOW)

    backfill = scene.backfill(units_per_commit_max=1)
    plan = backfill.plan("t7", snapshot, "m1")
    with (
        faults.armed("deliver.after_commit", once(lose)),
        pytest.raises(InputError, match=f"Snapshot {snapshot} has expired. 1 file could not be copied"),
    ):
        backfill.run(plan)
    with scene.target.ledger() as ledger:
        assert [each.rows for each in ledger.deliveries(ProducerId("tenant", "t7.a", "m1"))] == [10]


def test_a_damaged_file_is_an_error_that_names_it(scene: Scene) -> None:
    scene.fill(0, 10, 20)
    plan = scene.backfill().plan("t7", scene.source.newest_snapshot(), "m1")
    path = plan.tables[0].units[0].source
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[:-1])
    with pytest.raises(InputError, match=path):
        scene.run()
    Path(path).write_bytes(content)
    assert sum(table.copied for table in scene.run().tables) == 1
    assert scene.assert_same() == 20


def test_a_lake_is_not_filled_from_itself(scene: Scene) -> None:
    with pytest.raises(InputError, match="the same lake"):
        Backfill(scene.source, deliverer(scene.source, scene.settings))


def test_two_backfills_at_two_snapshots_are_two(scene: Scene) -> None:
    scene.fill(0, 10)
    scene.run(token="m1")
    scene.fill(10, 20)
    with scene.target.cursor() as cursor:
        cursor.execute("DROP SCHEMA t7 CASCADE")
    scene.run(token="m2")
    assert scene.assert_same() == 20


def _table(**changes: object) -> Table:
    known: dict[str, object] = {"id": A, "uuid": "1", "folder": "/", "columns": (Column(name="a", type="BIGINT"),)}
    return Table(**{**known, **changes})  # type: ignore[arg-type]


def test_tables_that_differ_in_name_and_place_only_are_the_same() -> None:
    assert differences(_table(), _table(uuid="2", folder="/x", columns=(Column(name="A", type="INT8"),))) == []
