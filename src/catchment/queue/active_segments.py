"""Active segments: the one file that each session writes, made by its first write, and how it is sealed.

Orphans are active segments too, of a process that died; they are sealed here like one's own.
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
from catchment.queue import failure, quarantine
from catchment.queue.group_commit import GroupCommit
from catchment.queue.leases import Lease, Leases
from catchment.queue.segment_files import (
    IDENTITY,
    SegmentFolders,
    SegmentName,
    SegmentPart,
    SegmentState,
    parts_of,
    wal_of,
)
from catchment.queue.store import Store, new_identity
from catchment.queue.writes import Write

_GROUP_MAX = 1_000
_SEAL_AGAIN_AFTER = timedelta(seconds=10)


class ActiveSegment:
    """An active file; whoever calls is its session's one writer, or reads what does not change."""

    def __init__(self, name: SegmentName, store: Store, lease: Lease | None) -> None:
        self.name = name
        self.store = store
        # None while the server of the leases is away. Meanwhile DuckDB's own lock keeps other processes from the file.
        self.lease = lease
        self.seal_again_at: datetime | None = None
        # DuckDB does nothing more with the file until it is opened again; what the store knows of its rows still holds.
        self.is_given_up = False

    def parts(self, table: TableId | None = None) -> list[SegmentPart]:
        if table is not None:
            log = self.store.log(table)
            return parts_of(log) if log else []
        return [part for log in self.store.logs().values() for part in parts_of(log)]

    def holds_rows(self) -> bool:
        return any(log.rows for log in self.store.logs().values())

    def is_full(self, size_bytes: int, now: datetime) -> bool:
        # A seal that failed is not tried again at every write: the disk is full, and checkpoints are dear.
        rested = self.seal_again_at is None or now >= self.seal_again_at
        return rested and self.store.file_bytes() >= size_bytes and self.holds_rows()

    def is_aged(self, interval: timedelta, now: datetime) -> bool:
        # The oldest row counts: a trickle that never stops must age out too.
        return any(log.oldest_at is not None and now - log.oldest_at >= interval for log in self.store.logs().values())


class ActiveSegments:
    """The active files of this process: made, sealed, and taken over from owners that died."""

    def __init__(
        self,
        layout: SegmentFolders,
        *,
        incarnation: str,
        leases: Leases,
        clock: Clock,
        on_sealed: Callable[[SegmentName, Sequence[SegmentPart]], None],
    ) -> None:
        self._layout = layout
        self._on_sealed = on_sealed
        self._incarnation = incarnation
        self._leases = leases
        self._clock = clock
        # What this process writes. A name is in here before its file exists, and until it has moved: an orphan must
        # never be one of ours, for DuckDB would open it a second time in the same process.
        self._own: set[SegmentName] = set()
        self._mutex = threading.Lock()
        # One thread adopts at a time: a flush that is forced during a sweep must find sealed what the sweep adopts.
        self._adopting = threading.Lock()

    def create(self, session: str) -> ActiveSegment:
        name = SegmentName.new(self._clock)
        with self._mutex:
            self._own.add(name)
        lease = self.lease(name)
        try:
            return ActiveSegment(name, self.open(self._layout.path(SegmentState.ACTIVE, name), session), lease)
        except BaseException:
            # No row was acknowledged in it, and a full disk must not get one more empty file with every try.
            with suppress(StorageFailedError):
                self._layout.remove(name, SegmentState.ACTIVE)
                self._leases.forget(str(name))
            self._disown(name, lease)
            raise

    def open(self, path: Path, session: str = "") -> Store:
        return Store.open(
            path,
            identity_table=IDENTITY,
            fresh=new_identity(self._incarnation, session, self._clock),
        )

    def lease(self, name: SegmentName) -> Lease | None:
        try:
            return self._leases.take(str(name))
        except LakeUnavailableError as error:
            # Writes are taken all the same, and a sweep takes the lease once it can be had.
            events.emit("segment_unleased", level=logging.WARNING, segment=str(name), reason=error.message)
            return None

    def seal(self, segment: ActiveSegment) -> bool:
        """Move the segment on; False where that cannot be done now, and its session goes on writing it."""
        path = self._layout.path(SegmentState.ACTIVE, segment.name)
        try:
            segment.store.checkpoint()
            segment.store.close()
            if wal_of(path).exists():
                raise StorageFailedError(f"{path} is closed, and still has a WAL.", path=str(path))
            faults.reach("queue.before_seal")
            self._layout.advance(segment.name, SegmentState.ACTIVE)
        except (StorageFailedError, BufferDamagedError) as error:
            # One that was moved, and only not synced, is sealed: a power cut puts it back among the active at worst.
            if path.exists():
                return not self._reopen(segment, error.message)
        faults.reach("queue.after_seal")
        self._on_sealed(segment.name, segment.parts())
        self._disown(segment.name, segment.lease)
        events.emit("segment_sealed", segment=str(segment.name))
        return True

    def discard(self, segment: ActiveSegment) -> None:
        """Delete a segment that holds no row."""
        segment.store.close()
        self._layout.remove(segment.name, SegmentState.ACTIVE)
        self._leases.forget(str(segment.name))
        self._disown(segment.name, segment.lease)

    def abandon(self, segment: ActiveSegment) -> None:
        """Leave the segment to whoever sweeps next."""
        with suppress(StorageFailedError, BufferDamagedError):
            segment.store.close()
        self._disown(segment.name, segment.lease)

    def adopt_orphans(self) -> list[SegmentName]:
        """Seal what nobody owns any more; return what cannot be sealed now, which the next call tries again."""
        with self._adopting:
            listed = self._layout.names(SegmentState.ACTIVE)
            # Looked up after the listing: whatever of ours was listed is in here, or has moved.
            with self._mutex:
                own = set(self._own)
            return [name for name in listed if name not in own and not self._try_to_adopt(name)]

    def _try_to_adopt(self, name: SegmentName) -> bool:
        """Seal the orphan; False if its disk refuses. One whose lease another process has is not an orphan."""
        lease = self._leases.take(str(name))
        if lease is None:
            return True
        try:
            self._adopt(name)
        except (StorageFailedError, BufferDamagedError) as error:
            # The others must not wait for it.
            events.emit("segment_not_sealed", level=logging.WARNING, segment=str(name), reason=error.message)
            return False
        finally:
            lease.release()
        return True

    def _adopt(self, name: SegmentName) -> None:
        path = self._layout.path(SegmentState.ACTIVE, name)
        if not self._layout.holds(SegmentState.ACTIVE, name):
            # Its owner sealed it after we looked; opening would make it anew.
            return
        rows = False
        # An empty file, without a WAL, was being made when its maker was killed: no row was ever acknowledged in it.
        if files.size_of(path) or files.size_of(wal_of(path)):
            try:
                store = self.open(path)
            except BufferHeldError:
                # Its owner lost the lease, not the file.
                return
            except BufferDamagedError as error:
                quarantine.put(path, reason=error.message, clock=self._clock)
                self._leases.forget(str(name))
                return
            try:
                rows = any(log.rows for log in store.logs().values())
                store.checkpoint()
            finally:
                store.close()
        if not rows:
            self._layout.remove(name, SegmentState.ACTIVE)
            self._leases.forget(str(name))
        elif not wal_of(path).exists():
            faults.reach("queue.before_seal")
            self._layout.advance(name, SegmentState.ACTIVE)
            events.emit("segment_adopted", segment=str(name))

    def open_again(self, segment: ActiveSegment) -> bool:
        """Open a file again that DuckDB gave up, with all rows that were acknowledged in it.

        False if it is damaged or another process has it: then it is an orphan, which the sweeps take care of.
        StorageFailedError if the disk refuses; the next call tries again.
        """
        with suppress(StorageFailedError, BufferDamagedError):
            segment.store.close()
        try:
            if not self._still_has(segment):
                raise BufferHeldError(f"{segment.name} belongs to another process.")
            segment.store = self.open(self._layout.path(SegmentState.ACTIVE, segment.name))
        except (BufferDamagedError, BufferHeldError) as error:
            events.emit("segment_given_up", level=logging.ERROR, segment=str(segment.name), reason=error.message)
            self._disown(segment.name, segment.lease)
            return False
        segment.is_given_up = False
        return True

    def _still_has(self, segment: ActiveSegment) -> bool:
        """Whether the file is still this process's: while it is closed, only the lease keeps others from it."""
        if segment.lease is None or not segment.lease.is_held():
            segment.lease = self.lease(segment.name)
        # One whose lease was lost for a moment may have been sealed by another process; opening would make a new file.
        return segment.lease is not None and self._layout.holds(SegmentState.ACTIVE, segment.name)

    def _reopen(self, segment: ActiveSegment, reason: str) -> bool:
        """Have the session go on after a seal that failed; False if the file is not its any more."""
        events.emit("segment_not_sealed", level=logging.WARNING, segment=str(segment.name), reason=reason)
        segment.seal_again_at = self._clock.now() + _SEAL_AGAIN_AFTER
        segment.is_given_up = True
        try:
            return self.open_again(segment)
        except StorageFailedError:
            # Whoever uses it next opens it.
            return True

    def _disown(self, name: SegmentName, lease: Lease | None) -> None:
        if lease is not None:
            lease.release()
        with self._mutex:
            self._own.discard(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLocation:
    """Where rows were put."""

    source: str
    seq_first: int
    seq_last: int


class SegmentWriter:
    """A session's way in: one active segment at a time, made by the first write that needs it."""

    def __init__(self, session: str, segments: ActiveSegments, clock: Clock, meters: Meters) -> None:
        self._session = session
        self._segments = segments
        self._clock = clock
        self._segment: ActiveSegment | None = None
        self._over = False
        # The segment is changed, written, read and closed by the group's one writer only. So a write that comes during
        # a rotation waits for it, and then finds the next segment, or the old one if it could not be sealed: no row
        # goes to a closed file. What others may look at without waiting are the store's logs, which outlive its file.
        self._group = GroupCommit[Write, RowLocation | None](
            self._commit, items_max=_GROUP_MAX, observe=meters.group_writes.observe
        )

    def append(self, write: Write) -> RowLocation | None:
        """Keep the rows; None where the writer has ended."""
        return self._group.submit(write)

    def columns(self, table: TableId) -> tuple[Column, ...] | None:
        segment = self._segment
        log = segment.store.log(table) if segment else None
        return log.versions[-1].columns if log else None

    def parts(self, table: TableId | None = None) -> dict[SegmentName, list[SegmentPart]]:
        """What the active segment holds, of one table or of all, by its name."""
        segment = self._segment
        return {segment.name: segment.parts(table)} if segment else {}

    def read(self, table: TableId) -> dict[SegmentName, list[tuple[SegmentPart, pa.Table]]]:
        """The table's rows in the active segment, by its name."""
        found: dict[SegmentName, list[tuple[SegmentPart, pa.Table]]] = {}

        def look() -> None:
            segment = self._opened()
            log = segment.store.log(table) if segment else None
            if segment is not None and log is not None:
                with _noticing(segment):
                    found[segment.name] = [
                        (part, segment.store.read(version, first, last).read_all())
                        for part, (version, first, last) in zip(parts_of(log), log.ranges(), strict=True)
                    ]

        self._group.exclusively(look)
        return found

    def rotate(self, due: Callable[[ActiveSegment], bool]) -> bool:
        """Seal the segment if it is due; False where that failed."""
        segment = self._segment
        if segment is None or not due(segment):
            return True

        def seal() -> None:
            if self._segment is segment:
                self._seal(segment)

        self._group.exclusively(seal)
        return self._segment is not segment

    def end(self) -> bool:
        """Seal the segment, or remove it where it is empty, and take no more writes; False where that failed."""

        def finish() -> None:
            try:
                # Only an open one can tell whether it holds rows: a commit that failed may have kept some.
                segment = self._opened()
            except StorageFailedError:
                return
            if segment is not None and segment.holds_rows():
                self._seal(segment)
            elif segment is not None:
                self._segments.discard(segment)
                self._segment = None
            self._over = self._segment is None

        self._group.exclusively(finish)
        return self._over

    def keep_lease(self) -> None:
        """Take the lease again if it was lost."""
        segment = self._segment
        if segment is None or (segment.lease is not None and segment.lease.is_held()):
            return
        # Asked for while writes go on: the server may take its time.
        lease = self._segments.lease(segment.name)

        def keep() -> None:
            if self._segment is segment:
                segment.lease = lease
            elif lease is not None:
                # Sealed meanwhile, and whoever delivers it needs the lease.
                lease.release()

        self._group.exclusively(keep)

    def abandon(self) -> None:
        """Take no more writes, and leave the segment as it is."""

        def leave() -> None:
            self._over = True
            if self._segment is not None:
                self._segments.abandon(self._segment)
                self._segment = None

        self._group.exclusively(leave)

    def _seal(self, segment: ActiveSegment) -> None:
        with suppress(StorageFailedError):
            if self._opened() is segment and self._segments.seal(segment):
                self._segment = None

    def _opened(self) -> ActiveSegment | None:
        """The segment, opened again if DuckDB gave it up; None if there is none, or none any more."""
        segment = self._segment
        if segment is not None and segment.is_given_up and not self._segments.open_again(segment):
            self._segment = None
        return self._segment

    def _commit(self, writes: Sequence[Write]) -> list[RowLocation | None]:
        if self._over:
            return [None] * len(writes)
        segment = self._opened()
        if segment is None:
            segment = self._segment = self._segments.create(self._session)
        store = segment.store
        try:
            with _noticing(segment):
                ranges = store.write(writes, self._clock.now())
        except CatchmentError as error:
            if segment.is_given_up and self._has_none(writes, store):
                raise failure.refusal(store.path.parent, error) from error
            raise
        return [RowLocation(source=segment.name.uuid, seq_first=first, seq_last=last) for first, last in ranges]

    def _has_none(self, writes: Sequence[Write], store: Store) -> bool:
        """Whether the file, opened again, has none of the rows; if it cannot be opened now, that is not known."""
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
def _noticing(segment: ActiveSegment) -> Iterator[None]:
    """See whether DuckDB gives up the segment's file, as it does when its disk fails it."""
    try:
        yield
    except CatchmentError as error:
        segment.is_given_up = segment.is_given_up or failure.is_given_up(error)
        raise
