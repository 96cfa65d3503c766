"""A client's transaction: its connection, its changes of the lake, and its rows for the queue.

Rows for the queue are kept until COMMIT. The lake commits first: if that fails, nothing is
enqueued. The lake's commit lock is held for the COMMIT alone, because DuckLake detects conflicts;
with a SQLite catalog, from the first write on.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from enum import Enum
from itertools import groupby

import duckdb
import pyarrow as pa

from catchment.errors import (
    CatchmentError,
    CommitUnknownError,
    ConflictError,
    EngineFailedError,
    LimitError,
    LockTimeoutError,
    StateError,
)
from catchment.foundation.ids import TableId
from catchment.lake import Lake
from catchment.lake.instance import Origin
from catchment.server.encoding import decoded_size
from catchment.server.sessions.connections import Connection
from catchment.server.values import Call, running_call
from catchment.tenants.model import TenantId

# How often a call that waits for the lake checks whether it was cancelled.
_POLL_S = 0.2
# The columns by which rows are interpreted. DESCRIBE would fail for a missing table, and the
# transaction with it.
_SHAPE = (
    "SELECT column_name, data_type, is_nullable, column_default FROM duckdb_columns() WHERE database_name = $1 "
    "AND lower(schema_name) = lower($2) AND lower(table_name) = lower($3) ORDER BY column_index"
)
# DuckDB's wording.
_ABORTED = "TransactionContext Error: Current transaction is aborted (please ROLLBACK)"


@contextmanager
def exclusive(lake: Lake, call: Call, purpose: str) -> Iterator[None]:
    """Hold the lake's commit lock; a stopped call no longer waits for it."""
    end_s = lake.clock.monotonic_s() + lake.limits.lock_timeout_s
    with ExitStack() as held:
        while True:
            call.refuse_stopped()
            try:
                held.enter_context(lake.exclusive(_POLL_S, purpose=purpose))
                break
            except LockTimeoutError as error:
                if lake.clock.monotonic_s() >= end_s:
                    error.message += f" The statement waited for {lake.limits.lock_timeout_s:g} s."
                    raise
        yield


class Expiry(Enum):
    """Why the server rolled a transaction back on its own."""

    LOST = "lost"
    IDLE = "idle"
    OVERLONG = "overlong"

    def error(self) -> CatchmentError:
        """Return the error for a client that still uses the transaction."""
        match self:
            case Expiry.LOST:
                return EngineFailedError()
            case Expiry.IDLE:
                return StateError(
                    "The transaction was rolled back for idling.",
                    hint="Roll it back, and run it again. CATCHMENT_SERVER_TRANSACTION_IDLE_SECONDS is the limit.",
                )
            case Expiry.OVERLONG:
                return StateError(
                    "The transaction was rolled back, because it was open for too long.",
                    hint="Use shorter ones. CATCHMENT_LAKE_TRANSACTION_SECONDS_MAX is the limit.",
                )


def no_such_transaction() -> StateError:
    """Return the error for a transaction that has ended or never existed."""
    return StateError("There is no such transaction.", hint="It may have been rolled back for idling.")


class RolledBackTransactions:
    """The most recent transactions that the server rolled back on its own, and why."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._expired: dict[bytes, Expiry] = {}

    def add(self, handle: bytes, expiry: Expiry) -> None:
        """Remember a transaction."""
        self._expired[handle] = expiry
        while len(self._expired) > self._count_max:
            del self._expired[next(iter(self._expired))]

    def __contains__(self, handle: bytes) -> bool:
        return handle in self._expired

    def forget(self, handle: bytes) -> None:
        """Forget a transaction, because the client knows of its end."""
        self._expired.pop(handle, None)

    def reason(self, handle: bytes) -> CatchmentError:
        """Return the error for a transaction that has ended or never existed."""
        expiry = self._expired.get(handle)
        return no_such_transaction() if expiry is None else expiry.error()


class Transaction:
    """An open transaction. The caller holds its connection's lock."""

    def __init__(
        self,
        handle: bytes,
        connection: Connection,
        lake: Lake,
        *,
        owner: str,
        bytes_max: int,
        now_s: float,
        changing: Callable[[], AbstractContextManager[None]],
        is_current: Callable[[Connection], bool],
        committed: Callable[[], AbstractContextManager[tuple[duckdb.DuckDBPyConnection, Origin]]],
    ) -> None:
        """`owner` is the session, as others may see it. `changing` is held from the first change of
        the lake to the end. `is_current` returns whether a connection can still commit. `committed`
        opens a connection that sees the lake without the transaction.
        """
        self.handle = handle
        self.connection = connection
        self.touched_s = now_s
        # When its first statement began: clients with autocommit off always have one open.
        self.used_since_s: float | None = None
        self.is_ending = False
        self._purpose = f"a transaction of session {owner}"
        self._lake = lake
        self._bytes_max = bytes_max
        self._changing = changing
        self._is_current = is_current
        self._committed = committed
        self._lock = ExitStack()
        self.has_written = False
        # Tenants whose tables a user without a tenant has changed in it: they must have their
        # primary here when it commits.
        self.touched: frozenset[TenantId] = frozenset()
        self._kept: dict[TableId, list[pa.Table]] = {}
        # The columns of these rows' tables before the transaction changed anything, or when the
        # rows were added.
        self._shapes: dict[TableId, list[tuple[object, ...]]] = {}
        self._kept_bytes = 0

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to commit."""
        return self.has_written or bool(self._kept)

    @property
    def holds_lock(self) -> bool:
        """Whether it keeps others from committing until it ends."""
        return self.has_written and not self._lake.address.detects_conflicts

    def use(self, now_s: float) -> None:
        """Record that a statement begins."""
        self.touched_s = now_s
        if self.used_since_s is None:
            self.used_since_s = now_s

    def lock_if_due(self, now_s: float, idle_before_s: float | None) -> Expiry | None:
        """Return why it must be rolled back, and take its connection's lock; None if it may go on.

        One in which no statement ran may stay open. The running statement of an overlong one may
        finish, because it has its own time limit; on a lost instance it is interrupted.
        """
        if self.is_ending:
            return None
        if self.connection.origin.is_lost:
            return Expiry.LOST if self.connection.lock_or_interrupt() else None
        if self.is_overlong(now_s):
            expiry = Expiry.OVERLONG
        elif self.used_since_s is not None and idle_before_s is not None and self.touched_s < idle_before_s:
            expiry = Expiry.IDLE
        else:
            return None
        return expiry if self.connection.lock.acquire(blocking=False) else None

    def is_overlong(self, now_s: float) -> bool:
        """Whether it has been open for longer than a transaction may be, however busy it is."""
        return self.used_since_s is not None and now_s - self.used_since_s > self._lake.limits.transaction_s_max

    def begin(self, call: Call) -> None:
        """Begin the transaction."""
        self.connection.has_failed = False
        self.connection.run("BEGIN", call)

    def prepare_write(self, call: Call) -> None:
        """Prepare for the first change; without conflict detection, keep others from committing."""
        self.refuse_failed()
        if not self.has_written:
            self._refuse_old()
            with ExitStack() as held:
                held.enter_context(self._changing())
                if not self._lake.address.detects_conflicts:
                    held.enter_context(exclusive(self._lake, call, self._purpose))
                    self._refuse_old()
                self._lock = held.pop_all()
            self._shapes = {table: self._shape(table, call) for table in self._kept}
            self.has_written = True

    def _refuse_old(self) -> None:
        if not self._is_current(self.connection):
            raise ConflictError("The lake was reopened after the transaction began.", hint="Roll back and retry.")

    def refuse_ended(self) -> None:
        """Refuse a statement that waited for the connection while the transaction ended."""
        self.connection.origin.refuse_lost()
        if self.is_ending:
            raise no_such_transaction()

    def refuse_failed(self) -> None:
        """Refuse a further statement after one that failed, as DuckDB does."""
        if self.connection.has_failed:
            raise duckdb.TransactionException(_ABORTED)

    def fail(self) -> None:
        """Mark a statement as executed in part: the transaction can only be rolled back."""
        self.connection.has_failed = True

    def keep(self, table: TableId, rows: pa.Table) -> None:
        """Keep rows for the queue until COMMIT."""
        self.refuse_failed()
        size = decoded_size.size_of(rows)
        if self._kept_bytes + size > self._bytes_max:
            raise LimitError(
                f"The transaction's rows for the queue would have more than {self._bytes_max:,} bytes.",
                hint="Commit more often; CATCHMENT_SERVER_WRITE_BYTES_MAX is the limit.",
            )
        if self.has_written and table not in self._shapes:
            self._shapes[table] = self._shape(table, running_call())
        self._kept_bytes += size
        self._kept.setdefault(table, []).append(rows)

    def refuse_changed(self, table: TableId, call: Call) -> None:
        """Refuse rows for a table that the transaction changed: the queue sees committed columns."""
        if self.has_written:
            with self._committed() as (cursor, _):
                before = cursor.execute(_SHAPE, self._place(table)).fetchall()
            if self._shape(table, call) != before:
                raise StateError(
                    f"The transaction has created or changed {table}, which the queue does not see before COMMIT, "
                    "or others have changed it since the transaction began.",
                    hint="COMMIT first, or write directly to the table.",
                )

    def _shape(self, table: TableId, call: Call) -> list[tuple[object, ...]]:
        """Return the table's columns as the transaction sees them; empty if it does not exist."""
        return [tuple(row.values()) for row in self.connection.table(_SHAPE, call, self._place(table)).to_pylist()]

    def _place(self, table: TableId) -> list[str]:
        return [self._lake.name, table.schema, table.name]

    def commit(self, enqueue: Callable[[TableId, pa.Table], None], call: Call) -> None:
        """Commit the changes of the lake; then enqueue the rows for the queue."""
        self.connection.park_result(call)
        if self.connection.has_failed:
            # The transaction may contain half of the statement's changes.
            raise ConflictError(
                "A statement of the transaction failed, so nothing was committed.", hint="Repeat the whole transaction."
            )
        for table, shape in self._shapes.items():
            if self._shape(table, call) != shape:
                raise StateError(
                    f"The transaction changed {table} after writing rows for it to the queue: nothing was committed.",
                    hint="COMMIT between the two, or write directly to the table.",
                )
        try:
            needs_lock = self.has_written and not self.holds_lock
            with exclusive(self._lake, call, self._purpose) if needs_lock else nullcontext():
                if self.has_written:
                    self._refuse_old()
                self._lake.commit_on(self.connection.raw, self.connection.origin)
        except CommitUnknownError as error:
            if self.has_written:
                if self._kept:
                    error.message += " The transaction's rows for the queue were not enqueued."
                raise
            # The lake had nothing to commit.
            self.connection.shapes.clear()
        finally:
            self._lock.close()
        self._enqueue(enqueue)

    def _enqueue(self, enqueue: Callable[[TableId, pa.Table], None]) -> None:
        # Rows of one schema are written together: a column that some lack gets its default there,
        # not NULL.
        waiting = [
            (table, pa.concat_tables(list(alike)))
            for table, parts in self._kept.items()
            for _, alike in groupby(parts, key=lambda part: part.schema)
        ]
        self._kept = {}
        for at, (table, rows) in enumerate(waiting):
            try:
                enqueue(table, rows)
            except CatchmentError as error:
                if at > 0 or self.has_written:
                    error.message += f" The transaction's {rows.num_rows} rows for {table} and all rows after them"
                    error.message += " were not enqueued; the rest is committed."
                raise

    def roll_back(self) -> None:
        """Roll back; discard its changes and its rows for the queue."""
        try:
            self.connection.abandon("The transaction was rolled back.")
            self.connection.roll_back()
        finally:
            self._kept = {}
            self.connection.shapes.clear()
            self._lock.close()
