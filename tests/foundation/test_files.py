"""Files: locks that end with their holder, links, durable replacements."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from catchment.errors import LockTimeoutError, StorageFailedError, StorageUnsupportedError
from catchment.foundation import files, process
from catchment.foundation.clock import SystemClock
from catchment.foundation.files import FileLock
from catchment.testing import FakeClock
from tests.shortcuts import warm

# Takes the lock named on its command line, says so, and holds it until its stdin is closed.
HOLDER = """
import sys
from pathlib import Path
from catchment.foundation.clock import SystemClock
from catchment.foundation.files import FileLock
lock = FileLock(Path(sys.argv[1]), clock=SystemClock()).take()
print("holding" if lock else "refused", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path: Path) -> FileLock:
    return FileLock(tmp_path / "locks" / "a.lock", clock=FakeClock())


@pytest.fixture
def other_process(lock: FileLock) -> Iterator[warm.Process]:
    """A second process that holds the lock."""
    process = warm.Process([sys.executable, "-c", HOLDER, str(lock.path)], stdin=warm.PIPE, stdout=warm.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        yield process
        process.kill()


@pytest.mark.usefixtures("other_process")
def test_a_lock_that_another_process_holds_is_not_free(lock: FileLock) -> None:
    assert lock.take() is None
    assert not lock.is_free()


@pytest.mark.usefixtures("other_process")
def test_waiting_for_a_lock_ends_at_the_bound_with_the_lock_s_name(tmp_path: Path, lock: FileLock) -> None:
    clock = FakeClock()
    with (
        pytest.raises(LockTimeoutError, match=r"a\.lock has been locked for 2\.5 s") as raised,
        FileLock(lock.path, clock=clock).held(timeout_s=2.5),
    ):
        pytest.fail("the lock was given to two processes")
    assert raised.value.facts == {"path": str(lock.path)}
    assert 2.5 <= clock.monotonic_s() < 2.6


def test_a_lock_is_free_once_its_holder_was_killed(lock: FileLock, other_process: warm.Process) -> None:
    assert not lock.is_free()
    other_process.send_signal(signal.SIGKILL)
    assert other_process.wait() == -signal.SIGKILL
    assert lock.is_free()


def test_a_waiter_gets_the_lock_once_its_holder_was_killed(lock: FileLock, other_process: warm.Process) -> None:
    class KillingClock(FakeClock):
        """While the lock is waited for, its holder is killed."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            other_process.kill()
            other_process.wait()

    clock = KillingClock()
    with FileLock(lock.path, clock=clock).held(timeout_s=60):
        assert not lock.is_free()
    assert len(clock.slept_s) == 1


def test_a_lock_excludes_a_second_holder_in_the_same_process(lock: FileLock) -> None:
    first = lock.take()
    assert first is not None
    assert FileLock(lock.path, clock=FakeClock()).take() is None
    first.release()
    assert lock.is_free()


def test_a_lock_is_given_back_when_the_block_fails(lock: FileLock) -> None:
    def fail() -> None:
        with lock.held(timeout_s=1):
            assert not lock.is_free()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert lock.is_free()


def test_a_lock_s_file_stays_so_that_all_lock_the_same_file(lock: FileLock) -> None:
    with lock.held(timeout_s=1):
        before = lock.path.stat().st_ino
    assert lock.path.stat().st_ino == before


def test_asking_whether_a_lock_is_free_leaves_it_free(lock: FileLock) -> None:
    assert lock.is_free()
    assert lock.is_free()


def test_a_child_process_does_not_keep_its_parent_s_lock(lock: FileLock) -> None:
    with lock.held(timeout_s=1):
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, close_fds=False)
    with child:
        assert lock.is_free()


def test_linking_a_file_gives_it_a_second_name(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("rows")
    assert files.link_or_copy(source, target) is True
    assert target.samefile(source)
    source.unlink()
    assert target.read_text() == "rows"


def test_a_file_is_copied_to_another_file_system(tmp_path: Path, other_file_system: Path) -> None:
    source, target = tmp_path / "a", other_file_system / "b"
    source.write_bytes(os.urandom(1 << 20))
    assert files.link_or_copy(source, target) is False
    assert target.read_bytes() == source.read_bytes()


def test_a_second_name_is_given_to_rows_that_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("rows")
    synced = _record_syncs(monkeypatch)
    assert files.link_or_copy(source, target) is True
    assert synced == [source.stat().st_ino]


def test_many_files_are_synced_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / str(number) for number in range(20)]
    for path in paths:
        path.write_text("rows")
    synced = _record_syncs(monkeypatch)
    assert files.sync_files(paths) == {}
    assert sorted(synced) == sorted(path.stat().st_ino for path in paths)
    assert all(files.link_or_copy(path, path.with_suffix(".linked"), is_synced=True) for path in paths)
    assert len(synced) == len(paths)


def test_of_many_files_the_one_that_cannot_be_synced_is_named(tmp_path: Path) -> None:
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.touch()
    failed = files.sync_files([there, missing])
    assert {path: error.facts for path, error in failed.items()} == {missing: {"path": str(missing)}}


def test_a_copied_file_is_durable_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("rows")
    synced = _record_syncs(monkeypatch)
    monkeypatch.setattr(os, "link", _fails_with(errno.EPERM))
    assert files.link_or_copy(source, target) is False
    assert target.read_text() == "rows"
    assert not target.samefile(source)
    assert synced[-1] == target.stat().st_ino


def test_linking_a_symbolic_link_links_its_target(tmp_path: Path) -> None:
    # Were it another symbolic link, the lake would hold no rows of its own: they would go when the
    # user's file goes.
    real, source, target = tmp_path / "real", tmp_path / "link", tmp_path / "target"
    real.write_text("rows")
    source.symlink_to(real)
    files.link_or_copy(source, target)
    real.unlink()
    assert not target.is_symlink()
    assert target.read_text() == "rows"


def test_a_name_that_is_taken_is_not_overwritten(tmp_path: Path) -> None:
    # The taken name may be a link to a file of the user's: copying over it would destroy that
    # file's content.
    source, theirs, target = tmp_path / "a", tmp_path / "theirs", tmp_path / "b"
    source.write_text("ours")
    theirs.write_text("theirs")
    os.link(theirs, target)
    with pytest.raises(StorageFailedError):
        files.link_or_copy(source, target)
    assert theirs.read_text() == "theirs"


def test_a_file_that_is_missing_is_not_linked(tmp_path: Path) -> None:
    with pytest.raises(StorageFailedError, match=str(tmp_path / "missing")) as raised:
        files.link_or_copy(tmp_path / "missing", tmp_path / "b")
    assert raised.value.facts == {"path": str(tmp_path / "missing")}
    assert list(tmp_path.iterdir()) == []


def test_folders_are_made_durable_from_the_inside_out_up_to_the_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "a" / "b" / "c"
    files.make_folder(inner)
    synced = _record_syncs(monkeypatch)
    files.sync_folders_up([inner], to=tmp_path / "a")
    assert synced == [path.stat().st_ino for path in (inner, inner.parent, tmp_path / "a")]


def test_folders_outside_the_one_named_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    synced = _record_syncs(monkeypatch)
    files.sync_folders_up([tmp_path / "a"], to=tmp_path / "b")
    assert synced == [(tmp_path / "a").stat().st_ino]


def test_folders_without_files_go_and_those_with_files_stay(tmp_path: Path) -> None:
    root = tmp_path / "root"
    files.make_folder(root / "empty" / "deeper")
    files.make_folder(root / "full" / "empty")
    (root / "full" / "file").touch()
    files.remove_empty_folders(root)
    assert sorted(tmp_path.rglob("*")) == [root, root / "full", root / "full" / "file"]
    (root / "full" / "file").unlink()
    files.remove_empty_folders(root)
    assert list(tmp_path.iterdir()) == []


def test_removing_a_missing_file_succeeds(tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    files.make_folder(folder / "deeper")
    (folder / "deeper" / "file").touch()
    file.touch()
    for _ in range(2):
        files.remove(file)
        files.remove_tree(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("/data/a.parquet", "/data/a.parquet"),
        ("data/a.parquet", "data/a.parquet"),
        ("/data/a b#c?d%20e", "/data/a b#c?d%20e"),
        ("/data/day=12:30/a", "/data/day=12:30/a"),
        ("12:30/a", "12:30/a"),
        ("file:///data/a%20b", "/data/a b"),
        ("FILE:///data/a", "/data/a"),
    ],
)
def test_a_local_uri_is_a_path(uri: str, path: str) -> None:
    assert files.local_path(uri) == Path(path)


@pytest.mark.parametrize("uri", ["s3://bucket/data", "gs://bucket", "https://host/a"])
def test_storage_that_is_not_local_is_refused_by_its_name_with_what_to_do(uri: str) -> None:
    with pytest.raises(StorageUnsupportedError, match=uri.partition(":")[0]) as raised:
        files.local_path(uri)
    assert raised.value.hint


def test_free_space_is_known_before_the_folder_exists(tmp_path: Path) -> None:
    assert files.free_bytes(tmp_path / "not" / "yet") > 0


def test_the_lock_of_the_machine_s_clock_waits_no_longer_than_asked(lock: FileLock) -> None:
    with (
        lock.held(timeout_s=1),
        pytest.raises(LockTimeoutError),
        FileLock(lock.path, clock=SystemClock()).held(timeout_s=0),
    ):
        pytest.fail("the lock was given twice")


def _fails_with(number: int) -> Callable[..., None]:
    """A system call that fails."""

    def call(*_: object, **__: object) -> None:
        raise OSError(number, "a fault of the test's")

    return call


def _record_syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes that are synced from now on, in order."""
    synced: list[int] = []

    def record(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "fdatasync", record)
    return synced


def test_a_private_file_is_readable_by_its_owner_alone_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "private"
    (tmp_path / "private.new").touch(mode=0o666)
    files.replace_text(path, "first", private=True)
    files.replace_text(path, "second", private=True)
    assert path.read_text() == "second"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_process_has_a_start_that_no_other_with_its_number_has() -> None:
    assert process.start_tick(os.getpid()) == process.start_tick(os.getpid())
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert process.start_tick(ended.pid) is None


def test_a_process_that_has_ended_does_not_run_even_if_its_parent_has_not_collected_it() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{ended.pid}").is_dir()
        assert process.start_tick(ended.pid) is None
