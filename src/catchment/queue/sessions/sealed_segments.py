"""Sealed segments: leased to be delivered, marked as parts reach the lake, then kept and deleted."""

import threading
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from catchment.errors import BufferDamagedError, BufferHeldError, InvariantError, RetryableError, StorageFailedError
from catchment.foundation import events, faults, files, ids
from catchment.foundation.clock import Clock
from catchment.foundation.ids import ProducerId, TableId
from catchment.queue.buffer import KIND, SEQ, FlushPayload, Staged
from catchment.queue.sessions.leases import Lease, Leases
from catchment.queue.sessions.segment_files import (
    SealedFile,
    SegmentFolders,
    SegmentName,
    SegmentPart,
    SegmentState,
    wal_of,
)
from catchment.queue.store import file_failures
from catchment.queue.store.store import Store

_HELD_TRIES = 40
_HELD_WAIT_S = 0.05

T = TypeVar("T")


class SealedSegments:
    """The sealed files under one root, as this process uses them."""

    def __init__(
        self,
        folders: SegmentFolders,
        *,
        generation: str,
        open_store: Callable[[Path], Store],
        leases: Leases,
        clock: Clock,
    ) -> None:
        self._folders = folders
        self._generation = generation
        self._open_store = open_store
        self._leases = leases
        self._clock = clock
        # Guards the dictionary; never held while a file is opened or a lease is taken.
        self._mutex = threading.Lock()
        self._sealed: dict[SegmentName, _SealedSegment] = {}

    def remember(self, name: SegmentName, parts: Sequence[SegmentPart]) -> None:
        """Remember the parts of a file that this process has just sealed."""
        with self._mutex:
            self._sealed.setdefault(name, _SealedSegment(name, parts))

    def known_parts(self, *, without: Container[SegmentName]) -> dict[SegmentName, tuple[SegmentPart, ...]]:
        """Return the parts of known files, without looking for files that others have sealed."""
        with self._mutex:
            return {name: each.waiting() for name, each in self._sealed.items() if name not in without}

    def parts(
        self, *, without: Container[SegmentName], session: str | None = None
    ) -> dict[SegmentName, tuple[SegmentPart, ...]]:
        """Return the parts that the lake lacks, of one session or of all, by file."""
        found: dict[SegmentName, tuple[SegmentPart, ...]] = {}
        for name in self._folders.names(SegmentState.SEALED):
            if name not in without:
                sealed = self._sealed_file(name)
                with sealed.lock:
                    parts = self._parts(sealed)
                    found[name] = parts if session in (None, sealed.session) else ()
        return found

    def payloads(self, tables: Sequence[TableId] | None = None) -> list[FlushPayload]:
        """Lease the files and return their payloads; files leased elsewhere are left out."""
        found: list[FlushPayload] = []
        try:
            for name in self._folders.names(SegmentState.SEALED):
                found += self._lease_payloads(name, tables)
        except BaseException:
            # No other caller would release them, so they would not be offered again.
            for payload in found:
                self.release(payload)
            raise
        return found

    def release(self, payload: FlushPayload) -> None:
        """Return a payload that was not delivered; release the file's lease with the last one."""
        sealed = self._sealed_file(_name_of(payload))
        with sealed.lock:
            sealed.staged.discard(payload.id)
            sealed.leased_out.discard(payload.id)
            # Parts that were delivered can be marked now, or else when the file is leased next.
            with suppress(RetryableError):
                self._mark_delivered(sealed)
            self._release_lease(sealed)

    def stage(self, payload: FlushPayload) -> Staged:
        """Return the segment itself as the payload's file."""
        sealed = self._sealed_file(_name_of(payload))
        # The holder of the lock may have the file open for writing, which would keep the tasks out.
        with sealed.lock:
            sealed.staged.add(payload.id)
        return Staged(path=Path(payload.path), relation=payload.relation, bytes=payload.bytes)

    def read(self, payload: FlushPayload) -> pa.Table:
        """Return the payload's rows, in order, without their numbers."""

        def rows() -> pa.Table:
            with SealedFile.opened(Path(payload.path)) as file:
                return file.rows(payload.relation)

        with self._sealed_file(_name_of(payload)).lock:
            found = self._while_held_elsewhere(rows)
        if found.num_rows != payload.rows:
            raise InvariantError(f"{payload.path} has {found.num_rows} of the {payload.rows} rows of {payload.table}.")
        return found.drop_columns([SEQ])

    def retire(self, payload: FlushPayload) -> None:
        """Mark the payload's part as flushed, and move the file once all parts are."""
        sealed = self._sealed_file(_name_of(payload))
        with sealed.lock:
            sealed.staged.discard(payload.id)
            sealed.delivered[payload.relation] = payload.table
            # If this fails, payload and lease stay with the caller, which may try again.
            self._mark_delivered(sealed)
            sealed.leased_out.discard(payload.id)
            self._release_lease(sealed)

    def rows(
        self, table: TableId, session: str | None, *, without: Container[SegmentName]
    ) -> dict[SegmentName, list[tuple[SegmentPart, pa.Table]]]:
        """Return the table's rows that the lake lacks, by file; of one session or of all."""
        return {
            name: self._read_sealed(name, table, session)
            for name in self._folders.names(SegmentState.SEALED)
            if name not in without
        }

    def payload(self, name: SegmentName, part: SegmentPart, state: SegmentState) -> FlushPayload:
        """Return the payload of a part of the file, which is in that state."""
        return FlushPayload(
            id=ids.unit_id(KIND, self._generation, name.uuid, str(part.table), part.version),
            table=part.table,
            producer=ProducerId(KIND, str(part.table), self._generation),
            source=name.uuid,
            seq_first=part.seq_first,
            seq_last=part.seq_last,
            rows=part.rows,
            bytes=part.bytes,
            seqs=None,
            path=str(self._folders.path(state, name)),
            relation=part.relation,
            columns=part.columns,
        )

    def remove_old(self, now: datetime, keep: timedelta) -> None:
        """Delete flushed segments that were kept long enough."""
        for name in self._folders.names(SegmentState.FLUSHED):
            stamp = _stamp(self._folders.path(SegmentState.FLUSHED, name))
            # A segment is last written when its last part is marked, just before it is moved here.
            if stamp is not None and now.timestamp() - stamp.written_ns / 1e9 >= keep.total_seconds():
                # No process takes leases of flushed segments. The file is deleted last, so that a
                # kill in between leaves it to be found.
                self._leases.forget(str(name))
                self._folders.remove(name, SegmentState.FLUSHED)

    def forget_advanced(self) -> None:
        """Forget files that other processes have moved."""
        with self._mutex:
            known = list(self._sealed.values())
        for sealed in known:
            if not self._folders.contains(SegmentState.SEALED, sealed.name):
                with sealed.lock:
                    self._release_lease(sealed)

    def _sealed_file(self, name: SegmentName) -> "_SealedSegment":
        with self._mutex:
            return self._sealed.setdefault(name, _SealedSegment(name))

    def _lease_payloads(self, name: SegmentName, tables: Sequence[TableId] | None) -> list[FlushPayload]:
        sealed = self._sealed_file(name)
        with sealed.lock:
            if not self._take_lease(sealed):
                return []
            try:
                self._recover(sealed)
                self._mark_delivered(sealed)
                parts = self._parts(sealed)
                if not parts:
                    # The process that marked the last part was killed before the file was moved.
                    self._advance(sealed)
                found = [self.payload(name, part, SegmentState.SEALED) for part in parts]
                free = [
                    one for one in found if one.id not in sealed.leased_out and (tables is None or one.table in tables)
                ]
                sealed.leased_out.update(one.id for one in free)
            except BufferHeldError:
                # Another process is reading the file; a later call tries again.
                return []
            finally:
                self._release_lease(sealed)
            return free

    def _take_lease(self, sealed: "_SealedSegment") -> bool:
        """Take the file's lease; return whether this process has it."""
        if sealed.lease is None or not sealed.lease.is_held():
            sealed.lease = self._leases.take(str(sealed.name))
        return sealed.lease is not None

    def _release_lease(self, sealed: "_SealedSegment") -> None:
        """Release the lease, unless payloads of the file are leased out."""
        if sealed.leased_out:
            return
        if sealed.lease is not None:
            sealed.lease.release()
            sealed.lease = None
        if not self._folders.contains(SegmentState.SEALED, sealed.name):
            with self._mutex:
                if self._sealed.get(sealed.name) is sealed:
                    del self._sealed[sealed.name]

    def _recover(self, sealed: "_SealedSegment") -> None:
        """Apply the WAL of a process that was killed while it marked a part: tasks do not read it."""
        path = self._folders.path(SegmentState.SEALED, sealed.name)
        if not wal_of(path).exists():
            return
        try:
            if not path.exists():
                raise BufferDamagedError(f"{path} is missing, but its WAL exists.", path=str(path))
            self._open_store(path).close()
        except BufferDamagedError as error:
            self._quarantine(sealed, error)

    def _mark_delivered(self, sealed: "_SealedSegment") -> None:
        """Mark the file's delivered parts, and move the file to `flushed/` once all are."""
        path = self._folders.path(SegmentState.SEALED, sealed.name)
        # While tasks read other parts of the file, it cannot be written. The ledger has the
        # delivered parts: if this process is killed before it marks them, their payloads are
        # offered again and retired without delivery.
        if sealed.staged or not sealed.delivered:
            return
        if path.exists():
            if not self._take_lease(sealed):
                raise BufferHeldError(f"{path} is leased to another process.", path=str(path))
            store = self._while_held_elsewhere(lambda: self._open_store(path))
            try:
                for relation, table in sealed.delivered.items():
                    store.mark_flushed(table, relation)
                store.checkpoint()
            finally:
                store.close()
                # Reset explicitly: the file's modification time may be too coarse to show the
                # change.
                sealed.stamp = None
            if not self._parts(sealed):
                self._advance(sealed)
        sealed.delivered.clear()

    def _advance(self, sealed: "_SealedSegment") -> None:
        path = self._folders.path(SegmentState.SEALED, sealed.name)
        if path.exists() and not wal_of(path).exists():
            faults.reach("queue.before_flushed")
            self._folders.advance(sealed.name, SegmentState.SEALED)
            events.emit("segment_flushed", segment=str(sealed.name))

    def _parts(self, sealed: "_SealedSegment") -> tuple[SegmentPart, ...]:
        """Return the file's parts that the lake lacks; none if the file has moved."""
        path = self._folders.path(SegmentState.SEALED, sealed.name)
        stamp = _stamp(path)
        if stamp is None:
            return ()
        if sealed.stamp != stamp:

            def look() -> tuple[SegmentPart, ...]:
                with SealedFile.opened(path) as file:
                    sealed.session = file.session()
                    return file.parts()

            try:
                sealed.parts = self._while_held_elsewhere(look)
            except BufferDamagedError as error:
                self._quarantine(sealed, error)
                return ()
            except StorageFailedError:
                if path.exists():
                    raise
                return ()
            sealed.stamp = stamp
        return sealed.waiting()

    def _read_sealed(
        self, name: SegmentName, table: TableId, session: str | None
    ) -> list[tuple[SegmentPart, pa.Table]]:
        sealed = self._sealed_file(name)
        path = self._folders.path(SegmentState.SEALED, name)

        def look() -> list[tuple[SegmentPart, pa.Table]]:
            # Read again and all at once: another process may mark a part as soon as the file is
            # closed.
            with SealedFile.opened(path) as file:
                sealed.session = file.session()
                if session not in (None, sealed.session):
                    return []
                parts = [part for part in file.parts() if part.table == table]
                return [(part, file.rows(part.relation)) for part in parts if part.relation not in sealed.delivered]

        with sealed.lock:
            if session is not None and sealed.session not in (None, session):
                return []
            try:
                return self._while_held_elsewhere(look)
            except BufferDamagedError as error:
                self._quarantine(sealed, error)
            except StorageFailedError:
                # The file has moved: the lake has it, and the ledger records it.
                if path.exists():
                    raise
            return []

    def _quarantine(self, sealed: "_SealedSegment", error: BufferDamagedError) -> None:
        """Quarantine a file that cannot be read, unless another process has its lease."""
        if self._take_lease(sealed) and self._folders.contains(SegmentState.SEALED, sealed.name):
            file_failures.quarantine(
                self._folders.path(SegmentState.SEALED, sealed.name),
                root=self._folders.root,
                reason=error.message,
                clock=self._clock,
            )
            self._leases.forget(str(sealed.name))
        self._release_lease(sealed)

    def _while_held_elsewhere(self, action: Callable[[], T]) -> T:
        """Run the action, repeatedly while another process has the file open, which lasts moments."""
        for _ in range(_HELD_TRIES - 1):
            with suppress(BufferHeldError):
                return action()
            self._clock.sleep(_HELD_WAIT_S)
        return action()


class _SealedSegment:
    """State of a sealed file in this process."""

    def __init__(self, name: SegmentName, parts: Sequence[SegmentPart] = ()) -> None:
        self.name = name
        # Guards everything below, and the file: DuckDB refuses to open it for writing while this
        # process reads it, and vice versa.
        self.lock = threading.Lock()
        self.lease: Lease | None = None
        # Ids of payloads that callers have, and of those among them that tasks may be reading.
        self.leased_out: set[str] = set()
        self.staged: set[str] = set()
        # Relations that the lake has, with their tables, and that are not marked yet.
        self.delivered: dict[str, TableId] = {}
        # A sealed file changes only when a part is marked; its parts are read once per stamp.
        self.stamp: _Stamp | None = None
        self.parts = tuple(parts)
        # The session that wrote it, once the file was read.
        self.session: str | None = None

    def waiting(self) -> tuple[SegmentPart, ...]:
        """Return the parts that the lake lacks."""
        return tuple(part for part in self.parts if part.relation not in self.delivered)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stamp:
    """Facts that differ between two states of a file."""

    written_ns: int
    bytes: int
    wal_bytes: int


def _stamp(path: Path) -> _Stamp | None:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return _Stamp(written_ns=facts.st_mtime_ns, bytes=facts.st_size, wal_bytes=files.size_of(wal_of(path)))


def _name_of(payload: FlushPayload) -> SegmentName:
    name = SegmentName.parse(Path(payload.path).name)
    if name is None:
        raise InvariantError(f"{payload.path} is not a segment.")
    return name
