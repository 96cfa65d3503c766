"""Types that DuckLake cannot store: times in nanoseconds, and decimals that would lose digits."""

from collections.abc import Callable, Iterator
from datetime import time
from decimal import Decimal

import grpc
import pyarrow as pa
import pytest

from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.settings import Settings
from catchment.server.flight_server import FlightServer
from tests.server.raw_client import Client, ingest, refused, server

NS = pa.time64("ns")
NOON = 12 * 3_600 * 1_000_000_000
INVALID = grpc.StatusCode.INVALID_ARGUMENT
# What a whole microsecond, and one that is not, look like in every type that holds them.
SHAPES: dict[str, tuple[pa.DataType, Callable[[int], object]]] = {
    "plain": (NS, lambda value: value),
    "list": (pa.list_(NS), lambda value: [value, None]),
    "large_list": (pa.large_list(NS), lambda value: [value]),
    "struct": (pa.struct([("a", NS)]), lambda value: {"a": value}),
    "map": (pa.map_(pa.string(), NS), lambda value: [("a", value)]),
    "nested": (pa.list_(pa.struct([("a", pa.list_(NS))])), lambda value: [{"a": [value]}]),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    with server(
        Settings(
            home=tmp_path_factory.mktemp("storable"), lake_threads_max=1, server_port=0, queue_auto_create_tables=True
        )
    ) as running:
        yield running
        assert running.app.meters.engines_replaced.read() == 0


@pytest.fixture
def client(running: FlightServer) -> Iterator[Client]:
    client = Client(running.uri)
    client.authorization = f"Bearer {client.handshake()}"
    yield client
    client.close()


def times(shape: str, value: int) -> pa.Table:
    kind, wrap = SHAPES[shape]
    return pa.table({"id": pa.array([1, 2]), "moment": pa.array([wrap(value), None], kind)})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("schema", ["main", "duckling_queue"])
def test_whole_microseconds_are_stored_as_they_are(client: Client, shape: str, schema: str) -> None:
    name = f"whole_{shape}_{schema}"
    assert client.put(ingest(name, schema=schema), times(shape, NOON + 1_000)) == 2
    source = f"catchment_fresh.{name}" if schema == "duckling_queue" else name
    found = client.query(f"SELECT moment::VARCHAR AS moment FROM {source} WHERE id = 1")
    assert "12:00:00.000001" in found[0]["moment"]
    assert client.put(ingest(name, schema=schema, create=False), times(shape, NOON)) == 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("schema", ["main", "duckling_queue"])
def test_values_that_would_lose_digits_are_refused_with_the_column(client: Client, shape: str, schema: str) -> None:
    said = refused(INVALID, client.put, ingest(f"lossy_{shape}", schema=schema), times(shape, NOON + 1))
    assert "'moment'" in said
    assert "nanoseconds" in said
    assert "TIME" in said


def test_a_long_stream_is_refused_in_the_same_words(client: Client) -> None:
    client.update("CREATE TABLE long (moment TIME, text VARCHAR)")
    values = pa.array([NOON] * 99_999 + [NOON + 1], NS)
    rows = pa.table({"moment": values, "text": ["x" * 100] * 100_000})
    assert "'moment'" in refused(INVALID, client.put, ingest("long", create=False), rows)
    assert client.query("SELECT count(*) AS n FROM long") == [{"n": 0}]


HUNDREDS = pa.array([Decimal(100), None], pa.decimal128(5, -2))


@pytest.mark.parametrize(
    "values",
    [HUNDREDS, HUNDREDS.dictionary_encode(), pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), HUNDREDS)],
    ids=["plain", "dictionary", "list"],
)
def test_decimals_of_a_negative_scale_are_refused_with_the_column(client: Client, values: pa.Array) -> None:
    rows = pa.table({"amount": values})
    client.update("CREATE TABLE IF NOT EXISTS amounts (amount DECIMAL(9, 0))")
    prepared = client.prepare("INSERT INTO amounts VALUES (?)").prepared_statement_handle
    for command in (
        *(ingest("amounts", schema=schema) for schema in ("main", "duckling_queue")),
        sql.CommandPreparedStatementUpdate(prepared_statement_handle=prepared),
        sql.CommandPreparedStatementQuery(prepared_statement_handle=prepared),
    ):
        said = refused(INVALID, client.put, command, rows)
        assert "'amount'" in said
        assert "scale 0" in said
    assert client.query("SELECT * FROM amounts") == []


@pytest.mark.parametrize("kind", [pa.list_view(NS), pa.run_end_encoded(pa.int32(), NS)])
def test_encodings_that_cannot_be_narrowed_are_refused(client: Client, kind: pa.DataType) -> None:
    rows = pa.table({"moment": pa.nulls(1, kind)}) if not pa.types.is_run_end_encoded(kind) else encoded()
    assert "'moment'" in refused(INVALID, client.put, ingest("encoded"), rows)


def encoded() -> pa.Table:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([NOON], NS))
    return pa.table({"moment": runs})


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE x AS SELECT '12:00'::TIME_NS AS moment",
        "CREATE OR REPLACE TABLE \"as\" AS (SELECT [{'a': '12:00'::TIME_NS}] AS moment);",
        "CREATE TABLE x (moment) AS WITH a AS (SELECT '12:00'::TIME_NS) FROM a",
        "CREATE TABLE x AS FROM mine",
        "CREATE TABLE x (id INTEGER, moment TIME_NS)",
        "CREATE TABLE x (id INTEGER, moment STRUCT(a TIME_NS)[])",
        "ALTER TABLE there ADD COLUMN moment TIME_NS",
    ],
)
def test_no_table_is_made_that_could_not_be_written_to(client: Client, statement: str) -> None:
    client.update("CREATE TEMP TABLE mine AS SELECT '12:00'::TIME_NS AS moment")
    client.update("CREATE TABLE IF NOT EXISTS there (id INTEGER)")
    assert "nanoseconds" in refused(INVALID, client.update, statement)
    transaction = client.begin()
    assert "nanoseconds" in refused(INVALID, client.update, statement, transaction)
    client.end(transaction, commit=False)
    assert client.query("SELECT * FROM there") == []
    assert client.query("SELECT count(*) AS n FROM duckdb_columns() WHERE table_name IN ('x', 'as')") == [{"n": 0}]


def test_columns_named_like_an_unstorable_type_are_accepted(client: Client) -> None:
    client.update("CREATE TABLE looks (time_ns BIGINT, moment TIME, s STRUCT(time_ns BIGINT))")
    client.update("ALTER TABLE looks ADD COLUMN more_time_ns BIGINT")
    client.update("CREATE TABLE cast_back AS SELECT '12:00'::TIME_NS::TIME AS time_ns")
    client.update("CREATE TEMP TABLE kept AS SELECT '12:00:00.000000001'::TIME_NS AS moment")
    client.update("INSERT INTO looks (moment) SELECT moment FROM kept")
    assert client.query("SELECT moment FROM looks") == [{"moment": time(12)}]
    assert client.query("SELECT time_ns FROM cast_back") == [{"time_ns": time(12)}]
