"""The coordinator: takes rows in, decides what is due, and sees that it is flushed.

It owns no rows: they are in the buffer until they are in the lake, so a flush that fails has nothing to put back but
its turn.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from catchment import events
from catchment.clock import Clock
from catchment.errors import BackpressureError, CatchmentError, FlushFailedError, InputError, MachineError
from catchment.ids import TableId
from catchment.lake import Lake
from catchment.lake.types import Column
from catchment.queue import arrivals
from catchment.queue.buffer import Ack, Buffer, SetAside, TableState
from catchment.queue.flushing import Flusher, FlushReport, Progress, TableFlush, merged
from catchment.queue.fresh import Fresh, fresh
from catchment.queue.policy import Policy, Trigger, Trouble
from catchment.queue.targets import Targets
from catchment.queue.turns import Turns
from catchment.settings import Settings

DIRECT = "lake"
_FLUSH_WAIT_S_MAX = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """One table of the queue: what is buffered, why it is due, and what went wrong last."""

    state: TableState
    trigger: Trigger | None
    trouble: Trouble | None
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
    set_aside: tuple[SetAside, ...]
    at: datetime


class DqCoordinator:
    """The queue's front: `enqueue` for writers, the flushes for the runtime and for whoever forces one."""

    def __init__(self, *, buffer: Buffer, lake: Lake, flusher: Flusher, settings: Settings, clock: Clock) -> None:
        self.buffer = buffer
        self.lake = lake
        self.flusher = flusher
        self._settings = settings
        self._policy = Policy.from_settings(settings)
        self._clock = clock
        self._turns = Turns(self._policy, clock, root=settings.queue_path)
        self._targets = Targets(lake, auto_create=settings.queue_auto_create_tables, root=settings.queue_path)
        self._sealed_rows: dict[TableId, int] = {}
        # Set when a table is due before the sweeper's next round.
        self.due = threading.Event()

    def enqueue(
        self, table: TableId, rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch], *, session: str = "default"
    ) -> Ack:
        """Take rows in; they are durable on this machine's disk when this returns.

        Columns are matched by name, widened where nothing is lost, and filled with the table's defaults where they
        are missing. Rows that the table cannot take are refused whole; nothing of them is kept.
        """
        arrived = arrivals.as_table(rows)
        columns = self._columns_for(table, arrived, session)
        if not self._has_room(arrived.nbytes) and not self._make_room(arrived.nbytes):
            return self._bypass(table, arrived)
        ack = self.buffer.append(table, columns, arrived, session=session)
        self._look(table)
        return ack

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
        for failed in (each.table for each in report.tables if each.errors):
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

    def next_retry_at(self) -> datetime | None:
        """When the first table in trouble may be tried again."""
        return self._turns.next_retry_at()

    def fresh(self, *tables: TableId) -> AbstractContextManager[Fresh]:
        """Read tables with their buffered rows, each row once."""
        return fresh(self.lake, self.buffer, tables)

    def columns(self, table: TableId, *, session: str = "default", ask: bool = False) -> tuple[Column, ...]:
        """What rows for the table are taken with; `ask` asks the lake although it is known."""
        return self._targets.known(table, None if ask else self.buffer.columns(table, session), ask=ask)

    def examine(self, table: TableId, rows: pa.Table, *, session: str = "default") -> None:
        """Refuse rows that `enqueue` would refuse; nothing is kept of them."""
        self._columns_for(table, rows, session)

    def _columns_for(self, table: TableId, rows: pa.Table, session: str) -> tuple[Column, ...]:
        """What the rows are kept with; those that the table cannot take are refused."""
        columns = self._targets.columns(table, rows.schema, self.buffer.columns(table, session))
        try:
            arrivals.require_values(rows, columns)
        except InputError:
            # NULL may be allowed by now.
            asked = self.columns(table, session=session, ask=True)
            if asked == columns:
                raise
            columns = self._targets.columns(table, rows.schema, None)
            arrivals.require_values(rows, columns)
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
        try:
            done = self._flushed(taken, progress) if taken else ()
        finally:
            self._turns.give_back(taken)
        return FlushReport(tables=done, seconds=self._clock.monotonic_s() - started_s)

    def _flushed(self, tables: Sequence[TableId], progress: Progress | None) -> tuple[TableFlush, ...]:
        try:
            self.flusher.catch_up(tables)
            done = self.flusher.flush(self.buffer.parcels(tables), progress)
        except MachineError:
            # Nothing that waiting would cure.
            raise
        except CatchmentError as error:
            done = tuple(TableFlush(table=table, errors=(error.message,)) for table in tables)
        errors = {each.table: each.errors for each in merged(done) if each.errors}
        for table in tables:
            if table in errors:
                self.requeue(table, "; ".join(errors[table]))
            else:
                self._turns.went_well(table)
        return done

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
        if not self._settings.queue_bypass:
            raise BackpressureError(
                f"The queue's buffer has reached {self._settings.queue_max_db_bytes:,} bytes; these "
                f"{rows.num_rows:,} rows were not taken."
            )
        events.emit("bypassed", level=logging.WARNING, table=str(table), rows=rows.num_rows)
        self.lake.insert(table, rows)
        return Ack(table=table, source=DIRECT, seq_first=1, seq_last=rows.num_rows)
