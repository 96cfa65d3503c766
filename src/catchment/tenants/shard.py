"""`TenantShard`: a shard's work for its tenants. `ShardNode` is its contract; `protocol` decides.

write ──▶ write barrier ──▶ primary in that epoch? ──▶ durable in the queue ──▶ durable at the replica ──▶ answer
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from catchment.errors import (
    CatchmentError,
    InvalidStateError,
    InvariantError,
    NotReadyError,
    RetryableError,
    StaleRouteError,
)
from catchment.foundation import events, faults, files, sql
from catchment.foundation.clock import Clock
from catchment.foundation.ids import DEFAULT_SCHEMA, TableId
from catchment.lake import digest
from catchment.lake.dead_letters import DeadLetters
from catchment.lake.erase import Erased, erase
from catchment.lake.ledger import Ledger
from catchment.queue import DqCoordinator
from catchment.queue.buffer import Ack
from catchment.queue.replication import LogRows
from catchment.tenants.model import Positions, ShardId, TenantId
from catchment.tenants.protocol import (
    accepts,
    admits,
    closes,
    drops,
    is_behind,
    reopens,
    replicates,
    retains_log,
    settles,
    welcomes,
)
from catchment.tenants.records import Records, Residents
from catchment.tenants.shard_api import Lag, Replica, RetainedHistory, ShardNode, ShardRole, TableDigest, TenantRecord
from catchment.tenants.shipping import Shipper
from catchment.tenants.write_barrier import WriteBarrier

_TRY_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Time limits: writers at a closed write barrier, a write for the replica, a closing barrier
    for writes inside.
    """

    gate_s: float = 10.0
    replica_s: float = 2.0
    drain_s: float = 3.0


WAITS = Waits()


class Decisions(Protocol):
    """Decisions of the control plane, requested only if the shard's own record is not enough."""

    def decided(self, tenant: TenantId, shard: ShardId) -> TenantRecord | None:
        """Return the shard's current role for the tenant; None if there is no such tenant."""
        ...

    def take_back(self, tenant: TenantId, move: str, version: int) -> int:
        """Change the move so that a swap from this version fails; return a version after it.

        Another process may have been faster: then the move has another version already, or is over.
        """
        ...


class Admission(Protocol):
    """Limits of tenants."""

    def admit(self, tenant: TenantId, table: TableId, rows: pa.Table) -> None:
        """Raise QuotaExceededError if the rows exceed one of the tenant's limits."""
        ...


class TenantShard:
    """The tenants of one shard. Thread-safe."""

    def __init__(
        self,
        shard: ShardId,
        queue: DqCoordinator,
        *,
        home: Path,
        decisions: Decisions,
        connect: Callable[[ShardId, str], ShardNode],
        clock: Clock,
        admission: Admission | None = None,
        waits: Waits | None = None,
    ) -> None:
        """`connect` returns a shard by its name and location."""
        self._id = shard
        self._queue = queue
        self._home = home
        self._records = Records(home)
        self._decisions = decisions
        self._connect = connect
        self._clock = clock
        self._admission = admission
        self._waits = waits or WAITS
        # Guards the dictionaries; a thread that changes a tenant's record also holds the tenant's
        # lock.
        self._mutex = threading.Lock()
        self._barriers: dict[TenantId, WriteBarrier] = {}
        self._locks: dict[TenantId, threading.RLock] = {}
        self._shippers: dict[TenantId, Shipper] = {}
        # Guards the two counters.
        self._done = threading.Condition()
        self._readers: dict[TenantId, int] = {}
        self._changes: dict[TenantId, int] = {}
        self._stopping = threading.Event()
        self._identity: str | None = None

    def open(self) -> None:
        """Continue where the last process on this home stopped."""
        for record in self._records.all():
            if record.closed_for is not None:
                self._barrier(record.tenant).close(wait_s=self._waits.drain_s)
                self._watch(record.tenant, record.closed_for, after_s=0.0)
                continue
            if record.role is ShardRole.REPLICA:
                with suppress(RetryableError):
                    # The role may have changed while no process ran here.
                    record = self._refresh(record.tenant) or record
            self._ship(record)
            if record.move is None:
                # The process that ended the move may have been killed before the log was released.
                self._queue.replication.log.release_log(record.tenant.schema)

    def close(self) -> None:
        """Stop shipping."""
        self._stopping.set()
        for shipper in list(self._shippers.values()):
            shipper.stop()

    @property
    def id(self) -> ShardId:
        return self._id

    def facts(self) -> Mapping[str, Any]:
        records = self._records.all()
        return {
            "shard": self._id.name,
            "lake": self._lake_identity(),
            "free_bytes": files.free_bytes(self._home),
            "buffered_rows": sum(state.rows for state in self._queue.buffer.tables()),
            "tenants": [str(each.tenant) for each in records if each.role is ShardRole.PRIMARY],
            "replication_lag_s": max((each.lag().seconds for each in list(self._shippers.values())), default=0.0),
        }

    def _lake_identity(self) -> str | None:
        """Return the identity of the lake; None while it is unavailable and was never read."""
        if self._identity is None:
            with suppress(RetryableError):
                self._queue.lake.open()
                self._identity = self._queue.lake.identity()
        return self._identity

    def record(self, tenant: TenantId) -> TenantRecord | None:
        """Return the tenant's record; without one, ask the control plane."""
        return self._records.find(tenant) or self._refresh(tenant)

    def _refresh(self, tenant: TenantId) -> TenantRecord | None:
        """Read the control plane's decision and settle it."""
        decided = self._decisions.decided(tenant, self._id)
        if decided is not None and (decided.role is not ShardRole.GONE or self._records.find(tenant) is not None):
            self.settle(decided)
        return self._records.find(tenant)

    def residents(self) -> Residents:
        """Return the tenants that this shard knows, and those whose primary is another shard."""
        return self._records.residents()

    # Writing and reading.

    def write(self, tenant: TenantId, table: str, rows: pa.Table, *, epoch: int, session: str = "default") -> Ack:
        target = TableId(tenant.schema, table)
        if is_behind(self._records.find(tenant), epoch):
            self._refresh(tenant)
        if self._admission is not None:
            # Outside of the barrier: it may have to query the lake.
            self._admission.admit(tenant, target, rows)
        with self._barrier(tenant).enter(wait_s=self._waits.gate_s):
            record = admits(self._records.find(tenant), epoch)
            ack, shipment = self._queue.replication.enqueue(target, rows, session=session)
            faults.reach("tenant.after_home_write")
            shipper = self._shippers.get(tenant)
            if shipper is not None:
                shipper.hand_over(shipment)
                if record.replica is not None and record.replica.sync:
                    shipper.wait_for(target, ack.seq_last, wait_s=self._waits.replica_s)
            return ack

    def append_replicated(self, tenant: TenantId, shipments: Sequence[LogRows], *, epoch: int) -> Positions:
        if is_behind(self._records.find(tenant), epoch):
            self._refresh(tenant)
        with self._barrier(tenant).enter(wait_s=self._waits.replica_s):
            accepts(self._records.find(tenant), epoch)
            foreign = [part.table for part in shipments if part.table.schema != tenant.schema]
            if foreign:
                raise InvalidStateError(f"{foreign[0]} is not a table of {tenant}.")
            self._queue.replication.append_replicated(shipments)
            faults.reach("tenant.after_receive")
            for part in shipments:
                # The primary has them, and a replica ships to no other shard: delete them here once
                # they are flushed.
                self._queue.replication.log.truncate_log(part.table, part.seq_last)
            return self.positions(tenant)

    def positions(self, tenant: TenantId) -> Positions:
        return Positions(self._queue.replication.log.positions(tenant.schema))

    @contextmanager
    def reading(self, tenant: TenantId) -> Iterator[None]:
        """Hold while the tenant's tables are read. Raises StaleRouteError if not the primary."""
        with self._counted(self._readers, tenant):
            # In this order: an admitted reader is counted before the tables could be deleted.
            self._require_primary(tenant)
            yield

    @contextmanager
    def changing(self, tenant: TenantId) -> Iterator[None]:
        """Hold while the tenant's tables are changed without the queue. Refused during a move,
        because the change is not in the log.
        """
        with self._counted(self._changes, tenant):
            if self._require_primary(tenant).move is not None:
                raise NotReadyError(
                    f"{tenant} is being moved: its tables accept rows through duckling_queue only.",
                    hint="Write through duckling_queue, or wait for the move to end.",
                )
            yield

    @contextmanager
    def _counted(self, those: dict[TenantId, int], tenant: TenantId) -> Iterator[None]:
        with self._done:
            those[tenant] = those.get(tenant, 0) + 1
        try:
            yield
        finally:
            with self._done:
                those[tenant] -= 1
                self._done.notify_all()

    def _require_primary(self, tenant: TenantId) -> TenantRecord:
        record = self.record(tenant)
        if record is None or record.role is not ShardRole.PRIMARY:
            raise StaleRouteError(f"{tenant} does not live in {self._id}.")
        return record

    def readers(self, tenant: TenantId) -> int:
        with self._done:
            return self._readers.get(tenant, 0)

    # Steps of a move.

    def welcome(self, tenant: TenantId, *, epoch: int, move: str) -> None:
        with self._lock(tenant):
            known = self._records.find(tenant)
            fresh = TenantRecord(tenant=tenant, role=ShardRole.REPLICA, epoch=epoch, move=move)
            welcomed = welcomes(known, fresh)
            if welcomed != known:
                if known is None:
                    self._refuse_tables(tenant)
                else:
                    # The data here is from an earlier move, or from one that was undone.
                    self._delete(tenant)
                self._records.keep(welcomed)

    def _refuse_tables(self, tenant: TenantId) -> None:
        found = self._tables(tenant)
        if found:
            raise InvalidStateError(
                f"{self._id} already has {found[0]}, and its owner is unknown.",
                hint="Drop it, or rename its schema, and move the tenant again.",
            )

    def retain_log(self, tenant: TenantId, *, epoch: int, move: str) -> RetainedHistory:
        with self._lock(tenant):
            if is_behind(self._records.find(tenant), epoch):
                # An earlier move was undone, and its process died before this shard was notified.
                self._refresh(tenant)
            record = retains_log(self._records.find(tenant), epoch=epoch, move=move)
            self._records.keep(record)
            # From now on, no change without the queue begins. Wait for running ones; writes
            # continue.
            with self._done:
                if not self._done.wait_for(lambda: not self._changes.get(tenant), self._waits.drain_s):
                    raise NotReadyError(f"Tables of {tenant} are being changed without the queue.")
            self._queue.replication.retain_log(tenant.schema)
            faults.reach("tenant.after_hold")
            known = self._records.retained(tenant, move)
            if known is None:
                known = self._read_history(tenant)
                self._records.keep_retained(tenant, move, known)
            return known

    def _read_history(self, tenant: TenantId) -> RetainedHistory:
        """Return one snapshot of the lake, with the position of the tenant's log in it."""
        lake, buffer = self._queue.lake, self._queue.buffer
        lake.open()
        tables = self._queue.replication.log.positions(tenant.schema)
        with lake.snapshot() as connection:
            ledger = Ledger(connection, lake.name)
            marks = {table: buffer.check_watermark(table, ledger.join(buffer.producer(table)).seq) for table in tables}
            row = connection.execute(f"SELECT id FROM {sql.identifier(lake.name)}.current_snapshot()").fetchone()
        if row is None:
            raise InvariantError("The lake has no snapshot.")
        return RetainedHistory(snapshot=row[0], watermarks=Positions(marks))

    def start_after(self, tenant: TenantId, positions: Positions, *, move: str) -> None:
        with self._lock(tenant):
            record = self._records.find(tenant)
            if record is None or record.role is not ShardRole.REPLICA or record.move != move:
                raise InvalidStateError(f"{self._id} is not preparing a replica of {tenant}.")
            # As the primary, this shard will ship its log back. Retain it now: at the change of the
            # primary it would take too long.
            self._queue.replication.retain_log(tenant.schema)
            for table, seq in positions.by_table.items():
                if self._queue.replication.log.positions(tenant.schema).get(table, 0) < seq:
                    self._queue.replication.start_after(table, seq)

    def replicate(self, tenant: TenantId, replica: Replica, *, epoch: int) -> Positions:
        with self._lock(tenant):
            record = replicates(self._records.find(tenant), replica, epoch=epoch)
            with self._barrier(tenant).closed(wait_s=self._waits.drain_s):
                self._records.keep(record)
                self._ship(record)
                return self.positions(tenant)

    def lag(self, tenant: TenantId) -> Lag:
        shipper = self._shippers.get(tenant)
        if shipper is None:
            raise InvalidStateError(f"{self._id} has no replica of {tenant}.")
        return shipper.lag()

    def close_barrier(self, tenant: TenantId, *, move: str, version: int, deadline_s: float) -> Positions:
        with self._lock(tenant):
            record = closes(self._records.find(tenant), move=move, version=version)
            shipper = self._shippers.get(tenant)
            if shipper is None or record.replica is None or not record.replica.sync:
                raise InvalidStateError(f"{tenant} is not written to two shards.")
            # Ship the missing rows while writers are still admitted, so that little is left once
            # the barrier is closed.
            shipper.catch_up(self.positions(tenant), wait_s=self._waits.replica_s)
            barrier = self._barrier(tenant)
            was_closed = barrier.is_closed
            barrier.close(wait_s=self._waits.drain_s)
            try:
                positions = self.positions(tenant)
                shipper.catch_up(positions, wait_s=self._waits.replica_s)
                self._records.keep(record)
            except BaseException:
                if not was_closed:
                    barrier.open()
                raise
            faults.reach("tenant.after_close")
            self._watch(tenant, version, after_s=deadline_s)
            return positions

    def settle(self, record: TenantRecord) -> None:
        tenant = record.tenant
        with self._lock(tenant):
            known = self._records.find(tenant)
            settled = settles(known, record)
            if settled == known:
                return
            if settled.role is ShardRole.PRIMARY and settled.replica is not None:
                # Before the first write: rows written from now on are shipped back from the log.
                self._retain_log(tenant)
            self._records.keep(settled)
            faults.reach("tenant.after_settle")
            if settled.role is ShardRole.PRIMARY:
                self._ship(settled)
            # Admit waiting writers, or send them to the other shard, before the slower rest.
            self._barrier(tenant).open()
            if settled.role is not ShardRole.PRIMARY:
                self._ship(settled)
            if settled.replica is None:
                self._queue.replication.log.release_log(tenant.schema)

    def digests(self, tenant: TenantId, at: Positions) -> Mapping[TableId, TableDigest]:
        tables = self._tables(tenant)
        found: dict[TableId, TableDigest] = {}
        with self._queue.fresh(*tables, through=at.by_table) as fresh:
            for table in tables:
                columns = self._queue.lake.table_in(fresh.connection, table).columns
                row = fresh.connection.execute(
                    f"SELECT count(*), {digest.rows_digest(columns)} FROM ({fresh.queries[table]})"
                ).fetchone()
                if row is not None:
                    found[table] = TableDigest(rows=row[0], digest=digest.text(row[1]))
        return found

    def drop(self, tenant: TenantId, *, epoch: int) -> Erased:
        with self._lock(tenant):
            drops(self._records.find(tenant), epoch=epoch)
            return self._delete(tenant)

    def _delete(self, tenant: TenantId) -> Erased:
        """Delete the tenant's log, then its tables, then their files."""
        self._queue.replication.drop(tenant.schema)
        faults.reach("tenant.between_drops")
        lake = self._queue.lake
        tables = self._tables(tenant)
        with lake.write() as connection:
            # The primary has its own dead letters; retried here, these would recreate a deleted
            # tenant.
            DeadLetters(connection, lake.name).remove_of(tenant.schema)
            for table in tables:
                connection.execute(f"DROP TABLE {sql.qualified(lake.name, table.schema, table.name)}")
            if tenant.schema != DEFAULT_SCHEMA:
                connection.execute(f"DROP SCHEMA IF EXISTS {sql.qualified(lake.name, tenant.schema)} CASCADE")
        faults.reach("tenant.before_erase")
        return erase(lake, tenant.schema)

    # Internals.

    def _retain_log(self, tenant: TenantId) -> None:
        if tenant.schema not in self._queue.replication.log.retained_schemas():
            self._queue.replication.retain_log(tenant.schema)

    def _tables(self, tenant: TenantId) -> list[TableId]:
        self._queue.lake.open()
        return [table for table in self._queue.lake.tables() if table.schema == tenant.schema]

    def _barrier(self, tenant: TenantId) -> WriteBarrier:
        with self._mutex:
            return self._barriers.setdefault(tenant, WriteBarrier(self._clock))

    def _lock(self, tenant: TenantId) -> threading.RLock:
        with self._mutex:
            return self._locks.setdefault(tenant, threading.RLock())

    def _ship(self, record: TenantRecord) -> None:
        """Run the shipper that the record requires, and no other."""
        replica = record.replica
        before = self._shippers.get(record.tenant)
        if before is not None and replica is not None and before.serves(replica.shard, replica.location, record.epoch):
            return
        if before is not None:
            del self._shippers[record.tenant]
            before.stop()
        if record.role is ShardRole.PRIMARY and replica is not None:
            shipper = Shipper(
                record.tenant,
                self._queue,
                self._connect,
                to=(replica.shard, replica.location),
                epoch=record.epoch,
                clock=self._clock,
                move=record.move,
            )
            self._shippers[record.tenant] = shipper
            shipper.start()

    def _watch(self, tenant: TenantId, version: int, *, after_s: float) -> None:
        """Ensure that a barrier does not stay closed if the process that closed it is gone."""
        threading.Thread(
            target=self._resolve, args=(tenant, version, after_s), name=f"catchment-gate-{tenant}", daemon=True
        ).start()

    def _resolve(self, tenant: TenantId, version: int, after_s: float) -> None:
        self._stopping.wait(after_s)
        while not self._stopping.is_set():
            with self._lock(tenant):
                record = self._records.find(tenant)
                if record is None or record.closed_for != version or record.move is None:
                    return
                try:
                    self._take_back(record, record.move, version)
                except RetryableError as error:
                    # Only the control plane knows whether this is still the primary: writers wait
                    # or retry.
                    facts = {"move": record.move, "reason": error.message}
                    events.emit("gate_waiting", level=logging.WARNING, tenant=str(tenant), **facts)
                except CatchmentError as error:
                    facts = {"move": record.move, "reason": error.message}
                    events.emit("gate_stuck", level=logging.ERROR, tenant=str(tenant), **facts)
            self._stopping.wait(_TRY_AGAIN_S)

    def _take_back(self, record: TenantRecord, move: str, version: int) -> None:
        """Open a barrier that got no decision in time; settle the decision if there is one."""
        tenant = record.tenant
        now = self._decisions.take_back(tenant, move, version)
        self._refresh(tenant)
        if self._records.find(tenant) == record:
            opened = reopens(record, now)
            self._records.keep(opened)
            self._ship(opened)
            self._barrier(tenant).open()
            events.emit("gate_returned", level=logging.WARNING, tenant=str(tenant), move=move)
