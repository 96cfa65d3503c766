"""The shared buffer as a log for replicas: retained, read, received, started after, dropped."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from catchment.errors import InvariantError, SeqGapError, StateError
from catchment.foundation import faults
from catchment.foundation.ids import TableId
from catchment.lake.types import Column
from catchment.queue import incoming
from catchment.queue.buffer import SEQ
from catchment.queue.replication import LogRows, Replication
from catchment.queue.shared.buffer_file import FILE_NAME
from catchment.queue.shared.shared_buffer import SharedBuffer
from catchment.queue.store.journal import ENTRY_BYTES_MAX
from catchment.testing import FakeClock
from tests.conftest import MakeSettings
from tests.queue.queues import Killed, arrow, die, event_rows, new_queue
from tests.sample_events import EVENT_COLUMNS, EVENTS, once

T7 = TableId("t7", "events")
OTHER = TableId("t7", "other")
T8 = TableId("t8", "events")
WIDER = (*EVENT_COLUMNS, Column(name="extra", type="INTEGER"))
ALL = 1_000_000

Open = Callable[..., SharedBuffer]


@pytest.fixture
def open_buffer(tmp_path: Path) -> Iterator[Open]:
    """Open a buffer by name; `after` opens the files that a power cut leaves of another."""
    with ExitStack() as stack:
        copies = iter(range(1_000))

        def make(name: str = "home", *, after: str | None = None) -> SharedBuffer:
            if after is not None:
                name = f"{after}-after-crash-{next(copies)}"
                shutil.copytree(tmp_path / after, tmp_path / name)
            buffer = SharedBuffer(tmp_path / name, chunk_rows=4, clock=FakeClock())
            return stack.enter_context(closing(buffer))

        yield make


def _write(buffer: SharedBuffer, ids: range, table: TableId = T7) -> None:
    buffer.append(table, EVENT_COLUMNS, event_rows(ids), session="")


def _write_wider(buffer: SharedBuffer, ids: range) -> None:
    rows = event_rows(ids).append_column("extra", pa.array([number % 7 for number in ids], pa.int32()))
    buffer.append(T7, WIDER, rows, session="")


def _retire(buffer: SharedBuffer, seq: int, table: TableId = T7) -> None:
    # A flush asks the ledger before it delivers.
    buffer.flushed_through(table, 0)
    buffer.flushed_through(table, seq)


def _unflushed(buffer: SharedBuffer, table: TableId = T7) -> list[tuple[int, int]]:
    """Numbers and ids of the rows that are yet to be flushed."""
    return [
        pair
        for held in buffer.buffered_rows(table)
        for pair in zip(held.rows[SEQ].to_pylist(), held.rows["id"].to_pylist(), strict=True)
    ]


def _shipments(buffer: SharedBuffer, after: int = 0, table: TableId = T7, rows_max: int = ALL) -> list[LogRows]:
    found = []
    while (shipment := buffer.replication.read_log(table, after, rows_max=rows_max)) is not None:
        found.append(shipment)
        after = shipment.seq_last
    return found


def _logged(buffer: SharedBuffer, after: int = 0, table: TableId = T7) -> list[tuple[int, int]]:
    """Numbers and ids of the log."""
    return [
        (each.seq_first + at, number)
        for each in _shipments(buffer, after, table)
        for at, number in enumerate(each.rows["id"].to_pylist())
    ]


def _numbered(first: int, last: int) -> list[tuple[int, int]]:
    """Numbers and ids of rows whose ids are their numbers."""
    return [(number, number) for number in range(first, last + 1)]


def _shipped(first: int, last: int, table: TableId = T7) -> LogRows:
    return LogRows(table=table, columns=EVENT_COLUMNS, seq_first=first, rows=event_rows(range(first, last + 1)))


def test_the_shared_buffer_can_be_replicated(open_buffer: Open) -> None:
    log: Replication | None = open_buffer().replication
    assert log is not None


class TestHold:
    def test_flushed_rows_of_a_held_schema_are_a_log_and_nothing_else(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        buffer.replication.retain_log("t7")
        _write(buffer, range(1, 11))
        buffer.retire(buffer.payloads()[0])
        state = buffer.state(T7)
        assert state is not None
        assert (state.rows, state.seq_last, state.seq_flushed) == (6, 10, 4)
        assert [payload.seq_first for payload in buffer.payloads()] == [5, 9]
        assert _unflushed(buffer) == _numbered(5, 10)
        assert _logged(buffer) == _numbered(1, 10)

    def test_a_table_that_is_not_held_keeps_no_log(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        buffer.replication.retain_log("t8")
        _write(buffer, range(1, 11))
        _retire(buffer, 4)
        with pytest.raises(InvariantError, match="starts after seq 4"):
            buffer.replication.read_log(T7, 3, rows_max=ALL)
        assert _logged(buffer, 4) == _numbered(5, 10)

    def test_a_hold_and_what_it_keeps_survive_a_crash(self, open_buffer: Open) -> None:
        home = open_buffer()
        _write(home, range(1, 4))
        _retire(home, 2)
        home.replication.retain_log("t7")
        home.replication.retain_log("T7")
        _write(home, range(4, 11))
        _retire(home, 6)
        buffer = open_buffer(after="home")
        assert buffer.replication.retained_schemas() == {"t7"}
        assert _unflushed(buffer) == _numbered(7, 10)
        assert _logged(buffer, 2) == _numbered(3, 10)
        _retire(buffer, 10)
        assert buffer.payloads() == []
        again = open_buffer(after=buffer._root.name)
        state = again.state(T7)
        assert state is not None
        assert (state.rows, state.seq_last, state.seq_flushed, state.oldest_at) == (0, 10, 10, None)
        assert _logged(again, 2) == _numbered(3, 10)
        with pytest.raises(InvariantError):
            again.replication.read_log(T7, 1, rows_max=ALL)

    def test_what_was_flushed_before_is_not_in_the_log(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        _write(buffer, range(1, 11))
        _retire(buffer, 4)
        buffer.replication.retain_log("t7")
        with pytest.raises(InvariantError):
            buffer.replication.read_log(T7, 0, rows_max=ALL)
        assert _logged(buffer, 4) == _numbered(5, 10)

    def test_rows_go_once_they_are_flushed_and_let_go_of(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        buffer.replication.retain_log("t7")
        _write(buffer, range(1, 11))
        buffer.replication.truncate_log(T7, 6)
        assert _logged(buffer) == _numbered(1, 10)
        _retire(buffer, 4)
        assert _logged(buffer, 4) == _numbered(5, 10)
        _retire(buffer, 10)
        assert _logged(buffer, 6) == _numbered(7, 10)
        with pytest.raises(InvariantError, match="starts after seq 6"):
            buffer.replication.read_log(T7, 5, rows_max=ALL)
        buffer.replication.truncate_log(T7, ALL)
        assert buffer.replication.read_log(T7, 10, rows_max=ALL) is None
        assert _rows_on_disk(open_buffer(after="home")) == 0

    def test_unheld_rows_go_at_once(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        buffer.replication.retain_log("t7")
        _write(buffer, range(1, 11))
        _retire(buffer, 8)
        buffer.replication.release_log("t7")
        buffer.replication.release_log("t7")
        assert buffer.replication.retained_schemas() == frozenset()
        after = open_buffer(after="home")
        assert after.replication.retained_schemas() == frozenset()
        assert _unflushed(after) == _numbered(9, 10)
        assert _rows_on_disk(after) == 2

    def test_a_version_goes_when_its_rows_are_flushed_and_let_go_of(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        buffer.replication.retain_log("t7")
        _write(buffer, range(1, 5))
        _write_wider(buffer, range(5, 9))
        _retire(buffer, 8)
        assert [each.columns for each in _shipments(buffer)] == [EVENT_COLUMNS, WIDER]
        after = open_buffer(after="home")
        assert [each.columns for each in _shipments(after)] == [EVENT_COLUMNS, WIDER]
        buffer.replication.truncate_log(T7, 4)
        assert [each.columns for each in _shipments(buffer, 4)] == [WIDER]
        assert len(_staging_tables(open_buffer(after="home"))) == 1

    def test_rows_that_are_let_go_of_are_there_until_that_is_committed(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        buffer.replication.retain_log("t7")
        _write(buffer, range(1, 11))
        _retire(buffer, 10)
        seen: list[list[tuple[int, int]]] = []
        look = once(lambda: seen.append(_logged(open_buffer(after="home"))))
        with faults.armed("queue.before_retire", look):
            buffer.replication.truncate_log(T7, 5)
        assert seen == [_numbered(1, 10)]

    def test_a_file_from_before_there_were_holds_opens(self, open_buffer: Open, tmp_path: Path) -> None:
        with closing(open_buffer()) as buffer:
            _write(buffer, range(1, 4))
        with duckdb.connect(str(tmp_path / "home" / FILE_NAME)) as connection:
            connection.execute("DROP TABLE held_schemas")
            connection.execute("DROP TABLE table_lives")
        old = open_buffer()
        assert old.quarantined() == ()
        old.replication.retain_log("t7")
        _retire(old, 3)
        assert _logged(old) == _numbered(1, 3)

    @pytest.mark.parametrize("name", ["holds", "held_schemas", "table_lives", "meta"])
    def test_a_table_may_be_called_like_what_the_buffer_keeps(self, open_buffer: Open, name: str) -> None:
        home = open_buffer()
        _write(home, range(1, 4), TableId("main", name))
        home.replication.retain_log("main")
        after = open_buffer(after="home")
        assert after.quarantined() == ()
        assert _logged(after, table=TableId("main", name)) == _numbered(1, 3)


class TestShipment:
    def test_rows_come_in_their_order_as_many_as_may(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        _write(buffer, range(1, 6))
        found = _shipments(buffer, 1, rows_max=2)
        assert [(each.seq_first, each.seq_last) for each in found] == [(2, 3), (4, 5)]
        assert found[0].rows.column_names == ["id", "kind"]
        assert buffer.replication.read_log(T7, 5, rows_max=2) is None
        assert buffer.replication.read_log(OTHER, 0, rows_max=2) is None

    def test_a_shipment_has_the_columns_of_one_version(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        _write(buffer, range(1, 4))
        _write_wider(buffer, range(4, 6))
        assert [(each.seq_first, each.seq_last, each.columns) for each in _shipments(buffer)] == [
            (1, 3, EVENT_COLUMNS),
            (4, 5, WIDER),
        ]

    def test_defaults_are_filled_in(self, open_buffer: Open) -> None:
        columns = (EVENT_COLUMNS[0], Column(name="kind", type="VARCHAR", default="'none'"))
        buffer = open_buffer()
        buffer.append(T7, columns, event_rows(range(1, 3)).drop_columns(["kind"]), session="")
        (shipment,) = _shipments(buffer)
        assert shipment.rows["kind"].to_pylist() == ["none", "none"]

    def test_every_type_arrives_as_it_was(self, open_buffer: Open) -> None:
        home, copy = open_buffer("home"), open_buffer("copy")
        rows = arrow(
            "SELECT 1::HUGEINT AS h, uuid() AS u, '2024-01-01 00:00:00'::TIMESTAMPTZ AS z, 1.25::DECIMAL(9,2) AS d, "
            "'x'::BLOB AS b, [1, NULL] AS l, {'a': 1, 'b': 'x'} AS s, INTERVAL 1 DAY AS i, TIME '10:00:00' AS t, "
            "MAP {'k': 1} AS m, '{\"a\": 1}'::JSON AS j, '101'::BIT AS bits, 'NaN'::DOUBLE AS f"
        )
        columns = incoming.columns_of(rows.schema)
        home.append(T7, columns, rows, session="")
        copy.replication.append_replicated(_shipments(home))
        (there,), (here,) = _shipments(home), _shipments(copy)
        assert here.columns == there.columns
        assert here.rows.schema == there.rows.schema
        assert str(here.rows.to_pylist()) == str(there.rows.to_pylist())


class TestReceive:
    def test_rows_keep_the_numbers_that_they_bring(self, open_buffer: Open) -> None:
        home, copy = open_buffer("home"), open_buffer("copy")
        _write(home, range(1, 6))
        _write_wider(home, range(6, 9))
        copy.replication.append_replicated(_shipments(home))
        after = open_buffer(after="copy")
        assert [(each.seq_first, each.columns) for each in _shipments(after)] == [(1, EVENT_COLUMNS), (6, WIDER)]
        assert _unflushed(after) == _numbered(1, 8)
        assert after.replication.positions("t7") == {T7: 8}

    def test_what_is_there_is_passed_over(self, open_buffer: Open) -> None:
        copy = open_buffer()
        for first, last in ((1, 5), (1, 5), (3, 4), (2, 8), (8, 9)):
            copy.replication.append_replicated([_shipped(first, last)])
        assert _unflushed(copy) == _numbered(1, 9)
        assert _unflushed(open_buffer(after="home")) == _numbered(1, 9)

    def test_what_is_there_twice_in_one_is_passed_over(self, open_buffer: Open) -> None:
        copy = open_buffer()
        copy.replication.append_replicated([_shipped(1, 3), _shipped(1, 3), _shipped(2, 5), _shipped(6, 6)])
        assert _unflushed(copy) == _numbered(1, 6)

    def test_what_is_there_starts_no_version(self, open_buffer: Open) -> None:
        home, copy = open_buffer("home"), open_buffer("copy")
        _write(home, range(1, 4))
        _write_wider(home, range(4, 6))
        copy.replication.append_replicated(_shipments(home))
        copy.replication.append_replicated(_shipments(home)[:1])
        assert [each.columns for each in _shipments(copy)] == [EVENT_COLUMNS, WIDER]

    @pytest.mark.parametrize("size", [1, ENTRY_BYTES_MAX], ids=["journal", "file"])
    def test_rows_that_do_not_follow_are_refused_with_all_that_came_with_them(
        self, open_buffer: Open, size: int
    ) -> None:
        copy = open_buffer()
        copy.replication.append_replicated([_shipped(1, 3), _shipped(1, 1, OTHER)])
        far = _shipped(5, 5 + size // 8)
        with pytest.raises(SeqGapError) as error:
            copy.replication.append_replicated([_shipped(2, 2, OTHER), far])
        assert (error.value.facts["seq_last"], error.value.facts["table"]) == (3, str(T7))
        assert copy.replication.positions("t7") == {T7: 3, OTHER: 1}
        assert open_buffer(after="home").replication.positions("t7") == {T7: 3, OTHER: 1}
        copy.replication.append_replicated([_shipped(2, 2, OTHER), _shipped(4, 4), far])
        assert copy.replication.positions("t7") == {T7: far.seq_last, OTHER: 2}

    def test_a_table_that_is_new_here_starts_at_1(self, open_buffer: Open) -> None:
        copy = open_buffer()
        with pytest.raises(SeqGapError) as error:
            copy.replication.append_replicated([_shipped(2, 3)])
        assert error.value.facts["seq_last"] == 0
        assert copy.replication.positions("t7") == {}

    def test_numbers_go_on_behind_what_was_received(self, open_buffer: Open) -> None:
        copy = open_buffer()
        copy.replication.append_replicated([_shipped(1, 3)])
        assert copy.append(T7, EVENT_COLUMNS, event_rows(range(4, 6)), session="").seq_first == 4

    def test_nothing_is_received_of_what_was_not_committed(self, open_buffer: Open) -> None:
        copy = open_buffer()
        copy.replication.append_replicated([_shipped(1, 3)])
        with faults.armed("queue.before_ack", die), pytest.raises(Killed):
            copy.replication.append_replicated([_shipped(4, 6)])
        after = open_buffer(after="home")
        assert _unflushed(after) == _numbered(1, 3)
        after.replication.append_replicated([_shipped(4, 6)])
        assert _unflushed(after) == _numbered(1, 6)

    def test_what_was_received_and_not_acknowledged_is_passed_over(self, open_buffer: Open) -> None:
        copy = open_buffer()
        copy.replication.append_replicated([_shipped(1, 3)])
        with faults.armed("queue.after_ack", die), pytest.raises(Killed):
            copy.replication.append_replicated([_shipped(4, 6)])
        after = open_buffer(after="home")
        after.replication.append_replicated([_shipped(4, 6)])
        assert _unflushed(after) == _numbered(1, 6)

    def test_writers_of_other_tables_go_on_beside_shipments(self, open_buffer: Open) -> None:
        buffer = open_buffer()

        def write() -> None:
            for number in range(1, 51):
                _write(buffer, range(number, number + 1), T8)

        def append_replicated() -> None:
            for number in range(1, 51):
                buffer.replication.append_replicated([_shipped(number, number)])

        writers = [threading.Thread(target=target) for target in (write, append_replicated, append_replicated)]
        for each in writers:
            each.start()
        for each in writers:
            each.join()
        assert _unflushed(buffer) == _numbered(1, 50)
        assert _unflushed(buffer, T8) == _numbered(1, 50)


class TestBeginAt:
    def test_numbers_go_on_behind_it(self, open_buffer: Open) -> None:
        home = open_buffer()
        home.replication.retain_log("t7")
        home.replication.start_after(T7, EVENT_COLUMNS, 1_000)
        after = open_buffer(after="home")
        for buffer in (home, after):
            buffer.replication.start_after(T7, EVENT_COLUMNS, 1_000)
            assert buffer.replication.positions("t7") == {T7: 1_000}
            assert buffer.replication.start_seq(T7) == 1_000
            assert buffer.replication.read_log(T7, 1_000, rows_max=ALL) is None
            assert buffer.payloads() == []
            with pytest.raises(SeqGapError):
                buffer.replication.append_replicated([_shipped(1_002, 1_003)])
            buffer.replication.append_replicated([_shipped(998, 1_003)])
            assert _unflushed(buffer) == _numbered(1_001, 1_003)
            with pytest.raises(InvariantError):
                buffer.replication.read_log(T7, 999, rows_max=ALL)

    def test_it_may_be_repeated_although_rows_came_since(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        buffer.replication.start_after(T7, EVENT_COLUMNS, 5)
        buffer.replication.append_replicated([_shipped(6, 9)])
        buffer.replication.start_after(T7, EVENT_COLUMNS, 5)
        open_buffer(after="home").replication.start_after(T7, EVENT_COLUMNS, 5)
        assert _unflushed(buffer) == _numbered(6, 9)

    def test_a_table_that_was_here_before_jumps(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        buffer.replication.retain_log("t7")
        _write(buffer, range(1, 4))
        _write_wider(buffer, range(4, 6))
        _retire(buffer, 5)
        buffer.replication.start_after(T7, EVENT_COLUMNS, 20)
        buffer.replication.append_replicated([_shipped(21, 23)])
        for each in (buffer, open_buffer(after="home")):
            assert _unflushed(each) == _numbered(21, 23)
            assert _logged(each, 20) == _numbered(21, 23)
            with pytest.raises(InvariantError):
                each.replication.read_log(T7, 19, rows_max=ALL)

    def test_a_table_that_is_here_as_far_stays_as_it_is(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        buffer.replication.retain_log("t7")
        _write(buffer, range(1, 6))
        _retire(buffer, 5)
        buffer.replication.start_after(T7, EVENT_COLUMNS, 5)
        assert _logged(buffer) == _numbered(1, 5)

    @pytest.mark.parametrize("seq", [3, 5, 7])
    def test_rows_that_the_lake_lacks_are_not_jumped_over(self, open_buffer: Open, seq: int) -> None:
        buffer = open_buffer()
        _write(buffer, range(1, 6))
        with pytest.raises(StateError):
            buffer.replication.start_after(T7, EVENT_COLUMNS, seq)
        assert _unflushed(buffer) == _numbered(1, 5)

    def test_numbers_do_not_go_back(self, open_buffer: Open) -> None:
        buffer = open_buffer()
        _write(buffer, range(1, 6))
        _retire(buffer, 5)
        with pytest.raises(StateError):
            buffer.replication.start_after(T7, EVENT_COLUMNS, 4)


class TestDrop:
    def test_everything_of_the_schema_goes_and_nothing_else(self, open_buffer: Open) -> None:
        home = open_buffer()
        home.replication.retain_log("t7")
        home.replication.retain_log("t8")
        for table in (T7, OTHER, T8):
            _write(home, range(1, 6), table)
            _retire(home, 2, table)
            _write(home, range(6, 8), table)
        home.replication.drop("t7")
        for buffer in (home, open_buffer(after="home")):
            assert buffer.quarantined() == ()
            assert buffer.replication.positions("t7") == {}
            assert buffer.state(T7) is None
            assert buffer.replication.retained_schemas() == {"t8"}
            assert _logged(buffer, table=T8) == _numbered(1, 7)
            assert len(_staging_tables(buffer)) == 1
            buffer.replication.drop("t7")

    def test_a_table_that_comes_again_is_another_producer(self, open_buffer: Open) -> None:
        home = open_buffer()
        _write(home, range(1, 6))
        before, unit = home.producer(T7), home.payloads()[0]
        home.replication.drop("t7")
        assert home.producer(T7) != before
        _write(home, range(1, 4))
        home.retire(unit)
        for buffer in (home, open_buffer(after="home")):
            assert buffer.producer(T7) == home.producer(T7)
            assert buffer.producer(T8).generation == before.generation
            assert _unflushed(buffer) == _numbered(1, 3)
            assert buffer.payloads()[0].id != unit.id
        home.replication.drop("t7")
        home.replication.start_after(T7, EVENT_COLUMNS, 2)
        assert len({before, home.producer(T7), open_buffer(after="home").producer(T7), home.producer(T8)}) == 3

    def test_what_the_journal_had_of_it_does_not_come_back(self, open_buffer: Open) -> None:
        home = open_buffer()
        _write(home, range(1, 2))
        for number in range(2, 6):
            _write(home, range(number, number + 1))
        home.replication.drop("t7")
        gone = open_buffer(after="home")
        assert (gone.replication.positions("t7"), gone.quarantined()) == ({}, ())
        _write(home, range(101, 102))
        assert _unflushed(open_buffer(after="home")) == [(1, 101)]

    def test_a_drop_that_is_cut_short_may_be_repeated(self, open_buffer: Open) -> None:
        home = open_buffer()
        _write(home, range(1, 2))
        _write(home, range(2, 4))
        with faults.armed("queue.after_settle", die), pytest.raises(Killed):
            home.replication.drop("t7")
        after = open_buffer(after="home")
        assert _unflushed(after) == _numbered(1, 3)
        after.replication.drop("t7")
        assert after.replication.positions("t7") == {}


def _staging_tables(buffer: SharedBuffer) -> list[str]:
    with buffer._file.store._connection.cursor() as cursor:
        query = "SELECT table_name FROM duckdb_tables() WHERE table_name LIKE 'dq\\_%.%' ESCAPE '\\'"
        return [row[0] for row in cursor.execute(query).fetchall()]


def _rows_on_disk(buffer: SharedBuffer) -> int:
    with buffer._file.store._connection.cursor() as cursor:
        (staging,) = _staging_tables(buffer)
        (count,) = cursor.execute(f'SELECT count(*) FROM "{staging}"').fetchone() or (0,)
        return int(count)


def test_the_shared_buffer_has_the_tables_that_its_design_names(make_settings: MakeSettings) -> None:
    settings = make_settings("sqlite")
    with new_queue(settings) as queue:
        assert isinstance(queue.buffer, SharedBuffer)
        queue.enqueue(EVENTS, event_rows([1, 2]))
        queue.force_flush_all()
        queue.enqueue(EVENTS, event_rows([3]))
    with duckdb.connect(str(settings.queue_path / "buffer.duckdb"), read_only=True) as connection:
        columns = connection.execute("DESCRIBE dq_events").fetchall()
        assert [(name, kind) for name, kind, *_ in columns if name in ("dq_seq", "id", "kind")] == [
            ("dq_seq", "BIGINT"),
            ("id", "BIGINT"),
            ("kind", "VARCHAR"),
        ]
        assert connection.execute("SELECT dq_seq, id FROM dq_events").fetchall() == [(3, 3)]
        ((name, shape, flushed),) = connection.execute(
            "SELECT table_name, columns, last_flushed_seq FROM dq_meta"
        ).fetchall()
    assert (name, [column["name"] for column in json.loads(shape)], flushed) == ("events", ["id", "kind"], 2)
