"""Active segments: the one file that each session writes, made by its first write, and how it is sealed.

Orphans are active segments too, of a process that died; they are sealed here like one's own.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa

from catchment import events, faults, files
from catchment.clock import Clock
from catchment.errors import (
    BufferDamagedError,
    BufferHeldError,
    CommitUnknownError,
    LakeUnavailableError,
    StorageFailedError,
)
from catchment.ids import TableId
from catchment.lake.types import Column
from catchment.meters import Meters
from catchment.queue import aside
from catchment.queue.group import GroupCommit
from catchment.queue.layout import Layout, Part, SegmentName, State, parts_of, wal_of
from catchment.queue.lease import Lease, Leases
from catchment.queue.store import Store, new_identity
from catchment.queue.writes import Write

_IDENTITY = "__session_queue_metadata"
_GROUP_MAX = 1_000
_SEAL_AGAIN_AFTER = timedelta(seconds=10)


class Segment:
    """An active file; whoever calls is its session's one writer, or reads what does not change."""

    def __init__(self, name: SegmentName, store: Store, lease: Lease | None) -> None:
        self.name = name
        self.store = store
        # None while the server of the leases is away. Meanwhile DuckDB's own lock keeps other processes from the file.
        self.lease = lease
        self.seal_again_at: datetime | None = None

    def parts(self, table: TableId | None = None) -> list[Part]:
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
        layout: Layout,
        *,
        incarnation: str,
        checkpoint_bytes: int,
        leases: Leases,
        clock: Clock,
        on_sealed: Callable[[SegmentName, Sequence[Part]], None],
    ) -> None:
        self._layout = layout
        self._on_sealed = on_sealed
        self._incarnation = incarnation
        self._checkpoint_bytes = checkpoint_bytes
        self._leases = leases
        self._clock = clock
        # What this process writes. A name is in here before its file exists, and until it has moved: an orphan must
        # never be one of ours, for DuckDB would open it a second time in the same process.
        self._own: set[SegmentName] = set()
        self._mutex = threading.Lock()

    def create(self, session: str) -> Segment:
        name = SegmentName.new(self._clock)
        with self._mutex:
            self._own.add(name)
        lease = self.lease(name)
        try:
            return Segment(name, self.open(self._layout.path(State.ACTIVE, name), session), lease)
        except BaseException:
            self._disown(name, lease)
            raise

    def open(self, path: Path, session: str = "") -> Store:
        return Store.open(
            path,
            identity_table=_IDENTITY,
            fresh=new_identity(self._incarnation, session, self._clock),
            checkpoint_bytes=self._checkpoint_bytes,
        )

    def lease(self, name: SegmentName) -> Lease | None:
        try:
            return self._leases.take(str(name))
        except LakeUnavailableError as error:
            # Writes are taken all the same, and a sweep takes the lease once it can be had.
            events.emit("segment_unleased", level=logging.WARNING, segment=str(name), reason=error.message)
            return None

    def seal(self, segment: Segment) -> bool:
        """Move the segment on; False where that cannot be done now, and its session goes on writing it."""
        path = self._layout.path(State.ACTIVE, segment.name)
        try:
            segment.store.checkpoint()
            segment.store.close()
            if wal_of(path).exists():
                raise StorageFailedError(f"{path} is closed, and still has a WAL.", path=str(path))
            faults.reach("queue.before_seal")
            self._layout.advance(segment.name, State.ACTIVE)
        except (StorageFailedError, BufferDamagedError) as error:
            # One that was moved, and only not synced, is sealed: a power cut puts it back among the active at worst.
            if path.exists():
                return not self._reopen(segment, error.message)
        faults.reach("queue.after_seal")
        self._on_sealed(segment.name, segment.parts())
        self._disown(segment.name, segment.lease)
        events.emit("segment_sealed", segment=str(segment.name))
        return True

    def discard(self, segment: Segment) -> None:
        """Delete a segment that never got a row."""
        segment.store.close()
        self._layout.remove(segment.name, State.ACTIVE)
        self._leases.forget(str(segment.name))
        self._disown(segment.name, segment.lease)

    def abandon(self, segment: Segment) -> None:
        """Leave the segment to whoever sweeps next."""
        with suppress(StorageFailedError, BufferDamagedError):
            segment.store.close()
        self._disown(segment.name, segment.lease)

    def adopt_orphans(self) -> None:
        """Seal what nobody owns any more."""
        listed = self._layout.names(State.ACTIVE)
        # Looked up after the listing: whatever of ours was listed is in here, or has moved.
        with self._mutex:
            own = set(self._own)
        for name in listed:
            lease = None if name in own else self._leases.take(str(name))
            if lease is not None:
                try:
                    self._adopt(name)
                finally:
                    lease.release()

    def _adopt(self, name: SegmentName) -> None:
        path = self._layout.path(State.ACTIVE, name)
        if not self._layout.holds(State.ACTIVE, name):
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
                aside.put(path, reason=error.message, clock=self._clock)
                self._leases.forget(str(name))
                return
            try:
                rows = any(log.rows for log in store.logs().values())
                store.checkpoint()
            finally:
                store.close()
        if not rows:
            self._layout.remove(name, State.ACTIVE)
            self._leases.forget(str(name))
        elif not wal_of(path).exists():
            faults.reach("queue.before_seal")
            self._layout.advance(name, State.ACTIVE)
            events.emit("segment_adopted", segment=str(name))

    def _reopen(self, segment: Segment, reason: str) -> bool:
        """Let the session go on after a seal that failed; False where the file cannot even be opened."""
        events.emit("segment_not_sealed", level=logging.WARNING, segment=str(segment.name), reason=reason)
        with suppress(StorageFailedError, BufferDamagedError):
            segment.store.close()
        try:
            segment.store = self.open(self._layout.path(State.ACTIVE, segment.name))
        except (StorageFailedError, BufferDamagedError, BufferHeldError):
            # The session's next file takes its rows, and this one is an orphan, which the sweeps take care of.
            self._disown(segment.name, segment.lease)
            return False
        segment.seal_again_at = self._clock.now() + _SEAL_AGAIN_AFTER
        return True

    def _disown(self, name: SegmentName, lease: Lease | None) -> None:
        if lease is not None:
            lease.release()
        with self._mutex:
            self._own.discard(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where rows were put."""

    source: str
    seq_first: int
    seq_last: int


class Writer:
    """A session's way in: one active segment at a time, made by the first write that needs it."""

    def __init__(self, session: str, segments: ActiveSegments, clock: Clock, meters: Meters) -> None:
        self._session = session
        self._segments = segments
        self._clock = clock
        self._segment: Segment | None = None
        self._over = False
        # The segment is changed, written, read and closed by the group's one writer only. So a write that comes during
        # a rotation waits for it, and then finds the next segment, or the old one if it could not be sealed: no row
        # goes to a closed file. What others may look at without waiting are the store's logs, which outlive its file.
        self._group = GroupCommit[Write, Place | None](
            self._commit, items_max=_GROUP_MAX, observe=meters.group_writes.observe
        )

    def append(self, write: Write) -> Place | None:
        """Keep the rows; None where the writer has ended."""
        return self._group.submit(write)

    def columns(self, table: TableId) -> tuple[Column, ...] | None:
        segment = self._segment
        log = segment.store.log(table) if segment else None
        return log.versions[-1].columns if log else None

    def parts(self, table: TableId | None = None) -> dict[SegmentName, list[Part]]:
        """What the active segment holds, of one table or of all, by its name."""
        segment = self._segment
        return {segment.name: segment.parts(table)} if segment else {}

    def read(self, table: TableId) -> dict[SegmentName, list[tuple[Part, pa.Table]]]:
        """The table's rows in the active segment, by its name."""
        found: dict[SegmentName, list[tuple[Part, pa.Table]]] = {}

        def look() -> None:
            segment = self._segment
            log = segment.store.log(table) if segment else None
            if segment is not None and log is not None:
                found[segment.name] = [
                    (part, segment.store.read(version, first, last).read_all())
                    for part, (version, first, last) in zip(parts_of(log), log.ranges(), strict=True)
                ]

        self._group.exclusively(look)
        return found

    def rotate(self, due: Callable[[Segment], bool]) -> bool:
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
            segment = self._segment
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

    def _seal(self, segment: Segment) -> None:
        if self._segments.seal(segment):
            self._segment = None

    def _commit(self, writes: Sequence[Write]) -> list[Place | None]:
        if self._over:
            return [None] * len(writes)
        if self._segment is None:
            self._segment = self._segments.create(self._session)
        segment = self._segment
        try:
            ranges = segment.store.write(writes, self._clock.now())
        except (BufferDamagedError, CommitUnknownError):
            # DuckDB gives up a file whose disk failed it. A sweep seals what it has; the next write gets a new one.
            self._segments.abandon(segment)
            self._segment = None
            raise
        return [Place(source=segment.name.uuid, seq_first=first, seq_last=last) for first, last in ranges]
