"""Migrations of a SQLite file: every scenario of the design, every step in every state."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from catchment.errors import BackupMissingError, ScriptError, StateError
from catchment.schema.check import State
from catchment.schema.migratable import BackupKind
from catchment.schema.migrate import ALLOWED, Migrate
from catchment.schema.models import TableRow
from tests.schema.projects import Scene, scene

FIRST, SECOND, THIRD = "001.create_users.sql", "002.add_email.sql", "003.add_profile.sql"
# A scenario for each state, and one in which a reference makes `restore` possible.
IN_STATE = {
    State.ERROR: "conflict",
    State.DIVERGED: "diverged_with_ref",
    State.PENDING: "pending",
    State.DRIFT: "model_changed",
    State.CURRENT: "steady_with_ref",
}
STEPS = ("apply", "generate", "rehearse")


def _take(step: str, here: Scene) -> None:
    migrate = here.migrate
    match step:
        case "apply":
            migrate.apply((here.check().pending or [THIRD])[0])
        case "generate":
            migrate.generate()
        case "rehearse":
            migrate.rehearse()


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.value)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_taken_if_allowed_and_otherwise_refused_with_the_allowed_ones(
    tmp_path: Path, state: State, step: str
) -> None:
    here = scene(IN_STATE[state], tmp_path)
    assert here.check().state is state
    if (step, state) == ("generate", State.CURRENT):
        assert here.migrate.generate() is None
        return
    # A rehearsal starts from the reference, where the edited script is pending.
    if step in ALLOWED[state] or (step, state) in {
        ("rehearse", State.DIVERGED),
        ("rehearse", State.CURRENT),
    }:
        _take(step, here)
        return
    before, files = here.content(), here.files()
    with pytest.raises(StateError) as refused:
        _take(step, here)
    facts = refused.value.facts
    assert facts == {"state": state.value, "wanted": step, "allowed": list(ALLOWED[state])}
    assert state.name in refused.value.message
    assert all(allowed in (refused.value.hint or "") for allowed in ALLOWED[state])
    assert (here.content(), here.files()) == (before, files)


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.value)
def test_the_reference_can_be_restored_in_every_state_and_what_was_there_is_a_backup(
    tmp_path: Path, state: State
) -> None:
    here = scene(IN_STATE[state], tmp_path)
    if not here.engine.has_reference():
        shutil.copy(here.path, here.engine.reference)
    here.run("CREATE TABLE mine (a)")
    before = here.content()
    assert here.migrate.preview_restore() is None
    here.migrate.restore()
    assert here.migrate.backups()[0].kind is BackupKind.REPLACED
    with closing(sqlite3.connect(here.path)) as now, closing(sqlite3.connect(here.engine.reference)) as reference:
        assert list(now.iterdump()) == list(reference.iterdump())
    here.migrate.restore(here.migrate.backups()[0].name)
    assert here.content() == before


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.value)
def test_a_restore_without_a_reference_is_refused_and_changes_nothing(tmp_path: Path, state: State) -> None:
    here = scene(IN_STATE[state], tmp_path)
    here.engine.reference.unlink(missing_ok=True)
    before, files = here.content(), here.files()
    for step in (here.migrate.restore, here.migrate.preview_restore):
        with pytest.raises(BackupMissingError, match="reference"):
            step()
    assert (here.content(), here.files()) == (before, files)


def test_a_script_whose_number_another_one_has_in_production_is_a_conflict(tmp_path: Path) -> None:
    """The reference has another developer's 003, which was applied in production."""
    here = scene("steady", tmp_path)
    number = len(here.check().applied)
    shutil.copy(here.path, here.engine.reference)
    with closing(sqlite3.connect(here.engine.reference)) as theirs, theirs:
        theirs.execute(
            "UPDATE _migrations SET script = 'SELECT 1;', filename = ? WHERE number = ?",
            [f"{number:03d}.theirs.sql", number],
        )
    result = here.check()
    assert result.state is State.ERROR
    (error,) = result.errors
    assert error.startswith("Conflicting script")
    assert f"{number:03d}.theirs.sql" in error
    mine = here.script(result.applied[-1])
    # Where both files are on the disk, it is said which of the two is to be renumbered.
    theirs_file = here.script(f"{number:03d}.theirs.sql")
    theirs_file.write_text("SELECT 1;\n")
    both = here.check().errors
    assert [error.split(":")[0] for error in both] == [
        f"Duplicate number {number:03d}",
        f"Conflicting script {mine.name}",
    ]
    theirs_file.unlink()
    # Triage: the own script takes the next number, the reference is restored, and the other one's
    # is written back.
    mine.rename(mine.with_name(f"{number + 1:03d}.mine.sql"))
    here.migrate.restore()
    again = here.check()
    assert again.state is State.PENDING
    assert again.pending == [f"{number + 1:03d}.mine.sql"]
    assert again.written_back == [f"{number:03d}.theirs.sql"]


def test_a_reference_that_is_not_a_database_does_not_stop_a_check(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    here.engine.reference.write_bytes(b"not a database, by far" * 100)
    assert here.check().state is State.CURRENT


def test_no_models_and_no_database_are_current_and_nothing_is_made(tmp_path: Path) -> None:
    here = scene("no_models", tmp_path)
    result = here.check()
    assert result.state is State.CURRENT
    assert (result.pending, result.applied, result.divergent, result.errors) == ([], [], [], [])
    assert list(here.path.parent.iterdir()) == []


def test_a_check_creates_no_files_if_the_database_is_missing(tmp_path: Path) -> None:
    here = scene("scripts_only", tmp_path)
    before = here.files()
    assert here.check().state is State.PENDING
    assert here.files() == before
    assert not here.path.with_name("mydb.sqlite.lock").exists()


def test_a_check_changes_no_byte_of_the_database(tmp_path: Path) -> None:
    here = scene("model_changed", tmp_path)
    here.run("DROP TABLE _migrations")
    before = here.path.read_bytes()
    here.check()
    assert here.path.read_bytes() == before
    assert ("_migrations",) not in here.rows("SELECT name FROM sqlite_schema")


def test_models_only_drift_until_a_script_is_generated_and_applied(tmp_path: Path) -> None:
    here = scene("models_only", tmp_path)
    result = here.check()
    assert result.state is State.DRIFT
    assert [table.name for table in result.model_diff.missing] == ["users"]
    assert here.migrate.generate() == here.script("001.create_users.sql")
    result = here.check()
    assert (result.state, result.pending) == (State.PENDING, ["001.create_users.sql"])
    here.migrate.apply(result.pending[0])
    result = here.check()
    assert (result.state, result.applied) == (State.CURRENT, ["001.create_users.sql"])


def test_a_fresh_database_gets_its_scripts_in_order(tmp_path: Path) -> None:
    here = scene("scripts_only", tmp_path)
    result = here.check()
    assert (result.state, result.pending) == (State.PENDING, [FIRST, SECOND])
    for script in result.pending:
        here.migrate.apply(script)
    assert here.check().state is State.CURRENT
    recorded = here.rows("SELECT number, filename, script, started_at <= finished_at FROM _migrations")
    assert recorded == [
        (1, FIRST, here.script(FIRST).read_text(), 1),
        (2, SECOND, here.script(SECOND).read_text(), 1),
    ]


def test_a_database_that_matches_models_and_scripts_is_current(tmp_path: Path) -> None:
    result = scene("steady", tmp_path).check()
    assert (result.state, result.applied) == (State.CURRENT, [FIRST, SECOND, THIRD])
    assert result.status().startswith("Current: 3 applied")


def test_a_model_that_changed_gets_the_next_script(tmp_path: Path) -> None:
    here = scene("model_changed", tmp_path)
    result = here.check()
    assert result.state is State.DRIFT
    assert "users.age" in result.status()
    path = here.migrate.generate()
    assert path is not None
    assert path.name == "003.add_age.sql"
    assert here.check().pending == [path.name]
    here.migrate.apply(path.name)
    assert here.check().state is State.CURRENT
    assert here.rows("SELECT name, age FROM users") == [("Ada", None), ("Grace", None)]


def test_iterating_by_accumulation_adds_a_script(tmp_path: Path) -> None:
    here = scene("iterating", tmp_path)
    assert here.check().state is State.DRIFT
    path = here.migrate.generate()
    assert path is not None
    assert path.name == "004.add_avatar.sql"
    here.migrate.apply("004.add_avatar.sql")
    assert here.check().state is State.CURRENT
    assert here.rows("SELECT bio FROM profiles ORDER BY id") == [("engines",), (None,)]


def test_iterating_by_consolidation_makes_one_script_of_all(tmp_path: Path) -> None:
    here = scene("iterating", tmp_path)
    generated = here.migrate.generate()
    assert generated is not None
    here.migrate.apply(generated.name)
    for script in (THIRD, generated.name):
        here.script(script).unlink()
    here.migrate.restore()
    path = here.migrate.generate()
    assert path is not None
    assert path.name == "003.create_profiles.sql"
    here.migrate.apply(path.name)
    result = here.check()
    assert (result.state, result.applied) == (State.CURRENT, [FIRST, SECOND, path.name])
    assert here.rows("SELECT name FROM users") == [("Ada",), ("Grace",)]


def test_a_diverged_script_with_a_reference_is_settled_by_restoring_and_applying(tmp_path: Path) -> None:
    here = scene("diverged_with_ref", tmp_path)
    before = here.script(THIRD).read_bytes()
    result = here.check()
    assert (result.state, result.divergent) == (State.DIVERGED, [THIRD])
    assert result.status().splitlines()[0] == "1 diverged: 003.add_profile.sql"
    assert "+    city TEXT" in result.differences[THIRD]
    assert here.script(THIRD).read_bytes() == before, "with a reference, no warning is needed"
    here.migrate.restore()
    result = here.check()
    assert (result.state, result.pending) == (State.PENDING, [THIRD])
    for script in result.pending:
        here.migrate.apply(script)
    assert here.check().state is State.CURRENT
    assert here.rows("SELECT count(city) FROM profiles") == [(0,)]


def test_a_diverged_script_without_a_reference_gets_a_warning_once(tmp_path: Path) -> None:
    here = scene("diverged", tmp_path)
    edited = here.script(SECOND).read_text()
    result = here.check()
    assert (result.state, result.divergent) == (State.DIVERGED, [SECOND])
    warned = here.script(SECOND).read_text()
    assert warned.endswith(edited)
    warning = warned.removesuffix(edited)
    assert warning.count(SECOND) == 2
    assert "restore the file" in warning
    assert "delete it" in warning
    again = here.check()
    assert here.script(SECOND).read_text() == warned
    assert (again.divergent, again.differences) == (result.divergent, result.differences)
    assert "catchment-check" not in result.differences[SECOND]
    with pytest.raises(BackupMissingError, match="no reference"):
        here.migrate.restore()


def test_restoring_the_file_clears_the_divergence(tmp_path: Path) -> None:
    here = scene("diverged", tmp_path)
    here.check()
    here.write(SECOND, scene("steady", tmp_path).script(SECOND).read_text())
    assert here.check().state is State.CURRENT


def test_a_body_put_right_below_the_warning_counts_and_the_warning_goes(tmp_path: Path) -> None:
    here = scene("diverged", tmp_path)
    here.check()
    right = here.script(SECOND).read_text().replace("'none'", "''")
    here.write(SECOND, right)
    assert here.check().state is State.CURRENT
    assert here.script(SECOND).read_text() == scene("steady", tmp_path).script(SECOND).read_text()


def test_a_warning_leaves_every_byte_of_the_file_below_it(tmp_path: Path) -> None:
    here = scene("diverged", tmp_path)
    edited = "\ufeffALTER TABLE users ADD COLUMN email TEXT;\r\n-- caf\u00e9"
    here.write(SECOND, edited)
    here.check()
    assert here.script(SECOND).read_bytes().endswith(edited.encode())
    here.engine.reference.write_bytes(b"")
    here.check()
    assert here.script(SECOND).read_bytes() == edited.encode(), "with a reference, the warning goes"


def test_a_deleted_diverged_script_is_written_back_as_it_was_applied(tmp_path: Path) -> None:
    here = scene("diverged", tmp_path)
    here.check()
    here.script(SECOND).unlink()
    result = here.check()
    assert (result.state, result.written_back, result.missing) == (State.CURRENT, [SECOND], [])
    assert here.script(SECOND).read_text() == scene("steady", tmp_path).script(SECOND).read_text()
    assert here.check().written_back == []


@pytest.mark.parametrize("filename", [FIRST, SECOND, THIRD])
def test_an_applied_script_that_is_missing_comes_back(tmp_path: Path, filename: str) -> None:
    here = scene("steady", tmp_path)
    text = here.script(filename).read_text()
    here.script(filename).unlink()
    looked = here.migrate.look()
    assert (looked.state, looked.missing) == (State.CURRENT, [filename])
    assert not here.script(filename).exists(), "looking has no effect"
    assert here.check().state is State.CURRENT
    assert here.script(filename).read_text() == text


def test_scripts_that_ship_with_a_package_are_never_edited(tmp_path: Path) -> None:
    here = scene("diverged", tmp_path)
    here.script(FIRST).unlink()
    before = here.script(SECOND).read_bytes()
    result = Migrate(here.engine, here.models, edits_scripts=False).check()
    assert (result.state, result.missing) == (State.DIVERGED, [FIRST])
    assert (here.script(SECOND).read_bytes(), here.script(FIRST).exists()) == (before, False)


def test_a_recorded_name_that_points_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    here.run("UPDATE _migrations SET filename = '../evil.sql' WHERE number = 2")
    here.script(SECOND).unlink()
    here.check()
    assert here.script("002.restored.sql").exists()
    assert not (here.path.parent / "evil.sql").exists()


def test_conflicting_numbers_are_an_error_that_names_the_files(tmp_path: Path) -> None:
    result = scene("conflict", tmp_path).check()
    assert (result.state, result.errors, result.can_apply) == (State.ERROR, ["Duplicate number 003"], False)
    assert result.status().splitlines()[0] == "Error: duplicate migration number 003"
    assert {"  003.add_city.sql", "  003.add_profile.sql"} <= set(result.status().splitlines())


def test_renumbering_resolves_a_conflict(tmp_path: Path) -> None:
    here = scene("conflict", tmp_path)
    here.rename("003.add_city.sql", "004.add_city.sql")
    assert here.check().pending == [THIRD, "004.add_city.sql"]


@pytest.mark.parametrize(
    ("filename", "to", "error"),
    [
        (SECOND, "add_email.sql", "Wrong file name add_email.sql"),
        (SECOND, "2.add_email.sql", "Wrong file name 2.add_email.sql"),
        (SECOND, "0002.add_email.sql", "Wrong file name 0002.add_email.sql"),
        (SECOND, "002_add_email.sql", "Wrong file name 002_add_email.sql"),
        (SECOND, "002..sql", "Wrong file name 002..sql"),
        (SECOND, "002.add_email.SQL", "Wrong file name 002.add_email.SQL"),
        (SECOND, "003.add_email.sql", "Missing number 002"),
        (SECOND, "005.add_email.sql", "Missing numbers 002 to 004"),
        (SECOND, "001.add_email.sql", "Duplicate number 001"),
        (FIRST, "000.create_users.sql", "Wrong number 000"),
        (FIRST, "003.create_users.sql", "Missing number 001"),
    ],
)
def test_a_wrong_number_or_name_is_an_error(tmp_path: Path, filename: str, to: str, error: str) -> None:
    here = scene("scripts_only", tmp_path)
    here.rename(filename, to)
    result = here.check()
    assert result.state is State.ERROR
    assert any(each.startswith(error) for each in result.errors), result.errors


def test_other_files_in_the_folder_are_ignored(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    for name in ("README.md", "003.add_profile.sql~", ".003.add_profile.sql.swp"):
        here.write(name, "not a script")
    assert here.check().state is State.CURRENT


@pytest.mark.parametrize("filename", [SECOND, THIRD], ids=["past", "last"])
def test_a_script_that_was_renamed_and_not_edited_counts_as_applied(tmp_path: Path, filename: str) -> None:
    here = scene("steady", tmp_path)
    renamed = here.rename(filename, f"{filename[:3]}.another_name.sql").name
    result = here.check()
    assert (result.state, result.divergent, result.pending) == (State.CURRENT, [], [])
    assert renamed in result.applied
    assert not here.script(filename).exists(), "it is not written back under its old name"


@pytest.mark.parametrize("filename", [SECOND, THIRD], ids=["past", "last"])
def test_a_script_that_was_renamed_and_edited_has_diverged(tmp_path: Path, filename: str) -> None:
    here = scene("steady", tmp_path)
    renamed = here.rename(filename, f"{filename[:3]}.another_name.sql")
    renamed.write_text(renamed.read_text() + "-- more\n")
    result = here.check()
    assert (result.state, result.divergent) == (State.DIVERGED, [renamed.name])
    assert filename in renamed.read_text(), "the warning says as what it was applied"


def test_an_applied_script_under_another_number_is_an_error_and_not_run_again(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    here.rename(THIRD, "004.add_profile.sql")
    result = here.check()
    assert result.state is State.ERROR
    assert f"Renumbered script 004.add_profile.sql: it was applied as {THIRD}" in result.errors
    assert not here.script(THIRD).exists()


def test_line_ends_of_another_system_are_no_difference(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    for filename in (FIRST, SECOND, THIRD):
        here.write(filename, here.script(filename).read_text().replace("\n", "\r\n"))
    assert here.check().state is State.CURRENT


def test_a_script_is_recorded_with_plain_line_ends(tmp_path: Path) -> None:
    here = scene("pending", tmp_path)
    text = here.script(THIRD).read_text()
    here.write(THIRD, text.replace("\n", "\r\n"))
    here.migrate.apply(THIRD)
    assert here.rows("SELECT script FROM _migrations WHERE number = 3") == [(text,)]


def test_a_script_that_is_not_utf_8_is_an_error_that_names_it(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    here.script("004.latin.sql").write_bytes("-- caf\u00e9".encode("latin-1"))
    result = here.check()
    assert result.errors == ["Unreadable script 004.latin.sql: it is not UTF-8 (byte 6)"]
    assert "Error: unreadable migration script 004.latin.sql" in result.status()


def test_a_missing_file_in_the_middle_that_was_not_applied_is_a_gap(tmp_path: Path) -> None:
    here = scene("pending", tmp_path)
    here.write("005.more.sql", "SELECT 1;")
    assert here.check().errors == ["Missing number 004"]


def test_a_thousand_comes_after_nine_hundred_and_ninety_nine(tmp_path: Path) -> None:
    here = scene("no_models", tmp_path)
    for number in range(1, 1002):
        here.write(f"{number:03d}.nothing.sql", "")
    result = here.check()
    assert result.errors == []
    assert result.pending[997:] == ["998.nothing.sql", "999.nothing.sql", "1000.nothing.sql", "1001.nothing.sql"]


def test_a_script_is_applied_in_its_turn_only(tmp_path: Path) -> None:
    here = scene("scripts_only", tmp_path)
    with pytest.raises(StateError, match=f"the next script of .* is {FIRST}") as refused:
        here.migrate.apply(SECOND)
    assert refused.value.facts == {"state": "pending", "wanted": f"apply {SECOND}", "allowed": [f"apply {FIRST}"]}
    with pytest.raises(StateError):
        here.migrate.apply("no_such_file.sql")
    assert not here.path.exists()
    here.migrate.apply(FIRST)
    with pytest.raises(StateError):
        here.migrate.apply(FIRST)


def test_a_script_written_by_hand_leads_to_current_whatever_its_words(tmp_path: Path) -> None:
    here = scene("model_changed", tmp_path)
    here.migrate.apply(here.write("003.age.sql", 'alter table USERS /* years */\n  add "age" integer'))
    assert here.check().state is State.CURRENT


class Account(TableRow):
    """A person, after all their columns were thought over."""

    __tablename__ = "users"

    full_name: str
    email: str = ""


def test_an_ambiguous_rename_waits_for_a_choice(tmp_path: Path) -> None:
    here = scene("model_changed", tmp_path)
    here.models = [Account]
    path = here.migrate.generate()
    assert path is not None
    before = here.content()
    with pytest.raises(ScriptError, match="leaves something to decide"):
        here.migrate.apply(path.name)
    assert here.content() == before
    chosen = 'ALTER TABLE "users" RENAME COLUMN "name" TO "full_name";'
    assert f"-- {chosen}" in path.read_text()
    path.write_text(chosen)
    here.migrate.apply(path.name)
    assert here.check().state is State.CURRENT
    assert here.rows("SELECT full_name FROM users") == [("Ada",), ("Grace",)]
