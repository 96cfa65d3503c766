"""The metadata of the catalog, as drivers request it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import grpc
import pyarrow as pa
import pytest

from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.settings import Settings
from catchment.server.flight_server import FlightServer
from tests.server.raw_client import Client, server

LAKE = "lake"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    with server(Settings(home=tmp_path_factory.mktemp("metadata"), server_port=0)) as found:
        client = Client(found.uri)
        client.update("CREATE TABLE events (id BIGINT NOT NULL, price DECIMAL(10, 2), tags VARCHAR[])")
        client.update("COMMENT ON COLUMN events.price IS 'in euros'")
        client.update("CREATE TABLE event_s (x INT)")
        client.update("CREATE VIEW recent AS SELECT id FROM events")
        client.update("CREATE SCHEMA other")
        client.update("CREATE TABLE other.events (moment TIMESTAMP WITH TIME ZONE)")
        client.close()
        yield found


@pytest.fixture
def client(running: FlightServer) -> Iterator[Client]:
    found = Client(running.uri)
    yield found
    found.close()


def names(table: pa.Table) -> list[tuple[str, str]]:
    return list(zip(table["db_schema_name"].to_pylist(), table["table_name"].to_pylist(), strict=True))


def test_the_lake_is_the_only_catalog(client: Client) -> None:
    assert client.read(sql.CommandGetCatalogs()).to_pylist() == [{"catalog_name": LAKE}]


def test_schemas_are_the_lakes_and_the_queues_but_not_our_own(client: Client) -> None:
    def found(**given: str) -> list[str]:
        return list(client.read(sql.CommandGetDbSchemas(**given))["db_schema_name"].to_pylist())

    assert found() == ["duckling_queue", "main", "other"]
    assert found(catalog=LAKE, db_schema_filter_pattern="m%") == ["main"]
    assert found(db_schema_filter_pattern="%queue") == ["duckling_queue"]
    assert found(catalog="nope") == found(catalog="") == found(db_schema_filter_pattern="m") == []


def test_tables_are_found_by_patterns_and_types(client: Client) -> None:
    def found(**given: Any) -> list[tuple[str, str]]:
        return names(client.read(sql.CommandGetTables(**given)))

    every = [("main", "event_s"), ("main", "events"), ("main", "recent"), ("other", "events")]
    assert found() == found(catalog=LAKE) == every
    assert found(table_name_filter_pattern="event_s") == [("main", "event_s")]
    assert found(table_name_filter_pattern="event_") == [("main", "events"), ("other", "events")]
    assert found(table_name_filter_pattern="event\\_%") == [("main", "event_s")]
    assert found(table_name_filter_pattern="EVENTS", db_schema_filter_pattern="oth%") == [("other", "events")]
    assert found(table_types=["VIEW"]) == [("main", "recent")]
    assert found(table_types=["TABLE"]) == [each for each in every if each[1] != "recent"]
    assert found(table_types=["SYSTEM TABLE"]) == found(catalog="nope") == []


def test_a_tables_schema_comes_with_what_drivers_want_to_know(client: Client) -> None:
    command = sql.CommandGetTables(include_schema=True, table_name_filter_pattern="events")
    row = client.read(command).to_pylist()[0]
    schema = pa.ipc.read_schema(pa.py_buffer(row["table_schema"]))
    assert schema.types == [pa.int64(), pa.decimal128(10, 2), pa.list_(pa.string())]
    price = {
        key.decode().removeprefix("ARROW:FLIGHT:SQL:"): value.decode() for key, value in schema[1].metadata.items()
    }
    assert price == {
        "CATALOG_NAME": LAKE,
        "DB_SCHEMA_NAME": "main",
        "TABLE_NAME": "events",
        "TYPE_NAME": "DECIMAL(10,2)",
        "PRECISION": "10",
        "SCALE": "2",
        "REMARKS": "in euros",
        "IS_AUTO_INCREMENT": "0",
        "IS_CASE_SENSITIVE": "1",
        "IS_READ_ONLY": "0",
        "IS_SEARCHABLE": "1",
    }


def test_there_are_tables_and_views(client: Client) -> None:
    assert client.read(sql.CommandGetTableTypes())["table_type"].to_pylist() == ["TABLE", "VIEW", "QUEUE"]


def test_no_keys_are_listed(client: Client) -> None:
    assert client.read(sql.CommandGetPrimaryKeys(table="events")).num_rows == 0
    for command in (
        sql.CommandGetExportedKeys(table="events"),
        sql.CommandGetImportedKeys(table="events"),
        sql.CommandGetCrossReference(pk_table="events", fk_table="event_s"),
    ):
        found = client.read(command)
        assert (found.num_rows, found.num_columns) == (0, 13)
        assert client.schema(command) == found.schema


def test_types_are_listed_by_code_and_name(client: Client) -> None:
    found = client.read(sql.CommandGetXdbcTypeInfo())
    order = list(zip(found["data_type"].to_pylist(), found["type_name"].to_pylist(), strict=True))
    assert order == sorted(order)
    assert client.read(sql.CommandGetXdbcTypeInfo(data_type=4))["type_name"].to_pylist() == ["INTEGER", "USMALLINT"]


def test_every_code_of_the_protocol_has_a_value(client: Client) -> None:
    found = client.read(sql.CommandGetSqlInfo())
    assert found["info_name"].to_pylist() == sorted(sql.SqlInfo.values())


def test_a_value_is_of_the_kind_that_jdbc_expects(client: Client) -> None:
    expected = {
        sql.SqlInfo.FLIGHT_SQL_SERVER_NAME: "Catchment",
        sql.SqlInfo.FLIGHT_SQL_SERVER_TRANSACTION: 1,
        sql.SqlInfo.SQL_IDENTIFIER_QUOTE_CHAR: '"',
        sql.SqlInfo.SQL_OUTER_JOINS_SUPPORT_LEVEL: 6,
        sql.SqlInfo.SQL_MAX_CONNECTIONS: 100,
        sql.SqlInfo.SQL_SAVEPOINTS_SUPPORTED: False,
    }
    found = client.read(sql.CommandGetSqlInfo(info=[*expected, 9_999]))
    assert found["info_name"].to_pylist() == list(expected)
    assert found["value"].to_pylist() == list(expected.values())
    kinds = found["value"].chunk(0).type_codes.to_pylist()
    assert kinds == [0, 3, 0, 3, 2, 1]


def test_the_driver_lists_catalogs_schemas_tables_and_columns(running: FlightServer) -> None:
    with adbc.connect(running.uri, autocommit=True) as connection:
        assert connection.adbc_get_info()["vendor_name"] == "Catchment"
        assert connection.adbc_get_table_types() == ["TABLE", "VIEW", "QUEUE"]
        assert connection.adbc_get_table_schema("events", db_schema_filter="main").names == ["id", "price", "tags"]
        (catalog,) = connection.adbc_get_objects(depth="all").read_all().to_pylist()
        assert connection.adbc_current_catalog == catalog["catalog_name"] == LAKE
        assert connection.adbc_current_db_schema == "main"
        schemas = {each["db_schema_name"]: each["db_schema_tables"] for each in catalog["catalog_db_schemas"]}
        assert list(schemas) == ["duckling_queue", "main", "other"]
        assert [each["column_name"] for each in schemas["main"][1]["table_columns"]] == ["id", "price", "tags"]


def test_columns_of_a_type_that_arrow_lacks_are_listed_as_text(client: Client) -> None:
    client.update("CREATE TABLE odd (id BIGINT, v VARIANT, w VARIANT)")
    listed = client.read(sql.CommandGetTables(include_schema=True, table_name_filter_pattern="odd"))
    schema = pa.ipc.read_schema(pa.py_buffer(listed["table_schema"][0].as_py()))
    assert [(field.name, str(field.type)) for field in schema] == [("id", "int64"), ("v", "string"), ("w", "string")]
    client.update("DROP TABLE odd")


def test_a_pattern_that_takes_for_ever_to_match_ends_with_its_call(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, server_port=0, server_statement_seconds_max=1.0, server_statements_max=1)
    hard = sql.CommandGetTables(table_name_filter_pattern="%a" * 60 + "b")
    with server(settings) as running, Client(running.uri, keeps_session=True) as client:
        client.update(f"CREATE TABLE {'a' * 200} (id BIGINT)")
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as ended:
                client.read(hard)
            assert ended.value.code() in (grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED)
            # The only slot is free again.
            assert client.query("SELECT 42 AS x") == [{"x": 42}]
