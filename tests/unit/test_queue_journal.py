"""The journal: what was acknowledged is read again, and nothing else."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from catchment.clock import SystemClock
from catchment.errors import BufferDamagedError
from catchment.queue.journal import SUFFIX, Entry, Journal
from catchment.queue.store import Store, Write, new_identity
from catchment.settings import MIB
from tests.queue_scenes import event_rows
from tests.scenes import EVENT_COLUMNS, EVENTS

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _entry(first: int, count: int) -> Entry:
    return Entry.of(EVENTS, first, NOW, event_rows(range(first, first + count)))


def _journal(folder: Path, incarnation: str = "one") -> Journal:
    return Journal(folder / "a.journal", incarnation=incarnation)


def _ids(entries: list[Entry]) -> list[int]:
    return [n for entry in entries for n in entry.rows["id"].to_pylist()]


def _store(folder: Path) -> Store:
    fresh = new_identity("1", "", SystemClock())
    return Store.open(
        folder / "buffer.duckdb", identity_table="dq_buffer", fresh=fresh, checkpoint_bytes=512 * MIB, journalled=True
    )


def _write(store: Store, first: int, count: int) -> None:
    rows = event_rows(range(first, first + count))
    store.write([Write(table=EVENTS, columns=EVENT_COLUMNS, rows=rows)], NOW)


def _kept(store: Store) -> list[tuple[int, int]]:
    """Numbers and ids, in the order in which they lie."""
    log = store.log(EVENTS)
    assert log is not None
    found = [store.read(version, first, last).read_all() for version, first, last in log.ranges()]
    return [pair for rows in found for pair in zip(rows["dq_seq"].to_pylist(), rows["id"].to_pylist(), strict=True)]


def _is_settled(store: Store) -> bool:
    return store.is_settled


def test_what_was_appended_is_replayed_by_whoever_opens_it_next(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    journal.append([_entry(1, 2), _entry(3, 1)])
    journal.append([_entry(4, 1)])
    replayed = _journal(tmp_path).replay()
    assert _ids(replayed) == [1, 2, 3, 4]
    assert {(entry.table, entry.at) for entry in replayed} == {(EVENTS, NOW)}


@pytest.mark.parametrize("left", [1, 10, 40])
def test_a_frame_that_was_half_written_is_no_frame(left: int, tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    journal.append([_entry(1, 2)])
    size = journal.size
    journal.append([_entry(3, 5)])
    path = tmp_path / "a.journal"
    path.write_bytes(path.read_bytes()[: size + left])
    assert _ids(_journal(tmp_path).replay()) == [1, 2]


def test_what_lies_behind_the_frames_of_this_life_is_of_an_earlier_one(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    for number in range(1, 6):
        journal.append([_entry(number, 1)])
    journal.restart()
    journal.append([_entry(6, 1)])
    assert _ids(_journal(tmp_path).replay()) == [6]


def test_a_damaged_frame_before_others_is_damage(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    journal.append([_entry(1, 2)])
    size = journal.size
    journal.append([_entry(3, 2)])
    journal.append([_entry(5, 2)])
    path = tmp_path / "a.journal"
    content = bytearray(path.read_bytes())
    content[size + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(BufferDamagedError):
        _journal(tmp_path).replay()


def test_a_journal_of_another_buffer_is_damage(tmp_path: Path) -> None:
    _journal(tmp_path, "another").append([_entry(1, 2)])
    with pytest.raises(BufferDamagedError):
        _journal(tmp_path).replay()


def test_small_writes_wait_in_the_journal_and_are_there_after_a_crash(tmp_path: Path) -> None:
    store = _store(tmp_path)
    for first in range(10):
        _write(store, first, 1)
    assert not _is_settled(store)
    store.abandon()
    store = _store(tmp_path)
    assert _is_settled(store)
    assert _kept(store) == [(n + 1, n) for n in range(10)]
    store.close()
    assert not (tmp_path / f"buffer.duckdb{SUFFIX}").exists()


def _large(store: Store) -> None:
    _write(store, 3, 30_000)


def _settle(store: Store) -> None:
    store.settle()


@pytest.mark.parametrize("settling", [_large, _settle, Store.close], ids=["large write", "settle", "close"])
def test_rows_that_were_settled_are_not_taken_from_the_journal_again(
    settling: Callable[[Store], None], tmp_path: Path
) -> None:
    store = _store(tmp_path)
    for first in range(3):
        _write(store, first, 1)
    path = tmp_path / f"buffer.duckdb{SUFFIX}"
    before = path.read_bytes()
    settling(store)
    kept = _kept(store) if settling is not Store.close else [(1, 0), (2, 1), (3, 2)]
    assert [pair[0] for pair in kept] == list(range(1, len(kept) + 1))
    store.abandon()
    # As a crash between the two would leave it.
    path.write_bytes(before)
    store = _store(tmp_path)
    assert _kept(store) == kept
    store.close()


def test_rows_lie_in_the_order_of_their_numbers_whatever_their_shapes(tmp_path: Path) -> None:
    store = _store(tmp_path)
    turned = event_rows([7]).select(["kind", "id"])
    for rows in (event_rows([1]), event_rows([2]), turned, event_rows([3]), turned):
        store.write([Write(table=EVENTS, columns=EVENT_COLUMNS, rows=rows)], NOW)
    store.settle()
    assert _kept(store) == [(1, 1), (2, 2), (3, 7), (4, 3), (5, 7)]
    store.close()


def test_rows_that_duckdb_might_refuse_later_are_given_to_it_now(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _write(store, 0, 1)
    narrow = event_rows([1]).set_column(0, "id", pa.array([1], pa.int32()))
    store.write([Write(table=EVENTS, columns=EVENT_COLUMNS, rows=narrow)], NOW)
    assert _is_settled(store)
    _write(store, 2, 1)
    assert not _is_settled(store)
    store.settle()
    assert _kept(store) == [(1, 0), (2, 1), (3, 2)]
    store.close()


def test_a_store_that_was_interrupted_in_the_middle_of_a_write_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _store(tmp_path)
    _write(store, 0, 1)
    append = Journal.append

    def interrupted(journal: Journal, entries: list[Entry]) -> None:
        append(journal, entries)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _write(store, 1, 1)
    with pytest.raises(BufferDamagedError):
        _write(store, 2, 1)
    store.abandon()
    store = _store(tmp_path)
    assert _kept(store) == [(1, 0), (2, 1)]
    store.close()
