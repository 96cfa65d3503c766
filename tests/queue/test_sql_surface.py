"""Tables of `duckling_queue` for clients: created, filled, read and listed, in every layout."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as flight
import adbc_driver_manager
import duckdb
import grpc
import pyarrow as pa
import pytest

from catchment.app import App
from catchment.errors import CatchmentError
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.settings import Settings, load_settings
from catchment.server.flight import metadata
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from catchment.server.values import Call, Principal, Role
from catchment.tenants.model import TenantId
from tests.conftest import MakeSettings
from tests.queue.insert_cases import TYPES, plain
from tests.queue.queues import FACTS, LAYOUTS_ON_DISK
from tests.server import raw_client
from tests.server.raw_client import Client, refused, server
from tests.shortcuts.made_lakes import put_lake

Error = adbc_driver_manager.Error


def settings_of(home: Path, layout: str, **more: Any) -> Settings:
    return load_settings(
        home=home, server_port=0, server_web_port=0, queue_layout=layout, queue_flush_interval_seconds=3_600,
        queue_rotate_interval_seconds=3_600, lake_threads_max=1, **{"queue_auto_create_tables": True, **more},
    )  # fmt: skip


@contextmanager
def connected(uri: str, *, autocommit: bool = True, **options: str) -> Iterator[Any]:
    """A cursor of a client with a session of its own."""
    with (
        flight.connect(uri, autocommit=autocommit, db_kwargs=options) as connection,
        connection.cursor() as cursor,
    ):
        yield cursor


@pytest.fixture(scope="module", params=LAYOUTS_ON_DISK)
def uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in one of the layouts, which flushes on request only."""
    with raw_client.server(settings_of(tmp_path_factory.mktemp("surface"), request.param)) as running:
        yield running.uri


@pytest.fixture
def cursor(uri: str) -> Iterator[Any]:
    with connected(uri) as cursor:
        yield cursor


@pytest.fixture
def table(request: pytest.FixtureRequest) -> str:
    """A name that no other test of the module uses."""
    return f"t{zlib.crc32(request.node.name.encode())}"


def rows(cursor: Any, query: str) -> list[tuple[Any, ...]]:
    cursor.execute(query)
    return list(cursor.fetchall())


def failure(cursor: Any, statement: str) -> str:
    with pytest.raises(Error) as failed:
        cursor.execute(statement)
    return str(failed.value)


# CREATE TABLE.


def test_create_table_as_makes_the_table_and_enqueues_its_rows(cursor: Any, table: str) -> None:
    cursor.execute(f"CREATE TABLE duckling_queue.{table} AS SELECT i AS a, 'x' AS b FROM range(3) r(i)")
    assert cursor.rowcount == 3
    assert rows(cursor, f"SELECT count(*) FROM {table}") == [(0,)]
    assert rows(cursor, f"SELECT * FROM catchment_fresh.{table} ORDER BY a") == [(0, "x"), (1, "x"), (2, "x")]
    cursor.execute("CALL duckling_queue_flush()").fetchall()
    assert rows(cursor, f"SELECT * FROM {table} ORDER BY a") == [(0, "x"), (1, "x"), (2, "x")]


def test_create_table_with_columns_makes_a_table_with_their_defaults_and_constraints(cursor: Any, table: str) -> None:
    cursor.execute(f"CREATE TABLE duckling_queue.{table} (a INTEGER NOT NULL, b VARCHAR DEFAULT 'x')")
    cursor.execute(f"INSERT INTO duckling_queue.{table} (a) VALUES (1)")
    assert "must not be NULL" in failure(cursor, f"INSERT INTO duckling_queue.{table} (b) VALUES ('y')")
    assert rows(cursor, f"SELECT * FROM catchment_fresh.{table}") == [(1, "x")]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("CREATE TABLE {} (p, q) AS SELECT 1, 'x'", [("p", "INTEGER"), ("q", "VARCHAR")]),
        ("CREATE TABLE {} (p) AS SELECT 1, 2 AS z", [("p", "INTEGER"), ("z", "INTEGER")]),
        ("CREATE TABLE {} AS SELECT 1 AS a, 2 AS a", [("a", "INTEGER"), ("a_1", "INTEGER")]),
        ("create table {} as (values (1)) -- AS", [("col0", "INTEGER")]),
        ("CREATE TABLE {} AS WITH w AS (SELECT 1 AS a) SELECT a AS b FROM w;", [("b", "INTEGER")]),
        ('CREATE TABLE {} ("as" INTEGER)', [("as", "INTEGER")]),
        ("CREATE TABLE {} AS SELECT 1::HUGEINT AS a WITH DATA", [("a", "HUGEINT")]),
        ("CREATE TABLE {} AS FROM (SELECT CAST('{\"a\": 1}' AS JSON) AS j)", [("j", "JSON")]),
    ],
)
def test_a_table_that_the_queue_makes_has_the_columns_that_create_table_gives_its_twin(
    cursor: Any, table: str, statement: str, expected: list[tuple[str, str]]
) -> None:
    cursor.execute(statement.replace("{}", f"duckling_queue.{table}"))
    cursor.execute(statement.replace("{}", f"{table}_twin"))
    made, twin = (
        rows(cursor, f"SELECT column_name, column_type FROM (DESCRIBE {name})") for name in (table, f"{table}_twin")
    )
    assert made == twin == expected
    buffered = rows(cursor, f"SELECT t::VARCHAR FROM catchment_fresh.{table} t")
    assert buffered == rows(cursor, f"SELECT t::VARCHAR FROM {table}_twin t")


def test_values_of_every_type_survive_create_table_as(cursor: Any) -> None:
    names = [(f"made{number}", f"twin{number}") for number in range(len(TYPES))]
    for case, (made, twin) in zip(TYPES, names, strict=True):
        query = f"SELECT k, CAST(v AS {case.type}) AS v FROM (VALUES {plain(case.rows(1))}) g(k, v)"
        for name in (f"duckling_queue.{made}", twin):
            cursor.execute(f"CREATE TABLE {name} AS {query}")
    for stage in ("catchment_fresh.", ""):
        for case, (made, twin) in zip(TYPES, names, strict=True):
            found, expected = (
                (
                    rows(cursor, f"SELECT column_type FROM (DESCRIBE {name})"),
                    sorted(rows(cursor, f"SELECT t::VARCHAR FROM {place}{name} t")),
                )
                for place, name in ((stage, made), ("", twin))
            )
            assert found == expected, (case.name, stage)
        cursor.execute("CALL duckling_queue_flush()").fetchall()


def test_a_table_that_exists_is_not_made_a_second_time_and_gets_no_rows(cursor: Any, table: str) -> None:
    cursor.execute(f"CREATE TABLE duckling_queue.{table} AS SELECT 1 AS a")
    for definition in ("AS SELECT 2 AS a", "(a INTEGER)"):
        assert "already exists" in failure(cursor, f"CREATE TABLE duckling_queue.{table.upper()} {definition}")
        cursor.execute(f"CREATE TABLE IF NOT EXISTS duckling_queue.{table.upper()} {definition}")
        assert cursor.rowcount == 0
    assert rows(cursor, f"SELECT a FROM catchment_fresh.{table}") == [(1,)]
    cursor.execute(f"CREATE TABLE IF NOT EXISTS duckling_queue.{table}_2 AS SELECT 3 AS a")
    assert rows(cursor, f"SELECT a FROM catchment_fresh.{table}_2") == [(3,)]


def test_a_query_without_rows_and_one_with_no_data_make_an_empty_table(cursor: Any, table: str) -> None:
    cursor.execute(f"CREATE TABLE duckling_queue.{table} AS SELECT 1 AS a WHERE false")
    cursor.execute(f"CREATE TABLE duckling_queue.{table}_2 AS SELECT error('boom') AS a WITH NO DATA")
    for name in (table, f"{table}_2"):
        assert rows(cursor, f"SELECT count(*) FROM catchment_fresh.{name}") == [(0,)]


def test_a_query_that_fails_makes_no_table(cursor: Any, table: str) -> None:
    for query in (
        "SELECT error('boom') AS a",
        "SELECT * FROM missing",
        "SELECT '\\x01'::VARIANT AS a",
        "SELECT 1 AS dq_seq",
    ):
        failure(cursor, f"CREATE TABLE duckling_queue.{table} AS {query}")
    for columns in ("(a VARIANT)", "(dq_seq BIGINT)", "(a NO_TYPE)", ""):
        failure(cursor, f"CREATE TABLE duckling_queue.{table} {columns}")
    assert "does not exist" in failure(cursor, f"SELECT * FROM {table}")


def test_tables_are_made_in_other_schemas_and_under_quoted_names(cursor: Any, table: str) -> None:
    cursor.execute(f"CREATE SCHEMA of_{table}")
    cursor.execute(f"CREATE TABLE duckling_queue.of_{table}.{table} AS SELECT 1 AS a")
    cursor.execute(f'CREATE TABLE "DUCKLING_QUEUE"."Ünï ""q"" {table}" AS SELECT 2 AS "select"')
    assert rows(cursor, f"SELECT a FROM catchment_fresh.of_{table}.{table}") == [(1,)]
    assert rows(cursor, f'SELECT * FROM catchment_fresh."Ünï ""q"" {table}"') == [(2,)]
    assert "not found" in failure(cursor, f"CREATE TABLE duckling_queue.missing.{table} (a INTEGER)")
    assert "_catchment" in failure(cursor, f"CREATE TABLE duckling_queue._catchment.{table} (a INTEGER)")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE OR REPLACE TABLE duckling_queue.t AS SELECT 1", "CREATE OR REPLACE TABLE is not possible"),
        ("CREATE TEMP TABLE duckling_queue.t (a INTEGER)", "CREATE TEMP TABLE is not possible"),
        ("CREATE TABLE duckling_queue.t AS FROM catchment_fresh.u", "not inside a CREATE TABLE"),
        ("CREATE TABLE duckling_queue.a.b.c (a INTEGER)", "must be duckling_queue.<table>"),
        ("CREATE TABLE duckling_queue.t AS SELECT * FROM read_csv('/etc/passwd')", "reads files"),
    ],
)
def test_unsupported_create_table_statements_of_the_queue_are_refused_with_the_reason(
    cursor: Any, statement: str, reason: str
) -> None:
    assert reason in failure(cursor, statement)


def test_parameters_of_a_create_table_are_bound_once(cursor: Any, table: str) -> None:
    statement = f"CREATE TABLE duckling_queue.{table} AS SELECT CAST(? AS INTEGER) AS a, CAST(? AS VARCHAR) AS b"
    cursor.execute(statement, (1, "x"))
    assert rows(cursor, f"SELECT * FROM catchment_fresh.{table}") == [(1, "x")]
    with pytest.raises(Error, match="one row of parameters"):
        cursor.executemany(statement.replace(table, f"{table}_2"), [(1, "x"), (2, "y")])


def test_a_table_made_in_a_transaction_is_there_with_its_rows_after_commit_and_not_at_all_after_rollback(
    uri: str, table: str
) -> None:
    with connected(uri) as cursor, connected(uri) as other:
        for end in ("ROLLBACK", "COMMIT"):
            cursor.execute("BEGIN")
            cursor.execute(f"CREATE TABLE duckling_queue.{table} AS SELECT 1 AS a")
            cursor.execute(f"CREATE TABLE duckling_queue.{table}_2 (a INTEGER)")
            assert "does not exist" in failure(other, f"SELECT * FROM {table}")
            cursor.execute(end)
        assert rows(other, f"SELECT a FROM catchment_fresh.{table}") == [(1,)]
        assert rows(other, f"SELECT a FROM catchment_fresh.{table}_2") == []


@pytest.mark.parametrize("autocommit", [True, False])
def test_an_ingest_makes_its_table_by_the_rules_of_its_mode(uri: str, table: str, *, autocommit: bool) -> None:
    given = pa.table({"a": pa.array([1, 2]), "j": pa.array(['{"x": 1}', None], pa.json_())})
    name = f"{table}_{autocommit}".lower()
    with connected(uri, autocommit=autocommit) as cursor:

        def ingest(mode: str) -> None:
            cursor.adbc_ingest(name, given, mode=mode, db_schema_name="duckling_queue")
            if not autocommit:
                cursor.connection.commit()

        ingest("create")
        with pytest.raises(Error, match="already exists"):
            ingest("create")
        if not autocommit:
            cursor.connection.rollback()
        ingest("create_append")
        with pytest.raises(Error, match="cannot replace"):
            ingest("replace")
    with connected(uri) as cursor:
        assert rows(cursor, f"SELECT a, count(*) FROM catchment_fresh.{name} GROUP BY a ORDER BY a") == [(1, 2), (2, 2)]
        assert rows(cursor, f"SELECT column_type FROM (DESCRIBE {name})") == [("BIGINT",), ("JSON",)]


@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_rows_of_a_table_that_the_queue_made_outlive_a_process_that_ends_without_a_flush(
    layout: str, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, layout)
    with App(settings, sandboxed=True) as app:
        session = SessionRegistry(app).open(Principal("ada", Role.WRITER))
        execute(session, "CREATE TABLE duckling_queue.t AS SELECT uuid() AS u, i FROM range(5) r(i)")
        before = rows_of(execute(session, "SELECT u::VARCHAR, i FROM catchment_fresh.t ORDER BY i"))
        assert execute(session, "FROM t").num_rows == 0
    with raw_client.server(settings) as running, connected(running.uri) as cursor:
        assert rows(cursor, "SELECT count(*) FROM t") == [(0,)]
        assert rows(cursor, "SELECT u::VARCHAR, i FROM catchment_fresh.t ORDER BY i") == before
        # Of a closed session.
        assert listed(cursor) == ([] if FACTS[layout].separates_sessions else [("t", "QUEUE")])
        cursor.execute("PRAGMA duckling_queue.flush").fetchall()
        assert rows(cursor, "SELECT u::VARCHAR, i FROM t ORDER BY i") == before


def test_if_the_queue_creates_no_tables_a_create_table_is_refused_with_the_setting(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "shared", queue_auto_create_tables=False)
    with raw_client.server(settings) as running, connected(running.uri) as cursor:
        for definition in ("AS SELECT 1 AS a", "(a INTEGER)"):
            reason = failure(cursor, f"CREATE TABLE duckling_queue.t {definition}")
            assert "Unauthorized" in reason or "PermissionDenied" in reason
            assert "DUCKLING_QUEUE_AUTO_CREATE_TABLES=true" in reason
        with pytest.raises(Error, match="AUTO_CREATE_TABLES"):
            cursor.adbc_ingest("t", pa.table({"a": [1]}), mode="create", db_schema_name="duckling_queue")
        cursor.execute("CREATE TABLE t (a INTEGER)")
        cursor.execute("CREATE TABLE IF NOT EXISTS duckling_queue.t AS SELECT 1 AS a")
        assert rows(cursor, "SELECT * FROM catchment_fresh.t") == []


# Reading a session's own rows.


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in the layout with a file for each session."""
    with raw_client.server(settings_of(tmp_path_factory.mktemp("own"), "sessions")) as running:
        yield running.uri


def test_a_session_reads_the_rows_that_it_has_buffered_and_those_of_no_other(sessions: str, table: str) -> None:
    with connected(sessions) as mine, connected(sessions) as other:
        mine.execute(f"CREATE TABLE duckling_queue.{table} AS SELECT 1 AS a, 'mine' AS b")
        assert rows(mine, f"SELECT * FROM duckling_queue.{table}") == [(1, "mine")]
        assert rows(other, f"SELECT * FROM duckling_queue.{table}") == []
        other.execute(f"INSERT INTO duckling_queue.{table} VALUES (2, 'other')")
        other.execute(f"INSERT INTO {table} VALUES (3, 'lake')")
        assert rows(mine, f"SELECT * FROM duckling_queue.main.{table.upper()}") == [(1, "mine")]
        assert rows(other, f"SELECT * FROM duckling_queue.{table}") == [(2, "other")]
        assert rows(mine, f"SELECT a FROM catchment_fresh.{table} ORDER BY a") == [(1,), (2,), (3,)]
        mine.execute("PRAGMA duckling_queue.flush").fetchall()
        for cursor in (mine, other):
            assert rows(cursor, f"SELECT * FROM duckling_queue.{table}") == []
            assert rows(cursor, f"SELECT a FROM {table} ORDER BY a") == [(1,), (2,), (3,)]


def test_own_rows_are_read_in_queries_of_every_kind(sessions: str, table: str) -> None:
    with connected(sessions) as cursor:
        cursor.execute(f"CREATE TABLE {table} AS SELECT 1 AS a, 'lake' AS b")
        cursor.execute(f"INSERT INTO duckling_queue.{table} VALUES (2, 'own'), (3, 'own')")
        for query, expected in [
            ("FROM duckling_queue.{} ORDER BY a LIMIT 1", [(2, "own")]),
            ("SELECT {}.a FROM duckling_queue.{} WHERE {}.b = 'own' ORDER BY 1", [(2,), (3,)]),
            ("SELECT count(*) FROM duckling_queue.{} JOIN catchment_fresh.{} f USING (a)", [(2,)]),
            ("SELECT f.a FROM catchment_fresh.{} f ANTI JOIN duckling_queue.{} q USING (a)", [(1,)]),
            ("WITH w AS (FROM duckling_queue.{}) SELECT sum(a)::INTEGER FROM w", [(5,)]),
            ("SELECT a FROM {} UNION ALL SELECT a FROM duckling_queue.{} ORDER BY a", [(1,), (2,), (3,)]),
            ("SELECT column_name FROM (DESCRIBE {}) ORDER BY 1", [("a",), ("b",)]),
        ]:
            assert rows(cursor, query.replace("{}", table)) == expected, query
        cursor.execute(f"SELECT b FROM duckling_queue.{table} WHERE a = ?", (3,))
        assert cursor.fetchall() == [("own",)]
        for verb in ("DESCRIBE", "SHOW", "DESC"):
            assert [row[:2] for row in rows(cursor, f"{verb} duckling_queue.{table}")] == [
                ("a", "INTEGER"),
                ("b", "VARCHAR"),
            ]
        assert rows(cursor, f"SUMMARIZE duckling_queue.{table}")[0][:4] == ("a", "INTEGER", "2", "3")
        assert "append-only" in failure(cursor, f"INSERT INTO {table} FROM duckling_queue.{table}")
        assert "append-only" in failure(cursor, f"DROP TABLE duckling_queue.{table}")
        assert "has no table" in failure(cursor, f"SELECT * FROM duckling_queue.{table}_missing")


def test_own_rows_are_read_from_sealed_files_and_in_the_columns_that_the_table_has_now(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "sessions")
    with (
        raw_client.server(settings) as running,
        connected(running.uri) as mine,
        connected(running.uri) as other,
    ):
        mine.execute("CREATE TABLE t (a INTEGER, b INTEGER)")
        for cursor, number in ((mine, 1), (other, 2), (mine, 3)):
            cursor.execute(f"INSERT INTO duckling_queue.t VALUES ({number}, {10 * number})")
        running.app.queue.buffer.seal()
        assert not any((settings.queue_path / "active").iterdir())
        mine.execute("ALTER TABLE t RENAME COLUMN a TO c; ALTER TABLE t RENAME COLUMN b TO a")
        mine.execute("ALTER TABLE t ADD COLUMN d VARCHAR DEFAULT 'x'")
        assert rows(mine, "SELECT a, c, d FROM duckling_queue.t ORDER BY a") == [(10, 1, "x"), (30, 3, "x")]
        assert rows(other, "SELECT a, c, d FROM duckling_queue.t") == [(20, 2, "x")]
        mine.execute("ALTER TABLE t RENAME TO u")
        assert rows(mine, "SELECT a FROM duckling_queue.u ORDER BY a") == [(10,), (30,)]
    with raw_client.server(settings) as running, connected(running.uri) as cursor:
        # The server flushed them at its end.
        assert rows(cursor, "SELECT a FROM duckling_queue.u") == []
        assert rows(cursor, "SELECT a, c FROM u ORDER BY a") == [(10, 1), (20, 2), (30, 3)]


def test_in_the_shared_layout_the_queue_is_write_only(tmp_path: Path) -> None:
    with raw_client.server(settings_of(tmp_path, "shared")) as running, connected(running.uri) as cursor:
        cursor.execute("CREATE TABLE duckling_queue.t AS SELECT 1 AS a")
        for query in ("SELECT * FROM duckling_queue.t", "DESCRIBE duckling_queue.t"):
            reason = failure(cursor, query)
            assert "write-only" in reason
            assert "catchment_fresh" in reason


# Listing them.


def listed(cursor: Any, **given: Any) -> list[tuple[str, str]]:
    """Names and types of the tables in the schema of the queue."""
    found = cursor.connection.adbc_get_objects(depth="tables", db_schema_filter="duckling_queue", **given)
    (catalog,) = found.read_all().to_pylist()
    return [
        (table["table_name"], table["table_type"])
        for schema in catalog["catalog_db_schemas"]
        for table in schema["db_schema_tables"]
    ]


@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_drivers_list_the_tables_of_the_queue_that_have_buffered_rows(layout: str, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, layout)
    with (
        raw_client.server(settings) as running,
        connected(running.uri) as mine,
        connected(running.uri) as other,
    ):
        assert listed(mine) == []
        mine.execute("CREATE TABLE duckling_queue.empty (a INTEGER); CREATE SCHEMA s")
        for name in ("t", "s.t"):
            mine.execute(f"CREATE TABLE duckling_queue.{name} AS SELECT 1.5 AS a")
        other.execute("CREATE TABLE duckling_queue.u AS SELECT 1 AS a")
        every = [("s.t", "QUEUE"), ("t", "QUEUE"), ("u", "QUEUE")]
        separate = FACTS[layout].separates_sessions
        assert listed(mine) == (every[:2] if separate else every)
        assert listed(other) == (every[2:] if separate else every)
        assert listed(mine, table_name_filter="T") == [("t", "QUEUE")]
        assert listed(mine, table_types_filter=["TABLE"]) == []
        schema = mine.connection.adbc_get_table_schema("t", db_schema_filter="duckling_queue")
        assert schema.field("a").type == pa.decimal128(2, 1)
        mine.execute("CALL duckling_queue_flush()").fetchall()
        assert listed(mine) == listed(other) == []


@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_users_of_a_tenant_find_and_read_what_is_theirs_in_the_queue_and_nothing_else(
    layout: str, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, layout)
    with App(settings, sandboxed=True) as app:
        registry = SessionRegistry(app)
        founder = registry.open(Principal("founder", Role.ADMIN))
        users = {name: registry.open(Principal(name, Role.WRITER, TenantId.parse(name))) for name in ("t7", "t8")}
        for schema, user in users.items():
            execute(founder, f"CREATE SCHEMA {schema}")
            execute(user, f"CREATE TABLE duckling_queue.events AS SELECT '{schema}' AS a")
        execute(users["t8"], "CREATE TABLE duckling_queue.secrets AS SELECT 'sesame' AS a")
        for schema, user in users.items():
            found = metadata.answer(
                sql.CommandGetTables(db_schema_filter_pattern="duckling%"), user.state, settings, Call()
            )
            assert found["table_name"].to_pylist() == (["events"] if schema == "t7" else ["events", "secrets"])
            if FACTS[layout].separates_sessions:
                assert execute(user, "FROM duckling_queue.events").to_pylist() == [{"a": schema}]
        for query in ("FROM duckling_queue.{}", "FROM duckling_queue.t8.{}", "DESCRIBE duckling_queue.t8.{}"):
            said = []
            for name in ("secrets", "phantom"):
                with pytest.raises((CatchmentError, duckdb.Error)) as failed:
                    execute(users["t7"], query.format(name))
                said.append(str(failed.value).replace(name, "{}"))
            assert said[0] == said[1], "an error tells whether another tenant has the table"
        registry.close_all()


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def execute(session: Session, text: str) -> pa.Table:
    call = Call()
    result = session.execute(text, call).result
    return pa.Table.from_batches(result.batches(call), result.schema)


def test_a_server_whose_queue_is_switched_off_says_so_and_takes_rows_for_its_tables(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings("sqlite", queue_enable=False, server_port=0)
    put_lake(settings, events=True)
    with server(settings) as running:
        client = Client(running.uri)
        statement = "INSERT INTO duckling_queue.events VALUES (1, 'x')"
        told = refused(grpc.StatusCode.UNIMPLEMENTED, client.update, statement)
        assert "The queue is switched off. Set DUCKLING_QUEUE_ENABLE=true." in told
        assert client.update("INSERT INTO events VALUES (1, 'x')") == 1
        client.close()
    assert not settings.queue_path.exists()
