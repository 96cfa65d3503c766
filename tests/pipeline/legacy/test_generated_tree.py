"""Generated legacy trees keep their promises, and DuckDB reports views whose files have moved."""

import glob
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from tests.pipeline.legacy.generated_tree import (
    KEYS,
    NULL_SEGMENT,
    TABLE_KEY,
    LegacyHome,
    LegacyLeaf,
    LegacyTable,
    Odd,
    TreeShape,
    make_legacy_home,
    snapshot_tree,
)

TRAIL = LegacyTable(name="aws_cloudtrail_log", leaves=13, files_per_leaf=2, rows_per_file=30)
ACCESS = LegacyTable(name="nginx_access_log", shape=TreeShape.ACCESS_LOG)
HIVE = f"hive_partitioning = true, hive_types = {{{', '.join(f'{key}: VARCHAR' for key in (TABLE_KEY, *KEYS))}}}"
COLUMNS = (
    "SELECT column_name, data_type FROM duckdb_columns() WHERE NOT internal AND table_name = ? ORDER BY column_index"
)


def made(home: Path, *odd: Odd, tables: tuple[LegacyTable, ...] = (TRAIL, ACCESS), seed: int = 0) -> LegacyHome:
    return make_legacy_home(home, tables=tables, seed=seed, odd=frozenset(odd))


def leaves_with(home: LegacyHome, odd: Odd) -> list[LegacyLeaf]:
    return [leaf for leaf in home.leaves if leaf.odd is odd]


def query(statement: str, *values: object, database: Path | None = None) -> list[tuple[object, ...]]:
    """What a connection that may not write says."""
    target, read_only = (":memory:", False) if database is None else (str(database), True)
    with duckdb.connect(target, read_only=read_only) as connection:
        return connection.execute(statement, values).fetchall()


def columns_of(database: Path, view: str) -> dict[str, str]:
    return {str(column): str(type_) for column, type_ in query(COLUMNS, view, database=database)}


def read(home: LegacyHome, leaf: LegacyLeaf, columns: str, name: str = "") -> list[tuple[object, ...]]:
    paths = [glob.escape(str(home.data / leaf.path / file)) for file in leaf.files if name in ("", file)]
    return query(f"SELECT {columns} FROM read_parquet(?, {HIVE}, union_by_name = true)", paths)


def types(home: LegacyHome, leaf: LegacyLeaf, name: str) -> dict[str, str]:
    path = glob.escape(str(home.data / leaf.path / name))
    described = query(f"DESCRIBE SELECT * FROM read_parquet('{path}', hive_partitioning = false)")
    return {str(column): str(type_) for column, type_, *_ in described}


def test_a_home_contains_the_leaves_files_and_rows_it_declares(tmp_path: Path) -> None:
    home = made(tmp_path)
    assert [home.rows(table.name) for table in home.tables] == [13 * 2 * 30, 4 * 50]
    for leaf in home.leaves:
        assert sorted(leaf.files) == sorted(path.name for path in (home.data / leaf.path).iterdir())
        assert read(home, leaf, "count(*)") == [(leaf.rows,)]
    for table in home.tables:
        seen = query(f"SELECT count(*), count(DISTINCT tp_id) FROM {table.name}", database=home.database)
        assert seen == [(home.rows(table.name), home.rows(table.name))]
    assert not home.places


def test_hive_keys_are_in_the_folders_only_and_timestamps_lie_in_their_day(tmp_path: Path) -> None:
    home = made(tmp_path)
    for leaf in home.leaves:
        names = pq.read_schema(home.data / leaf.path / leaf.files[0]).names
        assert not {TABLE_KEY, *KEYS} & set(names)
        assert 12 <= len(names) <= 16
    for table in home.tables:
        strays = f"SELECT count(*) FROM {table.name} WHERE tp_timestamp::DATE <> tp_date OR tp_table <> '{table.name}'"
        assert query(strays, database=home.database) == [(0,)]


def test_the_workspace_level_can_be_left_out(tmp_path: Path) -> None:
    assert made(tmp_path / "with").database == tmp_path / "with/data/default/tailpipe.db"
    without = make_legacy_home(tmp_path / "without", tables=(ACCESS,), workspace="")
    assert without.database == tmp_path / "without/data/tailpipe.db"
    assert without.database.exists()


def test_the_same_seed_gives_the_same_files_and_another_seed_others(tmp_path: Path) -> None:
    every = frozenset(Odd)

    def parquet(name: str, seed: int) -> dict[str, tuple[int, str]]:
        home = made(tmp_path / name, *every, seed=seed)
        # The views name the folder they look at, so that databases of two homes differ.
        return {path: seen for path, seen in snapshot_tree(home.data).items() if not path.startswith("tailpipe.db")}

    first = parquet("first", 7)
    assert first == parquet("again", 7)
    other = parquet("other", 8)
    assert len(other) == len(first)
    assert not {seen for path, seen in first.items() if path.endswith("0.parquet")} & set(other.values())


def test_every_oddity_is_generated_only_on_request(tmp_path: Path) -> None:
    for odd in Odd:
        home = made(tmp_path / odd, odd, tables=(ACCESS,))
        assert set(home.places) == {odd}
        assert {leaf.odd for leaf in home.leaves} <= {None, odd}
        assert home.rows(ACCESS.name, without=frozenset({odd})) == 200


def test_all_oddities_fit_into_one_home_and_every_file_is_accounted_for(tmp_path: Path) -> None:
    home = made(tmp_path, *Odd)
    assert set(home.places) == set(Odd)
    named = {f"{leaf.path}/{name}" for leaf in home.leaves for name in (*leaf.files, *leaf.unreadable, *leaf.leftovers)}
    named |= {"tailpipe.db", "tailpipe.db.wal", *home.places[Odd.WRONG_DEPTH]}
    assert named == {path for path in snapshot_tree(home.data) if not path.endswith("/")}


def test_duckdb_decodes_the_values_as_the_leaf_says(tmp_path: Path) -> None:
    home = made(tmp_path, Odd.LEADING_ZEROS, Odd.ENCODED_VALUES, Odd.NULL_VALUES, Odd.STRANGE_NAMES)
    for leaf in home.leaves:
        assert read(home, leaf, f"DISTINCT {', '.join(KEYS)}") == [leaf.values]
    assert leaves_with(home, Odd.LEADING_ZEROS)[0].values[1] == "000123456789"
    paths = [leaf.path for leaf in leaves_with(home, Odd.ENCODED_VALUES)]
    assert any("%2F" in path for path in paths)
    assert any("tp_partition=team a & b/tp_index=it's ü+1/" in path for path in paths)
    assert [NULL_SEGMENT in leaf.path for leaf in leaves_with(home, Odd.NULL_VALUES)] == [True, True]


@pytest.mark.parametrize("table", [TRAIL, ACCESS], ids=lambda table: table.name)
def test_files_drift_in_the_way_the_oddity_says(tmp_path: Path, table: LegacyTable) -> None:
    drifts = (Odd.MISSING_COLUMN, Odd.EXTRA_COLUMN, Odd.WIDER_NUMBER, Odd.WIDER_ITEMS, Odd.OTHER_ORDER, Odd.CONFLICT)
    home = made(tmp_path, *drifts, tables=(table,))
    found: dict[Odd, set[tuple[str | None, str | None]]] = {}
    for odd in drifts:
        (leaf,) = leaves_with(home, odd)
        before, after = (types(home, leaf, name) for name in leaf.files)
        found[odd] = {
            (before.get(column), after.get(column))
            for column in before | after
            if before.get(column) != after.get(column)
        }
        if odd is Odd.OTHER_ORDER:
            assert list(after) == list(before)[::-1]
    assert found[Odd.MISSING_COLUMN] == {("VARCHAR[]", None)}
    assert found[Odd.EXTRA_COLUMN] == {(None, "VARCHAR[]")}
    assert found[Odd.WIDER_NUMBER] == {("INTEGER", "BIGINT")}
    ((fewer, more),) = found[Odd.WIDER_ITEMS]
    assert fewer is not None
    assert more == fewer.replace(")[]", ", note VARCHAR)[]")
    assert found[Odd.OTHER_ORDER] == set()
    assert found[Odd.CONFLICT] == {("VARCHAR", "STRUCT(code INTEGER, message VARCHAR)")}


def test_hostile_values_include_placeholders_quotes_line_ends_and_nan(tmp_path: Path) -> None:
    home = made(tmp_path, Odd.HOSTILE_VALUES)
    (leaf,) = leaves_with(home, Odd.HOSTILE_VALUES)
    texts = {text for (text,) in read(home, leaf, "error_message", "data_1.parquet")}
    assert {"{SNAPSHOT_ID}", 'it\'s "quoted"', "two\nlines\r\n", "", None} <= texts
    odd_numbers = "count(*) FILTER (isnan(duration_ms)) > 0, count(*) FILTER (isinf(duration_ms)) > 0"
    assert read(home, leaf, odd_numbers, "data_1.parquet") == [(True, True)]


@pytest.mark.parametrize("odd", [Odd.TRUNCATED_FILE, Odd.ZERO_BYTE_FILE, Odd.GARBAGE_FILE])
def test_a_file_that_is_not_parquet_is_beside_a_good_one(tmp_path: Path, odd: Odd) -> None:
    home = made(tmp_path, odd)
    (leaf,) = leaves_with(home, odd)
    assert read(home, leaf, "count(*)") == [(leaf.rows,)]
    with pytest.raises(duckdb.Error):
        query("SELECT * FROM read_parquet(?)", str(home.data / leaf.path / leaf.unreadable[0]))


def test_leaves_may_be_empty_crumbled_without_rows_or_full_of_leftovers(tmp_path: Path) -> None:
    home = made(tmp_path, Odd.EMPTY_LEAF, Odd.CRUMBS, Odd.ZERO_ROWS, Odd.LEFTOVERS)
    empty, rowless, leftovers, crumbs = (
        leaves_with(home, odd)[0] for odd in (Odd.EMPTY_LEAF, Odd.ZERO_ROWS, Odd.LEFTOVERS, Odd.CRUMBS)
    )
    assert list((home.data / empty.path).iterdir()) == []
    assert read(home, rowless, "count(*)", "data_1.parquet") == [(0,)]
    assert {Path(name).suffix for name in leftovers.leftovers} == {".tmp", ".invalid", ".compacted"}
    assert (len(crumbs.files), crumbs.rows) == (40, 120)


def test_a_name_with_brackets_is_its_neighbours_pattern_unless_it_is_escaped(tmp_path: Path) -> None:
    home = made(tmp_path, Odd.STRANGE_NAMES)
    (leaf,) = leaves_with(home, Odd.STRANGE_NAMES)
    bracketed = str(home.data / leaf.path / "part[1].parquet")
    opened = "SELECT DISTINCT parse_filename(file_name) FROM parquet_metadata(?)"
    assert query(opened, bracketed) == [("part1.parquet",)]
    assert query(opened, glob.escape(bracketed)) == [("part[1].parquet",)]


def test_tables_without_views_and_views_without_data_are_distinguished(tmp_path: Path) -> None:
    home = made(tmp_path, Odd.TABLE_WITHOUT_VIEW, Odd.VIEW_WITHOUT_DATA)
    folders = {path.name.removeprefix(f"{TABLE_KEY}=") for path in home.data.glob(f"{TABLE_KEY}=*")}
    views = {
        name for (name,) in query("SELECT view_name FROM duckdb_views() WHERE NOT internal", database=home.database)
    }
    assert views == set(home.views)
    assert folders - views == {leaf.table for leaf in leaves_with(home, Odd.TABLE_WITHOUT_VIEW)}
    assert views - folders == set(home.places[Odd.VIEW_WITHOUT_DATA])


def test_a_snapshot_sees_content_names_and_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"one")
    before = snapshot_tree(tmp_path)
    assert before["empty/"] == (0, "")
    assert before["file"][0] == 3

    def differs(change: Callable[[], object]) -> bool:
        change()
        return snapshot_tree(tmp_path) != before

    assert not differs(lambda: (tmp_path / "file").touch())
    assert differs(lambda: (tmp_path / "file").write_bytes(b"two"))
    (tmp_path / "file").write_bytes(b"one")
    assert not differs(lambda: None)
    assert differs(lambda: (tmp_path / "empty").rmdir())


class TestViewsWhoseFilesHaveMoved:
    """The catalog keeps a view's columns without looking at its files."""

    def moved(self, folder: Path, *odd: Odd) -> Path:
        home = made(folder / "before", *odd)
        (folder / "before").rename(folder / "after")
        return folder / "after" / home.database.relative_to(home.home)

    def test_the_catalog_gives_names_and_types_hive_keys_included_and_no_rowid(self, tmp_path: Path) -> None:
        database = self.moved(tmp_path)
        columns = columns_of(database, TRAIL.name)
        assert list(columns.items())[:2] == [("tp_id", "VARCHAR"), ("tp_timestamp", "TIMESTAMP")]
        assert list(columns.items())[-4:] == [
            (TABLE_KEY, "VARCHAR"),
            ("tp_partition", "VARCHAR"),
            ("tp_index", "VARCHAR"),
            ("tp_date", "DATE"),
        ]
        assert columns["resources"] == 'STRUCT(arn VARCHAR, "type" VARCHAR)[]'
        assert columns["user_identity"].startswith('STRUCT("type" VARCHAR, account_id VARCHAR, "session" STRUCT(')
        assert columns["request_parameters"] == "JSON"
        assert "rowid" not in columns

    @pytest.mark.parametrize(
        "statement",
        [
            f"SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{TRAIL.name}' "
            "ORDER BY ordinal_position",
            f"SELECT unnest(column_names), unnest(column_types) FROM (SHOW ALL TABLES) WHERE name = '{TRAIL.name}'",
        ],
    )
    def test_other_catalog_queries_say_the_same(self, tmp_path: Path, statement: str) -> None:
        database = self.moved(tmp_path)
        assert query(statement, database=database) == query(COLUMNS, TRAIL.name, database=database)

    @pytest.mark.parametrize(
        "statement", ["PRAGMA table_info({})", "DESCRIBE {}", "SHOW {}", "SELECT * FROM {} LIMIT 0"]
    )
    def test_what_binds_the_view_fails(self, tmp_path: Path, statement: str) -> None:
        database = self.moved(tmp_path)
        with pytest.raises(duckdb.IOException, match="No files found"):
            query(statement.format(f"'{TRAIL.name}'" if "PRAGMA" in statement else TRAIL.name), database=database)

    def test_a_view_keeps_its_columns_when_its_data_is_gone(self, tmp_path: Path) -> None:
        database = self.moved(tmp_path, Odd.VIEW_WITHOUT_DATA)
        columns = query(COLUMNS, "forgotten_log", database=database)
        assert columns == query(COLUMNS, TRAIL.name, database=database)

    def test_a_guessed_index_of_digits_is_a_number_in_the_view(self, tmp_path: Path) -> None:
        database = self.moved(tmp_path, Odd.GUESSED_KEYS)
        assert columns_of(database, TRAIL.name)["tp_index"] == "BIGINT"
        assert columns_of(database, ACCESS.name)["tp_index"] == "VARCHAR"
        assert columns_of(database, TRAIL.name)["tp_date"] == "DATE"

    def test_reading_takes_views_from_the_log_and_changes_no_byte_in_a_folder_without_write_permission(
        self, tmp_path: Path
    ) -> None:
        database = self.moved(tmp_path, Odd.WAL)
        log = database.with_name("tailpipe.db.wal")
        before = snapshot_tree(database.parent)
        for path, mode in ((database, 0o444), (log, 0o444), (database.parent, 0o555)):
            path.chmod(mode)
        try:
            assert len(query(COLUMNS, ACCESS.name, database=database)) == 19
            assert query(COLUMNS, TRAIL.name, database=database)
        finally:
            database.parent.chmod(0o755)
        assert snapshot_tree(database.parent) == before

    @pytest.mark.parametrize("content", [None, b"", b"torn"], ids=["lost", "empty", "torn"])
    def test_a_log_that_is_lost_or_torn_takes_its_views_along_without_a_word(
        self, tmp_path: Path, content: bytes | None
    ) -> None:
        database = self.moved(tmp_path, Odd.WAL)
        log = database.with_name("tailpipe.db.wal")
        if content is None:
            log.unlink()
        else:
            log.write_bytes(content and log.read_bytes()[:-7])
        assert query(COLUMNS, ACCESS.name, database=database) == []
        assert query(COLUMNS, TRAIL.name, database=database)
