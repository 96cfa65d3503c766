"""Files and folders: durable renames, links, and locks that end with their process.

No other module renames or syncs files.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from urllib.parse import unquote, urlsplit

from catchment.errors import CommitUnknownError, LockTimeoutError, StorageFailedError, StorageUnsupportedError
from catchment.foundation.clock import Clock

_LOCK_POLL_S = 0.005
# The operating system's `struct flock`: kind, whence, start, length, process.
_LOCK_FORM = "hhqqi4x"
_SYNCS_AT_ONCE_MAX = 8


def local_path(uri: str) -> Path:
    """Return the local path of a URI; a path without a scheme is local."""
    if "://" not in uri:
        return Path(uri)
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise StorageUnsupportedError(
            f"{parts.scheme}:// storage is not supported here.", hint="Use a local path or a mounted file system."
        )
    return Path(unquote(parts.path))


def real_path(path: str) -> str:
    """Resolve links and relative parts; half the cost of `Path.resolve`."""
    return os.path.realpath(path)


def real_paths(paths: Iterable[str]) -> list[str]:
    """Apply `real_path` to each of many paths; shared parents are resolved once."""
    known: dict[str, str] = {}

    def real(path: str) -> str:
        if path not in known:
            parent, name = os.path.split(path)
            plain = name and parent != path and name != ".." and not os.path.islink(path)  # noqa: PTH114
            known[path] = os.path.join(real(parent), name) if plain else os.path.realpath(path)  # noqa: PTH118
        return known[path]

    return [real(path) for path in paths]


def is_text(name: str) -> bool:
    """Return whether a file name is valid UTF-8; others cannot be part of SQL or a report."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def sync_file(path: Path) -> None:
    """Make the file's content durable."""
    _sync(path, os.O_RDONLY, os.fdatasync)


def sync_files(paths: Sequence[Path]) -> dict[Path, StorageFailedError]:
    """Sync many files, several at once: concurrent syncs share one flush of the disk.

    Returns the failures. They must not be retried: after reporting a lost write once, the system
    lets the next sync of the file succeed.
    """
    failed: dict[Path, StorageFailedError] = {}
    if not paths:
        return failed

    def sync_share(first: int) -> None:
        for path in paths[first::_SYNCS_AT_ONCE_MAX]:
            try:
                sync_file(path)
            except StorageFailedError as error:
                failed[path] = error

    # One share of the files per thread: submitting each file separately takes longer than syncing
    # it on a fast disk.
    with ThreadPoolExecutor(_SYNCS_AT_ONCE_MAX) as pool:
        list(pool.map(sync_share, range(_SYNCS_AT_ONCE_MAX)))
    return failed


def sync_folder(path: Path) -> None:
    """Make the folder's entries (creations, renames, removals) durable."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY, os.fsync)


def sync_folders_up(paths: Iterable[Path], *, to: Path) -> None:
    """Make folders and their parents up to `to` durable, innermost first."""
    found: set[Path] = set()
    for path in paths:
        folder = path
        while folder not in found:
            found.add(folder)
            if folder == to or to not in folder.parents:
                break
            folder = folder.parent
    if not found:
        return
    # Concurrent syncs share one write of the file system's journal: several times as fast as one by
    # one.
    with ThreadPoolExecutor(_SYNCS_AT_ONCE_MAX) as pool:
        for _, level in groupby(sorted(found, key=_height), key=_height):
            list(pool.map(sync_folder, level))


@contextmanager
def syncing_new(folders: Iterable[Path], suffix: str, *, to: Path) -> Iterator[None]:
    """If the block succeeds, make the files created in the folders during it durable."""
    before = {folder: names_below(folder, suffix) for folder in folders}
    yield
    made = [folder / name for folder, there in before.items() for name in names_below(folder, suffix) - there]
    for error in sync_files(made).values():
        raise error
    sync_folders_up((path.parent for path in made), to=to)


def _height(path: Path) -> int:
    return -len(path.parts)


def make_folder(path: Path) -> None:
    """Create the folder and its parents, if missing."""
    with _failing(path):
        path.mkdir(parents=True, exist_ok=True)


def move(source: Path, target: Path) -> None:
    """Rename within a file system; the caller syncs the folders afterwards."""
    with _failing(source):
        source.rename(target)


def move_within(source: Path, target: Path) -> bool:
    """Rename if both paths are on one file system; otherwise return False and do nothing."""
    try:
        move(source, target)
    except StorageFailedError as error:
        # A mount point is busy, and belongs to another file system.
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.EXDEV, errno.EBUSY):
            return False
        raise
    return True


def copy_checked(source: Path, target: Path) -> None:
    """Copy a file with its times, durably; the copy gets its name after it is verified to be equal."""
    part = target.with_name(f"{target.name}.copying")
    with _failing(source):
        shutil.copy2(source, part, follow_symlinks=False)
        if not part.is_symlink():
            sync_file(part)
            if content_hash(part) != content_hash(source):
                raise StorageFailedError(f"The copy of {source} differs from it.", path=str(source))
        part.replace(target)


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with _failing(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def link_or_copy(source: Path, target: Path, *, is_synced: bool = False) -> bool:
    """Hard-link `source` as `target`, durably, or copy it; return True if linked."""
    with _failing(source):
        # Resolved first: a link to a symbolic link would break when the user's file is deleted.
        real = Path(os.path.realpath(source, strict=True))
        # Synced before it is linked: the content must be durable whichever process wrote it, and a
        # link makes syncing more expensive.
        if not is_synced:
            sync_file(real)
        try:
            os.link(real, target)
        except FileExistsError:
            raise
        except OSError:
            shutil.copyfile(real, target)
            sync_file(target)
            return False
    return True


def names_below(folder: Path, suffix: str) -> frozenset[str]:
    """List the files with that suffix below the folder, by relative path."""
    found = (os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)  # noqa: PTH118
    return frozenset(path.removeprefix(f"{folder}/") for path in found if path.endswith(suffix))


def remove(path: Path) -> None:
    """Delete one file, if it exists."""
    with _failing(path):
        path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Delete a folder with its content, if it exists."""
    if path.exists():
        with _failing(path):
            shutil.rmtree(path)


def remove_empty_folders(path: Path) -> None:
    """Delete the folder and its sub-folders, except those that contain files."""
    for folder, _, _ in os.walk(path, topdown=False):
        if not os.listdir(folder) and not os.path.ismount(folder):  # noqa: PTH208 - an iterator would have to be closed
            with _failing(path):
                Path(folder).rmdir()


def write_text(path: Path, text: str) -> None:
    """Write a small file; durable after its folder is synced."""
    with _failing(path):
        path.write_text(text, encoding="utf-8")
    sync_file(path)


def replace_text(path: Path, text: str, *, private: bool = False) -> None:
    """Replace a small file atomically and durably: a reader sees the old text or the new one.

    A `private` file is readable by this user only, from its creation.
    """
    part = path.with_name(f"{path.name}.new")
    if private:
        # A leftover of a killed process may be readable by others.
        remove(part)
        with _failing(part):
            part.touch(mode=0o600, exist_ok=False)
    write_text(part, text)
    with _failing(path):
        part.replace(path)
    sync_folder(path.parent)


def append_line(path: Path, line: str) -> None:
    """Append a line to a text log; not synced."""
    with _failing(path), path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def overwrite(path: Path, start: int, content: bytes) -> None:
    """Overwrite part of a file's content in place, with the same number of bytes."""
    with _failing(path), path.open("r+b") as file:
        file.seek(start)
        file.write(content)


def size_of(path: Path) -> int:
    """Return the size of the file; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def free_bytes(path: Path) -> int:
    """Return the free space on the file system of `path`, which need not exist yet."""
    return shutil.disk_usage(nearest(path)).free


def same_device(one: Path, other: Path) -> bool:
    """Return whether two paths are, or will be, on one file system."""
    return nearest(one).stat().st_dev == nearest(other).stat().st_dev


def nearest(path: Path) -> Path:
    """Return the path, or its closest existing parent."""
    return next(candidate for candidate in (path.absolute(), *path.absolute().parents) if candidate.exists())


class SyncedFile:
    """An open file that is written in place; synced content survives a power cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _failing(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def read(self) -> bytes:
        """Read the whole file."""
        with _failing(self.path):
            return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def write(self, start: int, content: bytes) -> None:
        """Write the content at the position; durable after `sync`."""
        with _failing(self.path):
            done = 0
            while done < len(content):
                done += os.pwrite(self._descriptor, content[done:] if done else content, start + done)

    def sync(self) -> None:
        """Make the written content durable.

        After CommitUnknownError, it is unknown which writes were kept until the file is read again.
        """
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise CommitUnknownError(f"{self.path} may or may not contain the write: {error}") from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class FileLock:
    """An exclusive lock on a file, released by the system when the process ends.

    The file stays: removing it would let two processes hold locks on two files of the same name.
    """

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self.path = path
        self._clock = clock

    @contextmanager
    def held(self, *, timeout_s: float, note: str = "") -> Iterator[None]:
        """Hold the lock inside the context; LockTimeoutError after `timeout_s`.

        While it is held, the file contains the `note`, for processes that wait.
        """
        descriptor = self._open()
        try:
            give_up_at = self._clock.monotonic_s() + timeout_s
            while not _try_lock(descriptor):
                if self._clock.monotonic_s() >= give_up_at:
                    raise LockTimeoutError(f"{self.path} has been locked for {timeout_s:g} s.", path=str(self.path))
                self._clock.sleep(_LOCK_POLL_S)
            if note:
                _replace_text(descriptor, note)
            try:
                yield
            finally:
                if note:
                    _replace_text(descriptor, "")
        finally:
            os.close(descriptor)

    def note(self) -> str:
        """Return the note of the lock's holder; empty if it left none."""
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""

    def take(self) -> "HeldLock | None":
        """Return the lock, or None if another process holds it."""
        descriptor = self._open()
        if _try_lock(descriptor):
            return HeldLock(descriptor)
        os.close(descriptor)
        return None

    def is_free(self) -> bool:
        """Whether the lock is free at this moment; does not create the file."""
        if not self.path.exists():
            return True
        lock = self.take()
        if lock is None:
            return False
        lock.release()
        return True

    def _open(self) -> int:
        make_folder(self.path.parent)
        with _failing(self.path):
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


class HeldLock:
    """A lock that is held."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Release the lock; calling it twice is harmless."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _replace_text(descriptor: int, text: str) -> None:
    # On a full disk, the lock works without its note.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class SharedFile:
    """An open file with shared locks on single bytes, which also exclude this process's own locks.

    Closing it ends all POSIX locks that this process has on the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _failing(path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def head(self, count: int) -> bytes:
        """Read the first bytes."""
        with _failing(self._path):
            return os.pread(self._descriptor, count, 0)

    def share(self, at: int) -> bool:
        """Lock one byte, shared; False if it is locked exclusively, or locks are not supported."""
        set_lock = getattr(fcntl, "F_OFD_SETLK", None)
        if set_lock is None:
            return False
        try:
            fcntl.fcntl(self._descriptor, set_lock, struct.pack(_LOCK_FORM, fcntl.F_RDLCK, os.SEEK_SET, at, 1, 0))
        except OSError:
            return False
        return True

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def _failing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailedError(f"{path}: {error.strerror or error}.", path=str(path)) from error


def _sync(path: Path, flags: int, sync: Callable[[int], None]) -> None:
    with _failing(path):
        descriptor = os.open(path, flags)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)
