"""Every attempt to leave the sandbox is refused, and has no effect."""

import base64
import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import duckdb
import grpc
import pyarrow as pa
import pytest

from catchment.app import App
from catchment.errors import (
    CatchmentError,
    InputError,
    NotAllowedError,
    NotLoggedInError,
    NotSupportedError,
    StateError,
)
from catchment.foundation.settings import Settings
from catchment.server.access.auth import Authenticator
from catchment.server.access.users import Users
from catchment.server.flight.session_lookup import SessionLookup
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from catchment.server.sql import catalog_lists
from catchment.server.values import Call, IfExists, IngestTarget, Principal, Role
from tests.server.sql import sandbox_statements
from tests.server.sql.sandbox_statements import SECRET

# Refused by the policy, or because the name does not exist.
REFUSED = (NotAllowedError, NotSupportedError, InputError, duckdb.CatalogException, duckdb.PermissionException)
ATTACKS = (
    *sandbox_statements.FILES,
    *sandbox_statements.DATABASES,
    *sandbox_statements.SETTINGS,
    *sandbox_statements.METADATA,
    *sandbox_statements.MEMORY,
    *sandbox_statements.HIDDEN,
    *sandbox_statements.LEDGER,
)
WRITES = (
    "INSERT INTO t VALUES (1, 'x')",
    "INSERT INTO t SELECT * FROM t",
    "INSERT INTO duckling_queue.t VALUES (1, 'x')",
    "INSERT INTO duckling_queue.t SELECT * FROM t",
    "UPDATE t SET a = 1",
    "DELETE FROM t",
    "TRUNCATE t",
    "MERGE INTO t USING t s ON t.a = s.a WHEN MATCHED THEN DELETE",
    "CREATE TABLE x (a INTEGER)",
    "CREATE TEMP TABLE x (a INTEGER)",
    "CREATE VIEW x AS FROM t",
    "CREATE SCHEMA x",
    "DROP TABLE t",
    "ALTER TABLE t ADD COLUMN c INTEGER",
    "COMMENT ON TABLE t IS 'x'",
    "BEGIN; DELETE FROM t; COMMIT",
)


@dataclass(frozen=True)
class Place:
    """A server's inside, without its wire."""

    registry: SessionRegistry
    outside: Path
    data: Path
    file: Path

    def session(self, role: Role = Role.ADMIN, name: str = "somebody") -> Session:
        return self.registry.open(Principal(name, role))

    def fill(self, text: str) -> str:
        stem = str(self.file).removesuffix(".parquet")
        return text.format(outside=self.outside, data=self.data, file=self.file, stem=stem)

    def traces(self) -> tuple[object, ...]:
        """Possible effects of a statement: files, and a new version of the lake."""
        found = tuple(sorted(str(path) for root in (self.outside, self.data) for path in root.rglob("*")))
        return (found, self.registry.backend.lake.newest_snapshot())

    def shared(self) -> list[tuple[object, ...]]:
        """What sessions would share beside the lake."""
        with self.registry.backend.lake.snapshot() as connection:
            return connection.execute(
                "SELECT table_name FROM duckdb_tables() WHERE database_name IN ('memory', 'system') "
                "UNION ALL SELECT function_name FROM duckdb_functions() WHERE NOT internal "
                "UNION ALL SELECT database_name FROM duckdb_databases() WHERE NOT internal "
                "UNION ALL SELECT name || value FROM duckdb_settings() WHERE name NOT IN ('schema', 'search_path')"
            ).fetchall()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.csv").write_text(f"word\n{SECRET}\n")
    (outside / "secret.json").write_text(f'{{"word": "{SECRET}"}}\n')
    with contextlib.closing(sqlite3.connect(outside / "secret.sqlite")) as database:
        database.executescript(f"CREATE TABLE s (word TEXT); INSERT INTO s VALUES ('{SECRET}');")
    with duckdb.connect(str(outside / "secret.duckdb")) as database:
        database.execute(f"CREATE TABLE s AS SELECT '{SECRET}' AS word")
    home = tmp_path_factory.mktemp("walls")
    settings = Settings(home=home, lake_threads_max=1)
    with App(settings, sandboxed=True) as app:
        registry = SessionRegistry(app)
        session = registry.open(Principal("founder", Role.ADMIN))
        run(session, "CREATE TABLE t (a INTEGER, b VARCHAR)")
        run(session, "INSERT INTO t SELECT i, 'x' FROM range(100) r(i)")
        data = Path(settings.data_path)
        yield Place(registry, outside, data, next((data / "main" / "t").glob("*.parquet")))
        registry.close_all()


def run(session: Session, text: str, parameters: pa.Table | None = None) -> pa.Table:
    """What a text gives."""
    call = Call()
    result = session.execute(text, call, parameters=parameters).result
    return pa.Table.from_batches(result.batches(call), result.schema)


@pytest.fixture(scope="module")
def clients(place: Place) -> Iterator[dict[Role, Session]]:
    before = place.shared()
    yield {role: place.session(role) for role in Role}
    assert place.shared() == before


@pytest.mark.parametrize("text", ATTACKS)
def test_a_way_out_is_refused_and_leaves_no_trace(place: Place, clients: dict[Role, Session], text: str) -> None:
    text, client = place.fill(text), clients[Role.ADMIN]
    before = place.traces()
    with pytest.raises(REFUSED) as refused:
        run(client, text)
    assert SECRET not in str(refused.value)
    with pytest.raises(REFUSED):
        client.run_prepared(client.prepare(text), Call())
    assert place.traces() == before
    if text.startswith(("USE", "SET", "RESET")):
        # What it did to the session itself would open the way for the next.
        assert run(client, "SELECT current_database() || current_schema() AS at").to_pylist() == [{"at": "lakemain"}]


def test_the_sandbox_holds_without_the_sql_policy(place: Place) -> None:
    with place.registry.backend.lake.cursor() as connection:
        for text in (
            "FROM read_text('{outside}/secret.csv')",
            "FROM '{outside}/secret.csv'",
            "COPY t TO '{outside}/out.csv'",
            "ATTACH '{outside}/new.duckdb'",
            "LOAD '{outside}/x.duckdb_extension'",
            "SET threads = 4",
            "SET enable_external_access = true",
            "SET lock_configuration = false",
            "RESET allowed_directories",
            "FROM place",
        ):
            with pytest.raises((duckdb.PermissionException, duckdb.InvalidInputException, duckdb.CatalogException)):
                connection.execute(place.fill(text))
    assert {path.suffix for path in place.outside.iterdir()} == {".csv", ".json", ".sqlite", ".duckdb"}


@pytest.mark.parametrize("role", Role)
def test_clients_cannot_write_to_the_ledger(place: Place, clients: dict[Role, Session], role: Role) -> None:
    before = place.traces()
    for text in sandbox_statements.LEDGER:
        with pytest.raises(REFUSED):
            run(clients[role], text)
    assert place.traces() == before


@pytest.mark.parametrize("role", Role)
def test_lists_of_the_catalog_do_not_show_the_ledger(clients: dict[Role, Session], role: Role) -> None:
    with duckdb.connect() as connection:
        views = connection.execute(
            "SELECT schema_name || '.' || view_name FROM duckdb_views() "
            "WHERE internal AND view_name NOT LIKE 'duckdb_log%'"
        ).fetchall()
    lists = [f"SELECT * FROM {name}" for (name,) in views]
    lists += [
        f"SELECT 'é' AS x, l.* FROM {name}() AS l" for name in sorted(catalog_lists.LISTS - {"snapshots", "table_info"})
    ]
    lists = [text.replace("ducklake_snapshots()", "lake.snapshots()") for text in lists]
    lists = [text.replace("ducklake_table_info()", "lake.table_info()") for text in lists]
    shown = 0
    for text in (*lists, "SHOW ALL TABLES", "SHOW SCHEMAS", "FROM (DESCRIBE)", "PRAGMA show_tables_expanded"):
        with contextlib.suppress(NotAllowedError):
            found = run(clients[role], text)
            with clients[role].state.autocommit_connection() as connection:
                all_of_it = connection.table(text, Call())
            assert found.schema.names == all_of_it.schema.names, text
            told = str(found.to_pylist())
            assert not any(word in told for word in ("_catchment", "producers", "deliveries")), text
            shown += any(word in str(all_of_it.to_pylist()) for word in ("_catchment", "producers"))
    assert shown > 15
    if role is not Role.ADMIN:
        with pytest.raises(NotAllowedError):
            run(clients[role], "CREATE TEMP VIEW listed AS FROM duckdb_tables()")
    for name in ("producers", "deliveries", "ducklake_snapshot"):
        with pytest.raises(duckdb.CatalogException) as missing:
            run(clients[role], f"FROM {name}")
        assert "Did you mean" not in str(missing.value)


def test_a_prepared_statement_is_judged_with_its_arguments(place: Place, clients: dict[Role, Session]) -> None:
    client = clients[Role.WRITER]
    run(client, "PREPARE adding AS SELECT $1 + $2 AS sum")
    assert run(client, "EXECUTE adding(1, (SELECT max(a) FROM t))").to_pylist() == [{"sum": 100}]
    for argument in (
        f"(SELECT count(*) FROM '{place.file}')",
        "current_setting('threads')",
        "(FROM _catchment.producers)",
    ):
        with pytest.raises(REFUSED):
            run(client, f"EXECUTE adding(1, {argument})")
    run(client, "DEALLOCATE PREPARE adding")
    with pytest.raises(StateError, match="adding"):
        run(client, "EXECUTE adding(1, 2)")


@pytest.mark.parametrize("role", [Role.READER, Role.WRITER])
@pytest.mark.parametrize("name", ["_catchment.producers", "catchment_fresh._catchment.producers"])
def test_only_an_admin_reads_the_ledger(clients: dict[Role, Session], role: Role, name: str) -> None:
    assert run(clients[Role.ADMIN], f"FROM {name}").num_rows
    with pytest.raises(NotAllowedError):
        run(clients[role], f"FROM {name}")


@pytest.mark.parametrize("text", [text for text in sandbox_statements.MEMORY if "memory" in text.lower()])
def test_the_instances_own_database_is_refused_by_its_name(clients: dict[Role, Session], text: str) -> None:
    with pytest.raises(NotAllowedError):
        run(clients[Role.ADMIN], text)


def test_every_way_out_is_a_statement_to_duckdb(place: Place) -> None:
    with duckdb.connect() as connection:
        for text in ATTACKS:
            # DuckDB reads the files of a database to parse its import.
            if "IMPORT" not in text and "import_database" not in text:
                assert connection.extract_statements(place.fill(text)), text


@pytest.fixture(scope="module")
def user(place: Place) -> Session:
    return place.session()


def test_usual_statements_are_allowed(place: Place, user: Session) -> None:
    # In one test: each may build on what those before it made.
    for text in sandbox_statements.LEGITIMATE:
        try:
            run(user, text.replace("{{", "{").replace("}}", "}"))
        except (CatchmentError, duckdb.Error) as error:
            pytest.fail(f"{text}: {error}")


@pytest.mark.parametrize("text", WRITES)
def test_a_reader_changes_nothing(place: Place, clients: dict[Role, Session], text: str) -> None:
    before = place.traces()
    with pytest.raises(NotAllowedError):
        run(clients[Role.READER], text)
    assert place.traces() == before


@pytest.mark.parametrize("text", ["PRAGMA duckling_queue.flush", "CALL duckling_queue_status()"])
@pytest.mark.parametrize("role", [Role.READER, Role.WRITER])
def test_the_queue_is_commanded_by_admins_only(clients: dict[Role, Session], role: Role, text: str) -> None:
    with pytest.raises(NotAllowedError, match="admin"):
        run(clients[role], text)


@pytest.mark.parametrize("text", ["SELECT * FROM '{file}' WHERE a = ?", "SELECT current_setting(?)", "FROM glob(?)"])
def test_a_bound_value_does_not_leave_the_sandbox(place: Place, clients: dict[Role, Session], text: str) -> None:
    with pytest.raises(REFUSED):
        run(clients[Role.ADMIN], place.fill(text), pa.table({"1": ["temp_directory"]}))


@pytest.mark.parametrize(
    "text", ["FROM query_table(?)", "FROM ?", "INSERT INTO ? VALUES (1)", "SET schema = ?", "USE ?"]
)
def test_names_cannot_be_bound_as_parameters(clients: dict[Role, Session], text: str) -> None:
    with pytest.raises((*REFUSED, duckdb.Error)):
        run(clients[Role.ADMIN], text, pa.table({"1": ["_catchment"]}))


@pytest.mark.parametrize("temporary", [False, True])
@pytest.mark.parametrize("if_exists", IfExists)
@pytest.mark.parametrize(
    ("catalog", "schema"),
    [
        *((None, "_catchment"), ("lake", "_CATCHMENT"), ("duckling_queue", "_catchment"), (None, "catchment_fresh")),
        *(("memory", "main"), ("system", "main"), ("__ducklake_metadata_lake", "main"), ("../x", "main")),
        *((None, "../x"), (None, "/etc"), (None, "information_schema"), (None, "pg_catalog")),
    ],
)
def test_an_ingest_goes_to_the_lake_only(
    place: Place,
    clients: dict[Role, Session],
    catalog: str | None,
    schema: str,
    if_exists: IfExists,
    temporary: bool,
) -> None:
    before = place.traces()
    target = IngestTarget(
        catalog=catalog,
        schema=schema,
        table="producers",
        create=True,
        if_exists=if_exists,
        temporary=temporary,
    )
    with contextlib.suppress(*REFUSED, duckdb.Error):
        clients[Role.ADMIN].ingest(target, pa.table({"producer": ["x"]}).to_reader(), Call())
        # A temporary table has no schema but its own.
        assert temporary
        assert catalog is None
    assert place.traces() == before


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "..", "a/../../b", "x.parquet", "t'; DROP TABLE t; --", 'q"q', "é\u00a0"]
)
def test_a_table_with_any_name_stays_in_the_data_folder(place: Place, clients: dict[Role, Session], name: str) -> None:
    outside = {path for path in place.data.parent.parent.rglob("*") if place.data not in path.parents}
    target = IngestTarget(catalog=None, schema=None, table=name, create=True, if_exists=IfExists.REPLACE)
    assert clients[Role.WRITER].ingest(target, pa.table({"a": range(20)}).to_reader(), Call()) == 20
    found = {path for path in place.data.parent.parent.rglob("*") if place.data not in path.parents}
    assert {path.name for path in found - outside} <= {"spill"}


def test_sessions_share_nothing_but_the_lake(place: Place) -> None:
    mine, other = place.session(Role.WRITER, "me"), place.session(Role.WRITER, "other")
    run(mine, "CREATE TEMP TABLE private AS SELECT 'mine' AS word")
    run(mine, "SET VARIABLE word = 'mine'")
    for text in ("FROM private", "FROM temp.main.private", "DROP TABLE temp.main.private"):
        with pytest.raises(duckdb.CatalogException):
            run(other, text)
    assert run(other, "SELECT getvariable('word') AS word").to_pylist() == [{"word": None}]
    listed = run(other, "SELECT table_name FROM duckdb_tables() WHERE database_name = 'temp'")
    assert listed.num_rows == 0
    kept = mine.keep(mine.execute("FROM private", Call()))
    prepared = mine.prepare("FROM private").handle
    transaction = mine.begin()
    for reach in (
        lambda: other.take(kept),
        lambda: other.prepared(prepared),
        lambda: other.end(transaction, commit=True),
        lambda: other.execute("SELECT 1", Call(), transaction=transaction),
    ):
        with pytest.raises(StateError):
            reach()
    assert not other.cancel(kept)
    assert mine.take(kept).result.schema.names == ["word"]
    mine.end(transaction, commit=False)


class _Context:
    """As much of a call as the entrance looks at."""

    def __init__(self, header: str) -> None:
        self.header = header

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("authorization", self.header)]

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


def test_a_handle_opens_nothing_to_another_user(place: Place, tmp_path: Path) -> None:
    users = Users.from_settings(Settings(home=tmp_path))
    users.add("me", Role.WRITER, "a long password")
    users.add("other", Role.ADMIN, "another password")
    entrance = SessionLookup(place.registry, Authenticator(users, required=True))
    mine = place.session(Role.WRITER, "me")
    handle = mine.begin()
    basic = base64.b64encode(b"other:another password").decode()
    for header in (f"Basic {basic}", "", "Bearer x"):
        with (
            pytest.raises(NotLoggedInError),
            entrance.session(cast(grpc.ServicerContext, _Context(header)), handle),
        ):
            pass
    mine.end(handle, commit=False)
