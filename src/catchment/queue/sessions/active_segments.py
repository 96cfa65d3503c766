"""Active segments: the file that each session writes, from its first write to its seal.

Orphans are active segments of processes that died; they are sealed here in the same way.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa

from catchment.errors import (
    BufferDamagedError,
    BufferHeldError,
    CatchmentError,
    LakeUnavailableError,
    StorageFailedError,
)
from catchment.foundation import events, faults, files
from catchment.foundation.clock import Clock
from catchment.foundation.ids import TableId
from catchment.foundation.meters import Meters
from catchment.lake.types import Column
from catchment.queue.group_commit import GroupCommit
from catchment.queue.sessions.leases import Lease, Leases
from catchment.queue.sessions.segment_files import (
    SegmentFolders,
    SegmentName,
    SegmentPart,
    SegmentState,
    parts_of,
    wal_of,
)
from catchment.queue.store import file_failures
from catchment.queue.store.store import Store
from catchment.queue.store.table_log import Write

_GROUP_MAX = 1_000
_SEAL_AGAIN_AFTER = timedelta(seconds=10)


class ActiveSegment:
    """An active file. Only its session's writer changes it; others read immutable values."""

    def __init__(self, name: SegmentName, store: Store, lease: Lease | None) -> None:
        self.name = name
        self.store = store
        # None while the lease server is unavailable. DuckDB's own lock then keeps other processes
        # out.
        self.lease = lease
        self.seal_again_at: datetime | None = None
        # DuckDB refuses the file until it is opened again; the store's record of its rows remains
        # valid.
        self.is_invalidated = False

    def parts(self, table: TableId | None = None) -> list[SegmentPart]:
        if table is not None:
            log = self.store.log(table)
            return parts_of(log) if log else []
        return [part for log in self.store.logs().values() for part in parts_of(log)]

    def has_rows(self) -> bool:
        return any(log.rows for log in self.store.logs().values())

    def is_full(self, size_bytes: int, now: datetime) -> bool:
        # A failed seal is not retried at every write: the disk is full, and checkpoints are
        # expensive.
        rested = self.seal_again_at is None or now >= self.seal_again_at
        return rested and self.store.file_bytes() >= size_bytes and self.has_rows()

    def is_aged(self, interval: timedelta, now: datetime) -> bool:
        # The oldest row counts: a trickle that never stops must age out too.
        return any(log.oldest_at is not None and now - log.oldest_at >= interval for log in self.store.logs().values())


class ActiveSegments:
    """This process's active files: created, sealed, and adopted from processes that died."""

    def __init__(
        self,
        folders: SegmentFolders,
        *,
        open_store: Callable[[Path, str], Store],
        leases: Leases,
        clock: Clock,
        on_sealed: Callable[[SegmentName, Sequence[SegmentPart]], None],
    ) -> None:
        self._folders = folders
        self._on_sealed = on_sealed
        self._open_store = open_store
        self._leases = leases
        self._clock = clock
        # Segments that this process writes. A name is added before its file exists and removed
        # after it has moved: an orphan must never be one of these, because DuckDB would open it
        # twice in one process.
        self._own: set[SegmentName] = set()
        self._mutex = threading.Lock()
        # One thread adopts at a time: a flush that is forced during a sweep must find the sweep's
        # orphans sealed.
        self._adopting = threading.Lock()

    def create(self, session: str) -> ActiveSegment:
        name = SegmentName.new(self._clock)
        with self._mutex:
            self._own.add(name)
        lease = self.lease(name)
        try:
            return ActiveSegment(name, self._open_store(self._folders.path(SegmentState.ACTIVE, name), session), lease)
        except BaseException:
            # No row was acknowledged in it, and a full disk must not get one more empty file per
            # attempt.
            with suppress(StorageFailedError):
                self._folders.remove(name, SegmentState.ACTIVE)
                self._leases.forget(str(name))
            self._disown(name, lease)
            raise

    def lease(self, name: SegmentName) -> Lease | None:
        try:
            return self._leases.take(str(name))
        except LakeUnavailableError as error:
            # Writes are accepted nevertheless, and a sweep takes the lease once it is available.
            events.emit("segment_unleased", level=logging.WARNING, segment=str(name), reason=error.message)
            return None

    def seal(self, segment: ActiveSegment) -> bool:
        """Seal the segment; return False if that fails now, and its session continues writing it."""
        path = self._folders.path(SegmentState.ACTIVE, segment.name)
        try:
            segment.store.checkpoint()
            segment.store.close()
            if wal_of(path).exists():
                raise StorageFailedError(f"{path} is closed but still has a WAL.", path=str(path))
            faults.reach("queue.before_seal")
            self._folders.advance(segment.name, SegmentState.ACTIVE)
        except (StorageFailedError, BufferDamagedError) as error:
            # A segment that was moved but not synced counts as sealed: at worst, a power cut makes
            # it active again.
            if path.exists():
                return not self._reopen(segment, error.message)
        faults.reach("queue.after_seal")
        self._on_sealed(segment.name, segment.parts())
        self._disown(segment.name, segment.lease)
        events.emit("segment_sealed", segment=str(segment.name))
        return True

    def discard(self, segment: ActiveSegment) -> None:
        """Delete a segment without rows."""
        segment.store.close()
        self._folders.remove(segment.name, SegmentState.ACTIVE)
        self._leases.forget(str(segment.name))
        self._disown(segment.name, segment.lease)

    def abandon(self, segment: ActiveSegment) -> None:
        """Leave the segment to the next sweep of any process."""
        with suppress(StorageFailedError, BufferDamagedError):
            segment.store.close()
        self._disown(segment.name, segment.lease)

    def adopt_orphans(self) -> list[SegmentName]:
        """Seal segments without an owner; return those that cannot be sealed now."""
        with self._adopting:
            return [name for name in self.of_others() if not self._try_to_adopt(name)]

    def of_others(self) -> list[SegmentName]:
        """Return the active segments that this process does not write."""
        listed = self._folders.names(SegmentState.ACTIVE)
        # Read after the listing: each listed segment of this process is in it, or has moved.
        with self._mutex:
            own = set(self._own)
        return [name for name in listed if name not in own]

    def _try_to_adopt(self, name: SegmentName) -> bool:
        """Seal the orphan; False if its disk refuses. If its lease is taken, it is not an orphan."""
        lease = self._leases.take(str(name))
        if lease is None:
            return True
        try:
            self._adopt(name)
        except (StorageFailedError, BufferDamagedError) as error:
            # One orphan that fails must not block the others.
            events.emit("segment_not_sealed", level=logging.WARNING, segment=str(name), reason=error.message)
            return False
        finally:
            lease.release()
        return True

    def _adopt(self, name: SegmentName) -> None:
        path = self._folders.path(SegmentState.ACTIVE, name)
        if not self._folders.contains(SegmentState.ACTIVE, name):
            # Its owner sealed it after the listing; opening would create it again.
            return
        rows = False
        # An empty file without a WAL was being created when its process was killed: no row was ever
        # acknowledged in it.
        if files.size_of(path) or files.size_of(wal_of(path)):
            try:
                store = self._open_store(path, "")
            except BufferHeldError:
                # Its owner lost the lease, not the file.
                return
            except BufferDamagedError as error:
                file_failures.quarantine(path, root=self._folders.root, reason=error.message, clock=self._clock)
                self._leases.forget(str(name))
                return
            try:
                rows = any(log.rows for log in store.logs().values())
                store.checkpoint()
            finally:
                store.close()
        if not rows:
            self._folders.remove(name, SegmentState.ACTIVE)
            self._leases.forget(str(name))
        elif not wal_of(path).exists():
            faults.reach("queue.before_seal")
            self._folders.advance(name, SegmentState.ACTIVE)
            events.emit("segment_adopted", segment=str(name))

    def open_again(self, segment: ActiveSegment) -> bool:
        """Open a file again that DuckDB invalidated, with all rows that were acknowledged in it.

        Returns False if it is damaged or another process has it: then it is an orphan, which sweeps
        handle. Raises StorageFailedError if the disk refuses; the next call tries again.
        """
        with suppress(StorageFailedError, BufferDamagedError):
            segment.store.close()
        try:
            if not self._still_has(segment):
                raise BufferHeldError(f"{segment.name} belongs to another process.")
            segment.store = self._open_store(self._folders.path(SegmentState.ACTIVE, segment.name), "")
        except (BufferDamagedError, BufferHeldError) as error:
            events.emit("segment_given_up", level=logging.ERROR, segment=str(segment.name), reason=error.message)
            self._disown(segment.name, segment.lease)
            return False
        segment.is_invalidated = False
        return True

    def _still_has(self, segment: ActiveSegment) -> bool:
        """Return whether the file still belongs to this process; if closed, only the lease tells."""
        if segment.lease is None or not segment.lease.is_held():
            segment.lease = self.lease(segment.name)
        # If the lease was lost for a moment, another process may have sealed the segment; opening
        # would create a new file.
        return segment.lease is not None and self._folders.contains(SegmentState.ACTIVE, segment.name)

    def _reopen(self, segment: ActiveSegment, reason: str) -> bool:
        """Let the session continue after a failed seal; False if the file is no longer its own."""
        events.emit("segment_not_sealed", level=logging.WARNING, segment=str(segment.name), reason=reason)
        segment.seal_again_at = self._clock.now() + _SEAL_AGAIN_AFTER
        segment.is_invalidated = True
        try:
            return self.open_again(segment)
        except StorageFailedError:
            # The next use opens it.
            return True

    def _disown(self, name: SegmentName, lease: Lease | None) -> None:
        if lease is not None:
            lease.release()
        with self._mutex:
            self._own.discard(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLocation:
    """Where rows were stored."""

    source: str
    seq_first: int
    seq_last: int


class SegmentWriter:
    """Writes one session's rows: one active segment at a time, created by a write that needs it."""

    def __init__(self, session: str, segments: ActiveSegments, clock: Clock, meters: Meters) -> None:
        self._session = session
        self._segments = segments
        self._clock = clock
        self._segment: ActiveSegment | None = None
        self._is_closed = False
        # The segment is changed, written, read and closed by the group's one writer only. So a
        # write during a rotation waits for it and then finds the next segment, or the old one if it
        # could not be sealed: no row goes to a closed file. Other threads may read the store's logs
        # without waiting; they outlive its file.
        self._group = GroupCommit[Write, RowLocation | None](
            self._commit, items_max=_GROUP_MAX, observe=meters.group_writes.observe
        )

    def append(self, write: Write) -> RowLocation | None:
        """Store the rows; return None if the writer has ended."""
        return self._group.submit(write)

    def columns(self, table: TableId) -> tuple[Column, ...] | None:
        segment = self._segment
        log = segment.store.log(table) if segment else None
        return log.versions[-1].columns if log else None

    def parts(self, table: TableId | None = None) -> dict[SegmentName, list[SegmentPart]]:
        """Return the active segment's parts, of one table or all, by its name."""
        segment = self._segment
        return {segment.name: segment.parts(table)} if segment else {}

    def read(self, table: TableId) -> dict[SegmentName, list[tuple[SegmentPart, pa.Table]]]:
        """Return the table's rows in the active segment, by its name."""
        found: dict[SegmentName, list[tuple[SegmentPart, pa.Table]]] = {}

        def look() -> None:
            segment = self._opened()
            log = segment.store.log(table) if segment else None
            if segment is not None and log is not None:
                with _noting_invalidation(segment):
                    found[segment.name] = [
                        (part, segment.store.read(version, first, last).read_all())
                        for part, (version, first, last) in zip(parts_of(log), log.ranges(), strict=True)
                    ]

        self._group.exclusively(look)
        return found

    def rotate(self, due: Callable[[ActiveSegment], bool]) -> bool:
        """Seal the segment if it is due; return False if that failed."""
        segment = self._segment
        if segment is None or not due(segment):
            return True

        def seal() -> None:
            if self._segment is segment:
                self._seal(segment)

        self._group.exclusively(seal)
        return self._segment is not segment

    def end(self) -> bool:
        """Seal the segment, or delete it if empty, and end; return False if that failed."""

        def finish() -> None:
            try:
                # Only an open segment can tell whether it has rows: a failed commit may have stored
                # some.
                segment = self._opened()
            except StorageFailedError:
                return
            if segment is not None and segment.has_rows():
                self._seal(segment)
            elif segment is not None:
                self._segments.discard(segment)
                self._segment = None
            self._is_closed = self._segment is None

        self._group.exclusively(finish)
        return self._is_closed

    def keep_lease(self) -> None:
        """Take the lease again if it was lost."""
        segment = self._segment
        if segment is None or (segment.lease is not None and segment.lease.is_held()):
            return
        # Requested while writes continue: the server may be slow.
        lease = self._segments.lease(segment.name)

        def keep() -> None:
            if self._segment is segment:
                segment.lease = lease
            elif lease is not None:
                # The segment was sealed since, and the process that delivers it needs the lease.
                lease.release()

        self._group.exclusively(keep)

    def abandon(self) -> None:
        """Accept no more writes, and leave the segment as it is."""

        def leave() -> None:
            self._is_closed = True
            if self._segment is not None:
                self._segments.abandon(self._segment)
                self._segment = None

        self._group.exclusively(leave)

    def _seal(self, segment: ActiveSegment) -> None:
        with suppress(StorageFailedError):
            if self._opened() is segment and self._segments.seal(segment):
                self._segment = None

    def _opened(self) -> ActiveSegment | None:
        """Return the segment, opened again if DuckDB invalidated it; None if there is none."""
        segment = self._segment
        if segment is not None and segment.is_invalidated and not self._segments.open_again(segment):
            self._segment = None
        return self._segment

    def _commit(self, writes: Sequence[Write]) -> list[RowLocation | None]:
        if self._is_closed:
            return [None] * len(writes)
        segment = self._opened()
        if segment is None:
            segment = self._segment = self._segments.create(self._session)
        store = segment.store
        try:
            with _noting_invalidation(segment):
                ranges = store.write(writes, self._clock.now())
        except CatchmentError as error:
            if segment.is_invalidated and self._has_none(writes, store):
                raise file_failures.refusal(store.path.parent, error) from error
            raise
        return [RowLocation(source=segment.name.uuid, seq_first=first, seq_last=last) for first, last in ranges]

    def _has_none(self, writes: Sequence[Write], store: Store) -> bool:
        """Return whether the reopened file has none of the rows; False if it cannot be opened now."""
        with suppress(StorageFailedError):
            segment = self._opened()
            return segment is not None and all(
                _seq_last(segment.store, write.table) == _seq_last(store, write.table) for write in writes
            )
        return False


def _seq_last(store: Store, table: TableId) -> int:
    log = store.log(table)
    return log.seq_last if log else 0


@contextmanager
def _noting_invalidation(segment: ActiveSegment) -> Iterator[None]:
    """Note whether DuckDB invalidates the segment's file, as it does if its disk fails."""
    try:
        yield
    except CatchmentError as error:
        segment.is_invalidated = segment.is_invalidated or file_failures.is_invalidated(error)
        raise
