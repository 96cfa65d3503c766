"""The shared layout's file, open: group commit, and opening it again after a failure of its disk."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path

from catchment.errors import BufferDamagedError, BufferHeldError, CatchmentError, CommitUnknownError
from catchment.foundation import events, files
from catchment.foundation.clock import Clock
from catchment.foundation.meters import Meters
from catchment.foundation.settings import MIB
from catchment.queue.group_commit import GroupCommit
from catchment.queue.store import file_failures
from catchment.queue.store.file_tables import BufferIdentity
from catchment.queue.store.store import Store
from catchment.queue.store.table_log import Write

FILE_NAME = "buffer.duckdb"
LOCK_NAME = "buffer.lock"
_IDENTITY = "dq_buffer"
_GROUP_MAX = 1_000
_CHECKPOINT_AFTER_BYTES = 16 * MIB


class BufferFile:
    """The file of a shared buffer; one writer at a time commits for all waiting ones."""

    def __init__(
        self,
        root: Path,
        *,
        clock: Clock,
        bytes_max: int = 0,
        meters: Meters | None = None,
    ) -> None:
        self._root = root
        # With a small size limit, retired rows that are still in the WAL would take up the space of
        # new ones permanently.
        self._checkpoint_after_bytes = min(_CHECKPOINT_AFTER_BYTES, bytes_max // 8 or _CHECKPOINT_AFTER_BYTES)
        self._clock = clock
        self._is_closed = False
        # Whether DuckDB has invalidated the file because of its disk; the next user opens it again.
        self._is_invalidated = False
        # DuckDB locks out other processes, but opens the file twice in one process: rows would get
        # the same numbers.
        self._lock = self._take_lock()
        try:
            self._store = self._open()
        except BaseException:
            self._lock.release()
            raise
        self._group = GroupCommit[tuple[Write, ...], tuple[int, int]](
            self._commit, items_max=_GROUP_MAX, observe=(meters or Meters()).group_writes.observe
        )

    @property
    def store(self) -> Store:
        """The open store; another one after the file was opened again."""
        return self._store

    @property
    def generation(self) -> str:
        """Id of the buffer."""
        return self._store.identity.generation

    def write(self, *writes: Write) -> tuple[int, int]:
        """Store the writes, all or none, durably; return the numbers of the last one's rows."""
        return self._group.submit(writes)

    def exclusively(self, action: Callable[[Store], None]) -> None:
        """Run an action on the store while no write is under way."""

        def act() -> None:
            with self._open_store() as store:
                action(store)

        self._group.exclusively(act)

    def settle(self) -> None:
        """Move every acknowledged row into the file, where it can be read."""
        if self._is_invalidated or not self._store.is_settled:
            self.exclusively(lambda store: store.settle())

    def checkpoint(self) -> None:
        """Move the WAL into the file if it has become large."""
        if self._store.wal_bytes() > self._checkpoint_after_bytes:
            # Little has to be written at this moment; DuckDB itself would do it in the middle of
            # some commit.
            self.exclusively(lambda store: store.checkpoint())

    @contextmanager
    def noting_invalidation(self) -> Iterator[None]:
        """Note whether DuckDB invalidates the file, as it does if its disk fails."""
        try:
            yield
        except CatchmentError as error:
            self._is_invalidated = self._is_invalidated or file_failures.is_invalidated(error)
            raise

    def used_bytes(self) -> int:
        """Return the space that rows take."""
        # An invalidated file cannot be queried; its size is an upper bound.
        return self._store.file_bytes() if self._is_invalidated else self._store.used_bytes()

    def close(self) -> None:
        """Close the file, once no write is under way."""
        try:
            self._group.exclusively(self._close)
        finally:
            self._lock.release()

    def _close(self) -> None:
        self._is_closed = True
        self._store.close()

    def _take_lock(self) -> files.HeldLock:
        lock = files.FileLock(self._root / LOCK_NAME, clock=self._clock).take()
        if lock is None:
            raise BufferHeldError(f"{self._root / FILE_NAME} is open elsewhere.", path=str(self._root))
        return lock

    def _open(self) -> Store:
        try:
            return self._open_file()
        except BufferDamagedError as error:
            # The server must start, and other tools may be able to read the file later.
            file_failures.quarantine(self._root / FILE_NAME, root=self._root, reason=error.message, clock=self._clock)
            return self._open_file()

    def _open_file(self) -> Store:
        store = Store.open(
            self._root / FILE_NAME,
            identity_table=_IDENTITY,
            fresh=BufferIdentity.new(secrets.token_hex(8), "", self._clock),
            journalled=True,
        )
        rows = sum(log.rows for log in store.logs().values())
        events.emit("buffer_opened", path=str(store.path), incarnation=store.identity.generation, rows=rows)
        return store

    def _commit(self, together: Sequence[tuple[Write, ...]]) -> list[tuple[int, int]]:
        """Store the rows of all writers; return the numbers of the last write of each."""
        writes = [write for brought in together for write in brought]
        try:
            with self._open_store() as store:
                ranges = store.write(writes, self._clock.now())
        except CommitUnknownError as error:
            if self._is_invalidated or any(_seq_last(self._store, each) != _seq_last(store, each) for each in writes):
                raise
            # The file was opened again, and has none of the rows.
            raise file_failures.refusal(self._root, error) from error
        ends = accumulate(len(writes) for writes in together)
        return [ranges[end - 1] for end in ends]

    @contextmanager
    def _open_store(self) -> Iterator[Store]:
        """Yield the store, for one commit at a time."""
        if self._is_closed:
            raise BufferHeldError(f"{self._store.path} was closed.")
        if self._is_invalidated:
            self._reopen()
        try:
            with self.noting_invalidation():
                yield self._store
        except CatchmentError:
            # Opened again, the file has all acknowledged rows and shows which numbers are taken. If
            # that fails too, the next caller tries, and this error is still raised: it tells
            # whether the rows may be stored.
            if self._is_invalidated:
                with suppress(CatchmentError):
                    self._reopen()
            raise

    def _reopen(self) -> None:
        try:
            proven = self._store.proven
            self._store.abandon()
            self._store = self._open_file()
            # The lock kept other processes away while the file was closed.
            self._store.prove(*proven)
        except CommitUnknownError as error:
            # Only one thing is unknown: which of the rows were settled. The journal still has all
            # of them.
            raise file_failures.refusal(self._root, error) from error
        self._is_invalidated = False


def _seq_last(store: Store, write: Write) -> int:
    log = store.log(write.table)
    return 0 if log is None else log.seq_last
