"""Reading a tree from its folder names: leaves and their values, and strays."""

from pathlib import Path

import pytest

from catchment.pipeline.legacy.tree import NULL_VALUE, TAILPIPE_KEYS, Leaf, Tree, tables_of, walk

KEYS = tuple(key.name for key in TAILPIPE_KEYS)
LEAF = "tp_table=log/tp_partition=p/tp_index=i/tp_date=2024-01-01"


def _put(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(path.name))


def _walk(root: Path) -> Tree:
    return walk(root, keys=KEYS)


def _values(leaf: str, tmp_path: Path) -> tuple[str | None, ...]:
    _put(tmp_path, f"{leaf}/a.parquet")
    (found,) = _walk(tmp_path).leaves
    assert found.path == leaf
    return found.values


def test_a_folder_with_parquet_files_at_the_depth_of_the_keys_is_a_leaf(tmp_path: Path) -> None:
    _put(tmp_path, f"{LEAF}/b.parquet", f"{LEAF}/a.parquet", "tailpipe.db", "tailpipe.db.wal")
    tree = _walk(tmp_path)
    (leaf,) = tree.leaves
    assert (leaf.table, leaf.path, leaf.keys) == ("log", LEAF, KEYS)
    assert leaf.values == ("p", "i", "2024-01-01")
    assert [each.name for each in leaf.files] == ["a.parquet", "b.parquet"]
    assert leaf.bytes == 18
    assert leaf.files[0].modified_ns == (tmp_path / LEAF / "a.parquet").stat().st_mtime_ns
    assert (tree.empty, tree.strays) == ((), ())


@pytest.mark.parametrize(
    ("segment", "value"),
    [
        ("000123", "000123"),
        ("a%2Fb", "a/b"),
        ("%252F", "%2F"),
        ("a=b", "a=b"),
        ("a%3Db", "a=b"),
        ("x+y", "x+y"),
        ("a b", "a b"),
        ("%C3%BCber", "über"),
        ("", ""),
        (NULL_VALUE, None),
        # As DuckDB reads them, whose folders these are.
        ("null", None),
        ("NULL", None),
        ("%4EULL", "NULL"),
        ("nullable", "nullable"),
    ],
)
def test_a_value_is_decoded_as_duckdb_does(segment: str, value: str | None, tmp_path: Path) -> None:
    leaf = f"tp_table=log/tp_partition=p/tp_index={segment}/tp_date=2024-01-01"
    assert _values(leaf, tmp_path) == ("p", value, "2024-01-01")


@pytest.mark.parametrize("name", ["x.parquet.tmp", "x.parquet.invalid", "x.parquet.compacted", "notes"])
def test_a_leftover_in_a_leaf_is_a_stray(name: str, tmp_path: Path) -> None:
    _put(tmp_path, f"{LEAF}/snap_1.parquet", f"{LEAF}/{name}")
    tree = _walk(tmp_path)
    assert [each.name for each in tree.leaves[0].files] == ["snap_1.parquet"]
    (stray,) = tree.strays
    assert (stray.path, stray.bytes) == (f"{LEAF}/{name}", len(name))
    assert "leftover" in stray.reason


def test_the_ending_of_a_parquet_file_may_be_written_in_capitals(tmp_path: Path) -> None:
    _put(tmp_path, f"{LEAF}/a.parquet", f"{LEAF}/B.PARQUET")
    tree = _walk(tmp_path)
    assert [each.name for each in tree.leaves[0].files] == ["B.PARQUET", "a.parquet"]
    assert tree.strays == ()


@pytest.mark.parametrize(
    ("there", "files", "is_doubtful"),
    [
        # Killed before it renamed anything: the copy is worth nothing.
        (["a.parquet", "b.parquet", "snap_2.parquet.tmp"], ["a.parquet", "b.parquet"], False),
        # Killed between the renames: the rows are in what it renamed, and in what it did not.
        (["a.parquet.compacted", "b.parquet", "snap_2.parquet.tmp"], ["a.parquet.compacted", "b.parquet"], False),
        (["a.parquet.compacted", "snap_1.parquet.compacted", "snap_2.parquet.tmp"],
         ["a.parquet.compacted", "snap_1.parquet.compacted"], False),
        (["a.parquet.compacted", "b.parquet.compacted"], ["a.parquet.compacted", "b.parquet.compacted"], False),
        # Killed before it deleted: all rows are in the copy.
        (["a.parquet.compacted", "b.parquet.compacted", "snap_2.parquet"], ["snap_2.parquet"], False),
        (["a.parquet.compacted", "c.parquet", "snap_2.parquet"], ["c.parquet", "snap_2.parquet"], False),
        # The file snap_1 is what it compacts, or the copy of an earlier one that was cut off.
        (["a.parquet.compacted", "snap_1.parquet", "snap_2.parquet.tmp"], ["snap_1.parquet"], True),
    ],
)  # fmt: skip
def test_the_rows_of_an_interrupted_compaction_are_found(
    there: list[str], files: list[str], is_doubtful: bool, tmp_path: Path
) -> None:
    _put(tmp_path, *(f"{LEAF}/{name}" for name in there))
    (leaf,) = _walk(tmp_path).leaves
    assert [each.name for each in leaf.files] == files
    assert (leaf.doubt is not None) == is_doubtful


def test_a_tree_of_another_program_knows_no_compaction(tmp_path: Path) -> None:
    _put(tmp_path, "day=1/a.parquet.compacted", "day=1/b.parquet")
    (leaf,) = walk(tmp_path, keys=("day",), table="sales").leaves
    assert [each.name for each in leaf.files] == ["b.parquet"]


def test_a_tree_may_lie_in_folders_of_workspaces_beside_the_database(tmp_path: Path) -> None:
    _put(tmp_path, f"default/{LEAF}/a.parquet", f"other/{LEAF}/a.parquet", "other/tailpipe.db", f"x=1/{LEAF}/a.parquet")
    tree = walk(tmp_path, keys=KEYS, workspaces=True)
    assert [(leaf.path, leaf.table, leaf.values) for leaf in tree.leaves] == [
        (f"default/{LEAF}", "log", ("p", "i", "2024-01-01"))
    ]
    assert {stray.path for stray in tree.strays} == {
        f"other/{LEAF}/a.parquet",
        "other/tailpipe.db",
        f"x=1/{LEAF}/a.parquet",
    }
    assert [stray.path for stray in tree.of([]).strays if "view" in stray.reason] == ["default/tp_table=log"]


@pytest.mark.parametrize(
    "path",
    [
        "a.parquet",
        "tp_table=log/a.parquet",
        "tp_table=log/tp_partition=p/tp_index=i/a.parquet",
        f"{LEAF}/deeper/a.parquet",
        "tp_table=log/tp_index=i/tp_partition=p/tp_date=2024-01-01/a.parquet",
        "tp_table=log/tp_partition=p/tp_index=i/day=2024-01-01/a.parquet",
        "tp_table=log/tp_partition/tp_index=i/tp_date=2024-01-01/a.parquet",
        "tp_table=log/tailpipe.db",
        "default/tailpipe.db",
    ],
)
def test_a_file_in_no_leaf_is_a_stray(path: str, tmp_path: Path) -> None:
    _put(tmp_path, path)
    tree = _walk(tmp_path)
    assert tree.leaves == ()
    assert [(stray.path, stray.reason) for stray in tree.strays] == [(path, "it is in no leaf")]


def test_a_leaf_without_parquet_files_is_empty(tmp_path: Path) -> None:
    (tmp_path / LEAF).mkdir(parents=True)
    other = LEAF.replace("=i", "=j")
    _put(tmp_path, f"{other}/x.tmp")
    tree = _walk(tmp_path)
    assert (tree.leaves, tree.empty) == ((), (LEAF, other))
    assert [stray.path for stray in tree.strays] == [f"{other}/x.tmp"]


def test_a_link_to_a_folder_is_a_stray_and_one_to_a_file_is_a_file(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    _put(tmp_path, "elsewhere/a.parquet", f"tree/{LEAF}/a.parquet")
    linked = LEAF.replace("=i", "=j")
    (root / linked).parent.mkdir(parents=True)
    (root / linked).symlink_to(tmp_path / "elsewhere")
    (root / LEAF / "b.parquet").symlink_to(tmp_path / "elsewhere" / "a.parquet")
    tree = _walk(root)
    assert [(leaf.path, len(leaf.files)) for leaf in tree.leaves] == [(LEAF, 2)]
    assert [(stray.path, stray.reason) for stray in tree.strays] == [(linked, "a link to a folder")]


def test_tables_that_nothing_describes_become_strays(tmp_path: Path) -> None:
    other = LEAF.replace("=log", "=other")
    _put(tmp_path, f"{LEAF}/a.parquet", f"{other}/a.parquet", f"{other.replace('=i', '=j')}/a.parquet")
    tree = _walk(tmp_path).of(["log", "nothing there"])
    assert [leaf.table for leaf in tree.leaves] == ["log"]
    assert [(stray.path, stray.bytes) for stray in tree.strays] == [("tp_table=other", 18)]
    assert "no view" in tree.strays[0].reason


def test_a_tree_of_one_table_starts_with_its_first_key(tmp_path: Path) -> None:
    _put(tmp_path, "year=2024/shop=7/x.parquet", "year=2025/shop=8/x.parquet", "tp_table=log/year=1/x.parquet")
    tree = walk(tmp_path, keys=("year", "shop"), table="sales")
    assert [(leaf.table, leaf.values) for leaf in tree.leaves] == [("sales", ("2024", "7")), ("sales", ("2025", "8"))]
    assert [stray.path for stray in tree.strays] == ["tp_table=log/year=1/x.parquet"]


def test_leaves_come_by_table_and_in_order(tmp_path: Path) -> None:
    for table in ("b", "a"):
        for day in (2, 1):
            _put(tmp_path, f"tp_table={table}/tp_partition=p/tp_index=i/tp_date=2024-01-0{day}/x.parquet")
    found: dict[str, list[Leaf]] = tables_of(reversed(_walk(tmp_path).leaves))
    assert list(found) == ["a", "b"]
    assert _walk(tmp_path).leaves == tuple(sorted(_walk(tmp_path).leaves, key=lambda leaf: leaf.path))
