"""Users without a tenant see every schema of a shard, and read a tenant's tables on its primary."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from catchment.flight_protocol import flight_sql_pb2 as sql
from catchment.foundation.clock import SystemClock
from catchment.tenants.model import ShardId
from catchment.tenants.run_move import run_move
from tests.server.raw_client import Client, ingest, refused
from tests.server.shards.two_servers import Place, two_servers
from tests.tenants.two_shards import T7, A, B

Code = grpc.StatusCode
READS = (
    "SELECT count(*) FROM t7.events",
    "FROM lake.t7.events",
    'FROM "T7"."events"',
    "SELECT * FROM others, t7.events",
    "SELECT * FROM others t7, t7.events",
    "SELECT (SELECT max(id) FROM t7.events)",
    "WITH x AS (FROM t7.events) FROM x",
    "FROM t7.events AT (VERSION => {version})",
    "SELECT count(*) FROM catchment_fresh.t7.events",
    "SELECT (SELECT count(*) FROM t7.events) FROM catchment_fresh.others",
    "DESCRIBE t7.events",
    "SUMMARIZE t7.events",
    "EXPLAIN FROM t7.events",
    "EXPLAIN ANALYZE FROM t7.events",
    "PIVOT t7.events ON kind IN ('x') USING count(*)",
    "SHOW TABLES FROM t7",
    "SHOW TABLES FROM lake.t7",
    "FROM seen",
    "FROM main.seen_again",
    "FROM lake.seen_again",
    "FROM query_table('t7.events')",
    "FROM query_table(['others', 'lake.t7.events'])",
    "FROM pragma_table_info('t7.events')",
    "PRAGMA table_info('lake.t7.events')",
    "FROM t7.table_changes('events', {version}, {version})",
    "FROM ducklake_table_insertions('lake', 't7', 'events', {version}, {version})",
    "SELECT newest_seen()",
    "SELECT twice_seen(1)",
    "FROM all_seen()",
    "EXPLAIN (FORMAT json) FROM t7.events",
    "EXPLAIN INSERT INTO others FROM t7.events",
)
WRITES = (
    "INSERT INTO t7.events VALUES (1, 'x')",
    "INSERT INTO others FROM t7.events",
    "INSERT INTO duckling_queue.others SELECT id, kind FROM t7.events",
    "INSERT INTO duckling_queue.others SELECT id, kind FROM seen",
    "UPDATE t7.events SET id = 1",
    "UPDATE others SET id = 1 FROM t7.events",
    "DELETE FROM lake.t7.events",
    "DELETE FROM others USING t7.events",
    "MERGE INTO others USING t7.events e ON others.id = e.id WHEN MATCHED THEN DELETE",
    "ALTER TABLE t7.events ADD COLUMN more INTEGER",
    "COMMENT ON TABLE t7.events IS 'x'",
    "COMMENT ON COLUMN t7.events.id IS 'x'",
    "DROP TABLE t7.events",
    "DROP TABLE IF EXISTS lake.t7.events",
    "DROP SCHEMA t7 CASCADE",
    "DROP SCHEMA IF EXISTS lake.t7 CASCADE",
    "CREATE TABLE t7.more (a INTEGER)",
    "CREATE TABLE more AS FROM t7.events",
    "CREATE TEMP TABLE more AS FROM t7.events",
    "CREATE VIEW more AS FROM t7.events",
    "CREATE MACRO more() AS TABLE FROM t7.events",
    "CREATE TEMP MACRO more() AS (SELECT max(id) FROM t7.events)",
    "CREATE MACRO t7.more() AS 1",
    "ALTER TABLE t7.events SET SORTED BY (id)",
    "SET VARIABLE n = (SELECT count(*) FROM t7.events)",
)
HARMLESS = (
    "SELECT 't7.events'",
    "SELECT t7.id FROM others t7",
    "SELECT id AS t7 FROM others",
    "WITH t7 AS (FROM others) FROM t7",
    "SHOW ALL TABLES",
    "FROM innocent",
)
QUEUED = "INSERT INTO duckling_queue.t7.events VALUES (3, 'z')"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with two_servers(tmp_path) as opened:
        for shard in (A, B):
            _, admin = opened.client(shard), opened.client(shard, "admin")
            admin.update("CREATE TABLE others (id BIGINT, kind VARCHAR)")
            admin.update("INSERT INTO others VALUES (1, 'x')")
            admin.update("CREATE VIEW innocent AS SELECT t7.id FROM others t7")
        opened.client(A).update("INSERT INTO events VALUES (1, 'x'), (2, 'y')")
        home = opened.client(A, "admin")
        home.update("CREATE VIEW seen AS SELECT id, kind FROM t7.events")
        home.update("CREATE VIEW seen_again AS FROM seen")
        home.update("CREATE MACRO newest_seen() AS (SELECT max(id) FROM t7.events)")
        home.update("CREATE MACRO twice_seen(x) AS x + newest_seen()")
        home.update("CREATE MACRO all_seen() AS TABLE FROM t7.events")
        yield opened


def _newest(place: Place, shard: ShardId) -> int:
    return place.servers[shard].app.lake.newest_snapshot()


def _assert_read_elsewhere(place: Place, shard: ShardId, home: ShardId, statements: tuple[str, ...]) -> None:
    """Every statement of a user without a tenant is refused with the primary's address."""
    at = f"has its primary on shard {home}, at {place.servers[home].uri}"
    version = _newest(place, shard)
    for statement in statements:
        # What one of them left must not be why the next one is refused.
        admin = place.client(shard, "admin")
        text = statement.format(version=version)
        assert at in refused(Code.FAILED_PRECONDITION, admin.query, text), text
        if statement in READS:
            assert at in refused(Code.FAILED_PRECONDITION, admin.prepare, text), text


def _tables(client: Client) -> set[tuple[str, str]]:
    found = client.read(sql.CommandGetTables(include_schema=True)).to_pylist()
    return {(each["db_schema_name"], each["table_name"]) for each in found}


def _schemas(client: Client) -> set[str]:
    return {each["db_schema_name"] for each in client.read(sql.CommandGetDbSchemas()).to_pylist()}


def test_after_the_switch_the_old_primary_is_neither_read_nor_changed(place: Place) -> None:
    moved_at = _newest(place, A)
    admin = place.client(A, "admin")
    # A session that had made itself at home in the schema, with a view of its own and a
    # transaction.
    settled = place.client(A, "admin")
    settled.update("USE t7")
    settled.update("CREATE TEMP VIEW mine AS FROM lake.t7.events")
    reading = place.client(A, "admin")
    opened = reading.begin()
    assert reading.query("SELECT count(*) AS n FROM others", opened) == [{"n": 1}]
    with place.migration() as migration:
        run_move(migration, clock=SystemClock())
        _assert_read_elsewhere(place, A, B, (*READS, *WRITES))
        at = f"has its primary on shard {B}, at"
        for statement in ("FROM events", "SHOW TABLES", "DESCRIBE events", "FROM mine", "FROM temp.mine"):
            assert at in refused(Code.FAILED_PRECONDITION, settled.query, statement), statement
        assert at in refused(Code.FAILED_PRECONDITION, reading.query, "FROM t7.events", opened)
        assert at in refused(Code.FAILED_PRECONDITION, admin.put, ingest("events", schema="t7"), pa.table({"id": [1]}))
        for statement in HARMLESS:
            admin.query(statement)
        assert ("t7", "events") not in _tables(admin)
        assert "t7" not in _schemas(admin)
        # Rows for the queue go to where the tenant lives, as before; and there, everything is.
        assert admin.update(QUEUED) == 1
        there = place.client(B, "admin")
        assert there.query("SELECT count(*) AS n FROM catchment_fresh.t7.events") == [{"n": 3}]
        assert ("t7", "events") in _tables(there)
        migration.gc_source(0)
    # The tables are gone, and the snapshots in which they were are not.
    _assert_read_elsewhere(place, A, B, (f"FROM t7.events AT (VERSION => {moved_at})", "FROM t7.events"))


def test_a_target_that_is_not_the_primary_yet_is_not_read(place: Place) -> None:
    with place.migration() as migration:
        migration.prepare_target()
        place.servers[B].app.queue.force_flush_all()
        targets = [each for each in (*READS, *WRITES) if "seen" not in each]
        _assert_read_elsewhere(place, B, A, tuple(targets))
        there = place.client(B, "admin")
        for statement in HARMLESS:
            there.query(statement)
        assert ("t7", "events") not in _tables(there)
        here = place.client(A, "admin")
        assert here.query("SELECT count(*) AS n FROM t7.events") == [{"n": 2}]
        migration.abort()


def test_a_transaction_that_changed_a_tenants_table_commits_nothing_once_the_tenant_has_moved(place: Place) -> None:
    late = place.client(A, "admin")
    with place.migration() as migration:
        migration.prepare_target()
        migration.enter_dual_write()
        transaction = late.begin()
        late.update("CREATE TABLE t7.late (id BIGINT)", transaction)
        migration.finalize()
        assert f"has its primary on shard {B}, at" in refused(
            Code.FAILED_PRECONDITION, partial(late.end, commit=True), transaction
        )


def test_readers_without_a_tenant_are_counted_until_they_have_read(place: Place) -> None:
    admin, shard = place.client(A, "admin"), place.tenancy(A).shard
    ticket = admin.info(sql.CommandStatementQuery(query="SELECT * FROM t7.events")).endpoint[0].ticket.ticket
    assert shard.readers(T7) == 1
    assert admin.get(ticket).num_rows == 2
    assert shard.readers(T7) == 0


def test_a_shard_that_has_no_tenant_looks_for_none(place: Place) -> None:
    admin = place.client(B, "admin")
    admin.update("CREATE SCHEMA t8")
    admin.update("CREATE TABLE t8.things (a INTEGER)")
    assert admin.query("SELECT count(*) AS n FROM t8.things") == [{"n": 0}]
