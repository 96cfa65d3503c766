"""Running statements are cancelled by request, with their session, or with their user."""

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.settings import Settings
from catchment.server.access.users import Users
from catchment.server.flight_server import FlightServer
from catchment.server.values import Role
from catchment.tenants.model import TenantId
from tests.server.raw_client import ENDLESS, SERVICE, Client, descriptor, is_running, refused, server, sessions
from tests.waiting import PATIENCE_S, wait_until

Code = grpc.StatusCode
PASSWORD = "correct horse"
CHANGES: dict[str, Callable[[Users], object]] = {
    "password": lambda users: users.set_password("ann", "another horse"),
    "role": lambda users: users.set_role("ann", Role.READER),
    "tenant": lambda users: users.set_tenant("ann", TenantId.parse("t7")),
    "removed": lambda users: users.remove("ann"),
}


@pytest.fixture
def users(tmp_path: Path) -> Users:
    found = Users.from_settings(Settings(home=tmp_path))
    found.add("ann", Role.WRITER, PASSWORD)
    found.add("bob", Role.WRITER, PASSWORD)
    return found


@pytest.fixture
def running(tmp_path: Path, users: Users) -> Iterator[FlightServer]:
    assert users.exist
    with server(Settings(home=tmp_path, lake_threads_max=1, server_port=0)) as found:
        yield found


@pytest.fixture
def connect(running: FlightServer) -> Iterator[Callable[[str], Client]]:
    clients: list[Client] = []

    def log_in(name: str) -> Client:
        client = Client(running.uri)
        clients.append(client)
        client.authorization = "Basic " + base64.b64encode(f"{name}:{PASSWORD}".encode()).decode()
        client.authorization = f"Bearer {client.handshake()}"
        return client

    yield log_in
    for client in clients:
        client.close()


def asking(client: Client, request: str, text: str = ENDLESS) -> Any:
    """GetFlightInfo under way, with an id of its own."""
    method = client._channel.unary_unary(SERVICE + "GetFlightInfo")
    command = descriptor(sql.CommandStatementQuery(query=text)).SerializeToString()
    return method.future(command, metadata=(*client._headers(), ("x-request-id", request)))


def cancel(client: Client, request: str) -> int:
    return int(flight.CancelFlightInfoResult.FromString(client.act("CancelRequest", request.encode())).status)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_user_has_to_log_in_again(
    users: Users, connect: Callable[[str], Client], running: FlightServer, change: str
) -> None:
    ann, other, bob = connect("ann"), connect("ann"), connect("bob")
    ann.update("CREATE TABLE IF NOT EXISTS t (a INT)")
    for client in (other, bob):
        assert client.query("SELECT 42 AS x") == [{"x": 42}]
    transaction = ann.begin()
    ann.update("INSERT INTO t VALUES (1)", transaction)
    CHANGES[change](users)
    # The session may have been closed before the query.
    assert re.search("changed or removed|session has ended", refused(Code.UNAUTHENTICATED, ann.query, "SELECT 1"))
    wait_until(lambda: sessions(running) == 1, "the other session of the user is over as well")
    refused(Code.UNAUTHENTICATED, other.query, "SELECT 1")
    # Its transaction held the lake's lock.
    assert bob.update("INSERT INTO t VALUES (2)") == 1
    assert bob.query("SELECT a FROM t") == [{"a": 2}]


def test_statements_of_a_removed_user_are_cancelled(
    users: Users, connect: Callable[[str], Client], running: FlightServer
) -> None:
    ann, bob = connect("ann"), connect("bob")
    call = asking(ann, "endless")
    wait_until(lambda: is_running(running, ENDLESS), "the statement runs")
    users.remove("ann")
    refused(Code.CANCELLED, call.result)
    wait_until(lambda: sessions(running) == 1, "the session is over")
    assert bob.query("SELECT 42 AS x") == [{"x": 42}]


def test_unchanged_users_stay_logged_in(users: Users, connect: Callable[[str], Client]) -> None:
    bob = connect("bob")
    users.add("eve", Role.READER, PASSWORD)
    users.set_role("ann", Role.READER)
    assert bob.query("SELECT 42 AS x") == [{"x": 42}]
    users.path.write_text("no file of users")
    assert bob.query("SELECT 42 AS x") == [{"x": 42}]


def test_a_statement_that_still_runs_is_cancelled_by_its_request(
    connect: Callable[[str], Client], running: FlightServer
) -> None:
    ann, bob = connect("ann"), connect("bob")
    call = asking(ann, "mine")
    wait_until(lambda: is_running(running, ENDLESS), "the statement runs")
    assert cancel(bob, "mine") == flight.CANCEL_STATUS_NOT_CANCELLABLE
    assert cancel(ann, "another") == flight.CANCEL_STATUS_NOT_CANCELLABLE
    assert not call.done()
    assert cancel(ann, "mine") == flight.CANCEL_STATUS_CANCELLED
    refused(Code.CANCELLED, call.result)
    assert ann.query("SELECT 42 AS x") == [{"x": 42}]


def test_a_statement_that_still_runs_is_cancelled_with_its_session(
    connect: Callable[[str], Client], running: FlightServer
) -> None:
    ann = connect("ann")
    call = asking(ann, "mine")
    wait_until(lambda: is_running(running, ENDLESS), "the statement runs")
    ann.act("CloseSession")
    with pytest.raises(grpc.RpcError):
        call.result(timeout=PATIENCE_S)
    assert sessions(running) == 0
