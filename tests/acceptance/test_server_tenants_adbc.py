"""A tenant's user through the ADBC driver: on the primary, on another server, and during a move."""

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as flight
import adbc_driver_manager
import pyarrow as pa
import pytest
from pydantic import SecretStr

from catchment.control import ControlDatabase
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from catchment.pipeline.tenant_history import ShardBackfill
from catchment.server.access.users import Users
from catchment.server.values import Role
from catchment.tenants.control_store import ControlStore
from catchment.tenants.migration import TenantMigration
from catchment.tenants.model import ShardId, ShardInfo, TenantConfig, TenantId
from catchment.tenants.run_move import run_move
from catchment.tenants.transport.remote_shard import Remotes
from catchment.testing import InlineRunner
from tests.server.server_process import ServerProcess
from tests.tenants.two_shards import A, B
from tests.waiting import BEAT_S, wait_until

Error = adbc_driver_manager.Error
PASSWORD = "correct horse battery"
SECRET = "a secret of all the shards"
_MIB = 1024 * 1024
_NUMBERS = count(1)


class Fleet:
    """Two servers, `a` and `b`, with one control database and the same users."""

    def __init__(self, folder: Path) -> None:
        self.clock = SystemClock()
        control = f"sqlite:{folder / 'control.sqlite'}"
        users = folder / "users.json"
        self.settings = Settings(
            home=folder, control_db=SecretStr(control), shard_secret=SecretStr(SECRET), server_users_file=users
        )
        self.store = ControlStore(ControlDatabase.open(self.settings, clock=self.clock), clock=self.clock)
        self.users = Users.from_settings(self.settings)
        self.users.add("admin", Role.ADMIN, PASSWORD)
        environment = {
            "CATCHMENT_CONTROL_DB": control,
            "CATCHMENT_SHARD_SECRET": SECRET,
            "CATCHMENT_SERVER_USERS_FILE": str(users),
            # Nothing comes of age during a test: a flush would start Spark.
            "DUCKLING_QUEUE_ROTATE_INTERVAL_SECONDS": "86400",
            "DUCKLING_QUEUE_AUTO_CREATE_TABLES": "true",
        }
        self.servers = {
            shard: ServerProcess(folder / shard.name, CATCHMENT_SHARD_NAME=shard.name, **environment)
            for shard in (A, B)
        }
        for shard, server in self.servers.items():
            server.start()
            self.store.add_shard(ShardInfo(id=shard, region="eu", location=server.uri, home=str(server.home)))

    def tenant(self, home: ShardId, config: TenantConfig | None = None) -> "Tenant":
        """A new tenant, with a user who may write."""
        tenant = TenantId(next(_NUMBERS))
        self.store.create_tenant(tenant, str(tenant), config or TenantConfig(), home)
        self.users.add(f"user-{tenant}", Role.WRITER, PASSWORD, tenant=tenant)
        return Tenant(self, tenant)

    def move(self, tenant: TenantId, source: ShardId, target: ShardId) -> None:
        """Move a tenant, to the very end."""
        remotes = Remotes(self.settings)
        migration = TenantMigration(
            tenant,
            source,
            target,
            control=self.store,
            connect=remotes.connect,
            backfill=ShardBackfill(InlineRunner(), clock=self.clock),
            clock=self.clock,
            gate_s=2.0,
        )
        try:
            run_move(migration, clock=self.clock, gc_window_s=0.0)
        finally:
            remotes.close()

    def close(self) -> None:
        for server in self.servers.values():
            server.kill()


@dataclass
class Tenant:
    """A tenant, as its user meets it."""

    fleet: Fleet
    id: TenantId

    def connect(self, shard: ShardId, *, autocommit: bool = True) -> Any:
        login = {"username": f"user-{self.id}", "password": PASSWORD}
        return flight.connect(self.fleet.servers[shard].uri, login, autocommit=autocommit)

    @contextmanager
    def cursor(self, shard: ShardId) -> Iterator[Any]:
        with self.connect(shard) as connection, connection.cursor() as cursor:
            yield cursor


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    yield fleet
    fleet.close()


@pytest.fixture
def tenant(fleet: Fleet) -> Tenant:
    """A tenant that lives in `a`, with a table."""
    tenant = fleet.tenant(A)
    with tenant.cursor(A) as cursor:
        cursor.execute("CREATE TABLE events (id BIGINT, kind VARCHAR)")
    return tenant


def _rows(cursor: Any, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    return list(cursor.execute(statement, parameters).fetchall())


def _code(error: Error) -> str:
    return str(error.status_code.name)


def test_a_tenants_user_writes_and_reads_through_a_server_that_is_not_its_primary(tenant: Tenant) -> None:
    with tenant.cursor(B) as cursor:
        cursor.execute("INSERT INTO duckling_queue.events VALUES (1, 'text')")
        cursor.execute("INSERT INTO duckling_queue.events VALUES (?, ?)", (2, "bound"))
        cursor.executemany("INSERT INTO duckling_queue.events VALUES (?, ?)", [(3, "many"), (4, "many")])
        queued = pa.table({"id": pa.array([5, 6]), "kind": ["ingested"] * 2})
        assert cursor.adbc_ingest("events", queued, mode="append", db_schema_name="duckling_queue") == 2
    # A cursor keeps the schema of an ingest for the next.
    with tenant.cursor(B) as cursor:
        cursor.execute("INSERT INTO events VALUES (7, 'lake')")
        assert cursor.adbc_ingest("events", pa.table({"id": [8], "kind": ["lake"]}), mode="append") == 1
        assert cursor.adbc_ingest("made", pa.table({"n": list(range(10))}), mode="create") == 10
        assert cursor.executemany("INSERT INTO made VALUES (?)", [(11,), (12,)]) is None

        assert _rows(cursor, "FROM events ORDER BY id") == [(7, "lake"), (8, "lake")]
        assert _rows(cursor, "SELECT id FROM events WHERE kind = ? AND id > ?", ("lake", 7)) == [(8,)]
        fresh = "SELECT id FROM catchment_fresh.events ORDER BY id"
        assert _rows(cursor, fresh) == [(each,) for each in range(1, 9)]
        assert _rows(cursor, "SELECT kind FROM catchment_fresh.events WHERE id = ?", (3,)) == [("many",)]
        assert _rows(cursor, "SELECT count(*), max(n) FROM made") == [(12, 12)]
        assert _rows(cursor, "INSERT INTO made VALUES (13); SELECT max(n) FROM made; SELECT 'last'") == [("last",)]
        cursor.execute("CREATE TEMP TABLE mine AS SELECT 42 AS answer")
        assert _rows(cursor, "FROM mine") == [(42,)]
    with tenant.cursor(A) as cursor:
        assert _rows(cursor, "SELECT count(*) FROM catchment_fresh.events") == [(8,)]
        assert _rows(cursor, "SELECT max(n) FROM made") == [(13,)]


def test_nothing_of_a_tenant_is_created_on_a_server_that_is_not_its_primary(tenant: Tenant) -> None:
    with tenant.cursor(B) as cursor:
        cursor.execute("INSERT INTO duckling_queue.events VALUES (1, 'x')")
        assert _rows(cursor, "FROM catchment_fresh.events") == [(1, "x")]
    login = {"username": "admin", "password": PASSWORD}
    with flight.connect(tenant.fleet.servers[B].uri, login, autocommit=True) as admin, admin.cursor() as cursor:
        found = _rows(cursor, "SELECT count(*) FROM duckdb_schemas() WHERE schema_name = ?", (str(tenant.id),))
        assert found == [(0,)]


def test_metadata_is_that_of_the_primary(tenant: Tenant) -> None:
    found = []
    for shard in (A, B):
        with tenant.connect(shard) as connection:
            objects = connection.adbc_get_objects(depth="all").read_all().to_pylist()
            found.append(objects)
            assert connection.adbc_get_table_schema("events", db_schema_filter=str(tenant.id)).names == ["id", "kind"]
    assert found[0] == found[1]
    (catalog,) = found[1]
    queue, schema = catalog["catalog_db_schemas"]
    assert (queue["db_schema_name"], schema["db_schema_name"]) == ("duckling_queue", str(tenant.id))
    assert [table["table_name"] for table in schema["db_schema_tables"]] == ["events"]


@pytest.mark.parametrize(
    "statement",
    [
        "FROM no_such_table",
        "SELEC 1",
        "SELECT no_such_column FROM events",
        "CREATE TABLE events (a INTEGER)",
        "INSERT INTO duckling_queue.events VALUES ('one', 'x')",
        "INSERT INTO events VALUES (1)",
        "SELECT CAST(kind AS INTEGER) FROM (SELECT 'x' AS kind FROM range(100000))",
        "FROM t9999.events",
        "FROM duckdb_settings()",
        "ATTACH ':memory:' AS other",
        "CALL duckling_queue_flush()",
        "COMMIT",
    ],
)
def test_an_error_is_the_same_on_every_server(tenant: Tenant, statement: str) -> None:
    told = []
    for shard in (A, B):
        with tenant.cursor(shard) as cursor, pytest.raises(Error) as caught:
            _rows(cursor, statement)
        told.append((_code(caught.value), str(caught.value)))
    assert told[0] == told[1]


def test_transactions_are_refused_with_the_address_of_the_primary(tenant: Tenant) -> None:
    home = tenant.fleet.servers[A].uri
    with tenant.cursor(B) as cursor, pytest.raises(Error, match=f"shard a, at {home}.*FailedPrecondition"):
        cursor.execute("BEGIN")
    with tenant.connect(B) as connection, pytest.raises(Error, match=f"shard a, at {home}"):
        connection.adbc_connection.set_autocommit(False)
    with tenant.connect(A, autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO events VALUES (1, 'x')")
        connection.commit()
    with tenant.cursor(B) as cursor:
        assert _rows(cursor, "SELECT count(*) FROM events") == [(1,)]


def test_a_large_result_passes_with_the_memory_of_a_few_batches(tenant: Tenant) -> None:
    pid = tenant.fleet.servers[B].pid
    statement = "SELECT range AS id, repeat('x', 1000) || range AS text FROM range(200000)"
    with tenant.cursor(B) as cursor:
        assert len(_rows(cursor, f"{statement} LIMIT 10")) == 10
        before = _resident_bytes(pid)
        cursor.execute(statement)
        rows, most = 0, 0
        for batch in cursor.fetch_record_batch():
            rows += batch.num_rows
            most = max(most, _resident_bytes(pid))
    assert rows == 200_000
    # The result has 200 MB.
    assert most - before < 80 * _MIB


def test_rows_of_other_users_for_a_tenants_tables_go_to_its_primary(tenant: Tenant) -> None:
    login = {"username": "admin", "password": PASSWORD}
    for number, shard in enumerate((A, B)):
        uri = tenant.fleet.servers[shard].uri
        with flight.connect(uri, login, autocommit=True) as admin, admin.cursor() as cursor:
            cursor.execute(f"INSERT INTO duckling_queue.{tenant.id}.new_one SELECT {number} AS n")
    with tenant.cursor(B) as cursor:
        assert _rows(cursor, "SELECT n FROM catchment_fresh.new_one ORDER BY n") == [(0,), (1,)]


@dataclass
class Clients:
    """Clients of one tenant, on both servers, that write and read until they are stopped."""

    tenant: Tenant
    acked: set[int] = field(default_factory=set)
    reads: int = 0
    failures: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        ways = (self._by_text, self._by_parameters, self._by_ingest, self._read)
        threads = [
            threading.Thread(target=self._work, args=(way, shard, 10_000_000 * at))
            for at, (way, shard) in enumerate(((way, shard) for way in ways for shard in (A, B)), start=1)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()

    def wait_for_more(self, rows: int = 40) -> None:
        """Wait until that many more are written, and some more are read."""
        enough, reads = len(self.acked) + rows, self.reads + 5
        wait_until(lambda: bool(self.failures) or (len(self.acked) >= enough and self.reads >= reads), "work goes on")
        assert self.failures == []

    def _work(self, way: Any, shard: ShardId, first: int) -> None:
        try:
            with self.tenant.cursor(shard) as cursor:
                for number in count(first):
                    if self.stopping.wait(BEAT_S):
                        return
                    way(cursor, number)
        except Error as error:
            self.failures.append(f"{way.__name__} on {shard}: {error}")

    def _by_text(self, cursor: Any, number: int) -> None:
        cursor.execute(f"INSERT INTO duckling_queue.events VALUES ({number}, 'text')")
        self.acked.add(number)

    def _by_parameters(self, cursor: Any, number: int) -> None:
        cursor.executemany("INSERT INTO duckling_queue.events VALUES (?, ?)", [(number, "bound")])
        self.acked.add(number)

    def _by_ingest(self, cursor: Any, number: int) -> None:
        rows = pa.table({"id": [number], "kind": ["ingested"]})
        cursor.adbc_ingest("events", rows, mode="append", db_schema_name="duckling_queue")
        self.acked.add(number)

    def _read(self, cursor: Any, _number: int) -> None:
        acked = len(self.acked)
        (found,) = _rows(cursor, "SELECT count(*), count(DISTINCT id) FROM catchment_fresh.events WHERE id > ?", (0,))
        assert found[0] == found[1]
        if found[0] < acked:
            self.failures.append(f"{acked} were acknowledged, and {found[0]} are seen")
        self.reads += 1


def test_clients_of_both_servers_notice_nothing_of_a_move_there_and_back(tenant: Tenant) -> None:
    with tenant.cursor(A) as cursor:
        cursor.execute("INSERT INTO events VALUES (-1, 'history')")
    clients = Clients(tenant)
    with clients.running():
        clients.wait_for_more()
        tenant.fleet.move(tenant.id, A, B)
        clients.wait_for_more()
        assert tenant.fleet.store.tenant(tenant.id).shard == B
        tenant.fleet.move(tenant.id, B, A)
        clients.wait_for_more()
    assert clients.failures == []
    for shard in (A, B):
        with tenant.cursor(shard) as cursor:
            found = [row[0] for row in _rows(cursor, "SELECT id FROM catchment_fresh.events")]
        assert sorted(found) == sorted(clients.acked | {-1})


def _ack_ms(cursor: Any, clock: SystemClock, writes: int) -> float:
    """The middle of the times in which a write is acknowledged."""
    took = []
    for number in range(writes):
        begun_s = clock.monotonic_s()
        cursor.execute(f"INSERT INTO duckling_queue.events VALUES ({number}, 'x')")
        took.append((clock.monotonic_s() - begun_s) * 1000)
    return statistics.median(took)


def _hammer(tenant: Tenant, stopping: threading.Event, refused: list[tuple[str, float]]) -> None:
    clock = tenant.fleet.clock
    rows = ", ".join(f"({number}, 'x')" for number in range(20))
    with tenant.cursor(A) as cursor:
        while not stopping.is_set():
            begun_s = clock.monotonic_s()
            try:
                cursor.execute(f"INSERT INTO duckling_queue.events VALUES {rows}")
            except Error as error:
                refused.append((str(error), (clock.monotonic_s() - begun_s) * 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Median times of acknowledged writes, and of a noisy tenant's refusals."""

    alone_ms: float
    beside_ms: float
    refused_ms: float

    @property
    def are_fair(self) -> bool:
        return self.beside_ms < 3 * self.alone_ms and self.refused_ms < 100


_MEASURES_MAX = 5


def _measure(tenant: Tenant, noisy: Tenant) -> Latencies:
    refused: list[tuple[str, float]] = []
    stopping = threading.Event()
    hammer = threading.Thread(target=_hammer, args=(noisy, stopping, refused))
    with tenant.cursor(A) as cursor:
        alone_ms = _ack_ms(cursor, tenant.fleet.clock, 100)
        hammer.start()
        try:
            wait_until(lambda: len(refused) > 5, "the noisy one is at its limit")
            beside_ms = _ack_ms(cursor, tenant.fleet.clock, 100)
        finally:
            stopping.set()
            hammer.join()
    assert {text for text, _ in refused if "ResourceExhausted" not in text} == set()
    return Latencies(
        alone_ms=alone_ms, beside_ms=beside_ms, refused_ms=statistics.median(took_ms for _, took_ms in refused)
    )


def test_a_tenant_at_its_rate_limit_is_refused_at_once_and_slows_no_other_tenant(fleet: Fleet, tenant: Tenant) -> None:
    noisy = fleet.tenant(A, TenantConfig(rows_per_second_max=20))
    with noisy.cursor(A) as cursor:
        cursor.execute("CREATE TABLE events (id BIGINT, kind VARCHAR)")
    # The machine has other things to do as well, and what it does to one measure, it hardly does to
    # all of them.
    measured: list[Latencies] = []
    while not any(each.are_fair for each in measured):
        assert len(measured) < _MEASURES_MAX, measured
        measured.append(_measure(tenant, noisy))


def _resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return int(found) * 1024
