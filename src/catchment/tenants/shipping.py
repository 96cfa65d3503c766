"""`Shipper`: ships a tenant's log from its primary to its replica, in sequence, without gaps.

    write ──▶ durable at the primary ──▶ handed over ──▶ batched ──▶ durable at the replica ──▶ writer gets its answer
                                             │
                                             └── lost, or replica unreachable: read the log after the replica's position

A replica that does not answer is behind: writers do not wait for it until it has caught up.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import duckdb
import pyarrow as pa

from catchment.errors import CatchmentError, NotReadyError, SeqGapError
from catchment.foundation import events
from catchment.foundation.clock import Clock
from catchment.foundation.ids import TableId
from catchment.queue import DqCoordinator
from catchment.queue.replication import LogRows
from catchment.tenants.model import Positions, ShardId, TenantId
from catchment.tenants.shard_api import Lag, ShardNode

_ROWS_MAX = 50_000
_BYTES_MAX = 8 * 1024 * 1024
_WAITING_BYTES_MAX = 32 * 1024 * 1024
_LOOK_S = 0.2
_TRY_AGAIN_S = (0.05, 2.0)
_TRUNCATE_S = 1.0
# Arrow and DuckDB raise their own errors, also while rows are read. If they ended the thread,
# the replica would stay behind and the log would be retained forever.
_FAILURES = (CatchmentError, pa.ArrowException, duckdb.Error, OSError, ValueError, MemoryError)


class Shipper:
    """Ships one tenant's log to one replica, in its own thread."""

    def __init__(
        self,
        tenant: TenantId,
        queue: DqCoordinator,
        connect: Callable[[ShardId, str], ShardNode],
        *,
        to: tuple[ShardId, str],
        epoch: int,
        clock: Clock,
        move: str | None = None,
    ) -> None:
        """`to` is the replica's name and location; `move` is the move that created the replica."""
        self._tenant = tenant
        self._queue = queue
        self._connect = connect
        self._to = to
        self._epoch = epoch
        self._event_facts: dict[str, Any] = {"tenant": str(tenant), "move": move, "shard": str(to[0])}
        self._clock = clock
        self._changed = threading.Condition()
        # Rows just written, to be sent without reading them back; missing ones are in the log.
        self._waiting: dict[TableId, list[LogRows]] = {}
        self._waiting_bytes = 0
        self._has_news = True
        self._replica: dict[TableId, int] | None = None
        self._is_behind = True
        self._error: str | None = None
        self._stopping = False
        self._truncated_s = self._level_s = clock.monotonic_s()
        self._thread = threading.Thread(target=self._run, name=f"catchment-ship-{tenant}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the replica keeps its rows."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join()

    def serves(self, shard: ShardId, location: str, epoch: int) -> bool:
        """Return whether it ships to that replica in that epoch."""
        return (self._to, self._epoch) == ((shard, location), epoch)

    def hand_over(self, shipment: LogRows | None) -> None:
        """Hand over rows that were just written; None if they can only be read from the log."""
        with self._changed:
            if shipment is not None and not self._is_behind and self._waiting_bytes < _WAITING_BYTES_MAX:
                self._waiting.setdefault(shipment.table, []).append(shipment)
                self._waiting_bytes += shipment.rows.nbytes
            self._has_news = True
            self._changed.notify_all()

    def wait_for(self, table: TableId, seq: int, *, wait_s: float) -> bool:
        """Wait for the replica to have the row, and return whether it has; a replica that is behind
        is not waited for.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has(table, seq) or self._is_behind or self._stopping, wait_s)
            has = self._has(table, seq)
            if not has and not self._is_behind:
                self._fall_behind("The replica did not answer in time.")
            return has

    def catch_up(self, positions: Positions, *, wait_s: float) -> None:
        """Wait until the replica has these positions. Raises NotReadyError after `wait_s`."""
        with self._changed:
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._positions().covers(positions) or self._stopping, wait_s)
            if not done or not self._positions().covers(positions):
                reason = f" {self._error}" if self._error else ""
                raise NotReadyError(
                    f"The replica is at {self._positions().total:,}, but {positions.total:,} is required.{reason}"
                )

    def lag(self) -> Lag:
        """Return the lag of the replica."""
        with self._changed:
            primary = Positions(self._queue.replication.log.positions(self._tenant.schema))
            replica = self._positions()
            seconds = 0.0 if replica.covers(primary) else self._clock.monotonic_s() - self._level_s
            return Lag(
                primary=primary, replica=replica, is_sync=not self._is_behind, seconds=seconds, error=self._error
            )

    def _positions(self) -> Positions:
        return Positions(dict(self._replica or {}))

    def _has(self, table: TableId, seq: int) -> bool:
        return self._replica is not None and self._replica.get(table, 0) >= seq

    def _fall_behind(self, reason: str) -> None:
        if not self._is_behind:
            events.emit("copy_behind", level=logging.WARNING, **self._event_facts, reason=reason)
        self._is_behind = True
        self._error = reason
        self._waiting.clear()
        self._waiting_bytes = 0
        self._changed.notify_all()

    def _run(self) -> None:
        pause_s = _TRY_AGAIN_S[0]
        while not self._stopping:
            try:
                if not self._round():
                    self._idle()
                pause_s = _TRY_AGAIN_S[0]
            except SeqGapError:
                # The replica was reset or replaced: read its positions again.
                with self._changed:
                    self._replica = None
            except _FAILURES as error:
                reason = error.message if isinstance(error, CatchmentError) else f"{type(error).__name__}: {error}"
                with self._changed:
                    self._fall_behind(reason)
                    self._replica = None
                    self._changed.wait_for(lambda: self._stopping, pause_s)
                pause_s = min(pause_s * 2, _TRY_AGAIN_S[1])

    def _idle(self) -> None:
        """Truncate the log up to the replica's positions, and wait for more rows."""
        now_s = self._clock.monotonic_s()
        if now_s - self._truncated_s > _TRUNCATE_S:
            self._truncated_s = now_s
            for table, seq in self._positions().by_table.items():
                self._queue.replication.log.truncate_log(table, seq)
        with self._changed:
            self._changed.wait_for(lambda: self._has_news or self._stopping, _LOOK_S)

    def _round(self) -> bool:
        """Ship as many rows as one message may have; return False if there are none."""
        node = self._connect(*self._to)
        replica = self._replica
        if replica is None:
            replica = dict(node.positions(self._tenant).by_table)
        with self._changed:
            self._replica = replica
            waiting, self._waiting = self._waiting, {}
            self._waiting_bytes = 0
            self._has_news = False
        primary = self._queue.replication.log.positions(self._tenant.schema)
        parts = list(self._next(replica, primary, waiting))
        if not parts:
            self._level_s = self._clock.monotonic_s()
            with self._changed:
                # Rows written from now on are handed over: the replica gets them before their
                # writers get an answer.
                if self._is_behind and not self._is_lagging(replica):
                    self._is_behind = False
                    self._error = None
                    events.emit("copy_caught_up", **self._event_facts)
            return False
        reached = node.append_replicated(self._tenant, parts, epoch=self._epoch)
        with self._changed:
            self._replica = dict(reached.by_table)
            self._changed.notify_all()
        return True

    def _is_lagging(self, replica: Mapping[TableId, int]) -> bool:
        primary = self._queue.replication.log.positions(self._tenant.schema)
        return any(replica.get(table, 0) < seq for table, seq in primary.items())

    def _next(
        self,
        replica: Mapping[TableId, int],
        primary: Mapping[TableId, int],
        waiting: Mapping[TableId, Sequence[LogRows]],
    ) -> Iterator[LogRows]:
        """Yield the rows after the replica's positions, as handed over or from the log."""
        size = 0
        for table, last in primary.items():
            after = replica.get(table, 0)
            if not last and table not in replica:
                yield from self._empty(table)
            if after >= last:
                continue
            found = _joined(after, waiting.get(table, ()))
            if found is None:
                found = self._queue.replication.log.read_log(table, after, rows_max=_ROWS_MAX, bytes_max=_BYTES_MAX)
            if found is not None:
                found = _cut(found)
                yield found
                size += found.rows.nbytes
                if size > _BYTES_MAX:
                    return

    def _empty(self, table: TableId) -> Iterator[LogRows]:
        """Yield a table without rows, so that the replica creates it."""
        columns = self._queue.buffer.columns(table, "")
        if columns is not None:
            yield LogRows(table=table, columns=columns, seq_first=1, rows=pa.table({}))


def _cut(shipment: LogRows) -> LogRows:
    """Return as many of the first rows as a message may have, but at least one."""
    rows = shipment.rows
    while rows.num_rows > 1 and rows.nbytes > _BYTES_MAX:
        rows = rows.slice(0, rows.num_rows // 2)
    return replace(shipment, rows=rows)


def _joined(after: int, parts: Sequence[LogRows]) -> LogRows | None:
    """Join parts that follow `after` without a gap; None if the first one does not."""
    ordered = sorted((part for part in parts if part.seq_last > after), key=lambda part: part.seq_first)
    if not ordered or ordered[0].seq_first > after + 1:
        return None
    joined = [ordered[0]]
    for last, part in pairwise(ordered):
        same = part.columns == last.columns and part.rows.schema.equals(last.rows.schema)
        if part.seq_first != last.seq_last + 1 or not same:
            break
        joined.append(part)
    first = joined[0]
    rows = pa.concat_tables([part.rows for part in joined]) if len(joined) > 1 else first.rows
    return LogRows(table=first.table, columns=first.columns, seq_first=first.seq_first, rows=rows)
