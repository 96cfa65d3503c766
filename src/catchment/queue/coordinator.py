"""The coordinator: takes rows in, decides what is due, and sees that it is flushed.

It owns no rows: they are in the buffer until they are in the lake, so a flush that fails has nothing to put back but
its turn.
"""

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from catchment.errors import (
    BackpressureError,
    BufferDamagedError,
    BufferOutdatedError,
    CatchmentError,
    CommitUnknownError,
    FlushFailedError,
    InputError,
    MachineError,
    NotSupportedError,
    StorageFailedError,
    TableMissingError,
    TypeConflictError,
)
from catchment.foundation import events, sql
from catchment.foundation.clock import Clock
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.meters import Meters
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.schema_watch import SchemaWatch
from catchment.lake.types import Column
from catchment.queue import failure, incoming
from catchment.queue.buffer import Ack, Buffer, FlushPayload, QuarantinedFile, TableState
from catchment.queue.flush_locks import FlushLocks
from catchment.queue.flushing import Flusher, FlushReport, Progress, TableFlush, merged
from catchment.queue.fresh_reads import Fresh, fresh
from catchment.queue.policy import FlushFailure, Policy, Trigger
from catchment.queue.replication import LogRows, ReplicatedBuffer
from catchment.queue.stranded import StrandedRows
from catchment.queue.table_schemas import TableSchemas

DIRECT = "lake"
_FLUSH_WAIT_S_MAX = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """One table of the queue: what is buffered, why it is due, and what went wrong last."""

    state: TableState
    trigger: Trigger | None
    trouble: FlushFailure | None
    flushing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """The queue as it stands."""

    layout: str
    root: str
    incarnation: str
    bytes: int
    bytes_max: int
    tables: tuple[TableStatus, ...]
    set_aside: tuple[QuarantinedFile, ...]
    at: datetime


class DqCoordinator:
    """The queue's front: `enqueue` for writers, the flushes for the runtime and for whoever forces one."""

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
        self._shipper = buffer if isinstance(buffer, ReplicatedBuffer) else None
        self.lake = lake
        self.flusher = flusher
        self._settings = settings
        self._policy = Policy.from_settings(settings)
        self._clock = clock
        self._meters = meters or Meters()
        self._turns = FlushLocks(self._policy, clock, root=settings.queue_path)
        self._targets = TableSchemas(
            lake,
            SchemaWatch(lake, clock, age_s_max=settings.queue_schema_check_seconds),
            auto_create=settings.queue_auto_create_tables,
            root=settings.queue_path,
        )
        self._sealed_rows: dict[TableId, int] = {}
        # Tables, in the lives that they have, of which the ledger knows where they began.
        self._covered: set[ProducerId] = set()
        # How many writes go past the buffer, by schema.
        self._bypassing: Counter[str] = Counter()
        self._bypasses = threading.Condition()
        # Why the last write failed, where that was for the buffer's disk.
        self._refusal: StorageFailedError | None = None
        # Set when a table is due before the sweeper's next round.
        self.due = threading.Event()

    def enqueue(
        self, table: TableId, rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch], *, session: str = "default"
    ) -> Ack:
        """Take rows in; they are durable on this machine's disk when this returns.

        Columns are matched by name, widened where nothing is lost, and filled with the table's defaults where they
        are missing. Rows that the table cannot take are refused whole; nothing of them is kept.
        """
        started_s = self._clock.monotonic_s()
        arrived, columns = self._bound(table, incoming.as_table(rows), session)
        return self._enqueue(table, arrived, columns, session, started_s)

    def take(
        self, table: TableId, rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch], *, session: str = "default"
    ) -> tuple[Ack, LogRows | None]:
        """Take rows in, like `enqueue`, and give them back as another buffer can receive them.

        None where they are not kept as they arrived, and have to be read from the log; and where the lake got them.
        """
        started_s = self._clock.monotonic_s()
        arrived, columns = self._bound(table, incoming.as_table(rows), session)
        ack = self._enqueue(table, arrived, columns, session, started_s)
        if self._shipper is None or ack.source == DIRECT or not incoming.needs_no_cast(arrived, columns):
            return ack, None
        return ack, LogRows(table=table, columns=columns, seq_first=ack.seq_first, rows=arrived)

    def retain_log(self, schema: str) -> None:
        """Keep the rows of the schema's tables as a log from now on, and have them all come through the buffer."""
        self._shipping.retain_log(schema)
        with self._bypasses:
            # One that goes to the lake past the buffer would be in nobody's log.
            self._bypasses.wait_for(lambda: not self._bypassing[sql.fold(schema)])

    def release_log(self, schema: str) -> None:
        """Keep flushed rows of the schema's tables no longer."""
        self._shipping.release_log(schema)

    def held_schemas(self) -> frozenset[str]:
        """Schemas whose tables are held."""
        return self._shipping.held_schemas()

    def truncate_log(self, table: TableId, seq: int) -> None:
        """Flushed rows of a held table up to `seq` may go."""
        self._shipping.truncate_log(table, seq)

    def positions(self, schema: str) -> Mapping[TableId, int]:
        """The last number of each table of the schema."""
        return self._shipping.positions(schema)

    def read_log(self, table: TableId, after: int, *, rows_max: int, bytes_max: int | None = None) -> LogRows | None:
        """Rows of a held table behind number `after`, until they have `bytes_max` bytes; None where there are none."""
        return self._shipping.read_log(table, after, rows_max=rows_max, bytes_max=bytes_max)

    def append_replicated(self, shipments: Sequence[LogRows]) -> None:
        """Keep rows under the numbers that they bring, all or none; tables that the lake lacks are made."""
        buffer = self._shipping
        shipments = [replace(each, columns=self._bound_here(each)) for each in shipments]
        size = sum(each.rows.nbytes for each in shipments)
        if not self._has_room(size) and not self._make_room(size):
            raise self._full(sum(each.rows.num_rows for each in shipments))
        with self._writing():
            buffer.append_replicated(shipments)
        for table in {each.table for each in shipments}:
            self._look(table)

    def _bound_here(self, shipment: LogRows) -> tuple[Column, ...]:
        """The columns of a shipment as this lake knows them: where the rows come from, the table is another one."""
        kept = self.buffer.columns(shipment.table, "")
        unbound = tuple(column.unbound for column in shipment.columns)
        if kept is not None and tuple(column.unbound for column in kept) == unbound:
            return kept
        self._targets.have(shipment.table, unbound)
        own = self._targets.known(shipment.table, None, ask=False)
        # Rows of other columns than the table has here now are matched by name when they are flushed.
        return own if tuple(column.unbound for column in own) == unbound else unbound

    def start_after(self, table: TableId, seq: int) -> None:
        """Have the table's numbers go on behind `seq`, up to which the lake has its rows; may be repeated.

        The buffer is told first. Until the ledger is, nothing of the table can be delivered; a flush tells it, too.
        """
        buffer, columns = self._shipping, self._targets.known(table, None, ask=True)
        if buffer.state(table) is not None:
            refused = self.flusher.catch_up([table])
            if table in refused:
                raise BufferOutdatedError(refused[table])
        buffer.start_after(table, columns, seq)
        self._covered.discard(buffer.producer(table))
        self._cover(table)

    def drop(self, schema: str) -> None:
        """Forget the schema's tables and whatever of them is buffered; flushes of them are waited for."""
        buffer = self._shipping
        tables = self._turns.take_all(buffer.positions(schema), timeout_s=_FLUSH_WAIT_S_MAX)
        try:
            buffer.drop(schema)
            self._targets.forget(schema)
            for table in tables:
                self._turns.succeeded(table)
                self._sealed_rows.pop(table, None)
        finally:
            self._turns.give_back(tables)

    def flush_stale_buffers(self, progress: Progress | None = None) -> FlushReport:
        """Flush the tables that are due, but for those that are being flushed or left alone after a failure."""
        self.buffer.sweep()
        return self._flush(self._turns.take_free(self.due_tables()), progress)

    def force_flush_all(self, progress: Progress | None = None) -> FlushReport:
        """Flush everything acknowledged before this call, in as many parcels as it takes, whatever failed before.

        Flushes under way are waited for. What could not be flushed is FlushFailedError.
        """
        self.buffer.seal()
        tables = [state.table for state in self.buffer.tables() if state.rows]
        sources = {table: set(self.buffer.complete_through(table)) for table in tables}
        report = self._flush(self._turns.take_all(tables, timeout_s=_FLUSH_WAIT_S_MAX), progress)
        for failed in (each.table for each in report.tables if each.errors or each.stranded):
            del sources[failed]
        report = replace(report, tables=merged([*report.tables, *self._left_behind(sources)]))
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
        """A flush of the table failed: its rows are still buffered, and its next turn waits, longer each time."""
        trouble = self._turns.failed(table, reason)
        events.emit(
            "flush_failed",
            level=logging.WARNING,
            table=str(table),
            failures=trouble.failures,
            retry_at=trouble.retry_at.isoformat(),
            reason=reason,
        )

    def _strand(self, flushed: TableFlush) -> None:
        """The rows' table is gone: they stay buffered and are looked at less and less often."""
        table, rows = flushed.table, flushed.stranded
        self._turns.failed(
            table,
            f"The table of {rows:,} rows was dropped after they were acknowledged: "
            f"`catchment queue export`, `redirect` or `discard` {table}.",
        )
        events.emit("rows_stranded", level=logging.WARNING, table=str(table), rows=rows)

    @contextmanager
    def stranded(self, table: TableId) -> Iterator[StrandedRows]:
        """The rows under that name whose table is gone; no flush touches the name meanwhile."""
        taken = self._turns.take_all([table], timeout_s=_FLUSH_WAIT_S_MAX)
        try:
            with StrandedRows.found(table, lake=self.lake, buffer=self.buffer, root=self._settings.queue_path) as rows:
                yield rows
            state = self.buffer.state(table)
            if state is None or not state.rows:
                self._turns.succeeded(table)
        finally:
            self._turns.give_back(taken)

    def next_retry_at(self) -> datetime | None:
        """When the first table in trouble may be tried again."""
        return self._turns.next_retry_at()

    def fresh(
        self,
        *tables: TableId,
        through: Mapping[TableId, int] | None = None,
        own: Sequence[TableId] = (),
        session: str | None = None,
    ) -> AbstractContextManager[Fresh]:
        """Read tables with their buffered rows, each row once; with `through`, none behind that number.

        Of `own`, read what the session has in the buffer, and nothing else.
        """
        return fresh(self.lake, self.buffer, tables, through, own=own, session=session)

    def columns(self, table: TableId, *, session: str = "default", ask: bool = False) -> tuple[Column, ...]:
        """What rows for the table are taken with; `ask` asks the lake although it is known."""
        return self._targets.known(table, None if ask else self.buffer.columns(table, session), ask=ask)

    @property
    def _shipping(self) -> ReplicatedBuffer:
        if self._shipper is None:
            raise NotSupportedError(
                f"Layout {self._settings.queue_layout!r} of the queue numbers no table's rows once and for all.",
                hint="Set DUCKLING_QUEUE_LAYOUT=shared.",
            )
        return self._shipper

    def examine(self, table: TableId, rows: pa.Table, *, session: str = "default") -> None:
        """Refuse rows that `enqueue` would refuse; nothing is kept of them."""
        self._bound(table, rows, session)

    def _enqueue(
        self, table: TableId, rows: pa.Table, columns: tuple[Column, ...], session: str, started_s: float
    ) -> Ack:
        # Asked once: Arrow takes longer to add it up than all that is counted here.
        size = incoming.size_of(rows)
        if not self._has_room(size) and not self._make_room(size):
            return self._bypass(table, rows)
        with self._writing():
            ack = self.buffer.append(table, columns, rows, session=session)
        self._meters.acked(rows=rows.num_rows, size=size, seconds=self._clock.monotonic_s() - started_s)
        self._look(table)
        return ack

    def _bound(self, table: TableId, rows: pa.Table, session: str) -> tuple[pa.Table, tuple[Column, ...]]:
        """The rows, and the columns that they are bound to; those that the table cannot take are refused."""
        try:
            return rows, self._columns_for(table, rows, session)
        except TypeConflictError as error:
            # Plain Arrow has but texts for some types, and INSERT takes them.
            try:
                restored = incoming.restored(rows, self.columns(table, session=session))
            except TableMissingError:
                raise error from None
            if restored is rows:
                raise
            return restored, self._columns_for(table, restored, session)

    def _columns_for(self, table: TableId, rows: pa.Table, session: str) -> tuple[Column, ...]:
        """What the rows are kept with; those that the table cannot take are refused."""
        columns = self._targets.columns(table, rows.schema, self.buffer.columns(table, session))
        try:
            incoming.require_values(rows, columns)
        except InputError:
            # NULL may be allowed by now.
            asked = self.columns(table, session=session, ask=True)
            if asked == columns:
                raise
            columns = self._targets.columns(table, rows.schema, None)
            incoming.require_values(rows, columns)
        return columns

    def end_session(self, session: str) -> None:
        """A session is over."""
        self.buffer.end_session(session)

    def due_tables(self) -> list[TableId]:
        """Tables that a sweep would flush now."""
        now = self._clock.now()
        return [
            state.table
            for state in self.buffer.tables()
            if self._policy.trigger(state, now) is not None and self._is_ready(state.table, now)
        ]

    def require_writable(self) -> None:
        """Refuse, where the last write failed for the buffer's disk, and none went well since, nor a flush."""
        refusal = self._refusal
        if refusal is not None:
            raise refusal.rebuild(f"The queue cannot take writes: {refusal.message}", refusal.hint, refusal.facts)

    def status(self) -> QueueStatus:
        """The queue as it stands."""
        now = self._clock.now()
        return QueueStatus(
            layout=self._settings.queue_layout,
            root=str(self._settings.queue_path),
            incarnation=self.buffer.incarnation,
            bytes=self.buffer.used_bytes(),
            bytes_max=self._settings.queue_max_db_bytes,
            tables=tuple(
                TableStatus(
                    state=state,
                    trigger=self._policy.trigger(state, now),
                    trouble=self._turns.trouble(state.table),
                    flushing=self._turns.is_taken(state.table),
                )
                for state in self.buffer.tables()
            ),
            set_aside=self.buffer.set_aside(),
            at=now,
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Tell a writer what is the matter with the disk, and remember it for whoever asks how the queue is."""
        try:
            yield
        except StorageFailedError as error:
            self._refused(error)
            raise failure.refusal(self._settings.queue_path, error) from error
        except CommitUnknownError as error:
            self._refused(error)
            hint = "Is there room on that disk? Then look whether the rows are there before you write them again."
            raise CommitUnknownError(f"{error.message.rstrip('.')}.", hint=hint) from error
        except BufferDamagedError as error:
            self._refused(error)
            raise
        self._accepted()

    def _refused(self, error: CatchmentError) -> None:
        before, self._refusal = self._refusal, failure.refusal(self._settings.queue_path, error)
        if before is None:
            events.emit("writes_refused", level=logging.ERROR, reason=error.message)

    def _accepted(self) -> None:
        if self._refusal is not None:
            self._refusal = None
            events.emit("writes_accepted")

    def _left_behind(self, sources: Mapping[TableId, set[str]]) -> Iterator[TableFlush]:
        """Files that were there before the flush and still are, because another process has leased them."""
        for table, before in sources.items():
            state = self.buffer.state(table)
            if state is not None and state.sealed_rows is not None:
                left = before & set(self.buffer.complete_through(table))
                if left:
                    yield TableFlush(table=table, errors=(f"another process has {len(left)} of its files",))

    def _look(self, table: TableId) -> None:
        """Call the sweeper early where the table is due."""
        state, now = self.buffer.state(table), self._clock.now()
        if state is None:
            return
        # Sealed files that another process has leased are no news: only further ones are.
        news = state.sealed_rows is None or state.sealed_rows > self._sealed_rows.get(table, 0)
        self._sealed_rows[table] = state.sealed_rows or 0
        if news and self._policy.trigger(state, now) is not None and self._is_ready(table, now):
            self.due.set()

    def _is_ready(self, table: TableId, now: datetime) -> bool:
        return not self._turns.is_taken(table) and not self._is_in_trouble(table, now)

    def _is_in_trouble(self, table: TableId, now: datetime) -> bool:
        trouble = self._turns.trouble(table)
        return trouble is not None and not trouble.is_over(now)

    def _flush(self, taken: Sequence[TableId], progress: Progress | None) -> FlushReport:
        """Flush tables whose turn was taken, and give it back."""
        started_s = self._clock.monotonic_s()
        with events.context(flush=f"flush-{secrets.token_hex(6)}"):
            try:
                done, parcels = self._flushed(taken, progress) if taken else ((), ())
            finally:
                self._turns.give_back(taken)
            report = FlushReport(tables=done, seconds=self._clock.monotonic_s() - started_s)
            for each in merged(done):
                if not each.errors:
                    events.emit(
                        "flushed",
                        table=str(each.table),
                        **_named([parcel for parcel in parcels if parcel.table == each.table]),
                        rows=each.rows,
                        files=each.files,
                        bytes=each.bytes,
                        buried=each.buried,
                        seconds=round(report.seconds, 3),
                    )
            if parcels and report.ok:
                # They are retired, for which the disk was written.
                self._accepted()
        return report

    def _flushed(
        self, tables: Sequence[TableId], progress: Progress | None
    ) -> tuple[tuple[TableFlush, ...], Sequence[FlushPayload]]:
        """What became of the tables, and which parcels there were to flush."""
        parcels: Sequence[FlushPayload] = ()
        try:
            refused = self.flusher.catch_up(tables)
            others = [table for table in tables if table not in refused]
            for table in others:
                with suppress(TableMissingError):
                    # Its flush says so, and the others go on.
                    self._cover(table)
            parcels = self.buffer.parcels(others)
            done = (
                *(TableFlush(table=table, errors=(reason,)) for table, reason in refused.items()),
                *self.flusher.flush(parcels, progress),
            )
        except MachineError:
            # Nothing that waiting would cure.
            raise
        except CatchmentError as error:
            done = tuple(TableFlush(table=table, errors=(error.message,)) for table in tables)
        except Exception as error:
            # A bug of ours or of a library: the status names it, and the tables back off as after any other failure.
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
                self._turns.succeeded(table)
        return done, parcels

    def _has_room(self, size: int) -> bool:
        cap = self._settings.queue_max_db_bytes
        # The file keeps its size when rows go, so where it looks full the blocks in use are counted.
        return not cap or self.buffer.size_bytes() + size <= cap or self.buffer.used_bytes() + size <= cap

    def _make_room(self, size: int) -> bool:
        """Flush what can be flushed, or wait for whoever does, until the rows have room or time is up."""
        give_up_s = self._clock.monotonic_s() + self._settings.queue_full_wait_seconds
        while (left_s := give_up_s - self._clock.monotonic_s()) > 0:
            now = self._clock.now()
            full = [state.table for state in self.buffer.tables() if state.rows]
            if all(self._is_in_trouble(table, now) for table in full):
                break
            self.buffer.seal()
            taken = self._turns.take_free(table for table in full if not self._is_in_trouble(table, now))
            if taken:
                self._flush(taken, None)
            else:
                self._turns.wait_for_change(left_s)
            if self._has_room(size):
                return True
        return self._has_room(size)

    def _bypass(self, table: TableId, rows: pa.Table) -> Ack:
        schema = sql.fold(table.schema)
        with self._bypasses:
            self._bypassing[schema] += 1
        try:
            # Looked at once it is known that this goes on: who holds the schema waits for it.
            held = self._shipper is not None and schema in self._shipper.held_schemas()
            if held or not self._settings.queue_bypass:
                raise self._full(rows.num_rows)
            events.emit("bypassed", level=logging.WARNING, table=str(table), rows=rows.num_rows)
            self.lake.insert(table, rows)
        finally:
            with self._bypasses:
                self._bypassing[schema] -= 1
                self._bypasses.notify_all()
        return Ack(table=table, source=DIRECT, seq_first=1, seq_last=rows.num_rows)

    def _full(self, rows: int) -> BackpressureError:
        return BackpressureError(
            f"The queue's buffer has reached {self._settings.queue_max_db_bytes:,} bytes; these "
            f"{rows:,} rows were not taken."
        )

    def _cover(self, table: TableId) -> None:
        """Tell the ledger where a table began that did not begin at 1: its deliveries go on from there."""
        begun = self._shipper.start_seq(table) if self._shipper is not None else None
        producer = self.buffer.producer(table)
        if begun and producer not in self._covered:
            self.lake.open()
            self.lake.set_watermark(producer, table, begun)
            self._covered.add(producer)


def _named(parcels: Sequence[FlushPayload]) -> dict[str, Any]:
    """What a line says of a table's parcels: their units, and the numbers or the files that they cover."""
    facts: dict[str, Any] = {
        "units": len(parcels),
        "unit_ids": events.first_few([parcel.id for parcel in parcels]),
    }
    positioned = [parcel for parcel in parcels if parcel.positioned]
    if positioned:
        facts["seqs"] = f"{positioned[0].seq_first}..{positioned[-1].seq_last}"
    segments = [Path(parcel.path).name for parcel in parcels if not parcel.positioned]
    return {**facts, "segments": events.first_few(segments)} if segments else facts
