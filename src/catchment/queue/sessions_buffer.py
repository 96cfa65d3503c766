"""The sessions layout: every session writes a DuckDB file of its own, a segment; sealed segments are delivered.

The folder is the state and a rename the transition, so a crash leaves a segment in one state or the other:

    first write ──▶ active/ ──seal──▶ sealed/ ──last part retired──▶ flushed/ ──retention──▶ gone
                       │                 │
                       └─────────────────┴── cannot be opened: set_aside/, with its WAL

A segment is sealed when it is big enough, when its oldest row is old enough, at its session's end, and by force. One
whose owner died is an orphan: its lease can be taken, by any process on any host that shares the root, which seals it.
A parcel is one version of one table in a sealed segment, and the ledger knows it by its id. Whoever has the file's
lease delivers it; a table that the lake has is renamed with `__dq_flushed_`.

What another process is writing cannot be read here: DuckDB gives an open file to one process only.
"""

import secrets
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from catchment.errors import BufferDamagedError, BufferHeldError, InvariantError, RetryableError, StorageFailedError
from catchment.foundation import events, faults, files, ids
from catchment.foundation.clock import Clock
from catchment.foundation.files import FileLock
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.meters import Meters
from catchment.foundation.settings import Settings
from catchment.lake import types
from catchment.lake.types import Column
from catchment.queue import quarantine
from catchment.queue.active_segments import ActiveSegment, ActiveSegments, SegmentWriter
from catchment.queue.buffer import KIND, SEQ, Ack, BufferedRows, FlushPayload, QuarantinedFile, Staged, TableState
from catchment.queue.leases import Lease, Leases, leases_for
from catchment.queue.segment_files import SealedFile, SegmentFolders, SegmentName, SegmentPart, SegmentState, wal_of
from catchment.queue.writes import Write

_INCARNATION = "incarnation"
_INCARNATION_WAIT_S = 10
_HELD_TRIES = 40
_HELD_WAIT_S = 0.05

T = TypeVar("T")


class SessionsBuffer:
    """The buffer in one file per session."""

    def __init__(
        self,
        root: Path,
        *,
        rotate_size_bytes: int,
        rotate_interval: timedelta,
        keep_flushed: timedelta,
        leases: Leases,
        clock: Clock,
        meters: Meters | None = None,
    ) -> None:
        self._root = root
        self._rotate_size_bytes = rotate_size_bytes
        self._rotate_interval = rotate_interval
        self._keep_flushed = keep_flushed
        self._leases = leases
        self._clock = clock
        self._layout = SegmentFolders(root)
        self._layout.make()
        self._incarnation = _incarnation(root, clock)
        self._segments = ActiveSegments(
            self._layout,
            incarnation=self._incarnation,
            leases=leases,
            clock=clock,
            on_sealed=self._note_sealed,
        )
        self._meters = meters or Meters()
        # Guards the two dictionaries and the set; never held while a file is opened or a lease is taken.
        self._mutex = threading.Lock()
        self._writers: dict[str, SegmentWriter] = {}
        self._ending: set[str] = set()
        self._sealed: dict[SegmentName, _Sealed] = {}
        # Writes must be taken while the disk or the server of the leases is in trouble; the next sweep tells of it.
        with suppress(RetryableError):
            self._segments.adopt_orphans()

    @classmethod
    def from_settings(cls, settings: Settings, *, clock: Clock, meters: Meters | None = None) -> "SessionsBuffer":
        return cls(
            settings.queue_path,
            rotate_size_bytes=settings.queue_rotate_size_bytes,
            rotate_interval=timedelta(seconds=settings.queue_rotate_interval_seconds),
            keep_flushed=timedelta(hours=settings.queue_flushed_keep_hours),
            leases=leases_for(settings, settings.queue_path, clock),
            clock=clock,
            meters=meters,
        )

    @property
    def incarnation(self) -> str:
        return self._incarnation

    def producer(self, table: TableId) -> ProducerId:
        return ProducerId(KIND, str(table), self._incarnation)

    def columns(self, table: TableId, session: str) -> tuple[Column, ...] | None:
        with self._mutex:
            writer = self._writers.get(session)
        return writer.columns(table) if writer else None

    def append(self, table: TableId, columns: tuple[Column, ...], rows: pa.Table, *, session: str) -> Ack:
        write = Write(table=table, columns=columns, rows=rows)
        writer = self._writer(session)
        # Nothing comes back from a writer that ended meanwhile; the session's next one takes the rows.
        while (place := writer.append(write)) is None:
            writer = self._writer(session)
        # The rows are acknowledged whatever becomes of the rotation: a failed one is made up for later.
        writer.rotate(lambda segment: segment.is_full(self._rotate_size_bytes, self._clock.now()))
        return Ack(table=table, source=place.source, seq_first=place.seq_first, seq_last=place.seq_last)

    def tables(self, session: str | None = None) -> tuple[TableState, ...]:
        # Active ones first: a segment that is sealed meanwhile is then met once more, and not missed.
        active = self._active_parts(session=session)
        sealed = self._sealed_parts(without=active, session=session)
        tables = {part.table for some in (*active.values(), *sealed.values()) for part in some}
        return tuple(_state(table, active, sealed) for table in sorted(tables))

    def state(self, table: TableId) -> TableState | None:
        """From what is known already: files that another process has sealed meanwhile are not looked for."""
        active = self._active_parts(table)
        with self._mutex:
            sealed = {name: each.waiting() for name, each in self._sealed.items() if name not in active}
        known = any(part.table == table for some in (*active.values(), *sealed.values()) for part in some)
        return _state(table, active, sealed) if known else None

    def seal(self) -> None:
        failed = sum(not writer.rotate(ActiveSegment.holds_rows) for writer in self._current_writers())
        # What processes left that died is acknowledged too, and so is what a session of ours could not keep.
        failed += len(self._segments.adopt_orphans())
        if failed:
            raise StorageFailedError(f"{failed} segments cannot be sealed now; no row of them is lost.")

    def parcels(self, tables: Sequence[TableId] | None = None) -> list[FlushPayload]:
        found: list[FlushPayload] = []
        try:
            for name in self._layout.names(SegmentState.SEALED):
                found += self._hand_out(name, tables)
        except BaseException:
            # Nobody else will give them back, and without that they would not be handed out again.
            for parcel in found:
                self.release(parcel)
            raise
        return found

    def release(self, parcel: FlushPayload) -> None:
        sealed = self._sealed_file(_name_of(parcel))
        with sealed.lock:
            sealed.staged.discard(parcel.id)
            sealed.out.discard(parcel.id)
            # What was delivered beside it can be marked now, or else when the file is handed out next.
            with suppress(RetryableError):
                self._mark(sealed)
            self._let_go(sealed)

    def stage(self, parcel: FlushPayload, folder: Path) -> Staged:
        sealed = self._sealed_file(_name_of(parcel))
        # Whoever has the lock may have the file open for writing, which would keep the tasks out.
        with sealed.lock:
            sealed.staged.add(parcel.id)
        return Staged(path=Path(parcel.path), relation=parcel.relation, bytes=parcel.bytes)

    def read(self, parcel: FlushPayload) -> pa.Table:
        def rows() -> pa.Table:
            with SealedFile.opened(Path(parcel.path)) as file:
                return file.rows(parcel.relation)

        with self._sealed_file(_name_of(parcel)).lock:
            found = self._patiently(rows)
        if found.num_rows != parcel.rows:
            raise InvariantError(f"{parcel.path} has {found.num_rows} of the {parcel.rows} rows of {parcel.table}.")
        return found.drop_columns([SEQ])

    def retire(self, parcel: FlushPayload) -> None:
        sealed = self._sealed_file(_name_of(parcel))
        with sealed.lock:
            sealed.staged.discard(parcel.id)
            sealed.delivered[parcel.relation] = parcel.table
            # Where this fails, the parcel stays out and the lease held: the caller may do it again.
            self._mark(sealed)
            sealed.out.discard(parcel.id)
            self._let_go(sealed)

    def flushed_through(self, table: TableId, seq: int) -> None:
        """Parcels are known to the ledger one by one; there is no watermark."""

    def covered(self, table: TableId, seq: int) -> int:
        return seq

    def held(self, table: TableId, session: str | None = None) -> list[BufferedRows]:
        """Each session's rows are those of one moment; sessions are looked at one after the other."""
        # Active ones first, and no segment twice: one that moves on while we look was read where it was.
        found: dict[SegmentName, list[tuple[SegmentPart, pa.Table]]] = {}
        for writer in self._current_writers(session):
            found.update(writer.read(table))
        active = set(found)
        for name in self._layout.names(SegmentState.SEALED):
            if name not in active:
                found[name] = self._read_sealed(name, table, session)
        return [
            BufferedRows(
                parcel=self._parcel(name, part, SegmentState.ACTIVE if name in active else SegmentState.SEALED),
                rows=rows,
            )
            for name, some in sorted(found.items())
            for part, rows in some
        ]

    def complete_through(self, table: TableId) -> dict[str, int]:
        active = self._active_parts(table)
        found = {**active, **self._sealed_parts(without=active)}
        numbers = {name: [part.seq_last for part in parts if part.table == table] for name, parts in found.items()}
        return {name.uuid: max(some) for name, some in numbers.items() if some}

    def size_bytes(self) -> int:
        return self._layout.bytes(SegmentState.ACTIVE) + self._layout.bytes(SegmentState.SEALED)

    def used_bytes(self) -> int:
        return self.size_bytes()

    def set_aside(self) -> tuple[QuarantinedFile, ...]:
        return quarantine.found(self._root)

    def end_session(self, session: str) -> None:
        with self._mutex:
            writer = self._writers.get(session)
            self._ending.add(session)
        # One that cannot be sealed now is tried again by the sweeps.
        over = writer is None or writer.end()
        with self._mutex:
            if over:
                self._ending.discard(session)
                if self._writers.get(session) is writer:
                    self._writers.pop(session, None)

    def sweep(self) -> None:
        with self._mutex:
            ending = tuple(self._ending)
        for session in ending:
            self.end_session(session)
        now = self._clock.now()
        for writer in self._current_writers():
            writer.rotate(lambda segment: segment.is_aged(self._rotate_interval, now))
        self._remove_old(now)
        self._forget_moved()
        for writer in self._current_writers():
            writer.keep_lease()
        self._segments.adopt_orphans()

    def close(self) -> None:
        with self._mutex:
            sessions = tuple(self._writers)
        for session in sessions:
            self.end_session(session)
        for writer in self._current_writers():
            # It could not be sealed; whoever sweeps next does it.
            writer.abandon()
        with self._mutex:
            self._writers.clear()
        self._leases.close()

    def _writer(self, session: str) -> SegmentWriter:
        with self._mutex:
            writer = self._writers.get(session)
            if writer is None:
                writer = self._writers[session] = SegmentWriter(session, self._segments, self._clock, self._meters)
            return writer

    def _current_writers(self, session: str | None = None) -> list["SegmentWriter"]:
        """All writers, or that of one session."""
        with self._mutex:
            return [writer for name, writer in self._writers.items() if session in (None, name)]

    def _active_parts(
        self, table: TableId | None = None, *, session: str | None = None
    ) -> dict[SegmentName, list[SegmentPart]]:
        found: dict[SegmentName, list[SegmentPart]] = {}
        for writer in self._current_writers(session):
            found.update(writer.parts(table))
        return found

    def _sealed_parts(
        self, *, without: Container[SegmentName], session: str | None = None
    ) -> dict[SegmentName, tuple[SegmentPart, ...]]:
        found: dict[SegmentName, tuple[SegmentPart, ...]] = {}
        for name in self._layout.names(SegmentState.SEALED):
            if name not in without:
                sealed = self._sealed_file(name)
                with sealed.lock:
                    parts = self._parts(sealed)
                    found[name] = parts if session in (None, sealed.session) else ()
        return found

    def _note_sealed(self, name: SegmentName, parts: Sequence[SegmentPart]) -> None:
        """Know what a file holds that this process has just sealed, before anybody opens it."""
        with self._mutex:
            self._sealed.setdefault(name, _Sealed(name, parts))

    def _sealed_file(self, name: SegmentName) -> "_Sealed":
        with self._mutex:
            return self._sealed.setdefault(name, _Sealed(name))

    def _hand_out(self, name: SegmentName, tables: Sequence[TableId] | None) -> list[FlushPayload]:
        sealed = self._sealed_file(name)
        with sealed.lock:
            if not self._hold(sealed):
                return []
            try:
                self._recover(sealed)
                self._mark(sealed)
                parts = self._parts(sealed)
                if not parts:
                    # Whoever marked the last part was killed before the file could be moved.
                    self._move_on(sealed)
                found = [self._parcel(name, part, SegmentState.SEALED) for part in parts]
                free = [one for one in found if one.id not in sealed.out and (tables is None or one.table in tables)]
                sealed.out.update(one.id for one in free)
            except BufferHeldError:
                # Somebody reads it at this moment; there is a next time.
                return []
            finally:
                self._let_go(sealed)
            return free

    def _hold(self, sealed: "_Sealed") -> bool:
        """Have the file's lease, where nobody else has it."""
        if sealed.lease is None or not sealed.lease.is_held():
            sealed.lease = self._leases.take(str(sealed.name))
        return sealed.lease is not None

    def _let_go(self, sealed: "_Sealed") -> None:
        """Give the lease back unless parcels of the file are out."""
        if sealed.out:
            return
        if sealed.lease is not None:
            sealed.lease.release()
            sealed.lease = None
        if not self._layout.holds(SegmentState.SEALED, sealed.name):
            with self._mutex:
                if self._sealed.get(sealed.name) is sealed:
                    del self._sealed[sealed.name]

    def _recover(self, sealed: "_Sealed") -> None:
        """Write a WAL back that a process left which was killed while it marked a part; tasks read the file alone."""
        path = self._layout.path(SegmentState.SEALED, sealed.name)
        if not wal_of(path).exists():
            return
        try:
            if not path.exists():
                raise BufferDamagedError(f"{path} is gone, and its WAL is there.", path=str(path))
            self._segments.open(path).close()
        except BufferDamagedError as error:
            self._put_aside(sealed, error)

    def _mark(self, sealed: "_Sealed") -> None:
        """Mark what the lake has of the file, and move the file on once that is everything."""
        path = self._layout.path(SegmentState.SEALED, sealed.name)
        # While tasks read other parts of the file nobody can write it. The ledger has what was delivered: should this
        # process be killed meanwhile, the parcel comes out once more, and is retired without being delivered.
        if sealed.staged or not sealed.delivered:
            return
        if path.exists():
            if not self._hold(sealed):
                raise BufferHeldError(f"{path} is leased to another process.", path=str(path))
            store = self._patiently(lambda: self._segments.open(path))
            try:
                for relation, table in sealed.delivered.items():
                    store.mark_flushed(table, relation)
                store.checkpoint()
            finally:
                store.close()
                # Not left to the time of the file, which may be too coarse to tell.
                sealed.stamp = None
            if not self._parts(sealed):
                self._move_on(sealed)
        sealed.delivered.clear()

    def _move_on(self, sealed: "_Sealed") -> None:
        path = self._layout.path(SegmentState.SEALED, sealed.name)
        if path.exists() and not wal_of(path).exists():
            faults.reach("queue.before_flushed")
            self._layout.advance(sealed.name, SegmentState.SEALED)
            events.emit("segment_flushed", segment=str(sealed.name))

    def _parts(self, sealed: "_Sealed") -> tuple[SegmentPart, ...]:
        """What the file holds that the lake does not have; nothing where it has moved on."""
        path = self._layout.path(SegmentState.SEALED, sealed.name)
        stamp = _stamp(path)
        if stamp is None:
            return ()
        if sealed.stamp != stamp:

            def look() -> tuple[SegmentPart, ...]:
                with SealedFile.opened(path) as file:
                    sealed.session = file.session()
                    return file.parts()

            try:
                sealed.parts = self._patiently(look)
            except BufferDamagedError as error:
                self._put_aside(sealed, error)
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
        path = self._layout.path(SegmentState.SEALED, name)

        def look() -> list[tuple[SegmentPart, pa.Table]]:
            # Looked at afresh and in one go: another process may mark a part as soon as the file is closed.
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
                return self._patiently(look)
            except BufferDamagedError as error:
                self._put_aside(sealed, error)
            except StorageFailedError:
                # It has moved on: the lake has it, and the ledger says so.
                if path.exists():
                    raise
            return []

    def _put_aside(self, sealed: "_Sealed", error: BufferDamagedError) -> None:
        """Keep a file that cannot be read out of the way; where somebody else has its lease, that is theirs to do."""
        if self._hold(sealed) and self._layout.holds(SegmentState.SEALED, sealed.name):
            quarantine.put(self._layout.path(SegmentState.SEALED, sealed.name), reason=error.message, clock=self._clock)
            self._leases.forget(str(sealed.name))
        self._let_go(sealed)

    def _patiently(self, action: Callable[[], T]) -> T:
        """Do it once nobody else has the file open, which is a matter of moments."""
        for _ in range(_HELD_TRIES - 1):
            with suppress(BufferHeldError):
                return action()
            self._clock.sleep(_HELD_WAIT_S)
        return action()

    def _parcel(self, name: SegmentName, part: SegmentPart, state: SegmentState) -> FlushPayload:
        return FlushPayload(
            id=ids.unit_id(KIND, self._incarnation, name.uuid, str(part.table), part.version),
            table=part.table,
            producer=self.producer(part.table),
            source=name.uuid,
            seq_first=part.seq_first,
            seq_last=part.seq_last,
            rows=part.rows,
            bytes=part.bytes,
            positioned=False,
            path=str(self._layout.path(state, name)),
            relation=part.relation,
            columns=part.columns,
        )

    def _remove_old(self, now: datetime) -> None:
        """Delete flushed segments that were kept long enough."""
        for name in self._layout.names(SegmentState.FLUSHED):
            stamp = _stamp(self._layout.path(SegmentState.FLUSHED, name))
            # A segment is last written when its last part is marked, just before it is moved here.
            if stamp is not None and now.timestamp() - stamp.written_ns / 1e9 >= self._keep_flushed.total_seconds():
                # Nobody takes leases of flushed segments. The file goes last, so that one killed in between is found.
                self._leases.forget(str(name))
                self._layout.remove(name, SegmentState.FLUSHED)

    def _forget_moved(self) -> None:
        """Drop what is known of files that other processes have moved on."""
        with self._mutex:
            known = list(self._sealed.values())
        for sealed in known:
            if not self._layout.holds(SegmentState.SEALED, sealed.name):
                with sealed.lock:
                    self._let_go(sealed)


class _Sealed:
    """A sealed file as this process deals with it."""

    def __init__(self, name: SegmentName, parts: Sequence[SegmentPart] = ()) -> None:
        self.name = name
        # Guards all below, and the file: DuckDB refuses to open it for writing while this process reads it, and the
        # other way round.
        self.lock = threading.Lock()
        self.lease: Lease | None = None
        # Ids of parcels that the caller has, and of those among them that tasks may be reading.
        self.out: set[str] = set()
        self.staged: set[str] = set()
        # Relations that the lake has, with their tables, and that are not marked yet.
        self.delivered: dict[str, TableId] = {}
        # A sealed file changes only when a part is marked; what it holds is looked up once for each stamp.
        self.stamp: _Stamp | None = None
        self.parts = tuple(parts)
        # The session that wrote it, once the file was looked at.
        self.session: str | None = None

    def waiting(self) -> tuple[SegmentPart, ...]:
        """What the lake does not have."""
        return tuple(part for part in self.parts if part.relation not in self.delivered)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stamp:
    """What tells one state of a file from another."""

    written_ns: int
    bytes: int
    wal_bytes: int


def _stamp(path: Path) -> _Stamp | None:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return _Stamp(written_ns=facts.st_mtime_ns, bytes=facts.st_size, wal_bytes=files.size_of(wal_of(path)))


def _state(
    table: TableId,
    active: Mapping[SegmentName, Sequence[SegmentPart]],
    sealed: Mapping[SegmentName, Sequence[SegmentPart]],
) -> TableState:
    waiting = [part for parts in sealed.values() for part in parts if part.table == table]
    parts = [*waiting, *(part for parts in active.values() for part in parts if part.table == table)]
    rows = sum(part.rows for part in parts)
    return TableState(
        table=table,
        rows=rows,
        bytes=sum(part.bytes for part in parts),
        oldest_at=min((part.oldest_at for part in parts if part.oldest_at is not None), default=None),
        seq_last=rows,
        seq_flushed=0,
        sealed_rows=sum(part.rows for part in waiting),
        uuids=frozenset(filter(None, (types.table_of(part.columns) for part in parts))),
    )


def _name_of(parcel: FlushPayload) -> SegmentName:
    name = SegmentName.parse(Path(parcel.path).name)
    if name is None:
        raise InvariantError(f"{parcel.path} is not a segment.")
    return name


def _incarnation(root: Path, clock: Clock) -> str:
    """The root's id, made by whoever comes first."""
    path = root / _INCARNATION
    with FileLock(root / f"{_INCARNATION}.lock", clock=clock).held(timeout_s=_INCARNATION_WAIT_S):
        if not path.exists():
            # Under its own name only once it is whole: a half-written id would be another one after a crash.
            draft = root / f"{_INCARNATION}.new"
            files.write_text(draft, secrets.token_hex(8))
            files.move(draft, path)
            files.sync_folder(root)
        return path.read_text(encoding="utf-8")
