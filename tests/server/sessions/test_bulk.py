"""Long streams into a table of the lake: all rows or none, beside other writers."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import grpc
import pyarrow as pa
import pytest

from catchment.errors import CommitUnknownError, InvariantError
from catchment.foundation import files
from catchment.foundation.settings import Settings
from catchment.lake import Commit, Lake
from catchment.lake.maintenance import maintain
from catchment.lake.staging import FOLDER, job_of
from catchment.server.flight_server import FlightServer
from tests.sample_events import NOW
from tests.server.raw_client import Client, ingest, put_messages, refused, server
from tests.waiting import PATIENCE_S, wait_until

Code = grpc.StatusCode
Connect = Callable[[], Client]

# More than the 4 MiB of a short stream.
COUNT = 40_000
PADDING = "x" * 250
LONG = pa.table({"id": pa.array(range(COUNT), pa.int64()), "text": [f"{n} {PADDING}" for n in range(COUNT)]})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    with server(Settings(home=tmp_path_factory.mktemp("bulk"), server_port=0)) as running:
        yield running


@pytest.fixture
def connect(running: FlightServer) -> Iterator[Connect]:
    clients: list[Client] = []

    def open_one() -> Client:
        clients.append(Client(running.uri))
        return clients[-1]

    yield open_one
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


@pytest.fixture
def lake(running: FlightServer) -> Lake:
    assert running._sessions is not None
    return running._sessions.backend.lake


def _files(lake: Lake, table: str) -> list[Path]:
    folder = Path(lake.address.data_path) / "main" / table
    # Unlike `Path.glob`, it does not mind folders that go while it looks.
    return sorted(folder / name for name in files.names_below(folder, ".parquet"))


def _came_by_file(lake: Lake, table: str) -> bool:
    found = {job_of(str(path)) is not None for path in _files(lake, table)}
    assert len(found) == 1
    return found.pop()


def _assert_nothing_left(lake: Lake, table: str) -> None:
    assert _files(lake, table) == []
    assert list((Path(lake.address.data_path) / FOLDER).glob("*")) == []


class Paused:
    """A long stream that stops before its last message until it is released."""

    def __init__(self, table: str, rows: pa.Table = LONG) -> None:
        self._messages = put_messages(ingest(table, create=False), rows)
        self.is_waiting = threading.Event()
        self.go_on = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        yield from self._messages[:-1]
        self.is_waiting.set()
        assert self.go_on.wait(PATIENCE_S)
        yield self._messages[-1]


def _begun(client: Client, table: str) -> tuple[Any, Paused]:
    """Send all but the last message of a stream; return the call, and its release."""
    stream = Paused(table)
    call = client.upload(stream)
    assert stream.is_waiting.wait(PATIENCE_S)
    return call, stream


def test_rows_of_every_kind_arrive_as_they_were_sent(client: Client, lake: Lake) -> None:
    numbers = range(COUNT)
    rows = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "text": [f"{{SNAPSHOT_ID}} '{n}'\n{PADDING}" if n % 7 else "" for n in numbers],
            "real": [[float("nan"), float("inf"), -0.0, None, n / 3][n % 5] for n in numbers],
            "seen": pa.array([datetime(2026, 1, 1, n % 24, tzinfo=UTC) for n in numbers], pa.timestamp("us", "UTC")),
            "day": [date(2026, 1, 1 + n % 28) for n in numbers],
            "cost": pa.array([Decimal(n) / 100 for n in numbers], pa.decimal128(18, 2)),
            "ok": [n % 2 == 0 for n in numbers],
            "raw": [bytes([n % 256]) for n in numbers],
            "many": [[n, None] if n % 3 else None for n in numbers],
            "one": [{"a": n, "b": str(n)} for n in numbers],
        }
    )
    columns = "id BIGINT NOT NULL, text VARCHAR, real DOUBLE, seen TIMESTAMPTZ, day DATE, cost DECIMAL(18, 2)"
    client.update(
        f"CREATE TABLE kinds ({columns}, ok BOOLEAN, raw BLOB, many BIGINT[], one STRUCT(a BIGINT, b VARCHAR))"
    )
    assert client.put(ingest("kinds", create=False), rows) == COUNT
    assert _came_by_file(lake, "kinds")
    # What compares, NaN included, is what DuckDB says.
    with duckdb.connect() as local, lake.snapshot() as there:
        local.execute("CREATE TABLE sent AS FROM rows")
        same = "SELECT count(*), sum(hash(COLUMNS(*))::HUGEINT) FROM "
        assert there.execute(f"{same} kinds").fetchall() == local.execute(f"{same} sent").fetchall()
        for where in ("isnan(real)", "real > 1e9", "text = ''", "id = 77", "real IS NULL"):
            count = f"WHERE {where}"
            assert there.execute(f"SELECT count(*) FROM kinds {count}").fetchall() == (
                local.execute(f"SELECT count(*) FROM sent {count}").fetchall()
            )


def test_columns_go_by_their_names_in_any_order_and_case(client: Client, lake: Lake) -> None:
    client.update("CREATE TABLE named (text VARCHAR, id BIGINT)")
    assert client.put(ingest("named"), LONG.rename_columns(["ID", "Text"])) == COUNT
    assert _came_by_file(lake, "named")
    assert client.query("SELECT sum(id)::BIGINT AS n, min(length(text)) AS t FROM named") == [
        {"n": COUNT * (COUNT - 1) // 2, "t": len(PADDING) + 2}
    ]


@pytest.mark.parametrize(
    ("table", "definition", "then"),
    [
        ("casts", "id VARCHAR, text VARCHAR", None),
        ("defaults", "id BIGINT, text VARCHAR, more INT DEFAULT 7", None),
        ("parts", "id BIGINT, text VARCHAR", "ALTER TABLE parts SET PARTITIONED BY (bucket(2, id))"),
        ("ordered", "id BIGINT, text VARCHAR", "ALTER TABLE ordered SET SORTED BY (id DESC)"),
    ],
)
def test_an_ingest_does_to_rows_what_an_insert_does(
    client: Client, lake: Lake, table: str, definition: str, then: str | None
) -> None:
    client.update(f"CREATE TABLE {table} ({definition})")
    if then is not None:
        with lake.write() as connection:
            connection.execute(then)
    assert client.put(ingest(table, create=False), LONG) == COUNT
    assert not _came_by_file(lake, table)
    assert client.query(f"SELECT count(DISTINCT id) AS n FROM {table}") == [{"n": COUNT}]
    if table == "defaults":
        assert client.query("SELECT DISTINCT more FROM defaults") == [{"more": 7}]


def test_a_long_stream_may_make_its_table(client: Client) -> None:
    for mode in ("FAIL", "REPLACE", "APPEND"):
        assert client.put(ingest("made", exists=mode), LONG) == COUNT
    assert client.query("SELECT count(*) AS n FROM made") == [{"n": 2 * COUNT}]


def test_a_long_stream_belongs_to_the_open_transaction(client: Client, lake: Lake) -> None:
    client.update("CREATE TABLE joined (id BIGINT, text VARCHAR)")
    for commit in (False, True):
        transaction = client.begin()
        assert client.put(ingest("joined", create=False, transaction_id=transaction), LONG) == COUNT
        client.end(transaction, commit=commit)
    assert client.query("SELECT count(*) AS n FROM joined") == [{"n": COUNT}]
    assert not _came_by_file(lake, "joined")


def test_null_in_a_required_column_is_refused(client: Client, lake: Lake) -> None:
    client.update("CREATE TABLE required (id BIGINT, text VARCHAR NOT NULL)")
    rows = LONG.set_column(1, "text", pa.array([*LONG["text"].to_pylist()[:-1], None]))
    assert "required.text" in refused(Code.INVALID_ARGUMENT, client.put, ingest("required", create=False), rows)
    _assert_nothing_left(lake, "required")
    assert client.query("SELECT count(*) AS n FROM required") == [{"n": 0}]


def test_a_stream_that_is_damaged_late_leaves_nothing(client: Client, lake: Lake) -> None:
    client.update("CREATE TABLE damaged (id BIGINT, text VARCHAR)")
    *whole, last = put_messages(ingest("damaged", create=False), LONG)
    refused(Code.INVALID_ARGUMENT, lambda: client.upload([*whole, last[: len(last) // 2]]).result(timeout=PATIENCE_S))
    _assert_nothing_left(lake, "damaged")
    assert client.query("SELECT count(*) AS n FROM damaged") == [{"n": 0}]


def test_a_slow_client_blocks_no_other_writer(connect: Connect, lake: Lake) -> None:
    slow, other = connect(), connect()
    slow.update("CREATE TABLE slow (id BIGINT, text VARCHAR)")
    call, stream = _begun(slow, "slow")
    other.update("CREATE TABLE beside (id BIGINT, text VARCHAR)")
    assert other.put(ingest("beside", create=False), LONG) == COUNT
    assert other.query("SELECT count(*) AS n FROM slow") == [{"n": 0}]
    # Maintenance leaves files of a running stream alone, however old they are.
    maintain(lake, NOW)
    stream.go_on.set()
    call.result(timeout=PATIENCE_S)
    assert other.query("SELECT count(*) AS n FROM slow") == [{"n": COUNT}]


def test_streams_are_taken_at_the_same_time(connect: Connect) -> None:
    clients = [connect() for _ in range(4)]
    clients[0].update("CREATE TABLE shared (id BIGINT, text VARCHAR)")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda each: each.put(ingest("shared", create=False), LONG), clients)) == [COUNT] * 4
    assert clients[0].query("SELECT count(*) AS n, count(DISTINCT id) AS d FROM shared") == [
        {"n": 4 * COUNT, "d": COUNT}
    ]


class Line:
    """Streams that end while the lake is locked: the first waits for the lock."""

    def __init__(self, running: FlightServer, connect: Connect) -> None:
        assert running._sessions is not None
        self._commits = running._sessions.backend.registrar._commits
        self._connect = connect
        self._streams: list[tuple[Any, Paused]] = []

    def begin(self, *tables: str) -> None:
        """Send all but the last message of a stream into each of the tables."""
        for table in tables:
            self._streams.append(_begun(self._connect(), table))

    def end(self) -> list[Any]:
        """Send the rest, one after the other; the calls."""
        for place, (_, stream) in enumerate(self._streams):
            stream.go_on.set()
            wait_until(partial(self._is_in_line, place), "it is in line")
        return [call for call, _ in self._streams]

    def _is_in_line(self, place: int) -> bool:
        return self._commits._is_led and len(self._commits._waiting) == place


@pytest.fixture
def line(running: FlightServer, connect: Connect) -> Line:
    return Line(running, connect)


def test_streams_that_end_while_others_are_committed_share_a_transaction(
    client: Client, lake: Lake, line: Line
) -> None:
    client.update("CREATE TABLE together (id BIGINT, text VARCHAR)")
    client.update("CREATE TABLE apart (id BIGINT, text VARCHAR)")
    line.begin("apart", "together", "together", "apart")
    before = lake.newest_snapshot()
    with lake.exclusive():
        calls = line.end()
    for call in calls:
        call.result(timeout=PATIENCE_S)
    assert lake.newest_snapshot() == before + 2
    for table in ("together", "apart"):
        assert client.query(f"SELECT count(*) AS n, sum(id)::BIGINT AS s, count(DISTINCT rowid) AS r FROM {table}") == [
            {"n": 2 * COUNT, "s": COUNT * (COUNT - 1), "r": 2 * COUNT}
        ]
        assert client.query(f"SELECT count(*) AS n FROM {table} WHERE id = 77 AND text IS NOT NULL") == [{"n": 2}]


def test_a_stream_that_cannot_be_committed_holds_back_none_that_would_share_its_transaction(
    client: Client, lake: Lake, line: Line
) -> None:
    for table in ("leads", "changed", "went", "lands"):
        client.update(f"CREATE TABLE {table} (id BIGINT, text VARCHAR)")
    line.begin("leads", "changed", "went", "lands")
    client.update("ALTER TABLE changed ADD COLUMN more INT")
    with lake.exclusive():
        leads, changed, went, lands = line.end()
        went.cancel()
    assert "changed while" in refused(Code.ABORTED, lambda: changed.result(timeout=PATIENCE_S))
    for call in (leads, lands):
        call.result(timeout=PATIENCE_S)
    counts = [client.query(f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in ("leads", "lands", "went")]
    assert counts == [COUNT, COUNT, 0]
    wait_until(lambda: not _files(lake, "went"), "its files are removed")
    assert _files(lake, "changed") == []


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("widened", "ALTER TABLE widened ADD COLUMN more INT"),
        ("again", "CREATE OR REPLACE TABLE again (id BIGINT, text VARCHAR)"),
        ("gone", "DROP TABLE gone"),
    ],
)
def test_a_table_that_changes_meanwhile_takes_none_of_the_rows(
    connect: Connect, lake: Lake, table: str, change: str
) -> None:
    slow, other = connect(), connect()
    slow.update(f"CREATE TABLE {table} (id BIGINT, text VARCHAR)")
    call, stream = _begun(slow, table)
    other.update(change)
    stream.go_on.set()
    assert "changed while" in refused(Code.ABORTED, lambda: call.result(timeout=PATIENCE_S))
    _assert_nothing_left(lake, table)
    if table != "gone":
        assert other.query(f"SELECT count(*) AS n FROM {table}") == [{"n": 0}]


def test_a_change_of_another_table_is_none_of_its_business(connect: Connect) -> None:
    slow, other = connect(), connect()
    slow.update("CREATE TABLE calm (id BIGINT, text VARCHAR)")
    call, stream = _begun(slow, "calm")
    other.update("CREATE TABLE busy (id BIGINT)")
    other.update("INSERT INTO calm VALUES (-1, 'other')")
    stream.go_on.set()
    call.result(timeout=PATIENCE_S)
    assert other.query("SELECT count(*) AS n FROM calm") == [{"n": COUNT + 1}]


def test_a_client_that_gives_up_leaves_nothing(client: Client, lake: Lake) -> None:
    client.update("CREATE TABLE given_up (id BIGINT, text VARCHAR)")
    call, stream = _begun(client, "given_up")
    wait_until(lambda: bool(_files(lake, "given_up")), "the stream is being written")
    call.cancel()
    stream.go_on.set()
    wait_until(lambda: not _files(lake, "given_up"), "its files are removed")
    assert client.query("SELECT count(*) AS n FROM given_up") == [{"n": 0}]


@pytest.mark.parametrize(
    ("table", "error", "code"),
    [
        ("unanswered", CommitUnknownError("COMMIT failed: the answer is lost"), Code.UNKNOWN),
        ("unreported", InvariantError("The thread that committed for this one did not return."), Code.INTERNAL),
    ],
)
def test_files_of_a_commit_whose_fate_is_unknown_stay(
    client: Client, lake: Lake, monkeypatch: pytest.MonkeyPatch, table: str, error: Exception, code: Code
) -> None:
    client.update(f"CREATE TABLE {table} (id BIGINT, text VARCHAR)")
    commit = lake.commit

    def lose_the_answer(given: Commit, *, is_locked: bool = False) -> None:
        commit(given, is_locked=is_locked)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(lake, "commit", lose_the_answer)
        refused(code, client.put, ingest(table, create=False), LONG)
    assert client.query(f"SELECT count(*) AS n, sum(id)::BIGINT AS s FROM {table}") == [
        {"n": COUNT, "s": COUNT * (COUNT - 1) // 2}
    ]


@pytest.mark.parametrize("keys", ["year(seen), month(seen)", "bucket(4, id)"])
def test_rows_for_a_table_that_takes_no_files_are_inserted_by_streams_and_flushes(
    keys: str, client: Client, lake: Lake
) -> None:
    client.update("CREATE OR REPLACE TABLE split (id BIGINT, text VARCHAR, seen TIMESTAMP)")
    client.update(f"ALTER TABLE split SET PARTITIONED BY ({keys})")
    seen = pa.array([n * 10**11 for n in range(COUNT)], pa.timestamp("us"))
    rows = LONG.append_column("seen", seen)
    assert client.put(ingest("split", create=False), rows) == COUNT
    assert not _came_by_file(lake, "split")
    client.update("INSERT INTO duckling_queue.split VALUES (-1, 'queued', '2026-01-02 03:04:05')")
    client.update("CALL duckling_queue_flush()")
    with lake.snapshot() as there:
        (found,) = there.execute("SELECT count(*), count(DISTINCT id), min(id) FROM split").fetchall()
    assert found == (COUNT + 1, COUNT + 1, -1)
