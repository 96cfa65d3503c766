"""Statements of a tenant's users on a server that is not the primary, and failures on the way."""

import base64
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from catchment.errors import CorruptInputError, NotReadyError, StaleRouteError
from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation import faults
from catchment.foundation.settings import Settings
from catchment.server.access.users import Users
from catchment.server.flight_server import FlightServer
from catchment.server.shards.forward import Rewindable, may_change, texts
from catchment.server.sql.statement_plan import plan
from catchment.tenants.model import ShardId
from catchment.tenants.shard_api import ShardRole as HomeRole
from catchment.testing import InlineRunner
from tests.server.raw_client import ENDLESS, Client, descriptor, ingest, put_messages, refused, sessions
from tests.server.shards.two_servers import PASSWORD, SECRET, Place, two_servers
from tests.tenants.two_shards import T7, A, B
from tests.waiting import wait_until

Code = grpc.StatusCode


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with two_servers(tmp_path) as opened:
        yield opened


COUNT = "SELECT count(*) AS n FROM catchment_fresh.events"


def _count(client: Client) -> int:
    (row,) = client.query(COUNT)
    return int(row["n"])


def _asked(command: sql.CommandStatementQuery) -> bytes:
    return descriptor(command).SerializeToString()


def _insert(client: Client, number: int = 1) -> int:
    return client.update(f"INSERT INTO duckling_queue.events VALUES ({number}, 'x')")


# Where statements go.


def test_counts_and_schemas_come_back_as_they_were(place: Place) -> None:
    here, there = place.client(A), place.client(B)
    for client in (here, there):
        assert client.update("INSERT INTO events SELECT range, 'x' FROM range(5)") == 5
        assert client.update("UPDATE events SET kind = 'y' WHERE id < 3") in (3, 6)
        assert client.put(ingest("events", create=False), pa.table({"id": [7, 8]})) == 2
    text = "SELECT id + ? AS a, kind, DATE '2024-01-01' AS d, [id] AS l FROM events"
    one, other = here.prepare(text), there.prepare(text)
    assert (one.dataset_schema, one.parameter_schema) == (other.dataset_schema, other.parameter_schema)
    assert here.prepare("DELETE FROM events WHERE id = ?").is_update
    assert there.prepare("DELETE FROM events WHERE id = ?").is_update
    assert here.schema(sql.CommandStatementQuery(query="FROM events")) == there.schema(
        sql.CommandStatementQuery(query="FROM events")
    )
    assert here.query("FROM events ORDER BY id, kind") == there.query("FROM events ORDER BY id, kind")


def test_a_reader_stays_a_reader_on_the_other_server(place: Place) -> None:
    reader = place.client(B, "rita")
    assert _count(reader) == 0
    refused(Code.PERMISSION_DENIED, reader.update, "INSERT INTO events VALUES (1, 'x')")
    refused(Code.PERMISSION_DENIED, _insert, reader)


def test_prepared_statements_are_run_with_the_rows_of_each_call(place: Place) -> None:
    client = place.client(B)
    update = client.prepare("INSERT INTO duckling_queue.events VALUES (?, ?)").prepared_statement_handle
    query = client.prepare("SELECT ? + 1 AS n").prepared_statement_handle
    for number in range(20):
        rows = pa.table({"1": [number, number], "2": ["x", "y"]})
        assert client.put(sql.CommandPreparedStatementUpdate(prepared_statement_handle=update), rows) == 2
        command = sql.CommandPreparedStatementQuery(prepared_statement_handle=query)
        client.upload(put_messages(command, pa.table({"1": [number]}))).result()
        assert client.read(command).to_pylist() == [{"n": number + 1}]
    assert _count(client) == 40


def test_a_text_of_several_statements_is_forwarded_one_by_one(place: Place) -> None:
    client = place.client(B)
    text = "INSERT INTO duckling_queue.events VALUES (1, ';'); SELECT 1; FROM catchment_fresh.events -- end"
    assert client.query(text) == [{"id": 1, "kind": ";"}]
    assert texts(text) == (
        "INSERT INTO duckling_queue.events VALUES (1, ';')",
        "SELECT 1",
        "FROM catchment_fresh.events -- end",
    )


def test_statements_that_may_change_data_are_distinguished_from_reads() -> None:
    def answer(text: str) -> bool:
        (step,) = plan(text)
        return may_change(step)

    for text in ("SELECT 1", "(SELECT 1)", "FROM x", "FROM catchment_fresh.x", "EXPLAIN SELECT 1", "DESCRIBE x"):
        assert not answer(text)
    for text in ("INSERT INTO x VALUES (1)", "INSERT INTO duckling_queue.x VALUES (1)", "CREATE TABLE x (a INTEGER)"):
        assert answer(text)
    assert answer("WITH w AS (SELECT 1) INSERT INTO x FROM w")


def test_statements_of_an_unknown_tenant_are_refused_as_such(place: Place) -> None:
    Users(place.folder / "users.json").set_tenant("eve", T7.parse("t99"))
    assert "The tenant t99 does not exist" in refused(Code.FAILED_PRECONDITION, _count, place.client(A))


# Sessions.


def test_there_is_one_session_on_the_other_server_and_it_ends_with_the_first(place: Place) -> None:
    before = sessions(place.servers[A])
    client = place.client(B)
    for number in range(5):
        _insert(client, number)
        _count(client)
    client.update("CREATE TEMP TABLE mine AS SELECT 42 AS n")
    assert client.query("FROM mine") == [{"n": 42}]
    assert sessions(place.servers[A]) == before + 1
    client.act("CloseSession", flight.CloseSessionRequest().SerializeToString())
    wait_until(lambda: sessions(place.servers[A]) == before, "the session on the home is over")


def test_a_client_that_takes_no_token_leaves_no_sessions_on_the_other_server(place: Place) -> None:
    before = sessions(place.servers[A])
    client = Client(place.servers[B].uri)
    client.authorization = f"Basic {base64.b64encode(f'eve:{PASSWORD}'.encode()).decode()}"
    place.clients.append(client)
    for number in range(3):
        _insert(client, number)
        assert _count(client) == number + 1
    wait_until(lambda: sessions(place.servers[A]) == before, "the sessions on the home are over")


def test_a_session_that_the_other_server_has_forgotten_is_opened_again(place: Place) -> None:
    client = place.client(B)
    handle = client.prepare("INSERT INTO duckling_queue.events VALUES (?, ?)").prepared_statement_handle
    command = sql.CommandPreparedStatementUpdate(prepared_statement_handle=handle)
    rows = pa.table({"1": [1], "2": ["x"]})
    registry = place.servers[A]._sessions
    assert registry is not None
    writes: tuple[Callable[[], int], ...] = (
        lambda: _insert(client),
        lambda: client.put(command, rows),
        lambda: client.put(ingest("events", create=False), pa.table({"id": [1]})),
        lambda: client.put(ingest("events", create=False, schema="duckling_queue"), pa.table({"id": [1]})),
    )
    for write in writes:
        for session in registry.sessions():
            registry.close(session)
        assert write() == 1
    for session in registry.sessions():
        registry.close(session)
    assert _count(client) == 4


def test_an_unread_result_is_released_on_the_other_server(place: Place) -> None:
    readers = place.tenancy(A).shard.readers
    client = place.client(B)
    info = client.info(sql.CommandStatementQuery(query="SELECT * FROM events, range(1000000)"))
    assert readers(T7) == 1
    client.act("CancelFlightInfo", flight.CancelFlightInfoRequest(info=info).SerializeToString())
    wait_until(lambda: readers(T7) == 0, "the reader is gone")
    client.info(sql.CommandStatementQuery(query="FROM events"))
    client.act("CloseSession", flight.CloseSessionRequest().SerializeToString())
    wait_until(lambda: readers(T7) == 0, "the reader is gone")


def test_a_statement_that_is_cancelled_or_too_late_is_ended_on_the_other_server(place: Place) -> None:
    client = place.client(B)
    _count(client)
    busy = place.servers[A]._sessions
    assert busy is not None

    def is_running() -> bool:
        return any(session.is_used for session in busy.sessions())

    asking = client.asking(sql.CommandStatementQuery(query=ENDLESS))
    wait_until(is_running, "the statement runs")
    asking.cancel()
    wait_until(lambda: not is_running(), "the statement is ended")
    late = client._channel.unary_unary("/arrow.flight.protocol.FlightService/GetFlightInfo")
    request = _asked(sql.CommandStatementQuery(query=ENDLESS))
    with pytest.raises(grpc.RpcError) as caught:
        late(request, metadata=client._headers(), timeout=0.5)
    assert caught.value.code() is Code.DEADLINE_EXCEEDED
    wait_until(lambda: not is_running(), "the statement is ended")


# Moves.


def test_statements_by_an_old_route_run_on_the_current_primary(place: Place) -> None:
    ours, theirs = place.client(A), place.client(B)
    rows = pa.table({"id": [1], "kind": ["x"]})
    for client in (ours, theirs):
        assert (_insert(client), _count(client) > 0) == (1, True)
    expected = 2
    for source, target in ((A, B), (B, A)):
        place.move(source, target)
        for client in (ours, theirs):
            assert client.query("SELECT count(*) AS n FROM events") != []
            prepared = client.prepare("INSERT INTO duckling_queue.events VALUES (?, ?)")
            command = sql.CommandPreparedStatementUpdate(prepared_statement_handle=prepared.prepared_statement_handle)
            assert client.put(command, pa.table({"1": [1], "2": ["x"]})) == 1
            assert client.put(ingest("events", create=False), rows) == 1
            assert client.put(ingest("events", create=False, schema="duckling_queue"), rows) == 1
            assert client.update("INSERT INTO events VALUES (1, 'x'); DELETE FROM events WHERE false") == 0
            expected += 4
            assert _count(client) == expected
            tables = client.read(sql.CommandGetTables(include_schema=True, table_types=["TABLE"]))
            assert tables["table_name"].to_pylist() == ["events"]


def _began(place: Place, client: Client, shard: ShardId, home: ShardId) -> bool:
    if shard != home:
        return place.servers[home].uri in refused(Code.FAILED_PRECONDITION, client.begin)
    client.end(client.begin(), commit=True)
    return True


def test_the_first_statement_after_a_move_is_forwarded_whatever_it_is(place: Place) -> None:
    clients = {shard: place.client(shard) for shard in (A, B)}
    command = ingest("events", create=False)
    firsts: tuple[Callable[[ShardId, Client, ShardId], bool], ...] = (
        lambda _shard, client, _home: client.query("SELECT count(id) AS n FROM events") == [{"n": 1}],
        lambda _shard, client, _home: client.prepare("FROM events").dataset_schema != b"",
        lambda _shard, client, _home: client.read(sql.CommandGetTables()).num_rows == 1,
        lambda shard, client, home: _began(place, client, shard, home),
        lambda _shard, client, _home: client.put(command, pa.table({"kind": ["x"]})) == 1,
        lambda _shard, client, _home: client.update("DELETE FROM events WHERE id < 0") == 0,
    )
    clients[A].update("INSERT INTO events VALUES (1, 'x')")
    homes = (A, B, A, B, A, B, A)
    for at, first in enumerate(firsts):
        place.move(homes[at], homes[at + 1])
        for shard, client in clients.items():
            assert first(shard, client, homes[at + 1]), (at, shard)


def test_a_transaction_whose_tenant_has_moved_away_commits_nothing(place: Place) -> None:
    client = place.client(A)
    transaction = client.begin()
    assert client.update("INSERT INTO duckling_queue.events VALUES (1, 'x')", transaction) == 1
    place.move()
    refused(Code.ABORTED, client.query, "FROM events", transaction)
    assert "does not live in a" in refused(Code.ABORTED, lambda: client.end(transaction, commit=True))
    assert _count(client) == 0
    assert place.servers[B].uri in refused(Code.FAILED_PRECONDITION, client.begin)
    assert place.servers[B].uri in refused(Code.FAILED_PRECONDITION, client.update, "BEGIN")


class MoverGoneError(Exception):
    """Fail as if the mover were gone."""


def _be_gone() -> None:
    raise MoverGoneError


def test_a_shard_that_missed_its_tenants_move_learns_of_it_from_the_first_reader(place: Place) -> None:
    client = place.client(A)
    _insert(client)

    def role() -> HomeRole | None:
        record = place.tenancy(B).shard.record(T7)
        return None if record is None else record.role

    with faults.armed("move.after_switch", _be_gone), pytest.raises(MoverGoneError):
        place.move()
    assert place.store.tenant(T7).shard == B
    assert role() is HomeRole.REPLICA
    # The old home has not heard of it either, and does not answer from what it has.
    assert _count(client) == 1
    assert role() is HomeRole.PRIMARY


def test_a_forwarded_statement_is_never_forwarded_again(place: Place) -> None:
    login = base64.b64encode(f"shard:{SECRET}".encode()).decode()
    channel = grpc.insecure_channel(place.servers[B].uri.removeprefix("grpc://"))
    headers = (("authorization", f"Basic {login}"), ("catchment-on-behalf", "writer t7"))
    ask: Any = channel.unary_unary("/arrow.flight.protocol.FlightService/GetFlightInfo")
    with pytest.raises(grpc.RpcError) as caught:
        ask(_asked(sql.CommandStatementQuery(query="FROM events")), metadata=headers)
    assert caught.value.code() is Code.ABORTED
    channel.close()


# Servers that do not answer.


def test_an_unreachable_primary_is_unavailable_and_found_again_once_it_is_back(place: Place) -> None:
    client = place.client(B)
    _insert(client)
    port = place.servers[A].port
    assert place.servers[A].stop()
    refused(Code.UNAVAILABLE, _count, client)
    refused(Code.UNAVAILABLE, _insert, client)
    refused(Code.UNAVAILABLE, client.put, ingest("events"), pa.table({"id": [1]}))
    server = FlightServer(place.settings(A).model_copy(update={"server_port": port}))
    server.app._runner = InlineRunner()  # type: ignore[assignment]
    server.start()
    try:
        wait_until(lambda: _is_answered(client), "the home is found again")
        assert (_insert(client), _count(client)) == (1, 2)
    finally:
        server.stop()


def _is_answered(client: Client) -> bool:
    try:
        return _count(client) > 0
    except grpc.RpcError:
        return False


class Mute(grpc.GenericRpcHandler):
    """A server that takes what it is sent, and breaks off before it answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method.rpartition("/")[2]
        match method:
            case "DoAction":
                return grpc.unary_unary_rpc_method_handler(self._let_in)
            case "DoPut":
                return grpc.stream_unary_rpc_method_handler(self._break_off)
            case _:
                return grpc.unary_unary_rpc_method_handler(self._break_off)

    def _let_in(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if flight.Action.FromString(request).type != "GetSessionOptions":
            self._break_off(request, context)
        context.send_initial_metadata((("authorization", "Bearer token"),))
        return flight.Result(body=b"").SerializeToString()

    def _break_off(self, request: Any, context: grpc.ServicerContext) -> bytes:
        if not isinstance(request, bytes):
            list(request)
        self.asked.append("once")
        raise context.abort(Code.UNAVAILABLE, "Socket closed")


@contextmanager
def mute_server() -> Iterator[tuple[Mute, str]]:
    mute = Mute()
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((mute,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield mute, f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_a_write_whose_answer_is_lost_is_unknown_and_not_done_again(place: Place) -> None:
    with mute_server() as (mute, location):
        place.relocate(A, location)
        client = place.client(B)
        for write in (
            lambda: _insert(client),
            lambda: client.info(sql.CommandStatementQuery(query="INSERT INTO duckling_queue.events VALUES (1, 'x')")),
            lambda: client.put(ingest("events"), pa.table({"id": [1]})),
        ):
            mute.asked.clear()
            refused(Code.UNKNOWN, write)
            assert mute.asked == ["once"]
        refused(Code.UNAVAILABLE, client.query, "FROM events")
        refused(Code.UNAVAILABLE, client.prepare, "FROM events")


def test_a_primary_that_refuses_logins_is_reported_with_the_setting_to_change(place: Place) -> None:
    assert place.servers[B].stop()
    place.start(B, secret=None)
    text = refused(Code.UNAVAILABLE, _count, place.client(B))
    assert "rejects this server's login" in text
    assert "CATCHMENT_SHARD_SECRET" in text


def test_an_upload_that_breaks_off_leaves_nothing(place: Place) -> None:
    client = place.client(B)
    first, *_ = put_messages(ingest("events", create=False), pa.table({"id": [1]}))
    uploaded = client.upload([first, b"no message"])
    with pytest.raises(grpc.RpcError) as caught:
        uploaded.result()
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert _count(client) == 0


def test_a_forgotten_session_of_a_forwarded_statement_grants_no_admin_rights(tmp_path: Path) -> None:
    server = FlightServer(Settings(home=tmp_path, server_port=0))
    server.start()
    try:
        channel = grpc.insecure_channel(server.uri.removeprefix("grpc://"))
        ask: Any = channel.unary_unary("/arrow.flight.protocol.FlightService/GetFlightInfo")
        request = _asked(sql.CommandStatementQuery(query="FROM _catchment.producers"))
        bearer = ("authorization", "Bearer of-yesterday")
        assert ask(request, metadata=(bearer,))
        for headers, code in (
            ((bearer, ("catchment-on-behalf", "writer t7")), Code.UNAUTHENTICATED),
            ((("catchment-on-behalf", "writer t7"),), Code.PERMISSION_DENIED),
            ((("catchment-on-behalf", "nonsense"),), Code.UNAUTHENTICATED),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                ask(request, metadata=headers)
            assert caught.value.code() is code
        channel.close()
    finally:
        assert server.stop()


# Uploads that are sent again.


def _batches(*numbers: int) -> pa.RecordBatchReader:
    schema = pa.schema([("n", pa.int64())])
    made = (pa.record_batch([pa.array([number])], schema=schema) for number in numbers)
    return pa.RecordBatchReader.from_batches(schema, made)


def _take(given: pa.RecordBatchReader) -> list[int]:
    return [row["n"] for row in given.read_all().to_pylist()]


def test_rows_that_were_refused_are_given_again_from_the_start() -> None:
    rows = Rewindable(_batches(1, 2, 3))

    def refuse_late(given: pa.RecordBatchReader) -> None:
        given.read_next_batch()
        given.read_next_batch()
        raise StaleRouteError

    for _ in range(2):
        with pytest.raises(StaleRouteError):
            rows.read(refuse_late)
    assert rows.read(_take) == [1, 2, 3]
    assert rows.read(_take) == [1, 2, 3]


def test_more_rows_than_the_limit_can_be_read_only_once() -> None:
    rows = Rewindable(_batches(1, 2, 3, 4), bytes_max=16)
    assert rows.read(_take) == [1, 2, 3, 4]
    assert len(rows._kept) == 1

    def refuse_at_the_end(given: pa.RecordBatchReader) -> None:
        given.read_all()
        raise StaleRouteError("It lives elsewhere.")

    with pytest.raises(NotReadyError, match="None of the rows were kept"):
        Rewindable(_batches(1, 2, 3, 4), bytes_max=16).read(refuse_at_the_end)


def test_rows_that_end_in_an_error_do_so_for_every_reader() -> None:
    schema = pa.schema([("n", pa.int64())])

    def damaged() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([1])], schema=schema)
        raise CorruptInputError("Damaged.")

    rows = Rewindable(pa.RecordBatchReader.from_batches(schema, damaged()))
    with pytest.raises(CorruptInputError):
        rows.read(_take)
