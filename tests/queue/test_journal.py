"""The journal: acknowledged rows are read again, and nothing else."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zlib import crc32

import duckdb
import pyarrow as pa
import pytest

from catchment.errors import BufferDamagedError
from catchment.foundation.clock import SystemClock
from catchment.foundation.ids import TableId
from catchment.queue.shared.shared_buffer import SharedBuffer
from catchment.queue.store import journal as journals
from catchment.queue.store.file_tables import BufferIdentity
from catchment.queue.store.journal import SUFFIX, Entry, Journal
from catchment.queue.store.store import Store
from catchment.queue.store.table_log import Write
from tests.queue.queues import event_rows
from tests.sample_events import EVENT_COLUMNS, EVENTS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OTHER = TableId("main", "other")
PAGE = 4096


def _entry(first: int, count: int) -> Entry:
    return Entry.of(EVENTS, first, NOW, event_rows(range(first, first + count)))


def _journal(folder: Path, generation: str = "one") -> Journal:
    return Journal(folder / "a.journal", generation=generation)


def _replayed(folder: Path) -> list[Entry]:
    """What a store that has nothing would be given."""
    return _journal(folder).replay(lambda _: False)


def _ids(entries: list[Entry]) -> list[int]:
    return [n for entry in entries for n in journals.read([entry])["id"].to_pylist()]


def _store(folder: Path) -> Store:
    fresh = BufferIdentity.new("1", "", SystemClock())
    return Store.open(folder / "buffer.duckdb", identity_table="dq_buffer", fresh=fresh, journalled=True)


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


def test_appended_frames_are_replayed_by_the_next_opening(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    journal.append([_entry(1, 2), _entry(3, 1)])
    journal.append([_entry(4, 1)])
    replayed = _replayed(tmp_path)
    assert _ids(replayed) == [1, 2, 3, 4]
    assert {(entry.table, entry.at) for entry in replayed} == {(EVENTS, NOW)}


@pytest.mark.parametrize("left", [1, 10, 40])
def test_a_half_written_frame_is_ignored(left: int, tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    journal.append([_entry(1, 2)])
    size = journal.size
    journal.append([_entry(3, 5)])
    path = tmp_path / "a.journal"
    path.write_bytes(path.read_bytes()[: size + left])
    assert _ids(_replayed(tmp_path)) == [1, 2]


def test_bytes_after_the_frames_of_this_generation_are_of_an_earlier_one(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    for number in range(1, 6):
        journal.append([_entry(number, 1)])
    journal.restart()
    journal.append([_entry(6, 1)])
    assert _ids(_replayed(tmp_path)) == [6]


def _damage(path: Path, *places: int) -> None:
    content = bytearray(path.read_bytes())
    for place in places:
        content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damaged", [1, 2], ids=["one", "two"])
def test_damaged_frames_before_others_are_damage(damaged: int, tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    journal.append([_entry(1, 2)])
    places = []
    for first in (3, 5):
        places.append(journal.size + 100)
        journal.append([_entry(first, 2)])
    journal.append([_entry(7, 2)])
    _damage(tmp_path / "a.journal", *places[:damaged])
    with pytest.raises(BufferDamagedError, match="damaged"):
        _replayed(tmp_path)


def test_a_damaged_frame_ends_the_journal_if_all_later_frames_were_settled(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    empty = Entry.of(EVENTS, 7, NOW, event_rows([]))
    for entries in ([_entry(1, 2)], [_entry(3, 2)], [_entry(5, 2)], [empty]):
        journal.append(entries)
    # An entry without rows has the next number, which is not settled.
    _damage(tmp_path / "a.journal", 100)
    assert _journal(tmp_path).replay(lambda entry: entry.seq_first <= 6) == []
    with pytest.raises(BufferDamagedError, match="damaged"):
        _journal(tmp_path).replay(lambda entry: entry.seq_first <= 4)


def test_a_journal_of_another_buffer_is_damage(tmp_path: Path) -> None:
    _journal(tmp_path, "another").append([_entry(1, 2)])
    with pytest.raises(BufferDamagedError, match="another buffer"):
        _replayed(tmp_path)


@pytest.mark.parametrize("size", [1, 16, 20, PAGE])
def test_a_journal_of_zeros_is_empty(size: int, tmp_path: Path) -> None:
    (tmp_path / "a.journal").write_bytes(bytes(size))
    assert _replayed(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xff\xff\xff",
        b"\x02\0\0\0{]",
        b"\x02\0\0\0\xff\xff",
        b"\x01\0\0\x005",
        b'\x0f\0\0\0["one", [["a"]]]',
        b'\x37\0\0\0["one", [["main", "events", 1, "2026-01-01T00:00", 8]]]xxxxxxxx',
        b'\x2d\0\0\0["one", [["main", "events", 1, "today", 0]]]  ',
    ],
    ids=["no head", "no JSON", "no text", "a number", "too short", "no rows", "no time"],
)
def test_a_whole_frame_that_says_nothing_is_damage(content: bytes, tmp_path: Path) -> None:
    frame = journals._FRAME.pack(1, len(content), crc32(content)) + content
    (tmp_path / "a.journal").write_bytes(frame)
    with pytest.raises(BufferDamagedError, match="cannot be read"):
        _replayed(tmp_path)


def _long(number: int, length: int = 5_000) -> pa.Table:
    return pa.table({"id": pa.array([number], pa.int64()), "kind": [f"{number}" * length]})


def _shared(folder: Path) -> SharedBuffer:
    return SharedBuffer(folder, chunk_rows=1_000, clock=SystemClock())


@pytest.mark.parametrize("pages", [1, 2])
def test_a_power_cut_while_settled_frames_are_overwritten_is_not_reported_as_damage(pages: int, tmp_path: Path) -> None:
    """The header of an old frame with new pages after it: a healthy buffer used to be quarantined."""
    store = _store(tmp_path)
    path = tmp_path / f"buffer.duckdb{SUFFIX}"
    for table in (EVENTS, OTHER):
        store.write([Write(table=table, columns=EVENT_COLUMNS, rows=event_rows([0]))], NOW)
    for number in range(1, 4):
        writes = [Write(table=table, columns=EVENT_COLUMNS, rows=_long(number)) for table in (EVENTS, OTHER)]
        store.write(writes[: 1 + number % 2], NOW)
    store.settle()
    old = path.read_bytes()
    # Longer than two pages, and shorter than the first old frame, which has two tables' rows.
    store.write([Write(table=EVENTS, columns=EVENT_COLUMNS, rows=_long(4, 8_500))], NOW)
    new = path.read_bytes()
    assert old[: pages * PAGE] != new[: pages * PAGE], "the same journal was left: no proof"
    assert old[pages * PAGE :] != new[pages * PAGE :]
    store.abandon()
    # What was written last was not acknowledged, and only its later pages came to the disk.
    path.write_bytes(old[: pages * PAGE] + new[pages * PAGE :])
    with closing(_shared(tmp_path)) as buffer:
        assert buffer.quarantined() == ()
        assert {state.table: state.rows for state in buffer.tables()} == {EVENTS: 4, OTHER: 3}
        assert buffer.append(EVENTS, EVENT_COLUMNS, _long(5), session="s").seq_first == 5


def test_a_buffer_whose_journal_is_damaged_before_rows_that_it_lacks_is_quarantined(tmp_path: Path) -> None:
    store = _store(tmp_path)
    for number in range(4):
        rows = event_rows([0]) if not number else _long(number)
        store.write([Write(table=EVENTS, columns=EVENT_COLUMNS, rows=rows)], NOW)
    store.abandon()
    _damage(tmp_path / f"buffer.duckdb{SUFFIX}", 1_000)
    with closing(_shared(tmp_path)) as buffer:
        (aside,) = buffer.quarantined()
        assert "damaged" in aside.reason
        assert buffer.tables() == ()


def test_a_buffer_starts_beside_a_journal_of_zeros(tmp_path: Path) -> None:
    store = _store(tmp_path)
    _write(store, 0, 1)
    store.settle()
    store.abandon()
    (tmp_path / f"buffer.duckdb{SUFFIX}").write_bytes(bytes(PAGE))
    with closing(_shared(tmp_path)) as buffer:
        assert buffer.quarantined() == ()
        assert [state.rows for state in buffer.tables()] == [1]


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


def test_rows_that_are_settled_together_each_have_the_time_of_their_own_write(tmp_path: Path) -> None:
    with closing(_store(tmp_path)) as store:
        _write(store, 1, 1)
        for minute, (first, count) in enumerate([(2, 2), (4, 1), (5, 3)]):
            rows = event_rows(range(first, first + count))
            store.write([Write(table=EVENTS, columns=EVENT_COLUMNS, rows=rows)], NOW + timedelta(minutes=minute))
        assert not _is_settled(store)
        store.settle()
        assert _kept(store) == [(n, n) for n in range(1, 8)]
    with duckdb.connect(str(tmp_path / "buffer.duckdb"), read_only=True) as file:
        found = file.execute("SELECT dq_seq, minute(dq_at) FROM dq_events WHERE dq_seq > 1 ORDER BY 1").fetchall()
    assert found == [(2, 0), (3, 0), (4, 1), (5, 2), (6, 2), (7, 2)]


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


def test_a_store_that_was_interrupted_during_a_write_is_reopened(
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
