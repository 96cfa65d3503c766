"""The folders are the state: every phase of an import is read from disk."""

from pathlib import Path

import pytest

from catchment.errors import InputError, InvariantError
from catchment.foundation import files
from catchment.pipeline.legacy.folders import DATABASE, ImportFolders, ImportJournal, ImportPhase

WORKSPACES = ["", "default"]


def _mark(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DATABASE).write_bytes(b"")


@pytest.fixture(params=WORKSPACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ImportFolders:
    return ImportFolders.tailpipe(tmp_path / "tp", request.param)


def test_an_empty_place_has_nothing_to_do(place: ImportFolders) -> None:
    assert place.phase() is ImportPhase.NOTHING
    place.data.mkdir(parents=True)
    assert place.phase() is ImportPhase.NOTHING
    (place.data / "tp_table=x").mkdir()
    assert place.phase() is ImportPhase.NOTHING


def test_the_place_of_the_database_is_the_phase(place: ImportFolders) -> None:
    for folder, phase in (
        (place.data, ImportPhase.READY),
        (place.migrating, ImportPhase.IMPORTING),
        (place.migrated, ImportPhase.DONE),
    ):
        _mark(folder)
        assert place.phase() is phase
        (folder / DATABASE).unlink()


def test_new_data_after_an_import_that_is_done_is_ready_again(place: ImportFolders) -> None:
    _mark(place.migrated)
    place.note(done=True)
    assert place.phase() is ImportPhase.DONE
    _mark(place.data)
    assert place.phase() is ImportPhase.READY


def test_a_database_in_both_places_is_an_error_that_says_what_to_do(place: ImportFolders) -> None:
    _mark(place.data)
    _mark(place.migrating)
    with pytest.raises(InputError) as caught:
        place.phase()
    assert str(place.data) in caught.value.message
    assert str(place.migrating) in caught.value.message
    assert "catchment legacy run" in str(caught.value.hint)
    assert str(place.data) in str(caught.value.hint)


def test_a_database_in_both_places_is_accepted_while_the_tree_is_copied_to_another_file_system(
    place: ImportFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    _mark(place.data)
    _mark(place.migrating)
    place.note(preparing=True)
    with pytest.raises(InputError, match="is both in"):
        place.phase()
    monkeypatch.setattr(files, "same_device", lambda *_: False)
    assert place.phase() is ImportPhase.READY


def test_a_started_undo_is_the_phase_wherever_the_database_is(place: ImportFolders) -> None:
    place.note(undoing=True)
    for folder in (place.migrated, place.data):
        _mark(folder)
        assert place.phase() is ImportPhase.UNDOING


def test_the_journal_keeps_its_notes_until_it_is_deleted(place: ImportFolders) -> None:
    assert place.journal() == ImportJournal()
    place.note(tables_made={"main.a": "uuid"}, preparing=True)
    place.note(quarantined={"leaf": ["x.parquet"]}, preparing=False)
    assert place.journal() == ImportJournal(tables_made={"main.a": "uuid"}, quarantined={"leaf": ["x.parquet"]})
    place.forget()
    assert place.journal() == ImportJournal()
    place.forget()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"other": 1}'])
def test_a_journal_that_cannot_be_read_is_never_taken_for_an_empty_one(text: str, place: ImportFolders) -> None:
    place.note(done=True)
    place.journal_path.write_text(text)
    with pytest.raises(InvariantError, match="cannot be read"):
        place.journal()


@pytest.mark.parametrize("folder", ["data", "migration/migrating", "migration/migrated"])
@pytest.mark.parametrize("workspace", WORKSPACES)
def test_the_workspace_is_found_in_every_phase(workspace: str, folder: str, tmp_path: Path) -> None:
    _mark(tmp_path / folder / workspace)
    place = ImportFolders.tailpipe(tmp_path)
    assert place.workspace == workspace
    assert place == ImportFolders.tailpipe(tmp_path, workspace)
    assert place.data == tmp_path / "data" / workspace
    assert place.migrating == tmp_path / "migration" / "migrating" / workspace
    assert place.migrated == tmp_path / "migration" / "migrated" / workspace


def test_without_any_data_there_is_no_workspace(tmp_path: Path) -> None:
    assert ImportFolders.tailpipe(tmp_path / "nowhere").workspace == ""
    assert not (tmp_path / "nowhere").exists()


def test_several_workspaces_must_be_named_one_by_one(tmp_path: Path) -> None:
    _mark(tmp_path / "data" / "one")
    _mark(tmp_path / "data" / "two")
    with pytest.raises(InputError, match="one, two") as caught:
        ImportFolders.tailpipe(tmp_path)
    assert "--workspace" in str(caught.value.hint)
    one, two = (ImportFolders.tailpipe(tmp_path, name) for name in ("one", "two"))
    assert (one.phase(), two.phase()) == (ImportPhase.READY, ImportPhase.READY)
    one.note(done=True)
    assert two.journal() == ImportJournal(), "each has a journal of its own"
    assert (one.report, one.journal_path) != (two.report, two.journal_path)


def test_a_workspace_with_data_comes_before_one_that_was_imported(tmp_path: Path) -> None:
    _mark(tmp_path / "migration" / "migrated" / "old")
    _mark(tmp_path / "data" / "new")
    assert ImportFolders.tailpipe(tmp_path).workspace == "new"


def test_a_tree_is_ready_while_it_has_parquet_files(tmp_path: Path) -> None:
    place = ImportFolders.tree(tmp_path / "tree")
    assert place.migration == tmp_path / "tree.migration"
    assert place.phase() is ImportPhase.NOTHING
    (tmp_path / "tree" / "a=1").mkdir(parents=True)
    (tmp_path / "tree" / "readme").write_text("")
    assert place.phase() is ImportPhase.NOTHING
    (tmp_path / "tree" / "a=1" / "x.parquet").write_bytes(b"")
    assert place.phase() is ImportPhase.READY


def test_a_tree_is_being_imported_until_not_even_a_folder_is_left(tmp_path: Path) -> None:
    place = ImportFolders.tree(tmp_path / "tree")
    (place.migrated / "a=1").mkdir(parents=True)
    (place.migrated / "a=1" / "x.parquet").write_bytes(b"")
    (place.migrating / "a=2").mkdir(parents=True)
    assert place.phase() is ImportPhase.IMPORTING
    (place.migrating / "a=2").rmdir()
    assert place.phase() is ImportPhase.DONE


def test_earlier_backups_come_with_what_was_noted_of_them(place: ImportFolders) -> None:
    assert list(place.earlier()) == []
    folder = place.migration / "earlier" / "001" / place.workspace
    folder.mkdir(parents=True)
    assert list(place.earlier()) == [(folder, ImportJournal())]
