"""`develop` takes the developer's next steps, and stops if a decision is needed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from catchment.errors import ScriptError
from catchment.schema import Development, State, develop
from tests.schema.projects import Scene, database_with, model, scene

NOTE = model("note", {"title": str})
TABLE = "CREATE TABLE note (id INTEGER PRIMARY KEY, title TEXT NOT NULL, email TEXT);"

THIRD = "003.add_profile.sql"


def _acts(done: Development) -> list[str]:
    return [step.act for step in done.steps]


@pytest.mark.parametrize(
    ("name", "acts"),
    [
        ("models_only", ["generate", "apply"]),
        ("steady", []),
        ("model_changed", ["generate", "apply"]),
        ("pending", ["apply"]),
        ("diverged_with_ref", ["restore", "apply"]),
    ],
)
def test_a_database_becomes_current_by_the_steps_that_its_state_asks_for(
    tmp_path: Path, name: str, acts: list[str]
) -> None:
    here = scene(name, tmp_path)
    told: list[str] = []
    done = develop(here.migrate, on_step=lambda step: told.append(step.act))
    assert (_acts(done), done.stopped) == (acts, None)
    assert told == acts
    assert done.result.state is State.CURRENT
    assert _acts(develop(here.migrate)) == []


@pytest.mark.parametrize(("name", "state"), [("conflict", State.ERROR), ("diverged", State.DIVERGED)])
def test_develop_stops_if_a_decision_is_needed(tmp_path: Path, name: str, state: State) -> None:
    here = scene(name, tmp_path)
    before = here.content()
    done = develop(here.migrate)
    assert (done.steps, done.result.state) == ((), state)
    assert done.stopped
    assert here.content() == before


def test_deleted_scripts_are_generated_again_as_one_if_there_is_a_reference(tmp_path: Path) -> None:
    here = scene("iterating", tmp_path)
    here.script(THIRD).unlink()
    done = develop(here.migrate)
    assert (_acts(done), done.result.state) == (["restore", "generate", "apply"], State.CURRENT)
    assert [path.name for path in here.engine.scripts.glob("003.*")] == [done.steps[-1].subject]
    assert "avatar" in here.script(done.steps[-1].subject).read_text()
    assert here.rows("SELECT name FROM users") == [("Ada",), ("Grace",)]
    assert [str(backup.kind) for backup in here.migrate.backups()].count("replaced") == 1


def test_a_deleted_script_comes_back_if_there_is_no_reference(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    script = next(here.engine.scripts.iterdir())
    script.unlink()
    done = develop(here.migrate)
    assert (done.steps, done.result.state, script.exists()) == ((), State.CURRENT, True)


def test_a_reference_that_has_diverged_itself_is_restored_once_and_no_more(tmp_path: Path) -> None:
    here = scene("diverged_with_ref", tmp_path)
    _forge(here, here.engine.reference)
    done = develop(here.migrate)
    assert done.result.state is State.DIVERGED
    assert _acts(done).count("restore") <= 2
    assert done.stopped is not None
    assert "No further progress" in done.stopped


def test_a_script_that_fails_is_an_error_and_not_a_stop(tmp_path: Path) -> None:
    here = scene("steady", tmp_path)
    number = len(here.check().applied) + 1
    here.write(f"{number:03d}.bad.sql", "INSERT INTO nowhere VALUES (1);\n")
    with pytest.raises(ScriptError, match="nowhere"):
        develop(here.migrate)


def _forge(here: Scene, path: Path) -> None:
    """Make every script differ from what the database at `path` says was applied."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE _migrations SET script = script || '-- other'")
    assert here.check().state is State.DIVERGED


@pytest.mark.parametrize(
    ("statements", "named"),
    [
        (
            "CREATE TABLE invoices (id INTEGER PRIMARY KEY, amount REAL); INSERT INTO invoices VALUES (1, 9.5);",
            "invoices",
        ),
        ("ALTER TABLE note ADD COLUMN mail TEXT; INSERT INTO note VALUES (1, 'a', 'm');", "note.mail"),
    ],
)
def test_develop_drops_nothing_that_has_rows_unless_drops_are_allowed(
    tmp_path: Path, statements: str, named: str
) -> None:
    here = database_with(
        tmp_path, f"CREATE TABLE note (id INTEGER PRIMARY KEY, title TEXT NOT NULL); {statements}", NOTE
    )
    before = here.content()
    done = develop(here.migrate)
    assert (_acts(done), done.result.state, here.content()) == ([], State.DRIFT, before)
    assert done.stopped is not None
    assert f"No model has {named}:" in done.stopped
    assert _acts(develop(here.migrate, allow_drops=True)) == ["generate", "apply"]
    assert here.check().state is State.CURRENT


def test_develop_drops_what_has_no_rows(tmp_path: Path) -> None:
    here = database_with(tmp_path, TABLE, NOTE)
    assert _acts(develop(here.migrate)) == ["generate", "apply"]
