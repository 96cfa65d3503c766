"""Logging in through the Flight service, in every way that clients use."""

import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import grpc
import pytest
from adbc_driver_flightsql import DatabaseOptions

from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.settings import Settings
from catchment.server.access.users import Users
from catchment.server.flight_server import FlightServer
from catchment.server.values import Role
from tests.server.raw_client import Client, refused, server, sessions

Code = grpc.StatusCode
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    settings = Settings(home=tmp_path_factory.mktemp("login"), server_port=0)
    users = Users.from_settings(settings)
    users.add("ann", Role.WRITER, PASSWORD)
    users.add("bob", Role.READER, PASSWORD)
    with server(settings) as found:
        yield found


@pytest.fixture
def client(running: FlightServer) -> Iterator[Client]:
    found = Client(running.uri)
    yield found
    found.close()


def basic(user: str, password: str = PASSWORD) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_a_call_without_credentials_is_refused(client: Client) -> None:
    refused(Code.UNAUTHENTICATED, lambda: client.query("SELECT 1"))
    refused(Code.UNAUTHENTICATED, lambda: client.update("SELECT 1"))
    refused(Code.UNAUTHENTICATED, lambda: client.begin())
    refused(Code.UNAUTHENTICATED, lambda: client.info(sql.CommandGetCatalogs()))
    refused(Code.UNAUTHENTICATED, lambda: list(client.stream("ListActions", b"")))
    refused(Code.UNAUTHENTICATED, client.handshake)
    client.authorization = "Bearer nonsense"
    refused(Code.UNAUTHENTICATED, lambda: client.query("SELECT 1"))


@pytest.mark.parametrize("padding", ["", "="])
def test_a_handshake_with_a_header_gives_a_token(client: Client, padding: str) -> None:
    client.authorization = basic("ann").rstrip("=") + padding
    token = client.handshake()
    assert client.token == f"Bearer {token}"
    client.authorization = client.token
    assert client.query("SELECT 1 AS x") == [{"x": 1}]


def test_a_handshake_with_a_payload_gives_a_token(client: Client) -> None:
    payload = flight.BasicAuth(username="ann", password=PASSWORD).SerializeToString()
    client.authorization = f"Bearer {client.handshake(payload)}"
    assert client.query("SELECT 1 AS x") == [{"x": 1}]


def test_a_client_may_log_in_with_any_call(client: Client) -> None:
    client.authorization = basic("ann")
    assert client.query("SELECT 1 AS x") == [{"x": 1}]
    transaction = client.begin()
    client.end(transaction, commit=False)


def test_a_wrong_password_is_refused_and_not_explained(client: Client) -> None:
    client.authorization = basic("ann", "wrong horse")
    wrong = refused(Code.UNAUTHENTICATED, client.handshake)
    client.authorization = basic("nobody")
    assert refused(Code.UNAUTHENTICATED, client.handshake) == wrong
    client.authorization = "Basic nonsense"
    refused(Code.UNAUTHENTICATED, client.handshake)


def test_a_reader_may_only_read(client: Client) -> None:
    client.authorization = basic("bob")
    assert client.query("SELECT 1 AS x") == [{"x": 1}]
    refused(Code.PERMISSION_DENIED, lambda: client.update("CREATE TABLE t (x INT)"))


def test_a_handle_opens_nothing_to_another_user(running: FlightServer, client: Client) -> None:
    client.authorization = basic("ann")
    transaction = client.begin()
    other = Client(running.uri, authorization=basic("bob"))
    refused(Code.UNAUTHENTICATED, lambda: other.end(transaction, commit=True))
    other.authorization = None
    refused(Code.UNAUTHENTICATED, lambda: other.end(transaction, commit=True))
    other.close()
    client.end(transaction, commit=False)


def test_the_driver_logs_in(running: FlightServer) -> None:
    options = {DatabaseOptions.AUTHORIZATION_HEADER.value: basic("ann")}
    named = {"username": "ann", "password": PASSWORD}
    for each in (options, named):
        with adbc.connect(running.uri, each, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            assert cursor.fetchall() == [(1,)]
    with pytest.raises(adbc_driver_manager.Error, match=r"(?i)unauthenticated"):
        adbc.connect(running.uri, {**named, "password": "wrong horse"}, autocommit=True)


def test_sessions_opened_before_there_were_users_have_to_log_in_once_there_are(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, server_port=0)
    with server(settings) as running, closing(Client(running.uri)) as early:
        early.update("CREATE TEMP TABLE mine AS SELECT 7 AS x")
        early.authorization = early.token
        assert early.query("FROM mine") == [{"x": 7}]
        Users.from_settings(settings).add("ann", Role.ADMIN, PASSWORD)
        refused(Code.UNAUTHENTICATED, lambda: early.query("FROM mine"))
        assert sessions(running) == 0
        early.authorization = basic("ann")
        assert early.query("SELECT 1 AS x") == [{"x": 1}]
