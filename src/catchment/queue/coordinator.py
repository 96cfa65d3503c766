"""The coordinator: the front of the queue, which decides which tables are due and flushes them.

It owns no rows: they are in the buffer until they are in the lake. So after a failed flush only the
table's lock has to be released.
"""

import logging
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from catchment.errors import (
    CatchmentError,
    FlushFailedError,
    MachineError,
    NotSupportedError,
    TableMissingError,
)
from catchment.foundation import events
from catchment.foundation.clock import Clock
from catchment.foundation.ids import TableId
from catchment.foundation.meters import Meters
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.schema_watch import SchemaWatch
from catchment.lake.types import Column
from catchment.queue.buffer import (
    Ack,
    Buffer,
    Flusher,
    FlushPayload,
    FlushReport,
    Progress,
    QuarantinedFile,
    TableFlush,
    TableState,
    merged,
)
from catchment.queue.flush_locks import FLUSH_WAIT_S_MAX, FlushLocks
from catchment.queue.fresh_reads import Fresh, Snapshot, fresh
from catchment.queue.policy import FlushFailure, Policy, Trigger
from catchment.queue.queue_writer import QueueWriter
from catchment.queue.replicated_queue import ReplicatedQueue
from catchment.queue.stranded import StrandedRows
from catchment.queue.table_schemas import TableSchemas

# How long a write waits for room in a full buffer: a few flushes of a lake that works, and shorter
# than clients usually wait for an answer. Writers to another shard add it to their own timeout.
FULL_WAIT_SECONDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """One table of the queue: its buffered rows, why it is due, and its last failure."""

    state: TableState
    trigger: Trigger | None
    failure: FlushFailure | None
    flushing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """State of the queue at one moment."""

    layout: str
    root: str
    generation: str
    bytes: int
    bytes_max: int
    tables: tuple[TableStatus, ...]
    quarantined: tuple[QuarantinedFile, ...]
    at: datetime


class DqCoordinator:
    """Front of the queue: `enqueue` for writers, flushes for the runtime and other callers."""

    def __init__(
        self,
        *,
        buffer: Buffer,
        lake: Lake,
        flusher: Flusher,
        settings: Settings,
        clock: Clock,
        meters: Meters | None = None,
    ) -> None:
        self.buffer = buffer
        self.lake = lake
        self.flusher = flusher
        self._settings = settings
        self._policy = Policy.from_settings(settings)
        self._clock = clock
        self._locks = FlushLocks(self._policy, clock, root=settings.queue_path)
        self._schemas = TableSchemas(
            lake,
            SchemaWatch(lake, clock, age_s_max=settings.queue_schema_check_seconds),
            auto_create=settings.queue_auto_create_tables,
            root=settings.queue_path,
        )
        self._writer = QueueWriter(
            buffer=buffer,
            lake=lake,
            schemas=self._schemas,
            settings=settings,
            clock=clock,
            meters=meters or Meters(),
            make_room=self._make_room,
            wake=self._wake_if_due,
        )
        self._replication = self._make_replication()
        self._sealed_rows: dict[TableId, int] = {}
        # Set when a table is due before the sweeper's next round.
        self.due = threading.Event()

    def enqueue(
        self, table: TableId, rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch], *, session: str = "default"
    ) -> Ack:
        """Accept rows; they are durable on this machine's disk when this returns.

        Columns are matched by name, widened if nothing is lost, and filled with the table's
        defaults if they are missing. If one row does not fit the table, all are refused.
        """
        return self._writer.enqueue(table, rows, session).ack

    @property
    def replication(self) -> ReplicatedQueue:
        """Replication of this queue; NotSupportedError if its layout does not support it."""
        if self._replication is None:
            raise NotSupportedError(
                f"Layout {self._settings.queue_layout!r} of the queue does not support replication.",
                hint="Set DUCKLING_QUEUE_LAYOUT=shared.",
            )
        return self._replication

    def _make_replication(self) -> ReplicatedQueue | None:
        log = self.buffer.replication
        if log is None:
            return None
        return ReplicatedQueue(
            log,
            buffer=self.buffer,
            lake=self.lake,
            flusher=self.flusher,
            writer=self._writer,
            schemas=self._schemas,
            locks=self._locks,
            wake=self._wake_if_due,
        )

    def flush_stale_buffers(self) -> FlushReport:
        """Flush due tables, except those that are being flushed or back off after a failure."""
        self.buffer.sweep()
        return self._flush(self._locks.lock_free(self.due_tables()), None)

    def force_flush_all(self, progress: Progress | None = None) -> FlushReport:
        """Flush everything acknowledged before this call, including tables that back off.

        Waits for flushes under way. Raises FlushFailedError if something could not be flushed.
        """
        self.buffer.seal()
        tables = [state.table for state in self.buffer.tables() if state.rows]
        sources = {table: self.buffer.leasable_sources(table) for table in tables}
        report = self._flush(self._locks.lock_all(tables, timeout_s=FLUSH_WAIT_S_MAX), progress)
        for failed in (each.table for each in report.tables if each.errors or each.stranded):
            del sources[failed]
        report = replace(report, tables=merged([*report.tables, *self._leased_elsewhere(sources)]))
        if not report.ok:
            raise FlushFailedError(
                f"Not everything was flushed: {'; '.join(report.errors)}",
                rows=report.rows,
                files=report.files,
                seconds=report.seconds,
                errors=list(report.errors),
            )
        return report

    def requeue(self, table: TableId, reason: str) -> None:
        """Record that a flush of the table failed: its rows stay buffered, and it backs off."""
        failure = self._locks.failed(table, reason)
        events.emit(
            "flush_failed",
            level=logging.WARNING,
            table=str(table),
            failures=failure.failures,
            retry_at=failure.retry_at.isoformat(),
            reason=reason,
        )

    def _strand(self, flushed: TableFlush) -> None:
        """Keep rows buffered whose table was dropped; the table is retried less and less often."""
        table, rows = flushed.table, flushed.stranded
        self._locks.failed(
            table,
            f"The table of {rows:,} rows was dropped after they were acknowledged: "
            f"`catchment queue export`, `redirect` or `discard` {table}.",
        )
        events.emit("rows_stranded", level=logging.WARNING, table=str(table), rows=rows)

    @contextmanager
    def stranded(self, table: TableId) -> Iterator[StrandedRows]:
        """Yield the rows under that name whose table was dropped; the block excludes flushes."""
        taken = self._locks.lock_all([table], timeout_s=FLUSH_WAIT_S_MAX)
        try:
            with StrandedRows.found(table, lake=self.lake, buffer=self.buffer, root=self._settings.queue_path) as rows:
                yield rows
            state = self.buffer.state(table)
            if state is None or not state.rows:
                self._locks.succeeded(table)
        finally:
            self._locks.release(taken)

    def next_retry_at(self) -> datetime | None:
        """Return when the first failed table may be retried."""
        return self._locks.next_retry_at()

    def fresh(
        self,
        *tables: TableId,
        through: Mapping[TableId, int] | None = None,
        own: Sequence[TableId] = (),
        session: str | None = None,
        snapshot: Snapshot | None = None,
    ) -> AbstractContextManager[Fresh]:
        """Read tables with their buffered rows, each row once; with `through`, up to that number.

        Of the tables in `own`, read only the rows that the session has in the buffer. `snapshot`
        opens a connection to the lake for the read; by default, the lake's own.
        """
        return fresh(self.lake, self.buffer, tables, through, own=own, session=session, snapshot=snapshot)

    def columns(self, table: TableId, *, session: str = "default", ask: bool = False) -> tuple[Column, ...]:
        """Return the columns that rows are accepted with; with `ask`, as the lake has them now."""
        return self._writer.columns(table, session, ask=ask)

    def examine(self, table: TableId, rows: pa.Table, *, session: str = "default") -> None:
        """Refuse rows that `enqueue` would refuse, without storing any."""
        self._writer.bind(table, rows, session)

    def end_session(self, session: str) -> None:
        """End a session."""
        self.buffer.end_session(session)

    def due_tables(self) -> list[TableId]:
        """Return the tables that a sweep would flush now."""
        now = self._clock.now()
        return [
            state.table
            for state in self.buffer.tables()
            if self._policy.trigger(state, now) is not None and self._is_ready(state.table, now)
        ]

    def require_writable(self) -> None:
        """Raise if the disk failed the last write, and no write or flush succeeded since."""
        self._writer.require_writable()

    def status(self) -> QueueStatus:
        """Return the state of the queue."""
        now = self._clock.now()
        return QueueStatus(
            layout=self._settings.queue_layout,
            root=str(self._settings.queue_path),
            generation=self.buffer.generation,
            bytes=self.buffer.used_bytes(),
            bytes_max=self._settings.queue_max_db_bytes,
            tables=tuple(
                TableStatus(
                    state=state,
                    trigger=self._policy.trigger(state, now),
                    failure=self._locks.failure(state.table),
                    flushing=self._locks.is_locked(state.table),
                )
                for state in self.buffer.tables()
            ),
            quarantined=self.buffer.quarantined(),
            at=now,
        )

    def _leased_elsewhere(self, sources: Mapping[TableId, frozenset[str]]) -> Iterator[TableFlush]:
        """Report files that were not flushed because another process has leased them."""
        for table, before in sources.items():
            left = before & self.buffer.leasable_sources(table)
            if left:
                yield TableFlush(table=table, errors=(f"another process has {len(left)} of its files",))

    def _wake_if_due(self, table: TableId) -> None:
        """Wake the sweeper early if the table is due."""
        state, now = self.buffer.state(table), self._clock.now()
        if state is None:
            self._sealed_rows.pop(table, None)
            return
        before, sealed = self._sealed_rows.get(table, 0), state.sealed_rows or 0
        self._sealed_rows[table] = sealed
        trigger = self._policy.trigger(state, now)
        # Sealed files that another process has leased are not new; only additional ones are.
        is_new = trigger is not Trigger.SEALED or sealed > before
        if is_new and trigger is not None and self._is_ready(table, now):
            self.due.set()

    def _is_ready(self, table: TableId, now: datetime) -> bool:
        return not self._locks.is_locked(table) and not self._is_backing_off(table, now)

    def _is_backing_off(self, table: TableId, now: datetime) -> bool:
        failure = self._locks.failure(table)
        return failure is not None and not failure.is_over(now)

    def _flush(self, taken: Sequence[TableId], progress: Progress | None) -> FlushReport:
        """Flush locked tables, then release their locks."""
        started_s = self._clock.monotonic_s()
        with events.context(flush=f"flush-{secrets.token_hex(6)}"):
            try:
                done, payloads = self._flushed(taken, progress) if taken else ((), ())
            finally:
                self._locks.release(taken)
            report = FlushReport(tables=done, seconds=self._clock.monotonic_s() - started_s)
            for each in merged(done):
                if not each.errors:
                    events.emit(
                        "flushed",
                        table=str(each.table),
                        **_payload_facts([payload for payload in payloads if payload.table == each.table]),
                        rows=each.rows,
                        files=each.files,
                        bytes=each.bytes,
                        buried=each.buried,
                        seconds=round(report.seconds, 3),
                    )
            if payloads and report.ok:
                # The payloads are retired, which wrote to the disk.
                self._writer.note_success()
        return report

    def _flushed(
        self, tables: Sequence[TableId], progress: Progress | None
    ) -> tuple[tuple[TableFlush, ...], Sequence[FlushPayload]]:
        """Return the results by table, and the payloads that were offered."""
        payloads: Sequence[FlushPayload] = ()
        try:
            refused = self.flusher.catch_up(tables)
            others = [table for table in tables if table not in refused]
            if self._replication is not None:
                for table in others:
                    with suppress(TableMissingError):
                        # The flush of this table reports the error; the others continue.
                        self._replication.set_watermark(table)
            payloads = self.buffer.payloads(others)
            done = (
                *(TableFlush(table=table, errors=(reason,)) for table, reason in refused.items()),
                *self.flusher.flush(payloads, progress),
            )
        except MachineError:
            # Backing off would not help: the machine lacks something.
            raise
        except CatchmentError as error:
            done = tuple(TableFlush(table=table, errors=(error.message,)) for table in tables)
        except Exception as error:
            # A bug here or in a library: the status shows it, and the tables back off as after any
            # failure.
            for table in tables:
                self.requeue(table, f"{type(error).__name__}: {error}")
            raise
        flushed = {each.table: each for each in merged(done)}
        for table in tables:
            each = flushed.get(table)
            if each is not None and each.errors:
                self.requeue(table, "; ".join(each.errors))
            elif each is not None and each.stranded:
                self._strand(each)
            else:
                self._locks.succeeded(table)
        return done, payloads

    def _make_room(self, size: int) -> bool:
        """Flush, or wait for flushes under way, until there is room or the time is up."""
        give_up_s = self._clock.monotonic_s() + FULL_WAIT_SECONDS
        while (left_s := give_up_s - self._clock.monotonic_s()) > 0:
            now = self._clock.now()
            full = [state.table for state in self.buffer.tables() if state.rows]
            if all(self._is_backing_off(table, now) for table in full):
                break
            self.buffer.seal()
            taken = self._locks.lock_free(table for table in full if not self._is_backing_off(table, now))
            if taken:
                self._flush(taken, None)
            else:
                self._locks.wait_for_change(left_s)
            if self._writer.has_room(size):
                return True
        return self._writer.has_room(size)


def _payload_facts(payloads: Sequence[FlushPayload]) -> dict[str, Any]:
    """Return event fields for a table's payloads: units, and the numbers or files that they cover."""
    facts: dict[str, Any] = {
        "units": len(payloads),
        "unit_ids": events.first_few([payload.id for payload in payloads]),
    }
    seqs = [payload.seqs for payload in payloads if payload.seqs is not None]
    if seqs:
        facts["seqs"] = f"{seqs[0][0]}..{seqs[-1][1]}"
    segments = [Path(payload.path).name for payload in payloads if payload.seqs is None]
    return {**facts, "segments": events.first_few(segments)} if segments else facts
