"""The control database: created and upgraded by the package's scripts, and never downgraded."""

import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

import pytest
from pydantic import SecretStr

from catchment.app import App
from catchment.control import ControlDatabase, database, sqlite
from catchment.control.models import MODELS
from catchment.errors import CatchmentError, ControlUnavailableError, SettingsError, StateError
from catchment.foundation.settings import Settings
from catchment.schema import Migrate, SqliteEngine, State
from tests.shortcuts import warm

SCRIPTS = sorted(path.name for path in database.SCRIPTS.iterdir())
# A process that reports its start, waits for a line, and opens the database.
STARTER = """
import sys
from pathlib import Path
from catchment.control import ControlDatabase
from catchment.foundation.settings import Settings
print("there", flush=True)
sys.stdin.readline()
print(ControlDatabase.open(Settings(home=Path(sys.argv[1]))).path)
"""


@dataclass(frozen=True)
class Home:
    """A home and its control database."""

    settings: Settings

    @property
    def path(self) -> Path:
        return self.settings.home / "control.sqlite"

    def open(self) -> ControlDatabase:
        return ControlDatabase.open(self.settings)

    def migrate(self, scripts: Path = database.SCRIPTS) -> Migrate:
        return Migrate(SqliteEngine(self.path, scripts=scripts), MODELS, edits_scripts=False)

    def run(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def backups(self) -> list[str]:
        return [backup.name for backup in self.migrate().backups()]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(Settings(home=tmp_path / "home"))


@pytest.fixture
def old(home: Home, tmp_path: Path) -> Home:
    """A database of the first version, with a tenant on its second move."""
    first = copytree(database.SCRIPTS, tmp_path / "first_version")
    for later in SCRIPTS[1:]:
        (first / later).unlink()
    home.path.parent.mkdir()
    home.migrate(first).apply(SCRIPTS[0])
    home.run("INSERT INTO users VALUES (7, 'ada', 'admin', 'hash', '2026-01-01')")
    home.run("INSERT INTO shards VALUES (1, 'a', 'eu', 'grpc://a', 'active', '2026-01-01')")
    home.run("INSERT INTO shards VALUES (2, 'b', 'us', 'grpc://b', 'active', '2026-01-01')")
    home.run("INSERT INTO tenants VALUES (1, 42, 'acme', 1, '{\"rows\": 5}', '2026-01-01')")
    for number in (1, 2):
        home.run("INSERT INTO moves VALUES (?, 1, 1, 2, 'Idle', '{}', 3, '2026-01-01', '2026-01-02')", number)
    return home


def test_the_models_are_what_the_scripts_of_the_package_make(home: Home) -> None:
    home.open()
    result = home.migrate().look()
    assert (result.state, result.applied) == (State.CURRENT, SCRIPTS)


def test_a_second_start_changes_nothing(home: Home) -> None:
    home.open()
    before = home.path.read_bytes()
    home.open()
    assert home.path.read_bytes() == before


def test_an_older_database_is_backed_up_and_upgraded_and_keeps_its_rows(old: Home) -> None:
    assert "002" in str(ControlDatabase.examine(old.settings))
    old.open()
    assert old.migrate().look().state is State.CURRENT
    assert old.run("SELECT id, name, role, password_hash, disabled FROM users") == [(7, "ada", "admin", "hash", 0)]
    assert old.run("SELECT number, shard, limits FROM tenants") == [(42, 1, '{"rows": 5}')]
    assert old.run("SELECT home, stats, seen_at FROM shards") == [("", "{}", None)] * 2
    assert old.run("SELECT number, epoch FROM tenants") == [(42, 1)]
    assert old.run("SELECT id, version, token, finished_at, outcome FROM moves") == [
        (1, 3, "move-1", "2026-01-02", "aborted"),
        (2, 3, "move-2", None, None),
    ]
    assert {"pre_002.control.sqlite.bak", "pre_003.control.sqlite.bak"} <= set(old.backups())
    old.migrate().restore("pre_002")
    assert old.run("SELECT * FROM users") == [(7, "ada", "admin", "hash", "2026-01-01")]


def test_a_tenant_has_one_move_that_is_not_finished(old: Home) -> None:
    old.open()
    copied = "SELECT tenant, source, target, state, data, created_at, updated_at, 'new' FROM moves WHERE id = 2"
    columns = "tenant, source, target, state, data, created_at, updated_at, token"
    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: moves\.tenant"):
        old.run(f"INSERT INTO moves ({columns}) {copied}")
    old.run("UPDATE moves SET finished_at = ''")
    old.run(f"INSERT INTO moves ({columns}) {copied}")


def test_two_moves_have_two_tokens(old: Home) -> None:
    old.open()
    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: moves\.token"):
        old.run("UPDATE moves SET token = 'move-1'")


def test_two_processes_that_start_at_once_both_come_up(old: Home) -> None:
    command = [sys.executable, "-c", STARTER, str(old.settings.home)]
    starting = [warm.Process(command, stdin=warm.PIPE, stdout=warm.PIPE, stderr=warm.PIPE) for _ in range(2)]
    for each in starting:
        assert each.stdout is not None
        assert each.stdout.readline() == "there\n"
    for each in starting:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in starting:
        out, err = each.communicate(timeout=60)
        assert (each.returncode, out) == (0, f"{old.path}\n"), err
    assert old.run("SELECT number FROM _migrations") == [(1,), (2,), (3,)]


def test_a_database_of_a_newer_program_is_refused_and_left_alone(home: Home, tmp_path: Path) -> None:
    newer = copytree(database.SCRIPTS, tmp_path / "newer")
    (newer / "004.more.sql").write_text("CREATE TABLE more (id INTEGER PRIMARY KEY);\n")
    home.open()
    home.migrate(newer).apply("004.more.sql")
    before = home.path.read_bytes()
    with pytest.raises(StateError, match=r"newer Catchment.*004\.more\.sql"):
        home.open()
    assert home.path.read_bytes() == before
    assert sorted(path.name for path in database.SCRIPTS.iterdir()) == SCRIPTS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE _migrations SET script = 'SELECT 1;' WHERE number = 1", r"DIVERGED.*001\."),
        ("ALTER TABLE users ADD COLUMN nickname TEXT", r"DRIFT.*users\.nickname"),
    ],
    ids=["another script", "another column"],
)
def test_a_database_that_is_not_what_the_scripts_make_is_refused(home: Home, change: str, message: str) -> None:
    home.open()
    home.run(change)
    with pytest.raises(StateError, match=message):
        home.open()
    with pytest.raises(StateError, match=message):
        ControlDatabase.examine(home.settings)


def test_a_database_of_another_program_is_not_touched(home: Home) -> None:
    home.path.parent.mkdir()
    home.run("CREATE TABLE precious (id INTEGER PRIMARY KEY)")
    with pytest.raises(StateError, match="not a control database"):
        home.open()
    assert home.run("SELECT name FROM sqlite_schema") == [("precious",)]


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgres:", SettingsError),
        ("postgres:host='db password=hunter2", SettingsError),
        ("mysql:host=db password=hunter2", SettingsError),
        ("sqlite:", SettingsError),
    ],
)
def test_a_kind_of_database_that_is_not_supported_is_refused_without_its_secrets(
    tmp_path: Path, url: str, kind: type[CatchmentError]
) -> None:
    with pytest.raises(kind) as refused:
        ControlDatabase.open(Settings(home=tmp_path, control_db=SecretStr(url)))
    assert "hunter2" not in str(refused.value)


def test_a_transaction_is_kept_whole_or_not_at_all_and_enforces_references(home: Home) -> None:
    control = home.open()
    insert = "INSERT INTO shards (name, region, address, state, created_at) VALUES (?, 'eu', '', 'active', '')"
    with control.transaction() as connection:
        connection.execute(insert, ["a"])

    def insert_a_stray() -> None:
        with control.transaction() as connection:
            connection.execute(insert, ["b"])
            connection.execute("INSERT INTO tenants (number, name, shard, created_at) VALUES (1, '', 99, '')")

    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        insert_a_stray()
    assert home.run("SELECT name FROM shards") == [("a",)]


def test_the_app_opens_the_control_database_once_at_the_path_of_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "own.sqlite"
    with App(Settings(home=tmp_path / "home", control_db=SecretStr(f"sqlite:{path}"))) as app:
        assert app.control is app.control
        assert app.control.path == path
    assert path.exists()
    assert not (tmp_path / "home").exists()


def test_examining_a_missing_control_database_creates_nothing(home: Home) -> None:
    assert str(ControlDatabase.examine(home.settings)).startswith("none yet")
    assert not home.path.parent.exists()


def test_a_database_locked_by_another_writer_is_a_retryable_error(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    control = home.open()
    monkeypatch.setattr(sqlite, "_BUSY_MS", 10)
    with control.transaction(), pytest.raises(ControlUnavailableError, match="in use"), control.transaction():
        pass
    with control.transaction() as session:
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_a_reading_transaction_sees_one_moment_and_cannot_write(home: Home) -> None:
    control = home.open()
    with control.reading() as session:
        assert session.execute("SELECT count(*) FROM shards").fetchone() == (0,)
        with pytest.raises(ControlUnavailableError), control.reading() as other:
            other.execute("DELETE FROM shards")
