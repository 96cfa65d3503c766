"""Statements, parameters, ingest and metadata through the ADBC driver, from another process."""

from datetime import date
from decimal import Decimal
from typing import Any

import adbc_driver_manager
import duckdb
import pyarrow as pa
import pytest

from tests.server.server_process import ServerProcess

Error = adbc_driver_manager.Error


def _batch(*numbers: int, text: str = "x") -> pa.Table:
    return pa.table({"a": pa.array(numbers, pa.int32()), "b": [text] * len(numbers)})


def _ingest(server: ServerProcess, table: str, rows: Any, mode: str, **where: Any) -> int:
    # A cursor of its own: the driver keeps the options of an ingest for the next one.
    with server.cursor() as cursor:
        return int(cursor.adbc_ingest(table, rows, mode=mode, **where))


# Statements.


def test_a_query_gives_its_rows(server: ServerProcess) -> None:
    assert server.rows("SELECT 42 AS answer, 'ü' AS text, NULL AS nothing") == [(42, "ü", None)]


def test_an_update_says_how_many_rows_it_changed(server: ServerProcess, table: str) -> None:
    counted = [
        (f"CREATE TABLE {table} (a INTEGER, b VARCHAR)", 0),
        (f"INSERT INTO {table} VALUES (1, 'x'), (2, 'y'), (3, 'z')", 3),
        (f"UPDATE {table} SET b = 'w' WHERE a > 1", 2),
        (f"DELETE FROM {table} WHERE a = 9", 0),
        (f"DELETE FROM {table} WHERE a = 1", 1),
        (f"MERGE INTO {table} USING (SELECT 2 AS a) s USING (a) WHEN MATCHED THEN UPDATE SET b = 'm'", 1),
        (f"CREATE TABLE {table}_copy AS SELECT * FROM {table}", 2),
        (f"DROP TABLE {table}_copy", 0),
    ]
    with server.cursor() as cursor:
        for statement, rows in counted:
            cursor.execute(statement)
            assert (statement, cursor.rowcount) == (statement, rows)
    assert server.rows(f"SELECT * FROM {table} ORDER BY a") == [(2, "m"), (3, "w")]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1; SELECT 2 AS b",
        "CREATE TEMP TABLE made AS SELECT 2 AS b; SELECT b FROM made",
        "-- one\nSELECT 1; /* two */ SELECT 2 -- three",
    ],
)
def test_a_text_of_several_statements_gives_the_rows_of_the_last(server: ServerProcess, text: str) -> None:
    assert server.rows(text) == [(2,)]


def test_statements_before_one_that_fails_have_run(server: ServerProcess, table: str) -> None:
    with pytest.raises(Error, match="NotFound"):
        server.rows(f"CREATE TABLE {table} (a INTEGER); INSERT INTO {table} VALUES (1); SELECT * FROM missing")
    assert server.rows(f"SELECT * FROM {table}") == [(1,)]


def test_show_describe_and_explain_give_rows(server: ServerProcess, table: str) -> None:
    with server.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (a INTEGER)")
        cursor.execute("SHOW TABLES")
        assert (table,) in cursor.fetchall()
        cursor.execute(f"DESCRIBE {table}")
        assert cursor.fetchall()[0][:2] == ("a", "INTEGER")
        cursor.execute("EXPLAIN SELECT 1")
        assert cursor.fetchall()[0][0] == "physical_plan"


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("SELEC 1", "InvalidArgument"),
        (";", "InvalidArgument"),
        ("SELECT 1; SELEC", "InvalidArgument"),
        ("SELECT * FROM missing", "NotFound"),
        ("SELECT missing FROM range(1)", "InvalidArgument"),
        ("SELECT CAST('x' AS INTEGER)", "InvalidArgument"),
        ("SELECT error('boom')", "InvalidArgument"),
        ("CREATE SCHEMA main", "AlreadyExists"),
        ("DROP TABLE missing", "NotFound"),
        ("INSERT INTO missing VALUES (1)", "NotFound"),
        ("SELECT * FROM catchment_fresh.missing", "NotFound"),
        ("INSERT INTO duckling_queue.missing VALUES (1)", "NotFound"),
        ("CREATE TABLE keyed (a INTEGER PRIMARY KEY)", "Unimplemented"),
        ("SELECT * FROM duckling_queue.t", "Unimplemented"),
        ("COPY (SELECT 1) TO '/tmp/x'", "PermissionDenied"),
        ("ATTACH '/tmp/x.db'", "PermissionDenied"),
        ("SET threads = 3", "PermissionDenied"),
        ("SELECT * FROM '/etc/passwd'", "PermissionDenied"),
        ("DELETE FROM _catchment.producers", "PermissionDenied"),
        ("COMMIT", "FailedPrecondition"),
        ("SELECT ?::INTEGER", "FailedPrecondition"),
    ],
)
def test_an_error_has_the_status_that_says_what_to_do_next(server: ServerProcess, statement: str, code: str) -> None:
    with server.cursor() as cursor:
        with pytest.raises(Error) as failed:
            cursor.execute(statement)
        assert f"({code};" in str(failed.value)
        assert "Traceback" not in str(failed.value)
        cursor.execute("SELECT 42")
        assert cursor.fetchall() == [(42,)]


# Parameters.


def test_a_statement_runs_for_every_row_of_parameters(server: ServerProcess, table: str) -> None:
    rows = [(n, f"b{n}", date(2024, 1, 1), Decimal("3.25")) for n in range(10)]
    with server.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (a INTEGER, b VARCHAR, d DATE, n DECIMAL(10, 2))")
        cursor.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", rows)
        assert cursor.rowcount == 10
        cursor.executemany(f"INSERT INTO {table} (a, b) VALUES (?, upper(?))", [(20, "up"), (21, "up")])
        assert cursor.rowcount == 2
        cursor.executemany(f"UPDATE {table} SET b = ? WHERE a = ?", [("w", 0), ("w", 1), ("w", 99)])
        assert cursor.rowcount == 2
        cursor.executemany(f"DELETE FROM {table} WHERE a = ?", [(20,), (9,)])
        assert cursor.rowcount == 2
        cursor.execute(f"SELECT a, b FROM {table} WHERE a = ?", (21,))
        assert cursor.fetchall() == [(21, "UP")]
        cursor.execute(f"SELECT * FROM {table} WHERE a < 9 ORDER BY a")
        assert cursor.fetchall() == [(n, "w" if n < 2 else b, d, c) for n, b, d, c in rows[:9]]


def test_a_query_runs_for_every_bound_row(server: ServerProcess) -> None:
    with server.cursor() as cursor:
        cursor.execute("SELECT ?::INTEGER * 2", pa.record_batch({"0": [10, 11, 12]}))
        assert cursor.fetchall() == [(20,), (22,), (24,)]


def test_a_statement_that_fails_for_one_bound_row_changes_nothing(server: ServerProcess, table: str) -> None:
    with server.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (a INTEGER)")
        for statement in (f"INSERT INTO {table} VALUES (?)", f"INSERT INTO {table} SELECT ?::INTEGER"):
            with pytest.raises(Error, match="InvalidArgument"):
                cursor.executemany(statement, [("1",), ("2",), ("three",)])
        cursor.execute(f"SELECT * FROM {table}")
        assert cursor.fetchall() == []


def test_parameters_may_have_numbers_or_names(server: ServerProcess, table: str) -> None:
    named = pa.record_batch({"a": [7], "b": ["seven"]})
    with server.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (a INTEGER, b VARCHAR)")
        cursor.execute(f"INSERT INTO {table} (b, a) VALUES ($2, $1)", (6, "six"))
        cursor.execute(f"INSERT INTO {table} (b, a) VALUES ($b, $a)", named)
        cursor.execute(f"INSERT INTO duckling_queue.{table} (b, a) VALUES ($b, $a)", named)
        for source in (table, f"catchment_fresh.{table}"):
            cursor.execute(f"SELECT DISTINCT * FROM {source} WHERE a = $x", pa.record_batch({"x": [7]}))
            assert cursor.fetchall() == [(7, "seven")]
        cursor.execute(f"SELECT b FROM {table} WHERE a = $1 OR b = $2 ORDER BY a", (6, "seven"))
        assert cursor.fetchall() == [("six",), ("seven",)]


def test_the_wrong_number_of_parameters_is_refused(server: ServerProcess) -> None:
    with server.cursor() as cursor, pytest.raises(Error, match="InvalidArgument"):
        cursor.execute("SELECT ?::INTEGER", (1, 2))


def test_a_parameter_of_any_type_is_described_as_text(server: ServerProcess) -> None:
    with server.cursor() as cursor:
        assert cursor.adbc_prepare("SELECT ?").types == [pa.string()]
        assert cursor.adbc_prepare("SELECT ?::DATE").types == [pa.date32()]


def test_of_several_queries_in_a_text_the_last_is_described(server: ServerProcess) -> None:
    with server.cursor() as cursor:
        cursor.execute("SELECT 1 AS a; SELECT 'x' AS b, 2 AS c")
        assert cursor.fetchall() == [("x", 2)]
        assert cursor.adbc_execute_schema("SELECT 1 AS a; SELECT 'x' AS b, 2 AS c").names == ["b", "c"]


# Bulk ingest.


def test_ingest_creates_appends_and_replaces(server: ServerProcess, table: str) -> None:
    assert _ingest(server, table, _batch(1, 2), "create") == 2
    assert _ingest(server, table, _batch(3), "append") == 1
    assert _ingest(server, table, _batch(4), "create_append") == 1
    assert server.rows(f"SELECT a FROM {table} ORDER BY a") == [(1,), (2,), (3,), (4,)]
    assert _ingest(server, table, _batch(5), "replace") == 1
    assert server.rows(f"SELECT * FROM {table}") == [(5, "x")]
    assert _ingest(server, f"{table}_new", _batch(6), "create_append") == 1
    assert server.rows(f"SELECT * FROM {table}_new") == [(6, "x")]


def test_ingest_refuses_what_its_mode_does_not_allow(server: ServerProcess, table: str) -> None:
    with pytest.raises(Error, match="NotFound"):
        _ingest(server, table, _batch(1), "append")
    _ingest(server, table, _batch(1), "create")
    with pytest.raises(Error, match="AlreadyExists"):
        _ingest(server, table, _batch(2), "create")
    assert server.rows(f"SELECT a FROM {table}") == [(1,)]


def test_ingest_goes_by_the_names_of_columns_and_casts(server: ServerProcess, table: str) -> None:
    server.rows(f"CREATE TABLE {table} (a INTEGER, b VARCHAR DEFAULT 'none', d DATE)", "SELECT 1")
    _ingest(server, table, pa.table({"d": ["2024-02-29"], "a": pa.array([1], pa.int64())}), "append")
    assert server.rows(f"SELECT * FROM {table}") == [(1, "none", date(2024, 2, 29))]


@pytest.mark.parametrize("where", [{}, {"db_schema_name": "duckling_queue"}], ids=["lake", "queue"])
def test_rows_that_do_not_fit_are_refused_and_none_is_kept(
    server: ServerProcess, table: str, where: dict[str, str]
) -> None:
    server.rows(f"CREATE TABLE {table} (a INTEGER NOT NULL, b VARCHAR)", "SELECT 1")
    good = pa.record_batch({"a": ["1"], "b": ["x"]})
    unfit = [
        (pa.Table.from_batches([good, pa.record_batch({"a": ["one"], "b": ["x"]})]), "'one'"),
        (pa.table({"a": [1], "c": ["x"]}), '"c"'),
        (pa.table({"a": pa.array([1, None], pa.int32())}), "NULL"),
        (pa.table({"b": ["x"]}), "NULL"),
    ]
    for rows, reason in unfit:
        with pytest.raises(Error, match="InvalidArgument") as failed:
            _ingest(server, table, rows, "append", **where)
        assert reason in str(failed.value)
    assert server.rows(f"SELECT * FROM catchment_fresh.{table}") == []


def test_ingest_into_the_queue_is_buffered(server: ServerProcess, table: str) -> None:
    server.rows(f"CREATE TABLE {table} (a INTEGER, b VARCHAR DEFAULT 'none')", "SELECT 1")
    schema, catalog = {"db_schema_name": "duckling_queue"}, {"catalog_name": "duckling_queue"}
    for mode in ("append", "create_append"):
        for where in (schema, catalog, {**catalog, "db_schema_name": "main"}):
            assert _ingest(server, table, _batch(1, 2), mode, **where) == 2
    assert _ingest(server, table, pa.table({"a": ["3"]}), "append", **schema) == 1
    assert server.rows(f"SELECT count(*) FROM {table}") == [(0,)]
    counted = server.rows(f"SELECT a, b, count(*) FROM catchment_fresh.{table} GROUP BY ALL ORDER BY ALL")
    assert counted == [(1, "x", 6), (2, "x", 6), (3, "none", 1)]


def test_ingest_that_would_create_another_table_says_that_there_is_one(server: ServerProcess, table: str) -> None:
    _ingest(server, table, _batch(1), "create")
    with pytest.raises(Error, match="AlreadyExists"):
        _ingest(server, table, pa.table({"other": [1]}), "create_append")
    with pytest.raises(Error, match="InvalidArgument"):
        _ingest(server, table, pa.table({"other": [1]}), "append")
    assert server.rows(f"SELECT * FROM {table}") == [(1, "x")]


def test_the_queue_does_not_replace_tables(server: ServerProcess, table: str) -> None:
    server.rows(f"CREATE TABLE {table} (a INTEGER, b VARCHAR)", "SELECT 1")
    with pytest.raises(Error, match="cannot replace"):
        _ingest(server, table, _batch(1), "replace", db_schema_name="duckling_queue")
    with pytest.raises(Error, match="NotFound"):
        _ingest(server, "missing", _batch(1), "append", db_schema_name="duckling_queue")


def test_ingest_into_a_schema_or_a_temporary_table(server: ServerProcess, table: str) -> None:
    server.rows(f"CREATE SCHEMA of_{table}", "SELECT 1")
    _ingest(server, table, _batch(1), "create", db_schema_name=f"of_{table}")
    assert server.rows(f"SELECT a FROM of_{table}.{table}") == [(1,)]
    with server.connect() as connection:
        with connection.cursor() as cursor:
            cursor.adbc_ingest("passing", _batch(1, 2), mode="create", temporary=True)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM temp.passing")
            assert cursor.fetchall() == [(2,)]
    with pytest.raises(Error, match="NotFound"):
        server.rows("SELECT * FROM passing")
    with pytest.raises(Error, match="PermissionDenied"):
        _ingest(server, "producers", _batch(1), "append", db_schema_name="_catchment")


# The catalog.


def test_the_server_reports_its_name_versions_and_defaults(server: ServerProcess) -> None:
    with server.connect() as connection:
        info = connection.adbc_get_info()
        assert (info["vendor_name"], info["vendor_arrow_version"]) == ("Catchment", pa.__version__)
        # By this, ibis and SQLAlchemy know whose SQL it is.
        assert info["vendor_version"].startswith(f"duckdb v{duckdb.__version__} ")
        assert connection.adbc_get_table_types() == ["TABLE", "VIEW", "QUEUE"]
        assert (connection.adbc_current_catalog, connection.adbc_current_db_schema) == ("lake", "main")


def test_catalogs_schemas_tables_and_columns_are_listed(server: ServerProcess, table: str) -> None:
    server.rows(
        f"CREATE SCHEMA of_{table}; CREATE TABLE of_{table}.things (a INTEGER NOT NULL, b DECIMAL(10, 2));"
        f"CREATE VIEW of_{table}.seen AS SELECT a FROM of_{table}.things",
        "SELECT 1",
    )

    def listed(**filters: Any) -> list[Any]:
        with server.connect() as connection:
            found = connection.adbc_get_objects(**filters).read_all().to_pylist()
        assert [each["catalog_name"] for each in found] == ["lake"]
        return list(found[0]["catalog_db_schemas"])

    names = [schema["db_schema_name"] for schema in listed(depth="db_schemas")]
    assert {"main", f"of_{table}"} <= set(names)
    assert "_catchment" not in names
    (schema,) = listed(depth="all", db_schema_filter=f"of_{table}")
    seen, things = schema["db_schema_tables"]
    assert [(each["table_name"], each["table_type"]) for each in (seen, things)] == [
        ("seen", "VIEW"),
        ("things", "TABLE"),
    ]
    assert [(column["column_name"], column["xdbc_type_name"]) for column in things["table_columns"]] == [
        ("a", "INTEGER"),
        ("b", "DECIMAL(10,2)"),
    ]
    assert things["table_constraints"] == []
    (schema,) = listed(depth="tables", db_schema_filter=f"of_{table}", table_types_filter=["VIEW"])
    assert [each["table_name"] for each in schema["db_schema_tables"]] == ["seen"]
    (schema,) = listed(depth="tables", db_schema_filter=f"of_{table}", table_name_filter="th%")
    assert [each["table_name"] for each in schema["db_schema_tables"]] == ["things"]


def test_a_table_has_a_schema(server: ServerProcess, table: str) -> None:
    server.rows(f"CREATE TABLE {table} (a INTEGER NOT NULL, l VARCHAR[])", "SELECT 1")
    with server.connect() as connection:
        schema = connection.adbc_get_table_schema(table)
        assert (schema.names, schema.field("a").type, schema.field("a").nullable) == (["a", "l"], pa.int32(), False)
        assert schema.field("l").type.value_type == pa.string()
        with pytest.raises(Error, match="NOT_FOUND"):
            connection.adbc_get_table_schema("missing")


def test_results_have_the_types_that_duckdb_has(server: ServerProcess) -> None:
    query = (
        "SELECT 1::HUGEINT AS h, [1, NULL] AS l, {'x': 1, 'y': 'z'} AS s, MAP {'k': 2} AS m, 'a'::ENUM ('a', 'b') AS e,"
        " TIMESTAMPTZ '2024-01-01 00:00:00+00' AS t, '\\x00'::BLOB AS b, INTERVAL 1 DAY AS i, NULL::DATE AS n"
    )
    with server.cursor() as cursor:
        cursor.execute(query)
        (row,) = cursor.fetch_arrow_table().drop_columns(["t", "i"]).to_pylist()
    assert row == {
        "h": 1,
        "l": [1, None],
        "s": {"x": 1, "y": "z"},
        "m": [("k", 2)],
        "e": "a",
        "b": b"\x00",
        "n": None,
    }
