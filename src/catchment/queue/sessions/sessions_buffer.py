"""The sessions layout: every session writes DuckDB files of its own, called segments.

The folder is the state and a rename the transition, so a crash leaves a segment in one state or the
other:

    first write ──▶ active/ ──seal──▶ sealed/ ──last part retired──▶ flushed/ ──retention──▶ deleted
                       │                 │
                       └─────────────────┴── cannot be opened: set_aside/, with its WAL

A segment is sealed when it is large enough, when its oldest row is old enough, when its session
ends, or by force. A segment whose owner died is an orphan: any process on any host that shares the
root can take its lease and seal it. A payload is one version of one table in a sealed segment, and
the ledger identifies it by its id. The process that has the file's lease delivers it. A delivered
table is renamed with the prefix `__dq_flushed_`.

Segments that another process is writing cannot be read here: DuckDB opens a file for writing in one
process only.
"""

import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from catchment.errors import RetryableError, StorageFailedError
from catchment.foundation import files
from catchment.foundation.clock import Clock
from catchment.foundation.files import FileLock
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.meters import Meters
from catchment.foundation.settings import Settings
from catchment.foundation.text import plural
from catchment.lake import types
from catchment.lake.types import Column
from catchment.queue.buffer import KIND, Ack, BufferedRows, FlushPayload, QuarantinedFile, Staged, TableState
from catchment.queue.sessions.active_segments import ActiveSegment, ActiveSegments, SegmentWriter
from catchment.queue.sessions.lease_factory import leases_for
from catchment.queue.sessions.leases import Leases
from catchment.queue.sessions.sealed_segments import SealedSegments
from catchment.queue.sessions.segment_files import IDENTITY, SegmentFolders, SegmentName, SegmentPart, SegmentState
from catchment.queue.store import file_failures
from catchment.queue.store.file_tables import BufferIdentity
from catchment.queue.store.store import Store
from catchment.queue.store.table_log import Write

_GENERATION = "incarnation"
_GENERATION_WAIT_S = 10


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
        self._folders = SegmentFolders(root)
        self._folders.make()
        self._generation = _generation(root, clock)
        self._sealed = SealedSegments(
            self._folders,
            generation=self._generation,
            open_store=self._open_store,
            leases=leases,
            clock=clock,
        )
        self._active = ActiveSegments(
            self._folders,
            open_store=self._open_store,
            leases=leases,
            clock=clock,
            on_sealed=self._sealed.remember,
        )
        self._meters = meters or Meters()
        # Guards the two below; never held while a file is opened or a lease is taken.
        self._mutex = threading.Lock()
        self._writers: dict[str, SegmentWriter] = {}
        self._ending: set[str] = set()
        # Writes must be accepted while the disk or the lease server is failing; the next sweep
        # reports it.
        with suppress(RetryableError):
            self._active.adopt_orphans()

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

    @staticmethod
    def exists(root: Path) -> bool:
        """Return whether there is a buffer of this layout under the root."""
        return any((root / state).exists() for state in (SegmentState.ACTIVE, SegmentState.SEALED))

    @staticmethod
    def leftover(root: Path) -> str | None:
        """Return a note on rows of this layout for a process that uses another one, or None."""
        states = (SegmentState.ACTIVE, SegmentState.SEALED)
        if not any(path.suffix == ".db" for state in states for path in (root / state).glob("*")):
            return None
        return f"{root} contains files of the layout `sessions`: to flush them, set DUCKLING_QUEUE_LAYOUT=sessions."

    @property
    def generation(self) -> str:
        return self._generation

    @property
    def replication(self) -> None:
        """None: each segment numbers a table's rows from 1."""

    @property
    def separates_sessions(self) -> bool:
        return True

    def producer(self, table: TableId) -> ProducerId:
        return ProducerId(KIND, str(table), self._generation)

    def columns(self, table: TableId, session: str) -> tuple[Column, ...] | None:
        with self._mutex:
            writer = self._writers.get(session)
        return writer.columns(table) if writer else None

    def append(self, table: TableId, columns: tuple[Column, ...], rows: pa.Table, *, session: str) -> Ack:
        write = Write(table=table, columns=columns, rows=rows)
        writer = self._writer(session)
        # A writer that has ended returns None; the session's next one takes the rows.
        while (place := writer.append(write)) is None:
            writer = self._writer(session)
        # The rows are acknowledged even if the rotation fails; a sweep repeats it.
        writer.rotate(lambda segment: segment.is_full(self._rotate_size_bytes, self._clock.now()))
        return Ack(table=table, source=place.source, seq_first=place.seq_first, seq_last=place.seq_last)

    def tables(self, session: str | None = None) -> tuple[TableState, ...]:
        # Active ones first: a segment that is sealed in between is then seen twice, and not missed.
        active = self._active_parts(session=session)
        sealed = self._sealed.parts(without=active, session=session)
        tables = {part.table for some in (*active.values(), *sealed.values()) for part in some}
        return tuple(_state(table, active, sealed) for table in sorted(tables))

    def state(self, table: TableId) -> TableState | None:
        """Return the state without looking for files that another process has sealed since."""
        active = self._active_parts(table)
        sealed = self._sealed.known_parts(without=active)
        known = any(part.table == table for some in (*active.values(), *sealed.values()) for part in some)
        return _state(table, active, sealed) if known else None

    def seal(self) -> None:
        failed = sum(not writer.rotate(ActiveSegment.has_rows) for writer in self._current_writers())
        # Rows of processes that died are acknowledged too, and so are those that a session here
        # could not keep open.
        failed += len(self._active.adopt_orphans())
        if failed:
            raise StorageFailedError(f"{failed} segments cannot be sealed now; no row of them is lost.")

    def payloads(self, tables: Sequence[TableId] | None = None) -> list[FlushPayload]:
        return self._sealed.payloads(tables)

    def release(self, payload: FlushPayload) -> None:
        self._sealed.release(payload)

    def stage(self, payload: FlushPayload, folder: Path) -> Staged:
        return self._sealed.stage(payload)

    def read(self, payload: FlushPayload) -> pa.Table:
        return self._sealed.read(payload)

    def retire(self, payload: FlushPayload) -> None:
        self._sealed.retire(payload)

    def flushed_through(self, table: TableId, seq: int) -> None:
        """Do nothing: the ledger identifies payloads by id; there is no watermark."""

    def check_watermark(self, table: TableId, seq: int) -> int:
        return seq

    def buffered_rows(self, table: TableId, session: str | None = None) -> list[BufferedRows]:
        """Return the rows, as of one moment per session; sessions are read one by one."""
        # Active ones first, and no segment twice: one that is sealed in between was already read.
        found: dict[SegmentName, list[tuple[SegmentPart, pa.Table]]] = {}
        for writer in self._current_writers(session):
            found.update(writer.read(table))
        active = set(found)
        found.update(self._sealed.rows(table, session, without=active))
        states = {name: SegmentState.ACTIVE if name in active else SegmentState.SEALED for name in found}
        return [
            BufferedRows(payload=self._sealed.payload(name, part, states[name]), rows=rows)
            for name, some in sorted(found.items())
            for part, rows in some
        ]

    def complete_through(self, table: TableId) -> dict[str, int]:
        active = self._active_parts(table)
        found = {**active, **self._sealed.parts(without=active)}
        numbers = {name: [part.seq_last for part in parts if part.table == table] for name, parts in found.items()}
        return {name.uuid: max(some) for name, some in numbers.items() if some}

    def leasable_sources(self, table: TableId) -> frozenset[str]:
        return frozenset(self.complete_through(table))

    def notes(self) -> tuple[str, ...]:
        others = len(self._active.of_others())
        if not others:
            return ()
        return (f"{plural(others, 'file')} being written by other processes, whose rows are not counted.",)

    def size_bytes(self) -> int:
        return self._folders.bytes(SegmentState.ACTIVE) + self._folders.bytes(SegmentState.SEALED)

    def used_bytes(self) -> int:
        return self.size_bytes()

    def quarantined(self) -> tuple[QuarantinedFile, ...]:
        return file_failures.quarantined(self._root)

    def end_session(self, session: str) -> None:
        with self._mutex:
            writer = self._writers.get(session)
            self._ending.add(session)
        # A segment that cannot be sealed now is retried by the sweeps.
        is_over = writer is None or writer.end()
        with self._mutex:
            if is_over:
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
        self._sealed.remove_old(now, self._keep_flushed)
        self._sealed.forget_advanced()
        for writer in self._current_writers():
            writer.keep_lease()
        self._active.adopt_orphans()

    def close(self) -> None:
        with self._mutex:
            sessions = tuple(self._writers)
        for session in sessions:
            self.end_session(session)
        for writer in self._current_writers():
            # It could not be sealed; the next sweep, of any process, does it.
            writer.abandon()
        with self._mutex:
            self._writers.clear()
        self._leases.close()

    def _open_store(self, path: Path, session: str = "") -> Store:
        return Store.open(
            path,
            identity_table=IDENTITY,
            fresh=BufferIdentity.new(self._generation, session, self._clock),
        )

    def _writer(self, session: str) -> SegmentWriter:
        with self._mutex:
            writer = self._writers.get(session)
            if writer is None:
                writer = self._writers[session] = SegmentWriter(session, self._active, self._clock, self._meters)
            return writer

    def _current_writers(self, session: str | None = None) -> list["SegmentWriter"]:
        """Return all writers, or that of one session."""
        with self._mutex:
            return [writer for name, writer in self._writers.items() if session in (None, name)]

    def _active_parts(
        self, table: TableId | None = None, *, session: str | None = None
    ) -> dict[SegmentName, list[SegmentPart]]:
        found: dict[SegmentName, list[SegmentPart]] = {}
        for writer in self._current_writers(session):
            found.update(writer.parts(table))
        return found


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
        ready_rows=sum(part.rows for part in waiting),
        sealed_rows=sum(part.rows for part in waiting),
        has_watermark=False,
        uuids=frozenset(filter(None, (types.table_of(part.columns) for part in parts))),
    )


def _generation(root: Path, clock: Clock) -> str:
    """Return the root's id; the first process creates it."""
    path = root / _GENERATION
    with FileLock(root / f"{_GENERATION}.lock", clock=clock).held(timeout_s=_GENERATION_WAIT_S):
        if not path.exists():
            # Renamed once it is complete: after a crash, a half-written id would be taken for
            # another one.
            draft = root / f"{_GENERATION}.new"
            files.write_text(draft, secrets.token_hex(8))
            files.move(draft, path)
            files.sync_folder(root)
        return path.read_text(encoding="utf-8")
