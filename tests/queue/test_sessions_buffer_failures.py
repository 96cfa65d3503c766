"""The sessions layout when a process dies or a disk fails: no acknowledged row is lost."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from catchment.errors import CommitUnknownError, StorageFailedError
from catchment.foundation import faults
from catchment.queue.sessions.leases import FileLeases
from catchment.queue.sessions.sessions_buffer import SessionsBuffer
from catchment.queue.store.store import Store
from catchment.queue.store.table_log import Write
from catchment.testing import FakeClock
from tests.queue.session_buffers import (
    COLUMNS,
    EVENTS,
    Make,
    buffers,
    files_in,
    held_ids,
    ids_of,
    no_room,
    rows,
    run_writer,
)


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


def test_files_of_a_dead_process_are_sealed_by_a_forced_flush(buffer: SessionsBuffer, tmp_path: Path) -> None:
    with run_writer(tmp_path) as child:
        child.communicate()
    assert held_ids(buffer) == []
    buffer.seal()
    assert held_ids(buffer) == list(range(50))
    assert ids_of(buffer.payloads(), buffer) == list(range(50))


def test_an_orphan_that_cannot_be_sealed_keeps_no_other_from_it(buffer: SessionsBuffer, tmp_path: Path) -> None:
    for _ in range(2):
        with run_writer(tmp_path) as child:
            child.communicate()
    tries = []

    def no_room_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            no_room()

    with faults.armed("queue.before_seal", no_room_once):
        with pytest.raises(StorageFailedError, match="1 segments cannot be sealed now; no row of them is lost"):
            buffer.seal()
        assert held_ids(buffer) == list(range(50))
    with faults.armed("queue.before_seal", no_room):
        # A sweep says so in the log, and what can be flushed is.
        buffer.sweep()
    assert len(buffer.payloads()) == 1
    buffer.sweep()
    assert len(held_ids(buffer)) == 2 * 50


def _unknown(*_: object) -> None:
    raise CommitUnknownError


def test_a_session_whose_commit_failed_goes_on_in_its_file(
    buffer: SessionsBuffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = buffer.append(EVENTS, COLUMNS, rows(1), session="one")
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", _unknown)
            # Opened again, the file says that it has none of the rows.
            with pytest.raises(StorageFailedError):
                buffer.append(EVENTS, COLUMNS, rows(2), session="one")
        assert held_ids(buffer) == [1]
    second = buffer.append(EVENTS, COLUMNS, rows(3), session="one")
    assert (second.source, second.seq_first) == (first.source, 2)
    buffer.seal()
    assert ids_of(buffer.payloads(), buffer) == [1, 3]


def test_rows_of_a_failed_commit_that_the_file_has_after_all_are_not_said_to_be_refused(
    buffer: SessionsBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer.append(EVENTS, COLUMNS, rows(1), session="one")
    write = Store.write

    def kept(store: Store, writes: Sequence[Write], now: datetime) -> None:
        logs = store.logs()
        write(store, writes, now)
        store._set_logs(logs)
        raise CommitUnknownError

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", kept)
        with pytest.raises(CommitUnknownError):
            buffer.append(EVENTS, COLUMNS, rows(2), session="one")
    assert held_ids(buffer) == [1, 2]
    assert buffer.append(EVENTS, COLUMNS, rows(3), session="one").seq_first == 3


def test_a_file_that_another_process_took_while_it_was_closed_is_left_to_it(
    make: Make, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = FileLeases(tmp_path, clock)
    mine = make(leases=leases)
    first = mine.append(EVENTS, COLUMNS, rows(1), session="one")
    # All leases are lost, as when the server that gives them was restarted; and the other process
    # is quicker.
    leases.close()
    others = FileLeases(tmp_path, clock)
    (file,) = (path for path in files_in(tmp_path, "active") if path.suffix == ".db")
    taken = others.take(file.name)
    assert taken is not None
    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", _unknown)
        with pytest.raises(CommitUnknownError):
            mine.append(EVENTS, COLUMNS, rows(2), session="one")
    assert mine.append(EVENTS, COLUMNS, rows(3), session="one").source != first.source
    taken.release()
    mine.seal()
    assert ids_of(mine.payloads(), mine) == [1, 3]
