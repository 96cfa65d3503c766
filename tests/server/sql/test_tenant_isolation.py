"""Tenant isolation: a tenant's users cannot see, change or detect anything of another tenant."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import cast

import duckdb
import grpc
import pyarrow as pa
import pytest
from google.protobuf.message import Message

from catchment.app import App
from catchment.errors import CatchmentError, NotAllowedError, StateError, TableMissingError
from catchment.flight_protocol import flight_pb2 as flight
from catchment.flight_protocol import flight_sql_pb2 as commands
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.server.access.auth import Authenticator
from catchment.server.access.users import Users
from catchment.server.flight import metadata
from catchment.server.flight.actions import Actions
from catchment.server.flight.session_lookup import SessionLookup
from catchment.server.sessions.registry import SessionRegistry
from catchment.server.sessions.session import Session
from catchment.server.shards.peers import PeerSession
from catchment.server.sql import functions
from catchment.server.values import Call, IfExists, IngestTarget, Principal, Role
from catchment.tenants.model import ShardInfo, TenantId
from catchment.tenants.records import Residents
from tests.server.sql import tenant_statements

SECRET = "sesame"
# What is there, and what is not: all names are of one length, for the places that errors show.
SCHEMAS, TABLES = ("t8", "t9"), ("secrets", "phantom")
OURS, OTHERS = TenantId(7), TenantId(8)


@dataclass(frozen=True)
class Place:
    """A server's sessions, with two tenants and tables outside of both."""

    registry: SessionRegistry
    settings: Settings

    def session(self, role: Role = Role.WRITER, tenant: TenantId | None = OURS) -> Session:
        return self.registry.open(Principal(f"{role.name}-{tenant}", role, tenant))

    def traces(self) -> tuple[object, ...]:
        """Possible effects of a statement: a new version of the lake, and rows in the queue."""
        engine = self.registry.backend
        assert engine.queue is not None
        queued = [(state.table, state.rows) for state in engine.queue.buffer.tables() if state.table.schema != "t7"]
        return (engine.lake.newest_snapshot(), queued)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    settings = Settings(home=tmp_path_factory.mktemp("islands"), lake_threads_max=1, queue_auto_create_tables=True)
    with App(settings, sandboxed=True) as app:
        registry = SessionRegistry(app)
        founder = registry.open(Principal("founder", Role.ADMIN))
        for schema, table in (("t8", "secrets"), ("main", "secrets"), ("staging", "secrets"), ("t7", "events")):
            run(founder, f"CREATE SCHEMA IF NOT EXISTS {schema}")
            run(founder, f"CREATE TABLE {schema}.{table} (a INTEGER, b VARCHAR)")
            word = "ours" if schema == "t7" else SECRET
            run(founder, f"INSERT INTO {schema}.{table} SELECT i, '{word}' FROM range(100) r(i)")
        run(founder, "INSERT INTO duckling_queue.t8.secrets VALUES (1, 'sesame')")
        yield Place(registry, settings)
        registry.close_all()


@pytest.fixture(scope="module")
def client(place: Place) -> Session:
    return place.session()


def run(session: Session, text: str, parameters: pa.Table | None = None) -> pa.Table:
    """What a text gives."""
    call = Call()
    result = session.execute(text, call, parameters=parameters).result
    return pa.Table.from_batches(result.batches(call), result.schema)


def refusal(place: Place, client: Session, text: str, *, prepared: bool) -> str:
    """Return the user's error, after checking that the statement had no effect."""
    before = place.traces()
    try:
        with pytest.raises((CatchmentError, duckdb.Error)) as refused:
            # What is prepared is often refused when it is run.
            client.run_prepared(client.prepare(text), Call()) if prepared else run(client, text)
    finally:
        with contextlib.suppress(StateError):
            run(client, "ROLLBACK")
    assert place.traces() == before
    error = refused.value
    assert not isinstance(error, duckdb.InternalException)
    told = f"{error.message} {error.hint}" if isinstance(error, CatchmentError) else str(error)
    assert SECRET not in told
    return f"{type(error).__name__}: {told}"


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("text", [*tenant_statements.READS, *tenant_statements.WRITES])
def test_no_statement_reaches_another_tenant_or_reveals_that_it_exists(
    place: Place, client: Session, text: str, prepared: bool
) -> None:
    told = set()
    for schema, table in product(SCHEMAS, TABLES):
        words = refusal(place, client, text.replace("{s}", schema).replace("{t}", table), prepared=prepared)
        told.add(words.replace(schema, "SCHEMA").replace(table, "TABLE"))
    assert len(told) == 1


@pytest.mark.parametrize("schema", ["main", "staging", "_catchment", "temp.t8", "lake.main", "memory", "t7.t8"])
@pytest.mark.parametrize("text", [text for text in tenant_statements.READS if "{s}.{t}" in text][:12])
def test_tables_outside_of_any_tenant_do_not_exist_for_a_tenants_users(
    place: Place, client: Session, schema: str, text: str
) -> None:
    filled = text.replace('"{s}"."{t}"', "{s}.{t}").replace("{s}", schema).replace("{t}", "secrets")
    refusal(place, client, filled, prepared=False)


@pytest.mark.parametrize("text", tenant_statements.LISTS)
def test_no_statement_lists_tables_of_other_tenants(place: Place, client: Session, text: str) -> None:
    refusal(place, client, text, prepared=False)
    refusal(place, client, text, prepared=True)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("text", tenant_statements.CUT)
def test_lists_show_what_the_tenant_has_and_nothing_else(place: Place, text: str, prepared: bool) -> None:
    client = place.session(Role.READER)
    if prepared:
        call, result = Call(), client.run_prepared(client.prepare(text), Call()).result
        found = pa.Table.from_batches(result.batches(call), result.schema)
    else:
        found = run(client, text)
    shown = str(found.to_pylist())
    for other in ("secrets", "t8", "staging", "_catchment", "producers", str(place.settings.home)):
        assert other not in shown


def test_no_function_shows_what_is_defined_in_another_tenants_schema(place: Place, client: Session) -> None:
    founder = place.session(Role.ADMIN, None)
    run(founder, f"CREATE OR REPLACE VIEW t8.shown AS SELECT '{SECRET}' AS word FROM t8.secrets")
    for call in ("pg_get_viewdef(i)", "main.pg_get_viewdef(i)", "i.pg_get_viewdef()", "pg_get_constraintdef(i)"):
        refusal(place, client, f"SELECT {call} FROM range(5000) r(i)", prepared=False)
        refusal(place, client, f"CREATE TABLE mine AS SELECT {call} AS x FROM range(5000) r(i)", prepared=False)
    run_count = 0
    # One collation is like the others.
    names = sorted(each for each in functions.allowed_to_tenants() if not each.startswith("icu_collate_"))
    for name, given in product(names, ("", "i", "i, i", "'t8.shown'")):
        with contextlib.suppress(CatchmentError, duckdb.Error):
            found = run(client, f'SELECT DISTINCT ("{name}"({given}))::VARCHAR AS x FROM range(1000) r(i)')
            assert not any(SECRET in str(each) for each in found["x"].to_pylist()), name
            run_count += 1
    assert run_count > 300
    run(founder, "DROP VIEW t8.shown")


def test_every_attempt_is_valid_sql_for_duckdb() -> None:
    with duckdb.connect() as connection:
        for text in (*tenant_statements.READS, *tenant_statements.WRITES, *tenant_statements.LISTS):
            if text == "PRAGMA duckling_queue.flush":
                # Ours.
                continue
            assert connection.extract_statements(text.replace("{s}", "t8").replace("{t}", "secrets")), text


def test_a_tenants_own_sql_works(place: Place) -> None:
    user = place.session()
    # In one test: each may build on what those before it made.
    for text in tenant_statements.LEGITIMATE:
        try:
            run(user, text)
        except (CatchmentError, duckdb.Error) as error:
            pytest.fail(f"{text}: {error}")
    made = {table for table in place.registry.backend.lake.tables() if table.name.startswith(("placed", "Quoted"))}
    assert made == {TableId("t7", name) for name in ("Quoted one", "placed", "placed_too")}


def test_usual_statements_of_a_tenants_users_can_be_prepared(place: Place) -> None:
    user = place.session()
    for text in [
        text for text in tenant_statements.LEGITIMATE if text.startswith(("SELECT", "FROM t", "SHOW", "WITH"))
    ]:
        with contextlib.suppress(duckdb.CatalogException):
            user.run_prepared(user.prepare(text), Call()).result.close()


def test_a_statement_with_parameters_stays_in_the_tenants_schema(place: Place) -> None:
    user = place.session()
    rows = pa.table({"1": [70, 71], "2": ["bound", "bound"]})
    for text in ("INSERT INTO events VALUES (?, ?)", "INSERT INTO duckling_queue.events VALUES (?, ?)"):
        assert user.run_prepared(user.prepare(text), Call(), rows).rows == 2
    found = run(user, "SELECT count(*) AS n FROM catchment_fresh.events WHERE b = ?", pa.table({"1": ["bound"]}))
    assert found.to_pylist() == [{"n": 4}]
    for text in ("INSERT INTO t8.secrets VALUES (?, ?)", "INSERT INTO duckling_queue.t8.secrets VALUES (?, ?)"):
        with pytest.raises((duckdb.CatalogException, TableMissingError)):
            user.run_prepared(user.prepare(text), Call(), rows)


def test_an_unqualified_name_never_falls_back_to_main(place: Place) -> None:
    user = place.session()
    run(user, "CREATE TABLE secrets AS SELECT 'mine' AS b")
    run(user, "CREATE VIEW window_on AS FROM secrets")
    assert run(user, "FROM window_on").to_pylist() == [{"b": "mine"}]
    run(user, "DROP TABLE secrets")
    for name in ("secrets", "window_on"):
        with pytest.raises(duckdb.CatalogException, match="does not exist") as refused:
            run(user, f"FROM {name}")
        assert "Did you mean" not in str(refused.value)
    run(user, "DROP VIEW window_on")


@pytest.mark.parametrize("where", ["plain", "transaction", "second link"])
def test_every_connection_of_a_session_is_confined_to_the_tenant(place: Place, where: str) -> None:
    user = place.session()
    transaction = user.begin() if where != "plain" else None
    named = transaction if where == "transaction" else None
    with pytest.raises(duckdb.CatalogException):
        user.execute("FROM secrets", Call(), transaction=named)
    with pytest.raises(duckdb.CatalogException):
        user.execute("FROM t8.secrets", Call(), transaction=named)
    if transaction is not None:
        user.end(transaction, commit=False)


def test_rows_that_a_transaction_keeps_for_the_queue_are_the_tenants(place: Place) -> None:
    user = place.session()
    transaction = user.begin()
    user.execute("INSERT INTO duckling_queue.events VALUES (80, 'kept')", Call(), transaction=transaction)
    with pytest.raises(TableMissingError):
        user.execute("INSERT INTO duckling_queue.t8.secrets VALUES (80, 'kept')", Call(), transaction=transaction)
    user.end(transaction, commit=True)
    assert run(user, "SELECT a FROM catchment_fresh.events WHERE b = 'kept'").to_pylist() == [{"a": 80}]


@pytest.mark.parametrize("if_exists", IfExists)
@pytest.mark.parametrize("temporary", [False, True])
@pytest.mark.parametrize(
    ("catalog", "schema"),
    [
        *((None, "{s}"), ("lake", "{s}"), ("duckling_queue", "{s}"), (None, "main"), ("lake", "main")),
        *(("duckling_queue", "main"), ("temp", "{s}"), ("{s}", None), ("memory", None), ("lake", "_catchment")),
        *((None, "catchment_fresh"), (None, "information_schema"), ("system", "main"), ("{s}", "t7")),
    ],
)
def test_an_ingest_stays_in_the_tenants_schema(
    place: Place, client: Session, catalog: str | None, schema: str | None, if_exists: IfExists, temporary: bool
) -> None:
    told = set()
    for other, table in product(SCHEMAS, TABLES):
        before = place.traces()
        target = IngestTarget(
            catalog=None if catalog is None else catalog.replace("{s}", other),
            schema=None if schema is None else schema.replace("{s}", other),
            table=table,
            create=True,
            if_exists=if_exists,
            temporary=temporary,
        )
        with pytest.raises((CatchmentError, duckdb.Error)) as refused:
            client.ingest(target, pa.table({"a": [1]}).to_reader(), Call())
        assert place.traces() == before
        told.add(str(refused.value).replace(other, "SCHEMA").replace(table, "TABLE"))
    assert len(told) == 1


@pytest.mark.parametrize(
    ("catalog", "schema"),
    [(None, None), ("lake", None), (None, "T7"), ("lake", "t7"), ("duckling_queue", "t7"), (None, "duckling_queue")],
)
def test_an_ingest_without_a_schema_goes_to_the_tenants(
    place: Place, client: Session, catalog: str | None, schema: str | None
) -> None:
    name = f"in_{catalog}_{schema}"
    target = IngestTarget(catalog=catalog, schema=schema, table=name, create=True, if_exists=IfExists.APPEND)
    assert client.ingest(target, pa.table({"a": [1]}).to_reader(), Call()) == 1
    assert run(client, f'FROM catchment_fresh."{name}"').to_pylist() == [{"a": 1}]
    assert TableId("t7", name) in place.registry.backend.lake.tables()


def test_metadata_shows_the_tenants_schema_only(place: Place, client: Session) -> None:
    def answer(command: Message) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = metadata.answer(command, client.state, place.settings, Call()).to_pylist()
        return rows

    schemas = [row["db_schema_name"] for row in answer(commands.CommandGetDbSchemas())]
    assert schemas == ["duckling_queue", "t7"]
    assert answer(commands.CommandGetDbSchemas(db_schema_filter_pattern="t8")) == []
    for listing in (commands.CommandGetTables(), commands.CommandGetTables(include_schema=True)):
        found = answer(listing)
        assert {row["db_schema_name"] for row in found} <= {"t7", "duckling_queue"}
        assert "events" in {row["table_name"] for row in found}
    beyond: tuple[Message, ...] = (
        commands.CommandGetTables(db_schema_filter_pattern="t8", include_schema=True),
        commands.CommandGetTables(table_name_filter_pattern="secrets"),
        commands.CommandGetTables(catalog="lake", db_schema_filter_pattern="main"),
        commands.CommandGetPrimaryKeys(db_schema="t8", table="secrets"),
        commands.CommandGetExportedKeys(db_schema="t8", table="secrets"),
    )
    assert [answer(command) for command in beyond] == [[]] * len(beyond)


def test_the_sessions_options_name_the_tenants_schema_and_take_no_other(place: Place, tmp_path: Path) -> None:
    users = Users(tmp_path / "users.json")
    users.add("eve", Role.WRITER, "a long password", tenant=OURS)
    entrance = SessionLookup(place.registry, Authenticator(users, required=True))
    context = cast(grpc.ServicerContext, _Context(place.registry.token_of(place.session())))
    actions = Actions(entrance, place.settings)

    def set_schema(schema: str) -> dict[str, int]:
        request = flight.SetSessionOptionsRequest()
        request.session_options["schema"].string_value = schema
        action = flight.Action(type="SetSessionOptions", body=request.SerializeToString())
        result = flight.SetSessionOptionsResult.FromString(actions.do(action, context, Call()))
        return {name: error.value for name, error in result.errors.items()}

    refused = {"schema": flight.SetSessionOptionsResult.INVALID_VALUE}
    assert [set_schema(name) for name in ("t7", "t8", "t9", "main")] == [{}, refused, refused, refused]
    asked = flight.Action(type="GetSessionOptions", body=flight.GetSessionOptionsRequest().SerializeToString())
    options = flight.GetSessionOptionsResult.FromString(actions.do(asked, context, Call())).session_options
    assert options["schema"].string_value == "t7"


@dataclass(frozen=True)
class _Context:
    """As much of a call as the entrance looks at."""

    token: str

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.token}")]

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


def test_users_without_a_tenant_see_every_schema(place: Place) -> None:
    founder = place.session(Role.READER, None)
    for name in ("secrets", "main.secrets", "t8.secrets", "t7.events", "staging.secrets", "information_schema.tables"):
        assert run(founder, f"FROM {name}").num_rows
    listed = (
        metadata.answer(commands.CommandGetDbSchemas(), founder.state, place.settings, Call()).column(1).to_pylist()
    )
    assert listed == ["duckling_queue", "main", "staging", "t7", "t8"]


def test_a_login_as_a_tenants_user_is_confined_to_the_tenant(place: Place, tmp_path: Path) -> None:
    users = Users(tmp_path / "users.json")
    users.add("eve", Role.WRITER, "a long password", tenant=OURS)
    users.add("ada", Role.ADMIN, "a long password")
    login = Authenticator(users, required=True).login
    assert login("ada", "a long password", "here").tenant is None
    user = place.registry.open(login("eve", "a long password", "here"))
    with pytest.raises(duckdb.CatalogException):
        run(user, "FROM t8.secrets")
    assert run(user, "FROM events").num_rows


def test_the_default_tenant_has_main_and_no_more(place: Place) -> None:
    user = place.session(tenant=TenantId(0))
    for name in ("secrets", "main.secrets", "lake.main.secrets", "catchment_fresh.secrets"):
        assert run(user, f"FROM {name}").num_rows == 100
    assert set(run(user, "FROM duckdb_tables()")["schema_name"].to_pylist()) == {"main"}
    for name in ("t8.secrets", "t7.events", "events", "staging.secrets"):
        with pytest.raises((duckdb.CatalogException, NotAllowedError)):
            run(user, f"FROM {name}")


def test_a_new_tenants_user_sees_no_tables(place: Place) -> None:
    user = place.session(tenant=TenantId(11))
    assert run(user, "SHOW TABLES").num_rows == 0
    run(user, "CREATE TABLE first AS SELECT 1 AS a")
    run(user, "INSERT INTO duckling_queue.first VALUES (2)")
    assert run(user, "SELECT sum(a) AS a FROM catchment_fresh.first").to_pylist() == [{"a": 3}]
    assert TableId("t11", "first") in place.registry.backend.lake.tables()


def test_a_reader_of_a_tenant_changes_nothing(place: Place) -> None:
    reader = place.session(Role.READER)
    before = place.traces()
    for text in ("INSERT INTO events VALUES (1, 'x')", "INSERT INTO duckling_queue.events VALUES (1, 'x')"):
        with pytest.raises(NotAllowedError):
            run(reader, text)
    assert place.traces() == before
    assert run(reader, "FROM events").num_rows


def test_not_even_an_admin_of_a_tenant_commands_the_queue(place: Place) -> None:
    # There is no such user; for one, the whole queue would be visible.
    admin = place.session(Role.ADMIN)
    for text in ("CALL duckling_queue_status()", "CALL duckling_queue_flush()"):
        with pytest.raises(NotAllowedError):
            run(admin, text)


@dataclass
class Desk:
    """Counts what goes over it."""

    place: Place
    reads: int = 0
    changes: int = 0
    written: Counter[tuple[str, TableId]] = field(default_factory=Counter)
    is_moving: bool = False

    def write(self, tenant: TenantId, table: TableId, rows: pa.Table, session: str) -> int:
        queue = self.place.registry.backend.queue
        assert queue is not None
        taken = queue.enqueue(table, rows, session=session).rows
        self.written[str(tenant), table] += taken
        return taken

    @contextlib.contextmanager
    def reading(self, tenant: TenantId) -> Iterator[None]:
        assert tenant == OURS
        self.reads += 1
        try:
            yield
        finally:
            self.reads -= 1

    @contextlib.contextmanager
    def changing(self, tenant: TenantId) -> Iterator[None]:
        assert tenant == OURS
        if self.is_moving:
            raise StateError("The tenant moves.")
        self.changes += 1
        try:
            yield
        finally:
            self.changes -= 1

    def residents(self) -> Residents:
        return Residents()

    def owner(self, schema: str) -> TenantId | None:
        return OURS if schema == OURS.schema else None

    def remote_primary(self, tenant: TenantId, *, refresh: bool = False) -> ShardInfo | None:
        return None

    def peer(self, shard: ShardInfo, principal: Principal) -> PeerSession:
        raise NotImplementedError


@pytest.fixture
def desk(place: Place) -> Iterator[Desk]:
    desk = Desk(place)
    place.registry.backend.tenants = desk
    yield desk
    place.registry.backend.tenants = None


EVENTS = ("t7", TableId("t7", "events"))


def test_a_tenants_rows_for_the_queue_go_over_the_desk(place: Place, desk: Desk) -> None:
    user = place.session()
    run(user, "INSERT INTO duckling_queue.events VALUES (1, 'x')")
    assert desk.written == {EVENTS: 1}
    run(user, "INSERT INTO duckling_queue.events SELECT 2, 'y' FROM range(3)")
    assert desk.written == {EVENTS: 4}
    rows = pa.table({"1": [1, 2], "2": ["x", "y"]})
    user.run_prepared(user.prepare("INSERT INTO duckling_queue.events VALUES (?, ?)"), Call(), rows)
    assert desk.written == {EVENTS: 6}
    target = IngestTarget(
        catalog=None, schema="duckling_queue", table="events", create=False, if_exists=IfExists.APPEND
    )
    user.ingest(target, pa.table({"a": [1, 2, 3, 4]}).to_reader(), Call())
    assert desk.written == {EVENTS: 10}
    run(user, "BEGIN; INSERT INTO duckling_queue.events VALUES (1, 'x')")
    assert desk.written == {EVENTS: 10}
    run(user, "COMMIT")
    assert desk.written == {EVENTS: 11}
    run(place.session(tenant=None), "INSERT INTO duckling_queue.t7.events VALUES (1, 'x')")
    assert desk.written == {EVENTS: 12}
    assert (desk.reads, desk.changes) == (0, 0)


@pytest.mark.parametrize("name", ["events", "catchment_fresh.events"])
def test_a_tenants_reader_is_counted_until_its_result_is_closed(place: Place, desk: Desk, name: str) -> None:
    user = place.session()
    results = [user.execute(f"FROM {name}", Call()).result for _ in range(2)]
    # The session has one connection: the first of two plain results is in memory by now.
    assert desk.reads == (1 if name == "events" else 2)
    for result in results:
        result.close()
    assert desk.reads == 0
    with pytest.raises(duckdb.Error):
        user.execute(f"SELECT nothing_like_it FROM {name}", Call())
    assert desk.reads == 0
    result = user.execute(f"FROM {name}", Call()).result
    assert desk.reads == 1
    assert sum(batch.num_rows for batch in result.batches(Call()))
    assert desk.reads == 0
    user.keep(user.execute(f"FROM {name}", Call()))
    assert desk.reads == 1
    place.registry.close(user)
    assert desk.reads == 0


def test_a_change_of_a_tenants_tables_holds_the_desk(place: Place, desk: Desk) -> None:
    user = place.session()
    transaction = user.begin()
    user.execute("INSERT INTO events VALUES (1, 'x')", Call(), transaction=transaction)
    user.execute("INSERT INTO events VALUES (2, 'x')", Call(), transaction=transaction)
    assert desk.changes == 1
    user.end(transaction, commit=True)
    assert desk.changes == 0
    desk.is_moving = True
    target = IngestTarget(catalog=None, schema=None, table="events", create=False, if_exists=IfExists.APPEND)
    before = place.traces()
    for text in ("INSERT INTO events VALUES (1, 'x')", "CREATE TABLE x (a INTEGER)", "BEGIN; DELETE FROM events"):
        with pytest.raises(StateError, match="moves"):
            run(user, text)
    run(user, "ROLLBACK")
    with pytest.raises(StateError, match="moves"):
        user.ingest(target, pa.table({"a": [1]}).to_reader(), Call())
    assert place.traces() == before
    run(place.session(tenant=None), "UPDATE t7.events SET b = 'y' WHERE a = 1")
    run(user, "FROM events")
    assert (desk.reads, desk.changes) == (0, 0)
