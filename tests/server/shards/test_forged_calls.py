"""Calls that pretend to come from a shard: by users, without a login, with a wrong secret, and with
malformed messages.
"""

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.flight_protocol.headers import ON_BEHALF
from catchment.tenants.transport import shard_messages
from tests.server.raw_client import SERVICE, descriptor
from tests.server.shards.two_servers import PASSWORD, SECRET, Place, two_servers
from tests.tenants.two_shards import A

Code = grpc.StatusCode
NAMES = (
    *("facts", "record", "write", "receive", "positions", "welcome", "hold", "begin_at", "replicate", "lag"),
    *("close_gate", "settle", "digests", "readers", "drop"),
)
# What each call would need to be harmful.
HARMFUL = {
    "tenant": 7,
    "epoch": 99,
    "move": "m",
    "version": 1,
    "deadline_s": 1e9,
    "table": "events",
    "session": "s",
    "positions": [],
    "at": [],
    "shipments": [],
    "copy": {"shard": "b", "location": "grpc://127.0.0.1:1", "sync": True},
    "record": {"tenant": 7, "role": "gone", "epoch": 99, "copy": None, "move": None, "closed_for": None},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with two_servers(tmp_path_factory.mktemp("forged")) as opened:
        yield opened


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _message(values: Any) -> bytes:
    head = json.dumps(values).encode()
    return struct.pack("<I", len(head)) + head


def _call(
    place: Place, method: str, request: bytes, headers: tuple[tuple[str, str], ...]
) -> tuple[grpc.StatusCode, str]:
    """The code of a call's answer, and its text."""
    with grpc.insecure_channel(place.servers[A].uri.removeprefix("grpc://")) as channel:
        call: Any = channel.unary_unary(SERVICE + method)
        try:
            call(request, metadata=headers, timeout=60)
        except grpc.RpcError as error:
            found: Any = error
            return found.code(), found.details()
    return Code.OK, ""


def _shard_call(place: Place, name: str, body: bytes, *headers: tuple[str, str]) -> tuple[grpc.StatusCode, str]:
    action = flight.Action(type=shard_messages.PREFIX + name, body=body)
    return _call(place, "DoAction", action.SerializeToString(), headers)


def _query(place: Place, text: str, *headers: tuple[str, str]) -> grpc.StatusCode:
    request = descriptor(sql.CommandStatementQuery(query=text)).SerializeToString()
    return _call(place, "GetFlightInfo", request, headers)[0]


SHARD_LOGIN = ("authorization", _basic("shard", SECRET))


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ((), Code.UNAUTHENTICATED),
        ((("authorization", _basic("shard", "")),), Code.UNAUTHENTICATED),
        ((("authorization", _basic("shard", SECRET[:-1])),), Code.UNAUTHENTICATED),
        ((("authorization", _basic("shard", SECRET + "\0")),), Code.UNAUTHENTICATED),
        ((("authorization", _basic("Shard", SECRET)),), Code.UNAUTHENTICATED),
        ((("authorization", _basic("local", SECRET)),), Code.UNAUTHENTICATED),
        ((("authorization", f"Bearer {SECRET}"),), Code.UNAUTHENTICATED),
        (((ON_BEHALF, "admin t7"),), Code.UNAUTHENTICATED),
        ((("authorization", _basic("eve", PASSWORD)),), Code.PERMISSION_DENIED),
        ((("authorization", _basic("rita", PASSWORD)),), Code.PERMISSION_DENIED),
        ((("authorization", _basic("eve", PASSWORD)), (ON_BEHALF, "admin t0")), Code.PERMISSION_DENIED),
        # A shard that forwards a user's statement has that user's rights.
        ((SHARD_LOGIN, (ON_BEHALF, "writer t7")), Code.PERMISSION_DENIED),
        ((SHARD_LOGIN, (ON_BEHALF, "admin t0")), Code.PERMISSION_DENIED),
    ],
)
def test_calls_of_shards_are_for_shards_only(
    place: Place, headers: tuple[tuple[str, str], ...], code: grpc.StatusCode
) -> None:
    before = place.tenancy(A).shard.facts()
    body = _message({**HARMFUL, "streams": []})
    # Whether such a call exists is not said either.
    assert {_shard_call(place, name, body, *headers)[0] for name in (*NAMES, "none")} == {code}
    assert place.tenancy(A).shard.facts()["tenants"] == before["tenants"]


def test_a_session_of_an_ordinary_user_makes_no_calls_of_shards(place: Place) -> None:
    for user in ("eve", "rita"):
        token = place.client(A, user).authorization
        assert token is not None
        for extra in ((), ((ON_BEHALF, "writer t0"),)):
            found, _ = _shard_call(
                place, "facts", _message({"tenant": 7, "streams": []}), ("authorization", token), *extra
            )
            assert found is Code.UNAUTHENTICATED


@pytest.mark.parametrize("behalf", ["admin t7", "writer t7", "reader t7"])
def test_on_behalf_gives_neither_admin_rights_nor_another_tenant(place: Place, behalf: str) -> None:
    headers = (SHARD_LOGIN, (ON_BEHALF, behalf))
    assert _query(place, "FROM events", *headers) is Code.OK
    for text in (
        "FROM _catchment.producers",
        "CALL duckling_queue_flush()",
        "FROM t8.events",
        "FROM duckdb_settings()",
    ):
        assert _query(place, text, *headers) is not Code.OK, text


@pytest.mark.parametrize("user", ["eve", "rita"])
@pytest.mark.parametrize("behalf", ["admin t0", "writer t8", "nonsense"])
def test_a_user_cannot_act_on_behalf_of_another(place: Place, user: str, behalf: str) -> None:
    headers = (("authorization", _basic(user, PASSWORD)), (ON_BEHALF, behalf))
    # The header means nothing from a user.
    assert _query(place, "FROM events", *headers) is Code.OK
    for text in ("FROM _catchment.producers", "FROM t8.events"):
        assert _query(place, text, *headers) is not Code.OK
    if user == "rita":
        assert _query(place, "CREATE TABLE made (id INTEGER)", *headers) is Code.PERMISSION_DENIED


@pytest.mark.parametrize(
    "behalf",
    ["", "admin", "t7", "owner t7", "writer", "writer t", "writer -1", "writer t7 t8", "writer t7'", "WRITER T7"],
)
def test_a_header_that_names_no_role_and_tenant_is_refused(place: Place, behalf: str) -> None:
    assert _query(place, "SELECT 1", SHARD_LOGIN, (ON_BEHALF, behalf)) is Code.UNAUTHENTICATED


def test_a_session_of_one_tenant_stays_there_whatever_its_calls_name(place: Place) -> None:
    client = place.client(A)
    token = ("authorization", str(client.authorization))
    assert _query(place, "FROM events", token, (ON_BEHALF, "admin t0")) is Code.OK
    assert _query(place, "FROM _catchment.producers", token, (ON_BEHALF, "admin t0")) is not Code.OK


_STREAM = b"\xff\xff\xff\xff" * 4


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xff\xff\xff",
        _message([]),
        _message(None),
        _message({}),
        _message({"streams": []}),
        _message({"tenant": 7}),
        _message({"tenant": "7", "streams": []}),
        _message({"tenant": 7.5, "streams": []}),
        _message({"tenant": True, "streams": []}),
        _message({"tenant": -1, "streams": []}),
        _message({"tenant": 2**64, "streams": []}),
        _message({"tenant": 9, "streams": [len(_STREAM)]}) + _STREAM,
        _message({"tenant": 9, "streams": [-1]}),
        _message({"tenant": 9, "streams": [2**70]}),
        _message({**dict.fromkeys(HARMFUL, 1), "tenant": 9, "streams": []}),
        _message({**dict.fromkeys(HARMFUL, "x"), "tenant": 9, "streams": []}),
        _message({**dict.fromkeys(HARMFUL, None), "tenant": 9, "streams": []}),
        _message({**{key: [[]] for key in HARMFUL}, "tenant": 9, "streams": []}),
        struct.pack("<I", 200_000) + b"[" * 200_000,
    ],
    ids=range(20),
)
def test_a_malformed_message_is_never_an_internal_error(place: Place, body: bytes) -> None:
    for name in NAMES:
        code, text = _shard_call(place, name, body, SHARD_LOGIN)
        assert code not in (Code.INTERNAL, Code.UNKNOWN), f"{name}: {text}"
