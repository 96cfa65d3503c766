"""`catchment schema` as a user runs it: a project folder, real processes, documented exit codes."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from catchment.foundation.settings import Settings
from catchment.lake import Lake
from tests.acceptance.shell import Ended, Shell

DB = "app.sqlite"
FIRST = "001.create_user.sql"
USER = "class User(TableRow):\n    name: str\n    email: str | None\n"
COMMANDS = ("status", "check", "generate", "apply", "rehearse", "restore", "backup", "backups", "dev")
HEAVY = ("pyspark", "py4j")


@dataclass(frozen=True)
class Project:
    """A folder with models, a database and scripts, in which a user types commands."""

    shell: Shell

    @property
    def folder(self) -> Path:
        return self.shell.folder

    @property
    def db(self) -> Path:
        return self.folder / DB

    @property
    def scripts(self) -> Path:
        return self.folder / f"{DB}.migrations"

    def schema(self, *arguments: str) -> Ended:
        """A command on the database, with the models of the folder."""
        return self.shell.run("schema", arguments[0], DB, *arguments[1:], "--models", "models")

    def plain(self, *arguments: str) -> Ended:
        """A command as it is written."""
        return self.shell.run("schema", *arguments)

    def write_models(self, body: str) -> "Project":
        (self.folder / "models.py").write_text(f"from catchment.schema import TableRow\n\n\n{body}")
        return self

    def write_script(self, filename: str, text: str) -> str:
        self.scripts.mkdir(exist_ok=True)
        (self.scripts / filename).write_text(text)
        return filename

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.db)) as connection, connection:
            return connection.execute(query).fetchall()

    def files(self) -> dict[str, bytes]:
        """Every file but the lock and Python's caches."""
        found = (path for path in self.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found if path.suffix != ".lock"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with a model and nothing else."""
    return Project(Shell(tmp_path)).write_models(USER)


@pytest.fixture
def current(project: Project) -> Project:
    """A database with a row that is what the models say."""
    project.write_script(FIRST, "CREATE TABLE User (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT);\n")
    assert project.schema("apply").code == 0
    project.rows("INSERT INTO User VALUES (1, 'Ada', NULL)")
    return project


def test_help_lists_every_command_and_documents_the_exit_codes(project: Project) -> None:
    ended = project.plain("--help")
    assert ended.code == 0
    assert all(f" {command} " in ended.out for command in COMMANDS)
    assert "0 CURRENT" in ended.out
    assert "pyproject.toml" in ended.out


def test_a_fresh_project_goes_from_drift_over_pending_to_current(project: Project) -> None:
    drift = project.schema("status")
    assert (drift.code, drift.err) == (2, "")
    assert drift.out.startswith(f"{DB}: DRIFT\n")
    assert not project.db.exists()
    written = project.schema("generate")
    assert (written.code, (project.scripts / FIRST).exists()) == (0, True), written.err
    assert project.schema("status", "--json").json["state"] == "pending"
    assert project.schema("apply").code == 0
    status = project.schema("status", "--json")
    assert (status.code, status.json["state"], status.json["applied"]) == (0, "current", [FIRST])
    assert project.rows("SELECT count(*) FROM User") == [(0,)]


def test_status_changes_nothing_and_check_writes_a_deleted_script_back(current: Project) -> None:
    (current.scripts / FIRST).unlink()
    before = current.files()
    assert current.schema("status", "--json").json["missing"] == [FIRST]
    assert current.files() == before
    checked = current.schema("check", "--json")
    assert (checked.code, checked.json["written_back"]) == (0, [FIRST])
    assert (current.scripts / FIRST).exists()


def test_a_diverged_script_and_a_clash_of_numbers_exit_with_three(current: Project) -> None:
    (current.scripts / FIRST).write_text("SELECT 1;\n")
    diverged = current.schema("check", "--json")
    assert (diverged.code, diverged.json["divergent"]) == (3, [FIRST])
    assert "+SELECT 1;" in diverged.json["differences"][FIRST]
    current.write_script("001.other.sql", "SELECT 2;\n")
    clash = current.schema("status")
    assert clash.code == 3
    assert "Error: duplicate migration number 001" in clash.out


@pytest.mark.parametrize("command", ["apply", "generate", "rehearse"])
def test_a_step_forbidden_by_divergence_or_an_error_exits_with_three_and_by_another_state_with_two(
    current: Project, command: str
) -> None:
    wrong = current.schema(command, "--json")
    if command == "generate":
        assert (wrong.code, wrong.json["path"]) == (0, None)
    else:
        assert (wrong.code, wrong.json["error"], wrong.json["state"]) == (2, "StateError", "current")
    (current.scripts / FIRST).write_text("SELECT 1;\n")
    diverged = current.schema(command, "--json")
    assert (diverged.code, diverged.json["state"]) == (3, "diverged")
    current.write_script("001.other.sql", "SELECT 2;\n")
    clash = current.schema(command, "--json")
    assert (clash.code, clash.json["state"]) == (3, "error")


def test_a_dry_run_uses_the_database_if_the_reference_is_ahead_of_it(current: Project) -> None:
    behind = current.db.read_bytes()
    current.write_script("002.insert.sql", "INSERT INTO User (name) VALUES ('new');\n")
    assert current.schema("apply").code == 0
    current.db.with_name(f"{DB}.ref").write_bytes(current.db.read_bytes())
    current.db.write_bytes(behind)
    tried = current.schema("apply", "--dry-run", "--json")
    assert (tried.code, tried.json.get("ok")) == (0, True), tried.err
    assert tried.json["trials"][0]["rows_before"] == {"User": 1}


def test_dry_runs_show_the_steps_and_change_nothing(current: Project) -> None:
    current.write_models(f"{USER}    age: int | None\n")
    before = current.files()
    script = current.schema("generate", "--dry-run")
    assert script.code == 0
    assert 'ALTER TABLE "User" ADD COLUMN "age" INTEGER;' in script.out
    assert current.files() == before
    current.schema("generate")
    before = current.files()
    tried = current.schema("apply", "--dry-run", "--json")
    assert (tried.code, tried.json["ok"], tried.json["after"]) == (0, True, "current")
    assert tried.json["trials"][0]["change"]["lines"] == ["+ User.age INTEGER"]
    assert current.files() == before
    replaced = current.schema("restore", "pre_001", "--dry-run", "--json")
    assert (replaced.code, replaced.json["rows_replaced"]) == (0, {"User": 1}), replaced.err
    assert current.files() == before


def test_apply_runs_the_next_script_all_of_them_or_the_one_that_is_next(current: Project) -> None:
    for number in (2, 3, 4):
        current.write_script(f"00{number}.insert.sql", f"INSERT INTO User (name) VALUES ('{number}');\n")
    refused = current.schema("apply", "003.insert.sql", "--json")
    assert (refused.code, refused.json["error"]) == (2, "StateError")
    assert current.schema("apply", "002.insert.sql", "--json").json["done"] == ["002.insert.sql"]
    assert current.schema("apply", "--json").json["done"] == ["003.insert.sql"]
    done = current.schema("apply", "--all", "--json")
    assert (done.code, done.json["done"], done.json["state"]) == (0, ["004.insert.sql"], "current")
    assert current.rows("SELECT name FROM User ORDER BY id") == [("Ada",), ("2",), ("3",), ("4",)]


def test_if_nothing_is_pending_apply_is_refused_and_apply_all_succeeds(current: Project) -> None:
    refused = current.schema("apply")
    assert (refused.code, refused.out) == (2, "")
    assert "apply is not allowed while the state of app.sqlite is CURRENT" in refused.err
    assert current.schema("apply", "--all").code == 0


def test_a_script_that_fails_leaves_the_database_as_it_was(current: Project) -> None:
    current.write_script("002.bad.sql", "DELETE FROM User;\nINSERT INTO nowhere VALUES (1);\n")
    tried = current.schema("rehearse")
    assert tried.code == 2
    assert "002.bad.sql: failed" in tried.out
    failed = current.schema("apply", "--json")
    assert (failed.code, failed.json["error"], failed.json["line"]) == (2, "ScriptError", 2)
    assert current.rows("SELECT name FROM User") == [("Ada",)]


def test_a_rehearsal_shows_rows_time_and_what_may_go_wrong(current: Project) -> None:
    current.write_script("002.drop_email.sql", "ALTER TABLE User DROP COLUMN email;\nDELETE FROM User;\n")
    tried = current.schema("rehearse", "--json")
    assert tried.code == 0, tried.err
    trial = tried.json["trials"][0]
    assert (trial["rows_before"], trial["rows_after"]) == ({"User": 1}, {"User": 0})
    assert trial["seconds"] >= 0
    assert "data loss" in {finding["risk"] for finding in trial["findings"]}
    assert current.rows("SELECT name FROM User") == [("Ada",)]


def test_a_backup_is_made_listed_and_restored(current: Project) -> None:
    name = current.schema("backup", "--json").json["name"]
    current.rows("DELETE FROM User")
    assert name in [each["name"] for each in current.schema("backups", "--json").json["backups"]]
    restored = current.schema("restore", name)
    assert restored.code == 0, restored.err
    assert current.rows("SELECT name FROM User") == [("Ada",)]
    missing = current.schema("restore", "pre_900", "--json")
    assert (missing.code, missing.json["error"]) == (2, "BackupMissingError")


def test_a_database_that_is_damaged_can_be_restored(current: Project) -> None:
    name = current.schema("backup", "--json").json["name"]
    current.db.write_bytes(b"this is no database" * 1_000)
    assert current.schema("status").code == 2
    assert current.schema("restore", name, "--json").json["rows"] == {"User": 1}


def test_dev_generates_and_applies_until_the_database_is_current(project: Project) -> None:
    ended = project.schema("dev", "--json")
    assert ended.code == 0, ended.err
    assert [(step["act"], step["subject"]) for step in ended.json["steps"]] == [("generate", FIRST), ("apply", FIRST)]
    again = project.schema("dev", "--json")
    assert (again.code, again.json["steps"], again.json["state"]) == (0, [], "current")


def test_dev_stops_with_a_sentence_at_a_script_that_is_undecided(current: Project) -> None:
    current.write_models(USER.replace("name", "full_name"))
    ended = current.schema("dev")
    assert ended.code == 2
    assert "Stopped: 002.rename_name.sql leaves something to decide: User." in ended.out
    assert current.rows("SELECT name FROM User") == [("Ada",)]


def test_dev_drops_rows_only_if_allowed(current: Project) -> None:
    current.write_models("class User(TableRow):\n    name: str\n")
    ended = current.schema("dev")
    assert ended.code == 2
    assert "Stopped: No model has User.email: the data would be lost" in ended.out
    assert "--allow-drops" in ended.out
    assert current.rows("SELECT * FROM User") == [(1, "Ada", None)]
    assert current.schema("dev", "--allow-drops").code == 0
    assert current.rows("SELECT * FROM User") == [(1, "Ada")]


def test_dev_does_not_restore_without_a_reference_and_does_with_one(current: Project) -> None:
    current.write_script("002.insert.sql", "INSERT INTO User (name) VALUES ('old');\n")
    reference = current.db.read_bytes()
    assert current.schema("apply").code == 0
    current.write_script("002.insert.sql", "INSERT INTO User (name) VALUES ('new');\n")
    ended = current.schema("dev")
    assert ended.code == 3
    assert "no reference" in ended.out
    assert current.rows("SELECT name FROM User") == [("Ada",), ("old",)]
    current.db.with_name(f"{DB}.ref").write_bytes(reference)
    ended = current.schema("dev", "--json")
    assert ended.code == 0, ended.err
    assert [step["act"] for step in ended.json["steps"]] == ["restore", "apply"]
    assert current.rows("SELECT name FROM User") == [("Ada",), ("new",)]


def test_the_project_file_fills_in_what_is_left_out_from_any_folder_below(current: Project) -> None:
    deep = current.folder / "docs" / "notes"
    deep.mkdir(parents=True)
    (current.folder / "pyproject.toml").write_text(f'[tool.catchment.schema]\ndb = "{DB}"\nmodels = "models"\n')
    inside = Shell(deep)
    assert inside.run("schema", "status").code == 0
    current.write_script("002.insert.sql", "INSERT INTO User (name) VALUES ('Bob');\n")
    assert inside.run("schema", "apply", "002.insert.sql").code == 0
    assert inside.run("schema", "restore", "pre_002").code == 0
    assert current.rows("SELECT name FROM User") == [("Ada",)]
    other = inside.run("schema", "status", "other.sqlite", "--json")
    assert (other.code, other.json["applied"]) == (2, [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status"], "Which models?"),
        (["status", "--models", "models"], "Which database?"),
        (["status", DB, "--models", "nowhere.models"], "There is no module nowhere"),
        (["status", DB, "--models", "models:NOTHING"], "models:NOTHING is not defined"),
        (["status", DB, "--models", "models:User"], "not a list of models"),
        (["status", DB, "--models", "broken"], "ZeroDivisionError"),
        (["status", DB, "--models", "empty"], "defines no models"),
    ],
    ids=["no models", "no database", "no module", "no attribute", "no list", "broken module", "empty module"],
)
def test_an_unusable_project_is_refused_with_a_hint(project: Project, arguments: list[str], said: str) -> None:
    (project.folder / "broken.py").write_text("1 / 0\n")
    (project.folder / "empty.py").write_text("")
    ended = project.plain(*arguments, "--json")
    assert ended.code == 2
    assert said in ended.json["message"]
    assert ended.json["hint"]


@pytest.mark.parametrize("line", ['dbs = "x"', "backups_keep = 0", "db = 1"])
def test_a_wrong_key_in_the_project_file_is_refused(project: Project, line: str) -> None:
    (project.folder / "pyproject.toml").write_text(f"[tool.catchment.schema]\n{line}\n")
    ended = project.schema("status", "--json")
    assert (ended.code, ended.json["error"]) == (2, "SettingsError")


def test_a_list_of_models_may_be_named_and_may_be_empty(current: Project) -> None:
    current.write_models(f"{USER}\n\nCHOSEN: list[type[TableRow]] = []\n")
    ended = current.plain("status", DB, "--models", "models:CHOSEN", "--json")
    assert ended.json["model_diff"]["lines"] == ["User: the table is in no model"]


def test_generating_for_the_lake_names_the_tables_of_others_and_drops_none(project: Project) -> None:
    with Lake.from_settings(Settings(home=project.folder / "lake")) as lake, lake.write() as connection:
        connection.execute("CREATE TABLE lake.main.delivered (a INTEGER)")
    home = ("--home", str(project.folder / "lake"))
    made = project.plain("generate", "lake", "--models", "models", *home)
    assert made.code == 0
    assert "Left alone: delivered" in made.err
    (script,) = (project.folder / "lake.main.migrations").iterdir()
    assert "delivered" not in script.read_text()
    assert project.plain("apply", "lake", "--models", "models", *home).code == 0
    again = project.plain("generate", "lake", "--models", "models", *home)
    assert (again.code, "Nothing to generate" in again.out) == (0, True)


def test_tables_of_the_lake_are_migrated_by_the_same_commands(project: Project) -> None:
    def lake(*arguments: str) -> Ended:
        return project.plain(arguments[0], "lake:shop", *arguments[1:], "--json")

    assert lake("status", "--models", "models").json["state"] == "drift"
    assert not (project.folder / "catchment-data").exists()
    made = lake("dev", "--models", "models")
    assert (made.code, made.json["state"]) == (0, "current"), made.err
    assert (project.folder / "lake.shop.migrations" / FIRST).exists()
    assert lake("backup", "--reference").json["snapshot"] > 0
    project.write_models(f"{USER}    age: int | None\n")
    assert [step["act"] for step in lake("dev", "--models", "models").json["steps"]] == ["generate", "apply"]
    assert lake("restore", "pre_002").code == 0
    assert lake("status", "--models", "models").json["state"] == "pending"


def test_a_reference_of_a_file_is_not_made_but_copied(current: Project) -> None:
    ended = current.plain("backup", DB, "--reference", "--json")
    assert (ended.code, ended.json["hint"]) == (2, f"Copy it to {DB}.ref.")


def test_scripts_of_the_project_are_not_those_of_another_database(current: Project) -> None:
    (current.folder / "pyproject.toml").write_text(
        f'[tool.catchment.schema]\ndb = "{DB}"\nmodels = "models"\nscripts = "{DB}.migrations"\n'
    )
    assert current.plain("status", "--json").json["state"] == "current"
    assert current.plain("status", "other.sqlite", "--json").json["pending"] == []


def test_schema_commands_load_no_spark(project: Project) -> None:
    program = (
        "import sys; sys.argv = ['catchment', 'schema', 'status', 'app.sqlite', '--models', 'models']\n"
        "from catchment.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print(sorted(sys.modules), file=sys.stderr)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=project.folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert "DRIFT" in ended.stdout
    assert "'catchment.schema'" in ended.stderr
    assert not any(f"'{name}'" in ended.stderr for name in HEAVY)
