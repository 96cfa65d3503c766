"""The buffer's disk is full: writes fail, the status says so, and space is enough to continue.

A limit on the size of files stands in for the disk: the system refuses DuckDB's writes and ours in
the same places.
"""

import resource
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from adbc_driver_manager import OperationalError
from prometheus_client.parser import text_string_to_metric_families

from catchment.errors import CommitUnknownError, DiskFullError, StorageFailedError
from catchment.foundation import server_file
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import MIB, Settings
from catchment.queue import DqCoordinator, open_buffer
from catchment.queue.shared.buffer_file import BufferFile
from catchment.queue.shared.shared_buffer import SharedBuffer
from catchment.queue.store.store import Store
from tests.conftest import MakeSettings
from tests.queue.queues import LAYOUTS_ON_DISK, assert_drained, event_rows, ids_in, new_queue, segments_in
from tests.sample_events import EVENTS
from tests.server.server_process import ServerProcess, serving

SMALL, LARGE = 500, 20_000
# Several megabytes in one statement, which no group of small writes comes to.
MANY = "INSERT INTO duckling_queue.events SELECT range, md5(range::VARCHAR) FROM range(100000)"


@contextmanager
def no_file_beyond(size: int, *, pid: int = 0) -> Iterator[None]:
    """Let files of the process grow no larger than that."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


class Writer:
    """Writes rows that are never the same, and keeps count of what became of them."""

    def __init__(self, queue: DqCoordinator, *, rows: int, first: int = 0) -> None:
        self._queue = queue
        self._rows = rows
        self._firsts = count(first, rows)
        self.acked: set[int] = set()
        self.unknown: set[int] = set()

    def write(self) -> None:
        first = next(self._firsts)
        ids = range(first, first + self._rows)
        try:
            self._queue.enqueue(EVENTS, event_rows(ids))
        except CommitUnknownError:
            self.unknown.update(ids)
            raise
        self.acked.update(ids)

    def fill(self) -> Exception:
        """Write until that fails."""
        while True:
            try:
                self.write()
            except (DiskFullError, CommitUnknownError) as error:
                return error


def _fresh(queue: DqCoordinator) -> set[int]:
    """The ids that a fresh read sees, each once."""
    with queue.fresh(EVENTS) as fresh:
        found = fresh.rows()["id"].to_pylist()
    assert len(found) == len(set(found))
    return set(found)


def _names(settings: Settings, *folders: str) -> list[str]:
    return [path.name for path in segments_in(settings.queue_path, *folders)]


@pytest.mark.parametrize("rows", [SMALL, LARGE])
@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_once_there_is_room_the_very_next_write_goes_through_and_every_acknowledged_row_is_there(
    layout: str, rows: int, make_settings: MakeSettings
) -> None:
    with new_queue(make_settings("sqlite", queue_layout=layout)) as queue:
        writer = Writer(queue, rows=rows)
        writer.write()
        queue.require_writable()
        with no_file_beyond(2 * MIB):
            writer.fill()
            with pytest.raises(DiskFullError, match="cannot take writes: No space is left on the device"):
                queue.require_writable()
            # What is buffered can still be asked for.
            assert sum(each.state.rows for each in queue.status().tables) == len(writer.acked)
            assert writer.acked <= _fresh(queue) <= writer.acked | writer.unknown
        assert writer.acked <= _fresh(queue) <= writer.acked | writer.unknown
        writer.write()
        queue.require_writable()
        queue.force_flush_all()
        found = ids_in(queue.lake)
        assert len(found) == len(set(found))
        assert writer.acked <= set(found) <= writer.acked | writer.unknown
        assert_drained(queue)


def test_a_session_goes_on_in_its_file_while_the_disk_is_full_and_after_it(make_settings: MakeSettings) -> None:
    settings = make_settings("sqlite", queue_layout="sessions")
    with new_queue(settings) as queue:
        writer = Writer(queue, rows=LARGE)
        writer.write()
        file, *_ = segments_in(settings.queue_path, "active")
        with no_file_beyond(2 * MIB):
            told = [writer.fill() for _ in range(4)]
            # The file says that none of the rows was kept, and no try left another file.
            assert {type(each) for each in told} == {DiskFullError}
            assert {each.removesuffix(".wal") for each in _names(settings, "active")} == {file.name}
            with pytest.raises(StorageFailedError, match="1 segments cannot be sealed now"):
                queue.force_flush_all()
            assert _fresh(queue) == writer.acked
        writer.write()
        assert {each.removesuffix(".wal") for each in _names(settings, "active")} == {file.name}
        queue.force_flush_all()
        assert _names(settings, "active", "sealed") == []
        assert set(ids_in(queue.lake)) == writer.acked
        assert_drained(queue)


def test_a_session_whose_first_file_finds_no_room_leaves_none_and_gets_one_later(make_settings: MakeSettings) -> None:
    settings = make_settings("sqlite", queue_layout="sessions")
    with new_queue(settings) as queue:
        writer = Writer(queue, rows=SMALL)
        # The lake is on the same disk, and is asked before the limit.
        queue.columns(EVENTS)
        with no_file_beyond(64):
            assert {type(writer.fill()) for _ in range(3)} == {DiskFullError}
            assert _names(settings, "active", "leases") == []
        writer.write()
        assert _fresh(queue) == writer.acked
        queue.force_flush_all()
        assert set(ids_in(queue.lake)) == writer.acked


def test_a_session_that_ends_on_a_full_disk_is_sealed_by_a_sweep_once_there_is_room(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings("sqlite", queue_layout="sessions")
    with new_queue(settings) as queue:
        writer = Writer(queue, rows=LARGE)
        with no_file_beyond(2 * MIB):
            writer.fill()
            queue.end_session("default")
            assert _fresh(queue) == writer.acked
        queue.buffer.sweep()
        assert _names(settings, "active") == []
        assert _fresh(queue) == writer.acked


def test_every_write_to_a_full_disk_fails_as_not_kept_or_as_unknown(
    make_settings: MakeSettings,
) -> None:
    with new_queue(make_settings("sqlite")) as queue:
        writer = Writer(queue, rows=LARGE)
        with no_file_beyond(2 * MIB):
            told = [writer.fill() for _ in range(4)]
        # Only the file shows whether the first was kept, unless it cannot be opened. The others
        # were not.
        assert {type(each) for each in told[1:]} == {DiskFullError}
        writer.write()
        queue.force_flush_all()
        assert writer.acked <= set(ids_in(queue.lake)) <= writer.acked | writer.unknown


def test_a_buffer_that_cannot_be_reopened_is_reopened_by_the_first_write_for_which_there_is_space(
    make_settings: MakeSettings,
) -> None:
    with new_queue(make_settings("sqlite")) as queue:
        large, small = Writer(queue, rows=LARGE), Writer(queue, rows=SMALL, first=10 * LARGE)
        large.write()
        # Only the journal has these: opening the file settles them, for which there is no space.
        small.write()
        with no_file_beyond(MIB // 16):
            assert isinstance(large.fill(), CommitUnknownError)
            assert isinstance(large.fill(), DiskFullError)
            assert isinstance(small.fill(), DiskFullError)
            assert sum(each.state.rows for each in queue.status().tables) == LARGE + SMALL
            with pytest.raises(DiskFullError):
                queue.buffer.buffered_rows(EVENTS)
        small.write()
        queue.force_flush_all()
        acked = large.acked | small.acked
        assert acked <= set(ids_in(queue.lake)) <= acked | large.unknown
        assert_drained(queue)


def test_a_write_after_which_its_file_cannot_be_reopened_has_an_unknown_outcome(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_queue(make_settings("sqlite")) as queue:
        writer = Writer(queue, rows=SMALL)
        writer.write()
        open_file = BufferFile._open_file
        openings = iter([False, True, False])

        def unknown(*_: object) -> None:
            raise CommitUnknownError

        def sometimes(file: BufferFile) -> Store:
            if not next(openings):
                raise DiskFullError
            return open_file(file)

        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", unknown)
            patch.setattr(BufferFile, "_open_file", sometimes)
            for _ in range(2):
                with pytest.raises(CommitUnknownError):
                    writer.write()
        writer.write()
        queue.force_flush_all()
        assert writer.acked <= set(ids_in(queue.lake)) <= writer.acked | writer.unknown


def test_a_kill_after_the_disk_was_full_loses_nothing_that_was_acknowledged_since(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings("sqlite")
    with new_queue(settings) as queue:
        writer = Writer(queue, rows=SMALL)
        with no_file_beyond(2 * MIB):
            writer.fill()
            writer.fill()
        writer.write()
        shutil.copytree(settings.queue_path, tmp_path / "killed")
    survivor = open_buffer(make_settings("sqlite", queue_root=tmp_path / "killed"), clock=SystemClock())
    found = [number for held in survivor.buffered_rows(EVENTS) for number in held.rows.column("id").to_pylist()]
    survivor.close()
    assert len(found) == len(set(found))
    assert writer.acked <= set(found) <= writer.acked | writer.unknown


def test_a_checkpoint_that_finds_the_disk_full_does_not_keep_the_buffer_from_its_next_write(
    make_settings: MakeSettings,
) -> None:
    with new_queue(make_settings("sqlite")) as queue:
        Writer(queue, rows=400_000).write()
    # Closed, the file has them; from now on its WAL grows, and a checkpoint has to make the file
    # larger.
    settings = make_settings("sqlite", queue_max_db_bytes=4 * MIB)
    buffer = SharedBuffer.from_settings(settings, clock=SystemClock())
    columns = buffer.columns(EVENTS, "")
    assert columns is not None
    more = 40_000
    buffer.append(EVENTS, columns, event_rows(range(400_000, 400_000 + more)), session="")
    wal, file = (settings.queue_path / name for name in ("buffer.duckdb.wal", "buffer.duckdb"))
    assert wal.stat().st_size < file.stat().st_size
    payload = buffer.payloads()[0]
    with no_file_beyond(file.stat().st_size), pytest.raises(DiskFullError):
        buffer.retire(payload)
    ack = buffer.append(EVENTS, columns, event_rows([1_000_000]), session="")
    assert ack.seq_first == 400_000 + more + 1
    found = [number for held in buffer.buffered_rows(EVENTS) for number in held.rows.column("id").to_pylist()]
    assert len(found) == len(set(found))
    assert set(found) >= {*range(payload.rows, 400_000 + more), 1_000_000}
    buffer.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with serving(tmp_path / "home", CATCHMENT_SERVER_WEB_PORT="0") as started:
        yield started


def _web(server: ServerProcess, path: str) -> str:
    found = server_file.find(server.settings)
    assert found is not None
    with urllib.request.urlopen(f"{found.web}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def _gauges(server: ServerProcess) -> dict[tuple[str, Any], float]:
    families = text_string_to_metric_families(_web(server, "/metrics"))
    return {(each.name, each.labels.get("part")): each.value for family in families for each in family.samples}


def test_a_server_whose_disk_is_full_says_so_to_writers_and_in_its_status(server: ServerProcess) -> None:
    with server.cursor() as cursor:
        cursor.execute("CREATE TABLE events (id BIGINT, kind VARCHAR)")
        cursor.execute("INSERT INTO duckling_queue.events VALUES (-1, 'before')")
        with no_file_beyond(2 * MIB, pid=server.pid):
            # What a driver takes for trouble of the server, and not of the statement.
            with pytest.raises(OperationalError) as told:
                cursor.execute(MANY)
            message = str(told.value)
            assert "Unavailable" in message
            assert "No space is left on the device that contains" in message
            assert "Free space on that disk" in message
            assert "quarantined files" not in message
            assert _web(server, "/healthz") == "degraded\n"
            assert '"The queue cannot accept writes: no space is left on the device."' in _web(server, "/status.json")
            gauges = _gauges(server)
            assert gauges["catchment_healthy", None] == 0
            assert gauges["catchment_part_available", "queue"] == 0
        cursor.execute(MANY)
        assert _web(server, "/healthz") == "ok\n"
        assert _gauges(server)["catchment_part_available", "queue"] == 1
    found = server.rows("SELECT count(*), count(DISTINCT id) FROM catchment_fresh.events")
    assert found == [(100_001, 100_001)]
    assert "writes_refused" in server.said
