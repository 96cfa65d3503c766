"""The status: documented keys, visibility by role, unreachable parts, history and health."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.app import App
from catchment.errors import (
    BufferHeldError,
    CatchmentError,
    DiskFullError,
    LakeUnavailableError,
    SettingsError,
    StateError,
    StorageFailedError,
)
from catchment.foundation import events, sql
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.meters import Meters
from catchment.foundation.settings import Settings, load_settings
from catchment.lake import Commit, DeadLetter
from catchment.lake.audit import AuditFinding, AuditReport
from catchment.lake.commit import RecordDeadLetters
from catchment.lake.last_audit import last, note
from catchment.pipeline.legacy import known_imports
from catchment.pipeline.legacy.folders import ImportFolders
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.queue.buffer import QuarantinedFile, TableState
from catchment.queue.coordinator import QueueStatus, TableStatus
from catchment.queue.policy import FlushFailure
from catchment.status import Status, StatusReader, readings
from catchment.status.background import SLOW, WAIT_S_MAX, BackgroundPart, BackgroundReader
from catchment.status.keys import KEYS
from catchment.status.model import FOR_ADMINS, PARTS, SchemaDatabase, Schemas, Sessions, StatusPart
from catchment.status.recorder import FLUSHES_MAX, Recorder
from catchment.status.window import SAMPLE_S, WINDOW_S, Window
from catchment.tenants.model import ShardId, ShardInfo, TenantConfig, TenantId
from catchment.testing import FakeClock
from tests.queue.queues import event_rows, new_queue, open_queue
from tests.sample_events import EVENTS, create_table
from tests.status.sample_status import NOW, SECRET, full_status

LONELY = TableId("main", "lonely")
IDLE = Sessions(
    sessions_total=0, sessions_max=1, statements_running=0, slow_seconds=1.0, sessions=(), running=(), slow=()
)


def _keys(value: Any, path: str = "") -> Iterator[str]:
    """Every place in a JSON value that holds something, as the reference writes it."""
    if path == "meters":
        yield path
    elif isinstance(value, dict):
        if path == "lake.last_audit":
            yield path
        for key, each in value.items():
            yield from _keys(each, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and (path in ("health.reasons",) or isinstance(value[0], dict)):
        yield from _keys(value[0], f"{path}[]")
    else:
        yield path


def test_every_key_of_the_status_is_documented_and_no_other() -> None:
    assert set(_keys(full_status().to_json())) == set(KEYS)


def test_the_status_is_json() -> None:
    shown = full_status().to_json()
    assert json.loads(json.dumps(shown)) == shown
    assert shown["queue"]["tables"][0]["retry_at"] == NOW.isoformat()


def test_an_admin_sees_everything() -> None:
    status = full_status()
    assert status.for_role("admin") is status


@pytest.mark.parametrize("role", ["reader", "writer", "another user"])
def test_others_see_no_sql_no_paths_no_names_and_no_texts_of_errors(role: str) -> None:
    status = full_status(lake_away="secret reason of an outage").for_role(role)
    assert SECRET not in json.dumps(status.to_json())
    assert status.lake.unavailable == FOR_ADMINS
    # Other texts stay.
    assert status.queue.value is not None
    assert status.queue.value.tables[0].failures == 2
    assert len(status.queue.value.set_aside) == 1
    assert status.sessions.value is not None
    assert status.sessions.value.sessions_total == 1


def test_a_secret_of_the_scene_would_be_seen() -> None:
    assert json.dumps(full_status().to_json()).count(SECRET) > 10


@pytest.mark.parametrize(
    ("name", "shown"),
    [("/srv/secret/app.sqlite", "app.sqlite"), ("secret/app.sqlite", "app.sqlite"), ("lake:main", "lake:main")],
)
def test_others_see_of_a_database_that_is_a_file_the_last_part_of_its_path(name: str, shown: str) -> None:
    database = SchemaDatabase(name=name, state="CURRENT", applied=1, pending=(), last=None)
    status = replace(full_status(), schemas=StatusPart(NOW, Schemas(databases=(database,))))

    def named(seen: Status) -> list[str]:
        return [each["name"] for each in seen.to_json()["schemas"]["databases"]]

    assert named(status.for_role("reader")) == [shown]
    assert named(status.for_role("admin")) == [name]


# Parts that are expensive to compute.


@pytest.fixture
def askers() -> Iterator[BackgroundReader]:
    found = BackgroundReader("test-askers")
    yield found
    found.close()


def _cached(
    ask: Callable[[], int], askers: BackgroundReader, clock: FakeClock, seconds_max: float = 10
) -> BackgroundPart[int]:
    return BackgroundPart("part", ask, seconds_max=seconds_max, reader=askers, clock=clock)


def test_a_part_is_asked_again_only_when_it_is_old(askers: BackgroundReader) -> None:
    clock, answers = FakeClock(), iter([1, 2, 3])
    cached = _cached(lambda: next(answers), askers, clock)
    assert cached.read().value == 1
    clock.advance(9)
    assert cached.read().value == 1
    clock.advance(2)
    assert cached.read().value == 2


def test_a_source_that_is_away_is_a_reason_and_is_asked_again(askers: BackgroundReader) -> None:
    clock, is_away = FakeClock(), [True]

    def ask() -> int:
        if is_away:
            raise LakeUnavailableError("The catalog is gone.")
        return 7

    cached = _cached(ask, askers, clock)
    away = cached.read()
    assert (away.value, away.unavailable) == (None, "The catalog is gone.")
    is_away.clear()
    clock.advance(11)
    assert cached.read().value == 7


def test_a_source_that_hangs_delays_no_reader_and_its_last_answer_is_shown(askers: BackgroundReader) -> None:
    clock, release, asked = FakeClock(), threading.Event(), []

    def ask() -> int:
        asked.append(1)
        if len(asked) > 1:
            release.wait()
        return len(asked)

    cached = _cached(ask, askers, clock)
    first = cached.read()
    clock.advance(11)
    assert cached.read(until_s=clock.monotonic_s()) == first
    assert cached.read(until_s=clock.monotonic_s()) == first
    release.set()
    # Waits for who is being asked.
    askers.close()
    assert cached.read(until_s=clock.monotonic_s()).value == 2
    assert len(asked) == 2


def test_a_source_that_hangs_from_the_start_is_unavailable_until_it_answers(askers: BackgroundReader) -> None:
    clock, release = FakeClock(), threading.Event()
    cached = _cached(lambda: int(release.wait()), askers, clock)
    waiting = cached.read(until_s=0.01)
    assert waiting.value is None
    assert waiting.unavailable == SLOW
    release.set()
    askers.close()
    assert cached.read(until_s=0.01).value == 1


def test_a_question_is_waited_for_once_while_its_source_hangs(
    askers: BackgroundReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, release, waits, real = FakeClock(), threading.Event(), [], futures.wait

    def wait(asked: Any, timeout: float) -> Any:
        waits.append(timeout)
        return real(asked, timeout=60 if release.is_set() else 0.01)

    monkeypatch.setattr("catchment.status.background.wait", wait)
    cached = _cached(lambda: int(release.wait()), askers, clock)
    assert [cached.read().unavailable for _ in range(3)] == [SLOW] * 3
    release.set()
    assert cached.read().value == 1
    clock.advance(11)
    assert cached.read().value == 1
    # The next question is waited for again.
    assert waits == [WAIT_S_MAX, 0, 0, 0, WAIT_S_MAX]


def test_the_end_does_not_wait_for_a_source_that_hangs_and_neither_does_the_process() -> None:
    code = """
import threading
from catchment.foundation.clock import SystemClock
from catchment.status.background import BackgroundPart, BackgroundReader

askers = BackgroundReader("asker")
cached = BackgroundPart("part", threading.Event().wait, seconds_max=1, reader=askers, clock=SystemClock())
print(cached.read(until_s=0.0).unavailable, flush=True)
askers.close()
print("closed", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [SLOW, "closed"]


def test_after_closing_no_source_is_read(askers: BackgroundReader) -> None:
    askers.close()
    with pytest.raises(StateError, match="shutting down"):
        _cached(lambda: 1, askers, FakeClock()).read()


def test_a_bug_in_one_part_is_logged_and_hidden_from_the_caller(
    askers: BackgroundReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[events.Event] = []
    shown: SimpleQueue[type[BaseException]] = SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda failure: shown.put(failure.exc_type))
    with events.listening(heard.append):
        found = _cached(lambda: 1 // 0, askers, FakeClock()).read()
    assert found.unavailable == "it failed; see the log for the reason"
    assert [(each.verb, each.facts["part"]) for each in heard] == [("status_failed", "part")]
    assert shown.get(timeout=60) is ZeroDivisionError


# The last minute.


def test_rates_and_latencies_are_of_the_last_minute() -> None:
    clock, meters = FakeClock(), Meters()
    window = Window(meters, clock)
    meters.acked(rows=6_000, size=10, seconds=9.0)
    for _ in range(int(WINDOW_S / SAMPLE_S) + 5):
        clock.advance(SAMPLE_S)
        window.sample()
    assert window.totals().acked_rows == 6_000
    assert window.totals().acked_rows_per_s == 0
    assert window.totals().ack_p99_s is None
    meters.acked(rows=120, size=10, seconds=0.001)
    meters.group_writes.observe(4)
    clock.advance(SAMPLE_S)
    found = window.totals()
    assert found.window_s == pytest.approx(WINDOW_S)
    assert found.acked_rows_per_s == pytest.approx(2.0)
    assert found.ack_p99_s is not None
    assert found.ack_p99_s <= 0.001
    assert found.group_writes_mean == 4


def test_a_rate_needs_no_full_minute() -> None:
    clock, meters = FakeClock(), Meters()
    window = Window(meters, clock)
    assert window.totals().acked_rows_per_s == 0
    meters.acked(rows=30, size=10, seconds=0.001)
    clock.advance(3)
    assert window.totals().acked_rows_per_s == pytest.approx(10)


# What happens.


def test_the_recorder_counts_events() -> None:
    meters = Meters()
    with Recorder(meters, FakeClock()).listening():
        events.emit("flushed", table="main.t", rows=5, files=1, bytes=9, buried=0, seconds=0.5)
        events.emit("flush_failed", table="main.t", failures=1, retry_at="", reason="")
        events.emit("flush_timed", parcels=1, read_s=0.1, write_s=0.2, commit_s=0.3)
        events.emit("delivered", job="j", table="main.t", units=2, rows=5, files=1)
        events.emit("commit_redone", job="j", batch=0, error="ConflictError", reason="")
        events.emit("commit_redone", job="j", batch=0, error="CommitUnknownError", reason="")
        events.emit("replay_skipped", table="main.t", rows=4)
        events.emit("replay_skipped", job="j", table="main.t", units=3)
        events.emit("sifted", table="main.t", unit="u", rows=5, bad=2)
        events.emit("bypassed", table="main.t", rows=6)
        events.emit("login_failed", user="ann", host="h")
        events.emit("something_else")
    events.emit("login_failed", user="ann", host="h")
    assert meters.flushes.read() == {"done": 1, "failed": 1}
    assert [meters.flush_seconds[step].read().sum for step in ("read", "write", "commit")] == [0.1, 0.2, 0.3]
    assert (meters.delivered_units.read(), meters.delivered_rows.read(), meters.delivered_files.read()) == (2, 5, 1)
    assert meters.commit_retries.read() == {"conflict": 1, "unknown": 1}
    assert meters.replays_skipped.read() == {"rows": 4, "units": 3}
    assert (meters.rows_buried.read(), meters.rows_bypassed.read(), meters.logins_failed.read()) == (2, 6, 1)


def test_the_last_flushes_of_a_table_are_remembered_newest_first() -> None:
    recorder = Recorder(Meters(), FakeClock())
    for rows in range(FLUSHES_MAX + 2):
        recorder.record(events.Event("flushed", {"table": "t", "rows": rows, "files": 1, "bytes": 1, "seconds": 0.1}))
    assert [flush.rows for flush in recorder.flushes("t")] == [6, 5, 4, 3, 2]
    assert recorder.flushes("other") == ()


def test_rows_that_the_ledger_had_before_the_buffer_knew_are_replays_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path)
    meters = Meters()
    with new_queue(settings) as queue:
        queue.enqueue(EVENTS, event_rows(range(5)))
        # As by a crash between the commit and the retirement.
        monkeypatch.setattr(queue.buffer, "retire", lambda payload: None)
        queue.force_flush_all()
    with open_queue(settings) as queue, Recorder(meters, FakeClock()).listening():
        queue.enqueue(EVENTS, event_rows(range(5, 8)))
        queue.force_flush_all()
        assert meters.replays_skipped.read() == {"rows": 5, "units": 0}
        assert meters.delivered_rows.read() == 3
        assert meters.flushes.read() == {"done": 1, "failed": 0}


# All of it.


def _status(app: App, *, queue: Callable[[], QueueStatus] | None = None) -> Status:
    with StatusReader(app, sessions=lambda: IDLE, queue=queue) as reader:
        return reader.status()


def test_reading_the_status_creates_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with App(Settings(home=home)) as app, StatusReader(app) as reader:
        status = reader.status()
    assert status.health.ok
    assert status.lake.value is not None
    assert status.lake.value.snapshots == 0
    assert status.queue.unavailable == "There is no buffer yet."
    assert status.sessions.unavailable == "No server runs on this home."
    assert not home.exists()


def test_an_unreachable_control_database_makes_the_status_degraded(tmp_path: Path) -> None:
    (tmp_path / "control.sqlite").write_bytes(b"this is no database" * 1_000)
    with App(Settings(home=tmp_path)) as app:
        status = _status(app)
    assert status.schemas.unavailable
    assert status.health.reasons == ("The control database is unavailable.",)


def test_an_unreachable_lake_affects_no_other_part_of_the_status(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"this is no catalog" * 1_000)
    with App(Settings(home=tmp_path)) as app:
        _ = app.queue
        status = _status(app)
    assert status.lake.value is None
    assert status.lake.unavailable
    assert status.health.reasons == ("The lake is unavailable.",)
    assert status.queue.value is not None
    assert [name for name in PARTS if getattr(status, name).value is None] == ["lake"]


def _queue_status(**changes: Any) -> QueueStatus:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    state = TableState(table=EVENTS, rows=3, bytes=9, oldest_at=now, seq_last=3, seq_flushed=0, ready_rows=3)
    table = TableStatus(state=state, trigger=None, failure=None, flushing=False)
    found = QueueStatus(
        layout="shared",
        root="r",
        generation="i",
        bytes=50,
        bytes_max=100,
        tables=(table,),
        quarantined=(),
        at=now,
    )
    failure = changes.pop("failure", None)
    return replace(found, tables=(replace(table, failure=failure),), **changes)


FAILURE = FlushFailure(failures=4, reason="secret", retry_at=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"failure": FAILURE}, "Flushes of main.events fail: 4 in a row."),
        ({"at": datetime(2026, 1, 1, 0, 14, 59, tzinfo=UTC)}, None),
        ({"at": datetime(2026, 1, 1, 0, 15, 1, tzinfo=UTC)}, "Rows of main.events have waited for 901 s."),
        ({"bytes": 89}, None),
        ({"bytes": 90}, "The buffer is 90% full."),
        ({"bytes": 90, "bytes_max": 0}, None),
        (
            {"quarantined": (QuarantinedFile(path=Path("x"), reason="secret"),)},
            "Files of the buffer were quarantined, because they cannot be opened: 1.",
        ),
    ],
)
def test_every_problem_is_described_in_a_sentence(tmp_path: Path, changes: dict[str, Any], reason: str | None) -> None:
    with App(Settings(home=tmp_path / "none")) as app:
        health = _status(app, queue=lambda: _queue_status(**changes)).health
    assert health.reasons == (() if reason is None else (reason,))
    assert health.word == ("ok" if reason is None else "degraded")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DiskFullError("secret"), "The queue cannot accept writes: no space is left on the device."),
        (StorageFailedError("secret"), "The queue cannot accept writes."),
        (StateError("There is no buffer yet."), None),
        (BufferHeldError("secret"), None),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_unreadable_queue_makes_the_status_degraded_unless_it_is_absent_or_held_by_another_process(
    tmp_path: Path, error: CatchmentError, reason: str | None
) -> None:
    def fail() -> QueueStatus:
        raise error

    with App(Settings(home=tmp_path / "none")) as app:
        status = _status(app, queue=fail)
    assert status.queue.unavailable == error.message
    assert status.health.reasons == (() if reason is None else (reason,))


def test_an_audit_with_findings_makes_the_status_degraded_until_the_next_one(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    bad = AuditReport(producers=(), findings=(AuditFinding(kind="rows", producer="p", detail="d"),), notes=())
    with App(settings) as app:
        _ = app.lake
        assert last(tmp_path) is None
        note(tmp_path, bad, NOW)
        assert _status(app).health.reasons == ("The last audit had findings: 1.",)
        assert app.audit().ok
        status = _status(app)
    assert status.health.ok
    assert status.lake.value is not None
    assert status.lake.value.last_audit is not None
    assert status.lake.value.last_audit.ok


def test_of_many_tables_the_largest_are_listed_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "TABLES_MAX", 2)
    found = _queue_status()
    [table] = found.tables
    tables = tuple(
        replace(table, state=replace(table.state, table=replace(EVENTS, name=f"t{size}"), bytes=size))
        for size in range(10)
    )
    with App(Settings(home=tmp_path / "none")) as app:
        queue = _status(app, queue=lambda: replace(found, tables=tables)).queue.value
    assert queue is not None
    assert (queue.tables_total, queue.rows) == (10, 30)
    assert [each.table for each in queue.tables] == ["main.t9", "main.t8"]


def test_an_import_that_was_begun_is_found_again(tmp_path: Path) -> None:
    home, tree = tmp_path / "home", tmp_path / "tree"
    leaf = tree / "data" / "tp_table=a" / "tp_partition=p" / "tp_index=i" / "tp_date=2026-01-01"
    leaf.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), leaf / "one.parquet")
    place = ImportFolders(data=tree / "data", migration=tree / "migration", marker="")
    gone = ImportFolders(data=tmp_path / "gone", migration=tmp_path / "gone-too", marker="")
    for each in (place, gone, place):
        known_imports.remember(home, each, ImportOptions())
    (home / known_imports.FOLDER / "damaged.json").write_text("{")
    assert {found.data for found, _ in known_imports.remembered(home)} == {place.data, gone.data}
    with App(Settings(home=home)) as app:
        legacy = _status(app).legacy.value
    assert legacy is not None
    [found] = legacy.imports
    assert (found.phase, found.leaves_left, found.leaves_imported, found.progress) == ("ready", 1, 0, 0.0)


def test_the_status_of_the_lake_lists_tables_with_small_files_dead_letters_and_migrations(tmp_path: Path) -> None:
    letter = DeadLetter(
        id="l",
        unit_id="u",
        producer=ProducerId.parse("queue:0123456789abcdef:main.events"),
        seq=1,
        table=EVENTS,
        reason="r",
        row="",
        buried_at=NOW,
    )
    with App(Settings(home=tmp_path)) as app:
        create_table(app.lake)
        create_table(app.lake, LONELY)
        for table in (EVENTS, EVENTS, LONELY):
            app.lake.insert(table, event_rows(range(1_000)))
        app.lake.commit(Commit(message="bury", changes=(RecordDeadLetters(letters=(letter,)),)))
        with app.lake.write() as connection:
            connection.execute(sql.statement("catchment.schema", "lake_migrations_create", lake="lake"))
            for number in (1, 2):
                connection.execute(
                    "INSERT INTO lake._catchment._migrations VALUES ('main', ?, ?, '', '', '')",
                    [number, f"00{number}.x.sql"],
                )
        status = _status(app)
    lake, schemas = status.lake.value, status.schemas.value
    assert lake is not None
    assert schemas is not None
    events_table, lonely = lake.tables
    assert (events_table.files, events_table.small_files, events_table.rows) == (2, 2, 2_000)
    assert events_table.dead_letters == lake.dead_letters == 1
    # A small file that is alone has nothing to be merged with.
    assert (lonely.files, lonely.small_files) == (1, 0)
    assert (lake.tables_total, lake.files) == (2, 3)
    assert lake.small_file_share == pytest.approx(2 / 3, abs=1e-3)
    assert lake.bytes == events_table.bytes + lonely.bytes > 0
    assert lake.snapshots == lake.snapshot_newest + 1
    assert [(each.name, each.applied, each.last, each.pending) for each in schemas.databases] == [
        ("lake:main", 2, "002.x.sql", None)
    ]


def test_the_status_lists_tenants_with_their_shards_and_moves(tmp_path: Path) -> None:
    clock, tenant = FakeClock(), TenantId(7)
    with App(Settings(home=tmp_path), clock=clock) as app:
        store = app.control_store
        for name in ("a", "b"):
            store.add_shard(ShardInfo(id=ShardId(name), region="eu", location="grpc://x", home=f"/{name}"))
        store.create_tenant(tenant, "seven", TenantConfig(), ShardId("a"))
        store.report(ShardId("a"), {"replication_lag_s": 1.5})
        store.open_move(tenant, ShardId("a"), ShardId("b"), clock.now())
        clock.advance(10)
        status = _status(app)
    tenants, schemas = status.tenants.value, status.schemas.value
    assert tenants is not None
    assert [(each.shard, each.tenants, each.seen_age_s, each.lag_s) for each in tenants.shards] == [
        ("a", 1, 10.0, 1.5),
        ("b", 0, None, 0.0),
    ]
    assert [(each.tenant, each.shard, each.epoch) for each in tenants.tenants] == [("t7", "a", 1)]
    [move] = tenants.moves
    assert (move.tenant, move.source, move.target, move.phase) == ("t7", "a", "b", "Idle")
    assert (move.phase_age_s, move.lag_s, move.pause_ms) == (10.0, 1.5, None)
    assert schemas is not None
    assert [(each.name, each.state) for each in schemas.databases] == [("control", "CURRENT")]


# Where it is served.


@pytest.mark.parametrize(
    ("given", "port"),
    [
        ({}, 4215),
        ({"server_port": 0}, 0),
        ({"server_port": 5_000}, 0),
        ({"server_port": 5_000, "server_web_port": "4300"}, 4300),
        ({"server_web_port": "0"}, 0),
        ({"server_web_port": "off"}, None),
    ],
)
def test_the_web_is_at_4215_beside_4214_and_anywhere_else_at_any_port(
    tmp_path: Path, given: dict[str, Any], port: int | None
) -> None:
    assert load_settings(tmp_path, **given).web_port == port


@pytest.mark.parametrize("given", ["70000", "-1", "on"])
def test_an_invalid_port_is_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(SettingsError, match="server_web_port"):
        load_settings(tmp_path, server_web_port=given)
