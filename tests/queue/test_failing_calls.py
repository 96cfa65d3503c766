"""The nth call fails, for n = 1, 2, 3 … until none is hit: of the file system, of DuckDB under the
buffer and the lake.

Whatever fails, the queue goes on without being opened again, and every acknowledged row is in the
lake exactly once.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from catchment.errors import CatchmentError
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.queue import DqCoordinator, open_buffer
from catchment.testing import FakeClock
from tests.conftest import MakeSettings
from tests.queue.queues import LAYOUTS_ON_DISK, assert_drained, coordinator, event_rows, ids_in
from tests.sample_events import EVENTS
from tests.shortcuts.made_lakes import put_lake

# Every call of a file operation that changes something, where `catchment.foundation.files` makes
# it.
FILE_CALLS: tuple[tuple[Any, str], ...] = (
    (os, "fsync"),
    (os, "fdatasync"),
    (os, "pwrite"),
    (os, "link"),
    (shutil, "rmtree"),
    (Path, "mkdir"),
    (Path, "rename"),
    (Path, "unlink"),
    (Path, "write_text"),
    (pa, "OSFile"),
)
BATCH = 10
STRIDE = 7


class Nth:
    """Fails one call, the nth."""

    def __init__(self, nth: int, error: Callable[[], Exception]) -> None:
        self._nth = nth
        self._error = error
        self._calls = 0
        self._over = False
        self.hit = False

    def call(self, undo: Callable[[], object] = lambda: None) -> None:
        self._calls += 1
        if self._calls == self._nth and not self._over:
            self.hit = True
            undo()
            raise self._error()

    def stop(self) -> None:
        """Connections outlive the trouble; from now on nothing fails."""
        self._over = True


class Connection:
    """A DuckDB connection whose statements are counted, with all that is made from it."""

    def __init__(self, real: duckdb.DuckDBPyConnection, nth: Nth) -> None:
        self._real = real
        self._nth = nth

    def execute(self, statement: str, *arguments: Any, **options: Any) -> Any:
        # A COMMIT that fails leaves no open transaction.
        undo = (lambda: self._real.execute("ROLLBACK")) if statement == "COMMIT" else (lambda: None)
        if statement != "ROLLBACK":
            self._nth.call(undo)
        result = self._real.execute(statement, *arguments, **options)
        return self if result is self._real else result

    def cursor(self) -> "Connection":
        return Connection(self._real.cursor(), self._nth)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._real.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextmanager
def _failing_file_calls(nth: int) -> Iterator[Nth]:
    counter = Nth(nth, lambda: OSError(errno.ENOSPC, "No space left on device"))

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counter.call()
            return real(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in FILE_CALLS:
            patch.setattr(owner, name, counted(getattr(owner, name)))
        yield counter
        counter.stop()


@contextmanager
def _failing_statements(nth: int) -> Iterator[Nth]:
    counter = Nth(nth, lambda: duckdb.IOException("IO Error: Could not write file: No space left on device"))
    connect = duckdb.connect

    def connected(*arguments: Any, **options: Any) -> Connection:
        return Connection(connect(*arguments, **options), counter)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duckdb, "connect", connected)
        yield counter
        counter.stop()


FAILURES = {"files": _failing_file_calls, "statements": _failing_statements}


class Story:
    """One queue root and one lake through all failures; each try writes rows of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._numbers = count()
        self._acked: set[int] = set()
        self._tried: set[int] = set()
        put_lake(settings, events=True)

    def try_with(self, failing: Callable[[int], Any], nth: int) -> bool:
        """Write, flush and write while the nth call fails; return whether there was one."""
        # Waits for a retry take no time.
        with Lake.from_settings(self._settings, clock=FakeClock(SystemClock().now())) as lake:
            with failing(nth) as counter:
                queue = self._opened(lake)
                if queue is not None:
                    for session in ("one", "two", "one"):
                        self._enqueue(queue, session, must=False)
                    self._flush(queue)
                    self._enqueue(queue, "one", must=False)
            queue = queue or coordinator(self._settings, lake, open_buffer(self._settings, clock=SystemClock()))
            # Without being opened again.
            for session in ("one", "two"):
                self._enqueue(queue, session, must=True)
            queue.force_flush_all()
            self._assert_once(lake)
            queue.buffer.close()
            buffer = open_buffer(self._settings, clock=SystemClock())
            assert_drained(coordinator(self._settings, lake, buffer))
            buffer.close()
            return bool(counter.hit)

    def _opened(self, lake: Lake) -> DqCoordinator | None:
        try:
            buffer = open_buffer(self._settings, clock=SystemClock())
        except CatchmentError:
            return None
        return coordinator(self._settings, lake, buffer)

    def _enqueue(self, queue: DqCoordinator, session: str, *, must: bool) -> None:
        first = next(self._numbers) * BATCH
        ids = range(first, first + BATCH)
        self._tried.update(ids)
        try:
            queue.enqueue(EVENTS, event_rows(ids), session=session)
        except CatchmentError:
            if must:
                raise
        else:
            self._acked.update(ids)

    def _flush(self, queue: DqCoordinator) -> None:
        try:
            queue.force_flush_all()
        except CatchmentError:
            # The caller gets an error and no row is lost: more is not required here.
            return

    def _assert_once(self, lake: Lake) -> None:
        found = ids_in(lake)
        assert len(found) == len(set(found)), sorted(n for n in set(found) if found.count(n) > 1)
        assert self._acked <= set(found), sorted(self._acked - set(found))
        assert set(found) <= self._tried


def _sweep(settings: Settings, what: str, *, stride: int) -> None:
    story = Story(settings)
    for nth in count(1, stride):
        if not _told_with(story, what, nth):
            assert nth > 1
            return


def _told_with(story: Story, what: str, nth: int) -> bool:
    try:
        return story.try_with(FAILURES[what], nth)
    except BaseException as error:
        error.add_note(f"call {nth} of {what} failed")
        raise


@pytest.mark.parametrize("what", FAILURES)
@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_a_queue_whose_nth_call_fails_has_every_acknowledged_row_exactly_once(
    layout: str, what: str, make_settings: MakeSettings
) -> None:
    _sweep(make_settings("sqlite", queue_layout=layout), what, stride=STRIDE)


@pytest.mark.soak
@pytest.mark.parametrize("what", FAILURES)
@pytest.mark.parametrize("layout", LAYOUTS_ON_DISK)
def test_a_queue_whose_nth_call_fails_for_every_n_has_every_acknowledged_row_exactly_once(
    layout: str, what: str, make_settings: MakeSettings
) -> None:
    _sweep(make_settings("sqlite", queue_layout=layout), what, stride=1)
