"""The commit lock, and the error of writers that wait for it in vain."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from catchment.errors import LockTimeoutError
from catchment.lake import advisory
from catchment.lake.advisory import AdvisoryLock
from catchment.lake.locks import CommitLock, SharedFileLock
from catchment.testing import FakeClock
from catchment.testing.postgres import EmbeddedPostgres

MakeLock = Callable[[], CommitLock]
HELD = rf"held by a flush in process {os.getpid()}( on [\d.]+)? since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.fixture(params=["file", "postgres"])
def make_lock(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeLock]:
    """Locks of one lake, each as in a process of its own."""
    with ExitStack() as opened:
        if request.param == "file":
            yield lambda: SharedFileLock(tmp_path / "catalog.sqlite.lock", clock=FakeClock())
        else:
            postgres: EmbeddedPostgres = request.getfixturevalue("postgres")
            conninfo = postgres.new_database()
            yield lambda: opened.enter_context(closing(AdvisoryLock(conninfo)))


def test_a_writer_of_another_process_sees_who_holds_the_lock_and_since_when(make_lock: MakeLock) -> None:
    holding, waiting = make_lock(), make_lock()
    with (
        holding.held(1, "a flush"),
        pytest.raises(LockTimeoutError, match=HELD),
        waiting.held(0.01, "maintenance"),
    ):
        pass
    with waiting.held(1, "maintenance"):
        pass


def test_a_thread_of_the_same_process_sees_it_too(make_lock: MakeLock) -> None:
    lock = make_lock()
    with (
        lock.held(1, "a flush"),
        pytest.raises(LockTimeoutError, match=HELD.replace("( on [\\d.]+)?", "")),
        lock.held(0.01),
    ):
        pass


def test_the_holder_is_forgotten_when_the_lock_is_free(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite.lock"
    lock = SharedFileLock(path, clock=FakeClock())
    with lock.held(1, "a flush"):
        assert re.match("a flush in process", path.read_text())
    assert path.read_text() == ""


def test_a_holder_that_does_not_say_who_it_is_is_another_client(postgres: EmbeddedPostgres) -> None:
    import psycopg

    conninfo = postgres.new_database()
    with psycopg.connect(conninfo, autocommit=True) as other, closing(AdvisoryLock(conninfo)) as lock:
        other.execute("SELECT pg_advisory_lock(%s)", (0x43415443484D,))
        with pytest.raises(LockTimeoutError, match="held by another client"), lock.held(0.01, "a flush"):
            pass


@pytest.mark.parametrize("make_lock", ["postgres"], indirect=True)
@pytest.mark.parametrize("query", ["SELECT 1 WHERE %s < 0", "SELECT %s / 0"], ids=["released since", "fails"])
def test_the_wait_for_a_lock_ends_with_the_same_error_if_its_holder_cannot_be_found(
    query: str, make_lock: MakeLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding, waiting = make_lock(), make_lock()
    monkeypatch.setattr(advisory, "_HOLDER", query)
    with (
        holding.held(1, "a flush"),
        pytest.raises(LockTimeoutError, match="held by another client of the catalog"),
        waiting.held(0.01, "maintenance"),
    ):
        pass
