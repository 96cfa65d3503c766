"""A client's transaction: its connection, the lake's commit lock from its first write on, and rows
for the queue.

Rows for the queue are kept until COMMIT. The lake commits first: if that fails, nothing is
enqueued.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import groupby

import duckdb
import pyarrow as pa

from catchment.errors import (
    CatchmentError,
    ConflictError,
    EngineFailedError,
    LimitError,
    LockTimeoutError,
    StateError,
)
from catchment.foundation.ids import TableId
from catchment.lake import Lake
from catchment.server.encoding import decoded_size
from catchment.server.sessions.connections import Connection
from catchment.server.values import Call
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
def exclusive(lake: Lake, call: Call) -> Iterator[None]:
    """Hold the lake's commit lock; a stopped call no longer waits for it."""
    end_s = lake.clock.monotonic_s() + lake.limits.lock_timeout_s
    with ExitStack() as held:
        while True:
            call.refuse_stopped()
            try:
                held.enter_context(lake.exclusive(_POLL_S))
                break
            except LockTimeoutError:
                if lake.clock.monotonic_s() >= end_s:
                    raise LockTimeoutError(
                        f"The lake's commit lock was held by other writers for {lake.limits.lock_timeout_s:g} s."
                    ) from None
        yield


def no_such_transaction() -> StateError:
    """Return the error for a transaction that has ended or never existed."""
    return StateError("There is no such transaction.", hint="It may have been rolled back for idling.")


class RolledBackTransactions:
    """The most recent transactions that the server rolled back on its own, and why."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._lost: dict[bytes, bool] = {}

    def add(self, transaction: "Transaction") -> None:
        """Remember a transaction."""
        self._lost[transaction.handle] = transaction.connection.origin.is_lost
        while len(self._lost) > self._count_max:
            del self._lost[next(iter(self._lost))]

    def __contains__(self, handle: bytes) -> bool:
        return handle in self._lost

    def forget(self, handle: bytes) -> None:
        """Forget a transaction, because the client knows of its end."""
        self._lost.pop(handle, None)

    def reason(self, handle: bytes) -> CatchmentError:
        """Return the error for a transaction that has ended or never existed."""
        return EngineFailedError() if self._lost.get(handle) else no_such_transaction()


class Transaction:
    """An open transaction. The caller holds its connection's lock."""

    def __init__(
        self,
        handle: bytes,
        connection: Connection,
        lake: Lake,
        *,
        bytes_max: int,
        now_s: float,
        changing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`changing` is held from the first change of the lake to the end."""
        self.handle = handle
        self.connection = connection
        self.touched_s = now_s
        # Whether a statement has run in it: clients with autocommit off always have one open.
        self.is_used = False
        self.is_ending = False
        self._lake = lake
        self._bytes_max = bytes_max
        self._changing = changing
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

    def begin(self, call: Call) -> None:
        """Begin the transaction."""
        self.connection.has_failed = False
        self.connection.run("BEGIN", call)

    def prepare_write(self, call: Call) -> None:
        """Acquire the commit lock, so that nothing else changes the lake until the end."""
        self.refuse_failed()
        if not self.has_written:
            self._refuse_old()
            with ExitStack() as held:
                held.enter_context(self._changing())
                held.enter_context(exclusive(self._lake, call))
                self._refuse_old()
                self._lock = held.pop_all()
            self._shapes = {table: self._shape(table, call) for table in self._kept}
            self.has_written = True

    def _refuse_old(self) -> None:
        if self.connection.origin != self._lake.origin():
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
            self._shapes[table] = self._shape(table, Call())
        self._kept_bytes += size
        self._kept.setdefault(table, []).append(rows)

    def refuse_changed(self, table: TableId, call: Call) -> None:
        """Refuse rows for a table that the transaction changed: the queue sees committed columns."""
        if self.has_written:
            with self._lake.cursor() as cursor:
                before = cursor.execute(_SHAPE, self._place(table)).fetchall()
            if self._shape(table, call) != before:
                raise StateError(
                    f"The transaction has created or changed {table}, which the queue does not see before COMMIT.",
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
            self._lake.commit_on(self.connection.raw, self.connection.origin)
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
