"""The sessions layout: segments on real files, from the first write to the end of their retention."""

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from catchment.errors import BufferHeldError, LakeUnavailableError, StorageFailedError
from catchment.foundation import events, faults
from catchment.foundation.clock import SystemClock
from catchment.queue.buffer import SEQ, FlushPayload
from catchment.queue.sessions.leases import Lease
from catchment.queue.sessions.postgres_leases import PostgresLeases
from catchment.queue.sessions.sessions_buffer import SessionsBuffer
from catchment.testing import EmbeddedPostgres, FakeClock
from tests.queue.session_buffers import (
    CLICKS,
    COLUMNS,
    EVENTS,
    NARROW,
    Make,
    buffers,
    files_in,
    held_ids,
    ids_of,
    no_room,
    rows,
    run_writer,
)
from tests.shortcuts import warm


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make(tmp_path: Path, clock: FakeClock) -> Iterator[Make]:
    with buffers(tmp_path, clock) as make_buffer:
        yield make_buffer


@pytest.fixture
def buffer(make: Make) -> SessionsBuffer:
    return make()


def _one_sealed(buffer: SessionsBuffer) -> FlushPayload:
    buffer.append(EVENTS, COLUMNS, rows(1), session="one")
    buffer.seal()
    (payload,) = buffer.payloads()
    return payload


def _two_sealed(buffer: SessionsBuffer) -> list[FlushPayload]:
    buffer.append(EVENTS, COLUMNS, rows(1), session="one")
    buffer.append(CLICKS, COLUMNS, rows(2), session="one")
    buffer.seal()
    return buffer.payloads()


def test_a_segment_is_made_by_the_first_write_of_its_session(buffer: SessionsBuffer, tmp_path: Path) -> None:
    assert [path.name for path in sorted(tmp_path.iterdir()) if path.is_dir()] == ["active", "flushed", "sealed"]
    assert not files_in(tmp_path, "active")
    assert buffer.columns(EVENTS, "one") is None
    ack = buffer.append(EVENTS, COLUMNS, rows(1, 2), session="one")
    again = buffer.append(EVENTS, COLUMNS, rows(3), session="one")
    other = buffer.append(EVENTS, COLUMNS, rows(4), session="other")
    assert (ack.seq_first, ack.seq_last, again.seq_first) == (1, 2, 3)
    assert ack.source == again.source != other.source
    assert other.seq_first == 1
    assert buffer.columns(EVENTS, "one") == COLUMNS
    names = [path.name for path in files_in(tmp_path, "active") if path.suffix == ".db"]
    assert {name.split("_")[2] for name in names} == {ack.source, other.source}


def test_the_incarnation_is_made_once_for_all_processes(make: Make, tmp_path: Path) -> None:
    found: list[str] = []
    # Real time, because they wait for each other.
    threads = [threading.Thread(target=lambda: found.append(make(clock=SystemClock()).generation)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert (tmp_path / "incarnation").read_text() == found[0]


def test_a_segment_that_is_big_enough_is_sealed(make: Make, tmp_path: Path) -> None:
    buffer = make(rotate_size_bytes=64 * 1024)
    acks = [buffer.append(EVENTS, COLUMNS, rows(at * 500, 500), session="one") for at in range(20)]
    assert len(files_in(tmp_path, "sealed")) >= 2
    assert len({ack.source for ack in acks}) == len(files_in(tmp_path, "sealed")) + bool(files_in(tmp_path, "active"))
    assert held_ids(buffer) == list(range(10_000))
    assert sum(state.rows for state in buffer.tables()) == 10_000
    state = buffer.state(EVENTS)
    assert state is not None
    assert state.sealed_rows
    assert (state.rows, state.sealed_rows) == (buffer.tables()[0].rows, buffer.tables()[0].sealed_rows)


def test_the_oldest_row_makes_a_segment_due(buffer: SessionsBuffer, clock: FakeClock, tmp_path: Path) -> None:
    for number in range(5):
        buffer.append(EVENTS, COLUMNS, rows(number), session="one")
        clock.advance(59)
        buffer.sweep()
        assert not files_in(tmp_path, "sealed")
    clock.advance(6)
    buffer.sweep()
    assert len(files_in(tmp_path, "sealed")) == 1
    assert not files_in(tmp_path, "active")


def test_a_session_that_ends_has_its_segment_sealed_and_another_has_not(buffer: SessionsBuffer, tmp_path: Path) -> None:
    ended = buffer.append(EVENTS, COLUMNS, rows(1), session="one")
    buffer.append(EVENTS, COLUMNS, rows(2), session="other")
    buffer.end_session("one")
    buffer.end_session("one")
    buffer.end_session("never seen")
    assert [ended.source in path.name for path in files_in(tmp_path, "sealed")] == [True]
    assert ids_of(buffer.payloads(), buffer) == [1]
    assert buffer.append(EVENTS, COLUMNS, rows(3), session="one").source != ended.source


def test_force_seals_every_segment_that_holds_rows(buffer: SessionsBuffer, tmp_path: Path) -> None:
    for session in "abc":
        buffer.append(EVENTS, COLUMNS, rows(ord(session)), session=session)
    buffer.append(EVENTS, COLUMNS, rows(0, 0), session="empty")
    buffer.seal()
    assert len(files_in(tmp_path, "sealed")) == 3
    assert len([path for path in files_in(tmp_path, "active") if path.suffix == ".db"]) == 1
    buffer.end_session("empty")
    assert not files_in(tmp_path, "active")
    assert len(files_in(tmp_path, "sealed")) == 3


def test_a_sealed_file_alone_holds_every_row(buffer: SessionsBuffer, tmp_path: Path) -> None:
    for number in range(20):
        buffer.append(EVENTS, COLUMNS, rows(number), session="one")
    buffer.seal()
    (sealed,) = files_in(tmp_path, "sealed")
    assert sealed.suffix == ".db"
    copy = tmp_path / "copy.db"
    shutil.copy(sealed, copy)
    with duckdb.connect(str(copy)) as connection:
        assert connection.execute("SELECT count(*), max(id) FROM dq_events").fetchone() == (20, 19)
        facts = connection.execute("SELECT incarnation, session FROM __session_queue_metadata").fetchall()
    assert facts == [(buffer.generation, "one")]


def test_a_file_that_cannot_be_sealed_is_still_written_to(
    buffer: SessionsBuffer, clock: FakeClock, tmp_path: Path
) -> None:
    first = buffer.append(EVENTS, COLUMNS, rows(1), session="one")
    with faults.armed("queue.before_seal", no_room):
        with pytest.raises(StorageFailedError):
            buffer.seal()
        buffer.end_session("one")
        clock.advance(1_000)
        buffer.sweep()
        second = buffer.append(EVENTS, COLUMNS, rows(2), session="one")
    assert (second.source, second.seq_first) == (first.source, 2)
    assert not files_in(tmp_path, "sealed")
    buffer.sweep()
    assert ids_of(buffer.payloads(), buffer) == [1, 2]


def test_a_rotation_that_fails_is_tried_now_and_then(make: Make, clock: FakeClock, tmp_path: Path) -> None:
    tries = []

    def count_and_refuse() -> None:
        tries.append(1)
        no_room()

    buffer = make(rotate_size_bytes=1)
    with faults.armed("queue.before_seal", count_and_refuse):
        for number in range(5):
            buffer.append(EVENTS, COLUMNS, rows(number), session="one")
        assert len(tries) == 1
        clock.advance(11)
        buffer.append(EVENTS, COLUMNS, rows(5), session="one")
        assert len(tries) == 2
    clock.advance(11)
    buffer.append(EVENTS, COLUMNS, rows(6), session="one")
    assert len(files_in(tmp_path, "sealed")) == 1
    assert held_ids(buffer) == list(range(7))


def test_no_write_is_lost_or_missed_while_segments_rotate_under_it(make: Make) -> None:
    buffer = make(rotate_size_bytes=64 * 1024)
    acked: list[int] = []
    places: list[tuple[str, int]] = []

    def write(first: int) -> None:
        for number in range(first, first + 30):
            ack = buffer.append(EVENTS, COLUMNS, rows(number), session=f"s{number % 2}")
            places.append((ack.source, ack.seq_first))
            acked.append(number)

    threads = [threading.Thread(target=write, args=(at * 30,)) for at in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        before = set(acked)
        held = held_ids(buffer)
        assert before <= set(held)
        assert len(held) == len(set(held))
        buffer.seal()
    assert len(set(places)) == 120
    buffer.seal()
    assert ids_of(buffer.payloads(), buffer) == list(range(120))


def test_rows_and_tables_of_one_session_are_kept_apart_in_active_and_in_sealed_files(
    buffer: SessionsBuffer, make: Make
) -> None:
    buffer.append(EVENTS, COLUMNS, rows(1, 2), session="one")
    buffer.append(EVENTS, COLUMNS, rows(10, 2), session="two")
    buffer.seal()
    buffer.append(EVENTS, COLUMNS, rows(3), session="one")
    buffer.append(CLICKS, COLUMNS, rows(20), session="two")

    def ids(of: SessionsBuffer, session: str) -> list[int]:
        return sorted(number for each in of.buffered_rows(EVENTS, session) for number in each.rows["id"].to_pylist())

    assert [ids(buffer, session) for session in ("one", "two", "three")] == [[1, 2, 3], [10, 11], []]
    assert [(state.table, state.rows) for state in buffer.tables("one")] == [(EVENTS, 3)]
    assert [(state.table, state.rows) for state in buffer.tables("two")] == [(EVENTS, 2), (CLICKS, 1)]
    assert buffer.tables("three") == ()
    buffer.close()
    again = make()
    assert [ids(again, session) for session in ("one", "two")] == [[1, 2, 3], [10, 11]]


def test_rows_are_held_once_while_their_segment_moves(buffer: SessionsBuffer) -> None:
    buffer.append(EVENTS, COLUMNS, rows(1, 3), session="one")
    (active,) = buffer.buffered_rows(EVENTS)
    assert active.rows.schema.names == [SEQ, "id", "text"]
    assert active.rows[SEQ].to_pylist() == [1, 2, 3]

    seen: list[list[int]] = []
    with faults.armed("queue.before_seal", lambda: seen.append([state.rows for state in buffer.tables()])):
        buffer.seal()
    assert seen == [[3]]
    (sealed,) = buffer.buffered_rows(EVENTS)
    assert sealed.rows.equals(active.rows)
    assert sealed.payload.id == active.payload.id
    assert buffer.complete_through(EVENTS) == {sealed.payload.source: 3}
    (payload,) = buffer.payloads()
    assert payload.id == sealed.payload.id
    assert buffer.read(payload).schema.names == ["id", "text"]
    assert held_ids(buffer) == [1, 2, 3]
    buffer.retire(payload)
    assert buffer.buffered_rows(EVENTS) == []
    assert buffer.tables() == ()
    assert buffer.state(EVENTS) is None
    assert buffer.size_bytes() == buffer.used_bytes() == 0


def test_an_orphan_with_a_live_wal_is_sealed_with_all_its_rows(make: Make, tmp_path: Path) -> None:
    with run_writer(tmp_path) as child:
        child.communicate()
    assert child.returncode == -9
    assert [path.suffix for path in files_in(tmp_path, "active")] == [".db", ".wal"]
    buffer = make()
    assert not files_in(tmp_path, "active")
    assert [path.suffix for path in files_in(tmp_path, "sealed")] == [".db"]
    assert ids_of(buffer.payloads(), buffer) == list(range(50))
    assert buffer.quarantined() == ()


def test_a_damaged_orphan_is_quarantined_with_its_wal_and_nothing_is_deleted(make: Make, tmp_path: Path) -> None:
    with run_writer(tmp_path) as child:
        child.communicate()
    path, wal = files_in(tmp_path, "active")
    path.write_bytes(b"damaged" * 1_000)
    kept = wal.read_bytes()
    buffer = make()
    (lost,) = buffer.quarantined()
    assert lost.path.read_bytes() == b"damaged" * 1_000
    assert lost.path.with_name(wal.name).read_bytes() == kept
    assert "not a valid DuckDB database file" in lost.reason
    assert not files_in(tmp_path, "active")
    assert not list((tmp_path / "leases").iterdir())
    assert buffer.append(EVENTS, COLUMNS, rows(1), session="one").rows == 1


def test_a_damaged_sealed_file_is_quarantined_and_delays_no_other_file(buffer: SessionsBuffer, tmp_path: Path) -> None:
    for session in "ab":
        buffer.append(EVENTS, COLUMNS, rows(ord(session)), session=session)
    buffer.seal()
    damaged, _ = files_in(tmp_path, "sealed")
    damaged.write_bytes(b"damaged" * 1_000)
    assert len(buffer.buffered_rows(EVENTS)) == 1
    assert len(buffer.payloads()) == 1
    assert sum(state.rows for state in buffer.tables()) == 1
    assert [lost.path.name for lost in buffer.quarantined()] == [damaged.name]


def test_a_file_that_was_only_being_made_is_removed(make: Make, tmp_path: Path) -> None:
    buffer = make()
    name = "duckling_queue_0f8fad5b-d9cb-469f-a165-70867728950e_5.db"
    (tmp_path / "active" / name).touch()
    buffer.sweep()
    assert not files_in(tmp_path, "active")
    assert buffer.quarantined() == ()


def test_a_live_segment_is_never_taken_for_an_orphan(make: Make, tmp_path: Path) -> None:
    mine, theirs = make(), make()
    mine.append(EVENTS, COLUMNS, rows(1), session="one")
    theirs.sweep()
    mine.sweep()
    make()
    assert not files_in(tmp_path, "sealed")
    assert mine.append(EVENTS, COLUMNS, rows(2), session="one").seq_first == 2


def test_parcels_are_one_holders_until_they_are_released(make: Make) -> None:
    mine, theirs = make(), make()
    for session in "ab":
        mine.append(EVENTS, COLUMNS, rows(ord(session)), session=session)
    mine.seal()
    payloads = mine.payloads()
    assert len(payloads) == 2
    assert mine.payloads() == []
    assert theirs.payloads() == []
    mine.release(payloads[0])
    mine.release(payloads[0])
    assert theirs.payloads() == [payloads[0]]
    assert mine.payloads() == []
    with pytest.raises(BufferHeldError):
        mine.retire(payloads[0])
    theirs.retire(payloads[0])
    mine.retire(payloads[1])
    assert mine.tables() == theirs.tables() == ()


def test_parcels_of_a_holder_that_died_go_to_the_next(make: Make, tmp_path: Path) -> None:
    buffer = make()
    with run_writer(tmp_path, "lease") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "1\n"
        assert buffer.payloads() == []
        assert held_ids(buffer) == list(range(50))
        child.communicate()
    assert ids_of(buffer.payloads(), buffer) == list(range(50))


def test_hosts_share_a_root_through_postgres(make: Make, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    conninfo = postgres.new_database()
    mine, theirs = make(leases=PostgresLeases(conninfo)), make(leases=PostgresLeases(conninfo))
    mine.append(EVENTS, COLUMNS, rows(1), session="one")
    theirs.sweep()
    assert not files_in(tmp_path, "sealed")
    mine.seal()
    (payload,) = mine.payloads()
    assert theirs.payloads() == []
    postgres.terminate_connections(conninfo)
    assert theirs.payloads() == [payload]
    theirs.retire(payload)
    mine.retire(payload)
    assert len(files_in(tmp_path, "flushed")) == 1


def test_a_lost_lease_is_taken_again_by_the_sweep(make: Make, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    conninfo = postgres.new_database()
    leases = PostgresLeases(conninfo)
    buffer = make(leases=leases)
    buffer.append(EVENTS, COLUMNS, rows(1), session="one")
    (name,) = {path.name.removesuffix(".wal") for path in files_in(tmp_path, "active")}
    postgres.terminate_connections(conninfo)
    buffer.sweep()
    other = PostgresLeases(conninfo)
    assert other.take(name) is None
    other.close()
    assert not files_in(tmp_path, "sealed")


class _NoLeases:
    def take(self, name: str) -> Lease | None:
        raise LakeUnavailableError

    def forget(self, name: str) -> None: ...

    def close(self) -> None: ...


def test_writes_are_taken_while_the_server_of_the_leases_is_away(make: Make, tmp_path: Path) -> None:
    buffer = make(leases=_NoLeases())
    heard: list[events.Event] = []
    with events.listening(heard.append):
        buffer.append(EVENTS, COLUMNS, rows(1), session="one")
    assert [event.verb for event in heard] == ["segment_unleased"]
    with pytest.raises(LakeUnavailableError):
        make(leases=_NoLeases()).sweep()
    buffer.seal()
    assert len(files_in(tmp_path, "sealed")) == 1
    with pytest.raises(LakeUnavailableError):
        buffer.payloads()
    assert held_ids(buffer) == [1]


def test_the_last_table_that_is_retired_moves_the_file(buffer: SessionsBuffer, tmp_path: Path) -> None:
    buffer.append(EVENTS, COLUMNS, rows(1, 2), session="one")
    buffer.append(CLICKS, COLUMNS, rows(5), session="one")
    assert [(state.rows, state.sealed_rows) for state in buffer.tables()] == [(2, 0), (1, 0)]
    buffer.seal()
    assert [(state.rows, state.sealed_rows) for state in buffer.tables()] == [(2, 2), (1, 1)]
    (clicks,) = buffer.payloads([CLICKS])
    (one,) = buffer.payloads()
    assert (clicks.table, clicks.rows, clicks.seqs) == (CLICKS, 1, None)
    assert (one.table, one.seq_first, one.seq_last) == (EVENTS, 1, 2)
    assert one.source == clicks.source
    buffer.retire(one)
    buffer.retire(one)
    (path,) = files_in(tmp_path, "sealed")
    with duckdb.connect(str(path), read_only=True) as connection:
        names = {row[0] for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    assert {"__dq_flushed_dq_events", "dq_web.clicks"} <= names
    assert [state.table for state in buffer.tables()] == [CLICKS]
    assert held_ids(buffer) == []
    buffer.retire(clicks)
    assert not files_in(tmp_path, "sealed")
    assert [path.suffix for path in files_in(tmp_path, "flushed")] == [".db"]
    buffer.retire(one)
    buffer.retire(clicks)
    buffer.release(clicks)


def test_a_file_is_not_written_while_tasks_read_another_part_of_it(buffer: SessionsBuffer, tmp_path: Path) -> None:
    one, other = _two_sealed(buffer)
    staged = [buffer.stage(payload, tmp_path) for payload in (one, other)]
    assert [each.relation for each in staged] == ["dq_events", "dq_web.clicks"]
    with duckdb.connect() as task:
        task.execute(f"ATTACH '{staged[1].path}' AS file (READ_ONLY)")
        buffer.retire(one)
        assert task.execute('SELECT id FROM file."dq_web.clicks"').fetchall() == [(2,)]
        assert held_ids(buffer) == []
        assert [state.table for state in buffer.tables()] == [CLICKS]
    buffer.retire(other)
    assert len(files_in(tmp_path, "flushed")) == 1


def test_a_payload_delivered_beside_a_failed_one_is_recorded_at_the_release(make: Make, tmp_path: Path) -> None:
    buffer = make()
    one, other = _two_sealed(buffer)
    for payload in (one, other):
        buffer.stage(payload, tmp_path)
    buffer.retire(one)
    buffer.release(other)
    assert make().payloads() == [other]


def test_versions_of_a_table_come_apart_oldest_first(buffer: SessionsBuffer, tmp_path: Path) -> None:
    buffer.append(EVENTS, NARROW, rows(1, 2).select(["id"]), session="one")
    buffer.append(EVENTS, COLUMNS, rows(3), session="one")
    buffer.append(EVENTS, NARROW, rows(4).select(["id"]), session="one")
    assert [held.rows.num_rows for held in buffer.buffered_rows(EVENTS)] == [2, 1, 1]
    buffer.seal()
    payloads = buffer.payloads()
    assert [(payload.seq_first, payload.seq_last) for payload in payloads] == [(1, 2), (3, 3), (4, 4)]
    assert len({payload.id for payload in payloads}) == 3
    assert [buffer.read(payload).schema.names for payload in payloads] == [["id"], ["id", "text"], ["id"]]
    buffer.retire(payloads[1])
    assert held_ids(buffer) == [1, 2, 4]
    buffer.retire(payloads[0])
    buffer.retire(payloads[2])
    assert len(files_in(tmp_path, "flushed")) == 1


def test_segments_are_handed_out_in_the_order_of_their_time(buffer: SessionsBuffer, clock: FakeClock) -> None:
    sources = []
    for number in range(4):
        sources.append(buffer.append(EVENTS, COLUMNS, rows(number), session=f"s{number}").source)
        clock.advance(1)
    buffer.seal()
    assert [payload.source for payload in buffer.payloads()] == sources


def test_a_file_that_was_marked_before_a_crash_is_moved_by_the_next_look(make: Make, tmp_path: Path) -> None:
    def crash() -> None:
        raise KeyboardInterrupt

    buffer = make()
    payload = _one_sealed(buffer)
    with faults.armed("queue.before_flushed", crash), pytest.raises(KeyboardInterrupt):
        buffer.retire(payload)
    assert len(files_in(tmp_path, "sealed")) == 1
    buffer.close()
    other = make()
    assert other.tables() == ()
    assert other.payloads() == []
    assert len(files_in(tmp_path, "flushed")) == 1


def test_a_wal_that_was_left_while_a_part_was_marked_is_written_back(buffer: SessionsBuffer, tmp_path: Path) -> None:
    one, other = _two_sealed(buffer)
    buffer.release(one)
    buffer.release(other)
    code = (
        "import duckdb, os, sys; connection = duckdb.connect(sys.argv[1]); "
        """connection.execute("DELETE FROM dq_meta WHERE table_name = 'events'"); os.kill(os.getpid(), 9)"""
    )
    warm.run([sys.executable, "-c", code, one.path], timeout=60)
    assert len(files_in(tmp_path, "sealed")) == 2
    assert held_ids(buffer) == []
    assert [payload.id for payload in buffer.payloads()] == [other.id]
    assert len(files_in(tmp_path, "sealed")) == 1


def test_flushed_files_are_removed_once_they_are_old(buffer: SessionsBuffer, clock: FakeClock, tmp_path: Path) -> None:
    buffer.retire(_one_sealed(buffer))
    (path,) = files_in(tmp_path, "flushed")
    os.utime(path, (clock.now().timestamp(),) * 2)
    clock.advance(3 * 86_400 - 1)
    buffer.sweep()
    assert files_in(tmp_path, "flushed") == [path]
    clock.advance(1)
    buffer.sweep()
    assert files_in(tmp_path, "flushed") == []
    assert list((tmp_path / "leases").iterdir()) == []


def test_a_file_that_another_process_keeps_open_is_refused(
    buffer: SessionsBuffer, clock: FakeClock, tmp_path: Path
) -> None:
    buffer.append(EVENTS, COLUMNS, rows(1), session="one")
    buffer.seal()
    (path,) = files_in(tmp_path, "sealed")
    with duckdb.connect(str(path)):
        with pytest.raises(BufferHeldError):
            buffer.buffered_rows(EVENTS)
        assert clock.slept_s
        assert buffer.payloads() == []
    assert held_ids(buffer) == [1]
    assert len(buffer.payloads()) == 1


def test_closing_seals_what_holds_rows_and_leaves_nothing_active(make: Make, tmp_path: Path) -> None:
    buffer = make()
    buffer.append(EVENTS, COLUMNS, rows(1), session="one")
    buffer.append(EVENTS, COLUMNS, rows(0, 0), session="empty")
    buffer.close()
    assert not files_in(tmp_path, "active")
    other = make()
    assert ids_of(other.payloads(), other) == [1]


def test_closing_leaves_what_cannot_be_sealed_to_the_next(make: Make, tmp_path: Path) -> None:
    buffer = make()
    buffer.append(EVENTS, COLUMNS, rows(1), session="one")
    with faults.armed("queue.before_seal", no_room):
        buffer.close()
    assert len(files_in(tmp_path, "active")) == 1
    other = make()
    assert ids_of(other.payloads(), other) == [1]
