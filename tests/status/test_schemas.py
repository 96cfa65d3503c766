"""The status of schemas and tenants: projects, their scripts and models, and finished moves."""

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from catchment.app import App
from catchment.foundation.settings import Settings, load_settings
from catchment.schema import Migrate, SqliteEngine
from catchment.schema.project_config import load_models
from catchment.status import StatusReader, project_schema, readings, schemas
from catchment.status.model import SchemaDatabase, ScriptFacts
from catchment.tenants.model import Complete, Finalizing, Idle, ShardId, ShardInfo, TenantConfig, TenantId

MODELS = """
from catchment.schema import TableRow


class Person(TableRow):
    __tablename__ = "people"

    name: str
{more}
"""
FIRST = "-- People have names.\nCREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL);\n"
SECOND = (
    "-- keeps-rows: people\nALTER TABLE people ADD COLUMN age INTEGER;\nCREATE INDEX people_by_age ON people (age);\n"
)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(Settings(home=tmp_path / "home")) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a model and a script; its module has a name that no other test's has."""
    folder = tmp_path / "project"
    (folder / "migrations").mkdir(parents=True)
    module = f"models_{tmp_path.name}"
    (folder / "pyproject.toml").write_text(
        f'[tool.catchment.schema]\ndb = "app.sqlite"\nmodels = "{module}"\nscripts = "migrations"\n'
    )
    (folder / f"{module}.py").write_text(MODELS.format(more="    age: int | None"))
    (folder / "migrations" / "001.people.sql").write_text(FIRST)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


def _settings(app: App, folder: Path) -> Settings:
    return app.settings.model_copy(update={"status_schema_project": folder})


def _look(app: App, folder: Path, name: str = "app.sqlite") -> SchemaDatabase:
    found = project_schema.look(_settings(app, folder))
    assert found is not None
    assert found.name == name
    return found


def _names(settings: Settings) -> dict[str, str]:
    """What a status of these settings lists of schemas."""
    with App(settings) as app, StatusReader(app) as reader:
        found = reader.status().schemas.value
    assert found is not None
    return {each.name: each.state for each in found.databases}


def _apply(folder: Path, script: str) -> None:
    [module] = folder.glob("models_*.py")
    with SqliteEngine("app.sqlite", scripts=folder / "migrations") as engine:
        Migrate(engine, load_models(module.stem, path=[folder])).apply(script)


def test_a_project_shows_its_pending_scripts_and_what_differs(app: App, folder: Path) -> None:
    found = _look(app, folder)
    assert (found.state, found.applied, found.pending, found.last) == ("PENDING", 0, ("001.people.sql",), None)
    assert found.scripts == (
        ScriptFacts(script="001.people.sql", kind="pending", summary="People have names.", statements=1, text=FIRST),
    )
    assert found.differences == ("people: the table is missing",)
    assert found.next == "apply 001.people.sql next; rehearse shows its effects"


def test_a_project_that_drifted_shows_what_differs_and_then_nothing(app: App, folder: Path) -> None:
    _apply(folder, "001.people.sql")
    found = _look(app, folder)
    assert (found.state, found.applied, found.last, found.scripts) == ("DRIFT", 1, "001.people.sql", ())
    assert found.differences == ("people.age: the column is missing",)
    (folder / "migrations" / "002.age.sql").write_text(SECOND)
    [script] = _look(app, folder).scripts
    # Comments for programs are not a summary.
    assert (script.summary, script.statements) == ("", 2)
    _apply(folder, "002.age.sql")
    found = _look(app, folder)
    assert (found.state, found.differences, found.scripts, found.next) == ("CURRENT", (), (), None)


def test_a_script_that_is_not_what_was_applied_is_shown_with_the_difference(app: App, folder: Path) -> None:
    _apply(folder, "001.people.sql")
    (folder / "migrations" / "001.people.sql").write_text(FIRST.replace("name TEXT", "name VARCHAR"))
    found = _look(app, folder)
    assert found.state == "DIVERGED"
    [script] = found.scripts
    assert script.kind == "diverged"
    assert "-CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL);" in script.text
    assert "+CREATE TABLE people (id INTEGER PRIMARY KEY, name VARCHAR NOT NULL);" in script.text


def test_reading_the_status_of_a_project_changes_nothing(app: App, folder: Path) -> None:
    _look(app, folder)
    assert sorted(each.name for each in folder.iterdir() if each.suffix != ".py" and each.name != "__pycache__") == [
        "migrations",
        "pyproject.toml",
    ]


def test_unreadable_models_are_reported_and_hide_nothing_else(app: App, folder: Path) -> None:
    [module] = folder.glob("models_*.py")
    module.write_text("import nowhere_at_all\n")
    found = _look(app, folder)
    assert (found.state, found.pending) == (schemas.UNCLEAR, None)
    assert "nowhere_at_all" in found.errors[0]
    (folder / "pyproject.toml").write_text("[tool.catchment.schema]\nmodel = 1\n")
    assert _look(app, folder, "project").state == schemas.UNCLEAR


@pytest.mark.parametrize("code", ["raise SystemExit(0)", "import os\nos._exit(3)", "import os\nos.write(1, b'{')"])
def test_models_that_end_the_process_or_write_to_its_stdout_are_reported(app: App, folder: Path, code: str) -> None:
    [module] = folder.glob("models_*.py")
    module.write_text(f"{code}\n")
    found = _look(app, folder)
    assert found.state == schemas.UNCLEAR
    assert "without an answer" in found.errors[0] or "defines no models" in found.errors[0]


def test_output_and_threads_of_models_have_no_effect(app: App, folder: Path) -> None:
    [module] = folder.glob("models_*.py")
    noise = "import threading\nprint('{' * 100_000)\nthreading.Thread(target=threading.Event().wait).start()\n"
    module.write_text(noise + module.read_text())
    assert _look(app, folder).state == "PENDING"


def test_models_that_hang_are_ended_with_all_that_they_have_begun(app: App, folder: Path) -> None:
    [module] = folder.glob("models_*.py")
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    # Waiting processes hold the other end of the pipe: it closes when all of them are gone.
    module.write_text(
        f"import os, time\nheld = open({str(pipe)!r}, 'wb', 0)\nos.fork()\nheld.write(b'x')\ntime.sleep(600)\n"
    )
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    found = project_schema.look(_settings(app, folder), seconds_max=5.0)
    assert found is not None
    assert (found.name, found.state) == ("app.sqlite", schemas.UNCLEAR)
    assert "took longer than 5 s" in found.errors[0]
    assert os.read(reading, 10) == b"xx"
    assert select.select([reading], [], [], 30) == ([reading], [], [])
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_models_are_read_again_each_time(app: App, folder: Path) -> None:
    [module] = folder.glob("models_*.py")
    assert _look(app, folder).differences == ("people: the table is missing",)
    module.write_text(module.read_text().replace("people", "humans"))
    assert _look(app, folder).differences == ("humans: the table is missing",)


def test_no_code_is_run_unless_a_setting_names_its_project(app: App, folder: Path) -> None:
    [module] = folder.glob("models_*.py")
    ran = folder / "ran"
    module.write_text(f"open({str(ran)!r}, 'w').close()\n{module.read_text()}")
    # The process is inside of the project, and nothing else names it.
    assert project_schema.look(app.settings) is None
    assert _names(app.settings) == {}
    assert not ran.exists()
    assert _names(_settings(app, folder)) == {"app.sqlite": "PENDING"}
    assert ran.exists()


def test_a_project_that_cannot_be_compared_hides_neither_control_database_nor_lake(app: App, folder: Path) -> None:
    _ = app.control_store
    [module] = folder.glob("models_*.py")
    module.write_text("import nowhere_at_all\n")
    assert _names(_settings(app, folder)) == {"control": "CURRENT", "app.sqlite": schemas.UNCLEAR}


def test_the_project_is_that_of_the_folder_itself(app: App, folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    found = _look(app, inner, "project")
    assert found.state == schemas.UNCLEAR
    assert "There is no pyproject.toml" in found.errors[0]
    (inner / "pyproject.toml").write_text("[tool.catchment.schema]\n")
    assert "does not set" in _look(app, inner, "project").errors[0]


def test_the_environment_names_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(tmp_path).status_schema_project is None
    monkeypatch.setenv("CATCHMENT_STATUS_SCHEMA_PROJECT", "/srv/app")
    assert load_settings(tmp_path).status_schema_project == Path("/srv/app")


def test_a_schema_of_the_lake_is_listed_once_by_the_project_that_it_belongs_to() -> None:
    def named(name: str, state: str) -> SchemaDatabase:
        return SchemaDatabase(name=name, state=state, applied=1, pending=None, last=None)

    control, own = named("control", "CURRENT"), named("lake:main", "DRIFT")
    found = schemas.merged(control, own, [named("lake:main", "APPLIED"), named("lake:t7", "APPLIED")])
    assert [(each.name, each.state) for each in found] == [
        ("control", "CURRENT"),
        ("lake:main", "DRIFT"),
        ("lake:t7", "APPLIED"),
    ]


def test_the_project_of_a_lake_is_compared_with_the_lake(app: App, folder: Path) -> None:
    text = (folder / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(text.replace("app.sqlite", "lake"))
    assert _look(app, folder, "lake:main").state == schemas.UNCLEAR
    with app.lake.write() as connection:
        connection.execute("CREATE TABLE people (id BIGINT, name VARCHAR)")
    found = _look(app, folder, "lake:main")
    assert (found.state, found.pending) == ("PENDING", ("001.people.sql",))
    assert found.differences is not None
    assert "people.age: the column is missing" in found.differences


def test_moves_that_are_over_are_listed_newest_first(app: App) -> None:
    store = app.control_store
    a, b = ShardId("a"), ShardId("b")
    for shard in (a, b):
        store.add_shard(ShardInfo(id=shard, region="eu", location="", home=""))
    for number in (1, 2, 3):
        store.create_tenant(TenantId(number), f"tenant {number}", TenantConfig(), a)
    done = store.open_move(TenantId(1), a, b, app.clock.now())
    store.change_move(store.change_move(done, Finalizing(1, 30.0)), Complete(), outcome="complete")
    given_up = store.open_move(TenantId(2), a, b, app.clock.now())
    store.change_move(given_up, Idle(), outcome="aborted")
    store.open_move(TenantId(3), a, b, app.clock.now())
    found = readings.tenants(app)
    assert [each.tenant for each in found.moves] == ["t3"]
    assert [(each.tenant, each.source, each.target, each.outcome) for each in found.finished] == [
        ("t2", "a", "b", "aborted"),
        ("t1", "a", "b", "complete"),
    ]
    assert all(each.seconds >= 0 for each in found.finished)
