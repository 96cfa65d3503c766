"""The control database in PostgreSQL: created and upgraded under a lock, beside other tables."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from catchment.control import ControlDatabase
from catchment.control.database import SCRIPTS_POSTGRES
from catchment.control.models import MODELS
from catchment.control.postgres import PostgresControl
from catchment.errors import ControlUnavailableError, StateError
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from catchment.schema.models import fields_of, table_name
from catchment.testing import EmbeddedPostgres

SCRIPTS = sorted(path.name for path in SCRIPTS_POSTGRES.iterdir())
INSERT = "INSERT INTO shards (name, region, address, state, created_at) VALUES (?, 'eu', '', 'active', '2026-01-01')"


@dataclass(frozen=True)
class Server:
    """A database of the test's own."""

    conninfo: str
    settings: Settings

    def open(self) -> ControlDatabase:
        return ControlDatabase.open(self.settings)

    def engine(self, scripts: Path = SCRIPTS_POSTGRES) -> PostgresControl:
        return PostgresControl(self.conninfo, scripts=scripts, clock=SystemClock())

    def run(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.conninfo) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def server(postgres: EmbeddedPostgres, tmp_path: Path) -> Server:
    conninfo = postgres.new_database()
    return Server(conninfo, Settings(home=tmp_path / "home", control_db=SecretStr(f"postgres:{conninfo}")))


def test_the_scripts_make_the_tables_that_the_models_describe(server: Server) -> None:
    server.open()
    columns = "SELECT table_name, column_name, is_nullable FROM information_schema.columns"
    made = set(server.run(f"{columns} WHERE table_schema = 'catchment' AND table_name <> '_migrations'"))
    assert made == {
        (table_name(model), field.name, "YES" if field.nullable and field.name != "id" else "NO")
        for model in MODELS
        for field in fields_of(model, among=MODELS)
    }


def test_examining_a_missing_control_database_creates_nothing(server: Server) -> None:
    assert str(ControlDatabase.examine(server.settings)).startswith("none yet")
    assert server.run("SELECT 1 FROM pg_namespace WHERE nspname = 'catchment'") == []


def test_the_address_of_the_control_database_is_shown_without_secrets(server: Server) -> None:
    conninfo = make_conninfo(server.conninfo, password="hunter2")
    control = ControlDatabase.open(Settings(control_db=SecretStr(f"postgres:{conninfo}")))
    assert control.path is None
    assert control.place.startswith("postgres:")
    assert "hunter2" not in control.place


def test_a_second_start_changes_nothing(server: Server) -> None:
    server.open()
    before = server.run("SELECT * FROM catchment._migrations")
    server.open()
    assert server.run("SELECT * FROM catchment._migrations") == before
    assert [row[1] for row in before] == SCRIPTS
    assert str(ControlDatabase.examine(server.settings)).endswith("current, 1 script applied")


def test_all_processes_that_start_at_once_come_up(server: Server) -> None:
    count = 4
    together = threading.Barrier(count)

    def start() -> tuple[str, ...]:
        engine = server.engine()
        together.wait()
        return engine.upgrade()

    with ThreadPoolExecutor(count) as pool:
        applied = [each.result() for each in [pool.submit(start) for _ in range(count)]]
    assert sorted(applied) == [()] * (count - 1) + [tuple(SCRIPTS)]


def test_an_older_database_is_upgraded_and_keeps_its_rows(server: Server, tmp_path: Path) -> None:
    with server.open().transaction() as session:
        session.execute(INSERT, ["a"])
    newer = copytree(SCRIPTS_POSTGRES, tmp_path / "newer")
    (newer / "002.more.sql").write_text("ALTER TABLE shards ADD COLUMN more TEXT NOT NULL DEFAULT 'x';\n")
    assert server.engine(newer).examine().pending == ("002.more.sql",)
    assert server.engine(newer).upgrade() == ("002.more.sql",)
    assert server.run("SELECT name, more FROM catchment.shards") == [("a", "x")]


def test_a_script_that_fails_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.open()
    newer = copytree(SCRIPTS_POSTGRES, tmp_path / "newer")
    (newer / "002.more.sql").write_text("CREATE TABLE more (id BIGINT); SELECT 1 / 0;\n")
    with pytest.raises(psycopg.errors.DivisionByZero):
        server.engine(newer).upgrade()
    assert server.run("SELECT to_regclass('catchment.more')") == [(None,)]
    assert server.run("SELECT number FROM catchment._migrations") == [(1,)]


def test_a_database_of_a_newer_program_is_refused(server: Server, tmp_path: Path) -> None:
    newer = copytree(SCRIPTS_POSTGRES, tmp_path / "newer")
    (newer / "002.more.sql").write_text("CREATE TABLE more (id BIGINT);\n")
    server.engine(newer).upgrade()
    for act in (server.open, lambda: ControlDatabase.examine(server.settings)):
        with pytest.raises(StateError, match=r"newer Catchment.*002\.more\.sql"):
            act()


def test_a_database_with_another_script_is_refused(server: Server) -> None:
    server.open()
    server.run("UPDATE catchment._migrations SET script = 'SELECT 1;'")
    with pytest.raises(StateError, match=r"001\..* is not the script that was applied"):
        server.open()


def test_a_schema_of_another_program_is_not_touched(server: Server) -> None:
    server.run("CREATE SCHEMA catchment")
    server.run("CREATE TABLE catchment.precious (id BIGINT)")
    with pytest.raises(StateError, match="not those of a control database"):
        server.open()
    assert server.run("SELECT tablename FROM pg_tables WHERE schemaname = 'catchment'") == [("precious",)]


def test_a_transaction_is_kept_whole_or_not_at_all(server: Server) -> None:
    control = server.open()

    def insert_a_stray() -> None:
        with control.transaction() as session:
            session.execute(INSERT, ["b"])
            session.execute("INSERT INTO tenants (number, name, shard, created_at) VALUES (1, '', 99, '2026-01-01')")

    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        insert_a_stray()
    assert server.run("SELECT name FROM catchment.shards") == []


def test_a_reading_transaction_sees_one_moment_and_cannot_write(server: Server) -> None:
    control = server.open()
    with control.reading() as session:
        assert session.execute("SELECT count(*) FROM shards").fetchone() == (0,)
        with control.transaction() as other:
            other.execute(INSERT, ["a"])
        assert session.execute("SELECT count(*) FROM shards").fetchone() == (0,)

    def write() -> None:
        with control.reading() as session:
            session.execute(INSERT, ["b"])

    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        write()


def test_a_server_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    away = SecretStr("postgres:host=127.0.0.1 port=1 dbname=control password=hunter2 connect_timeout=1")
    settings = Settings(home=tmp_path, control_db=away)
    acts: list[Callable[[], object]] = [
        lambda: ControlDatabase.open(settings),
        lambda: ControlDatabase.examine(settings),
    ]
    for act in acts:
        with pytest.raises(ControlUnavailableError) as raised:
            act()
        assert "hunter2" not in str(raised.value)


def test_a_connection_that_is_cut_in_a_transaction_is_a_retryable_error(
    server: Server, postgres: EmbeddedPostgres
) -> None:
    control = server.open()

    def be_cut() -> None:
        with control.transaction() as session:
            session.execute(INSERT, ["a"])
            postgres.terminate_connections(server.conninfo)
            session.execute(INSERT, ["b"])

    with pytest.raises(ControlUnavailableError):
        be_cut()
    with control.transaction() as session:
        assert session.execute("SELECT count(*) FROM shards").fetchone() == (0,)
