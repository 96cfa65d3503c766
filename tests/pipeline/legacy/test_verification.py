"""Verification of a legacy import names every leaf that was changed in the lake or backup."""

import os
from pathlib import Path

import pytest

from catchment.errors import InputError
from catchment.foundation import faults
from catchment.pipeline.legacy.import_plan import ImportOptions
from tests.pipeline.legacy.generated_tree import LegacyLeaf, LegacyTable, Odd
from tests.pipeline.legacy.legacy_home import ADOPT_ALL, ADOPT_NOTHING, LOG, CutError, MakeScene, clean_leaf, cut_off
from tests.sample_events import once


def _of(leaf: LegacyLeaf) -> str:
    partition, index, day = leaf.values
    return f"tp_partition = '{partition}' AND tp_index = '{index}' AND tp_date = '{day}'"


TAMPERING = {
    "a row is deleted": "DELETE FROM {log} WHERE tp_id = (SELECT min(tp_id) FROM {log} WHERE {leaf})",
    "a row is doubled": "INSERT INTO {log} SELECT * FROM {log} WHERE {leaf} LIMIT 1",
    "a text is changed": "UPDATE {log} SET event_name = 'Forged' WHERE "
    "tp_id = (SELECT min(tp_id) FROM {log} WHERE {leaf})",
    "a value becomes NULL": "UPDATE {log} SET user_identity = NULL WHERE "
    "tp_id = (SELECT min(tp_id) FROM {log} WHERE {leaf})",
    "a list inside is changed": "UPDATE {log} SET tp_akas = ['x'] WHERE "
    "tp_id = (SELECT min(tp_id) FROM {log} WHERE {leaf})",
    "all rows are deleted": "DELETE FROM {log} WHERE {leaf}",
}


@pytest.mark.parametrize("what", TAMPERING)
def test_a_change_in_the_lake_is_found_and_its_leaf_is_named(what: str, make: MakeScene) -> None:
    scene = make()
    assert scene.job(adopt_bytes_min=ADOPT_ALL).run().ok
    leaf = clean_leaf(scene)
    scene.execute(TAMPERING[what].format(log=LOG, leaf=_of(leaf)))
    proof = scene.job().verify()
    assert {(each.table, each.leaf) for each in proof.mismatches} == {(f"main.{LOG}", leaf.path)}
    assert "the lake has" in proof.mismatches[0].reason


def test_a_row_that_moved_to_another_leaf_is_missed_in_both(make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    one, other = scene.home.leaves
    scene.execute(
        f"UPDATE {LOG} SET tp_partition = '{other.values[0]}', tp_index = '{other.values[1]}' "
        f"WHERE tp_id = (SELECT min(tp_id) FROM {LOG} WHERE {_of(one)})"
    )
    assert {each.leaf for each in scene.job().verify().mismatches} == {one.path, other.path}


def test_rows_that_are_in_no_leaf_are_found(make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    scene.execute(f"INSERT INTO {LOG} BY NAME SELECT 'new' AS tp_id, 'other' AS tp_partition")
    (found,) = scene.job().verify().mismatches
    assert "1 rows that are in no leaf: tp_partition=other" in found.reason


def test_a_dropped_table_is_a_mismatch(make: MakeScene) -> None:
    scene = make()
    assert scene.job().run().ok
    scene.execute(f"DROP TABLE {LOG}")
    (found,) = scene.job().verify().mismatches
    assert (found.table, found.reason) == (f"main.{LOG}", "the lake has no such table")


def _flip(path: Path, *, keep_time: bool) -> None:
    """Change one byte of a text in the data, without the footer."""
    facts, content = path.stat(), bytearray(path.read_bytes())
    at = content.index(b"arn:aws:iam::")
    content[at] ^= 1
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize("adopt_bytes_min", [ADOPT_ALL, ADOPT_NOTHING])
@pytest.mark.parametrize("keep_time", [True, False])
def test_a_change_in_the_backup_is_found_and_its_leaf_is_named(
    keep_time: bool, adopt_bytes_min: int, make: MakeScene
) -> None:
    scene = make()
    assert scene.job(adopt_bytes_min=adopt_bytes_min).run().ok
    leaf = clean_leaf(scene)
    _flip(scene.folder(leaf) / leaf.files[0], keep_time=keep_time)
    proof = scene.job().verify()
    assert not proof.ok
    assert {each.leaf for each in proof.mismatches} - {""} == {leaf.path}


@pytest.mark.parametrize("damage", ["gone", "cut", "pages"])
def test_a_damaged_backup_is_found_and_only_its_leaf_is_named(damage: str, make: MakeScene) -> None:
    scene = make(tables=(LegacyTable(name=LOG, leaves=4, files_per_leaf=2, rows_per_file=10),))
    assert scene.job().run().ok
    leaf = scene.home.leaves[2]
    path = scene.folder(leaf) / leaf.files[1]
    facts, content = path.stat(), path.read_bytes()
    match damage:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(content[:100])
        case "pages":
            path.write_bytes(content[:4] + b"\xff" * 396 + content[400:])
            os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    proof = scene.job().verify()
    named = {each.leaf for each in proof.mismatches} - {""}
    assert named == {leaf.path}
    if damage == "pages":
        assert len(proof.mismatches) == 1, proof.mismatches


def test_an_import_without_digests_is_proven_by_reading_both_sides(make: MakeScene) -> None:
    scene = make(tables=(LegacyTable(name=LOG, leaves=2, rows_per_file=10),))
    assert scene.job(ImportOptions(digests=False), adopt_bytes_min=ADOPT_ALL).run().ok
    assert set(scene.modes().values()) == {"adopt"}
    assert scene.job().verify().ok
    scene.execute(TAMPERING["a text is changed"].format(log=LOG, leaf=_of(clean_leaf(scene))))
    assert [each.leaf for each in scene.job().verify().mismatches] == [clean_leaf(scene).path]


def test_the_ledger_has_every_leaf_with_its_rows_and_digest(make: MakeScene) -> None:
    scene = make(Odd.CRUMBS, tables=(LegacyTable(name=LOG, leaves=2, rows_per_file=50),))
    assert scene.job(adopt_bytes_min=ADOPT_ALL).run().ok
    told = {each.source: (each.rows, each.digest) for each in scene.deliveries()}
    assert {path: rows for path, (rows, _) in told.items()} == {leaf.path: leaf.rows for leaf in scene.home.leaves}
    assert all(digest for _, digest in told.values())
    assert len({digest for _, digest in told.values()}) == len(told)


@pytest.mark.parametrize("point", ["deliver.after_commit", "retire.after_unit"])
def test_leaves_in_the_lake_that_were_not_moved_yet_are_proven_as_well(point: str, make: MakeScene) -> None:
    scene = make()
    with faults.armed(point, once(cut_off)), pytest.raises(CutError):
        scene.job().run()
    proof = scene.job().verify()
    assert (proof.ok, proof.leaves, proof.rows) == (True, 2, len(scene.rows[LOG])), proof.mismatches
    scene.execute(f"DELETE FROM {LOG} WHERE {_of(scene.home.leaves[1])}")
    assert [each.leaf for each in scene.job().verify().mismatches] == [scene.home.leaves[1].path]


def test_without_a_lake_there_is_nothing_to_verify(make: MakeScene) -> None:
    with pytest.raises(InputError, match="no lake yet"):
        make().job(has_lake=False).verify()
