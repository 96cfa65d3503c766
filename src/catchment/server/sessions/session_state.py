"""The state of a session that its statements use: its connection, transactions and settings.

SessionState ──▶ its own connection (its DuckDB connection: temporary tables, USE)
            ├──▶ transactions, each on a connection; the first on the session's own
            └──▶ settings, and statements that were prepared by SQL
"""

import secrets
import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

import pyarrow as pa

from catchment.errors import CatchmentError, EngineFailedError, LimitError, StateError
from catchment.foundation import events
from catchment.foundation.ids import TableId
from catchment.lake import Lake
from catchment.queue import DqCoordinator
from catchment.server.engine.parsing import LocalParser, Parser
from catchment.server.sessions.backend import Backend
from catchment.server.sessions.connections import Connection
from catchment.server.sessions.kept_settings import KeptSettings
from catchment.server.sessions.transactions import Expiry, RolledBackTransactions, Transaction
from catchment.server.sql.statement_plan import Step, plan
from catchment.server.sql.tenant_isolation import hide_internal_tables
from catchment.server.statement_log import shown_session
from catchment.server.values import Call, Principal
from catchment.tenants.model import TenantId

_TRANSACTIONS_MAX = 8
DEFAULT_QUEUE_NAME = "default"


class SessionState:
    """What the statements of one session use and change. Thread-safe.

    A caller that needs both locks takes a connection's lock first and the state's second.
    """

    def __init__(self, session_id: str, principal: Principal, backend: Backend) -> None:
        self.id = session_id
        # Enough to tell it from others in displays, too little to call with.
        self.shown_id = shown_session(session_id)
        self.principal = principal
        self.backend = backend
        self.scope = backend.scope(principal.tenant)
        # The engine process that runs its statements; None if this process does.
        self.engine = backend.engine()
        self.parser: Parser = LocalParser() if self.engine is None else self.engine.parser
        self.settings = KeptSettings()
        # Statements that were prepared by SQL, by name.
        self.named_statements: dict[str, str] = {}
        # Whether the client knows its token; if so, the session outlives the call that opened it.
        self.is_kept = False
        # Whether a statement left state in the session's connection.
        self.has_left_state = False
        self._mutex = threading.RLock()
        self._own: Connection | None = None
        self._transactions: dict[bytes, Transaction] = {}
        # Transactions that were rolled back for idling, or with their DuckDB instance.
        self._expired = RolledBackTransactions(_TRANSACTIONS_MAX)
        self._by_sql: bytes | None = None
        # A transaction whose client got the error that its engine has ended.
        self._reported_loss: bytes | None = None
        self._is_closed = False

    # What statements need of the server.

    @property
    def lake(self) -> Lake:
        """The lake."""
        return self.backend.lake

    @property
    def queue(self) -> DqCoordinator | None:
        """The queue, unless it is disabled."""
        return self.backend.queue

    @property
    def queue_name(self) -> str:
        """The session's name in the queue. Clients without a known session share one."""
        return self.id if self.is_kept else DEFAULT_QUEUE_NAME

    def plan(self, text: str) -> tuple[Step, ...]:
        """Plan the steps of a text; Catchment's names without a schema are in the session's schema."""
        return plan(text) if self.scope is None else plan(text, self.scope.schema)

    def enqueue(self, table: TableId, rows: pa.Table) -> None:
        """Pass rows to the queue; every write of this session to the queue uses this method."""
        self.backend.enqueue(self.principal.tenant, table, rows, session=self.queue_name)

    def reading_lake(self, touched: Collection[TenantId] = ()) -> AbstractContextManager[None]:
        """Hold while rows of the lake are read; for a user without a tenant, those of the tenants
        `touched`.
        """
        return self.backend.touching(touched) if touched else self.backend.reading(self.principal.tenant)

    def changing_lake(self) -> AbstractContextManager[None]:
        """Hold while the lake is changed."""
        return self.backend.changing(self.principal.tenant)

    def redacted_errors(self) -> AbstractContextManager[None]:
        """Remove names from errors that the session's user may not see."""
        return hide_internal_tables() if self.scope is None else self.scope.redact_errors()

    def new_handle(self) -> bytes:
        """Return a handle that cannot be guessed, and leads to this session."""
        return f"{self.id}.{secrets.token_hex(16)}".encode()

    # Connections.

    def own_connection(self) -> Connection:
        """Return the session's own connection, opened again if its DuckDB instance was abandoned."""
        with self._mutex:
            self._refuse_closed()
            own = self._own
            if own is not None and (self.backend.is_current(own) or self._is_in_transaction(own)):
                return own
        made = self._connect(is_own=True)
        with self._mutex:
            is_first = self._own is own and not self._is_closed
            if is_first:
                self._own = made
            found = self._own
        unused = own if is_first else made
        if unused is not None:
            unused.close()
            if unused.has_state:
                raise EngineFailedError(
                    "The session's connection was replaced: its temporary tables, views and macros, and its variables "
                    "are gone.",
                    hint="Create them again. Its settings and prepared statements are as they were.",
                )
        with self._mutex:
            self._refuse_closed()
        if found is None:
            raise _ended()
        return found

    def _connect(self, *, is_own: bool = False) -> Connection:
        """Return a new connection with the session's settings."""
        made = self.backend.connect(self.engine, self.scope)
        try:
            self.apply_settings(made, is_own=is_own)
        except BaseException:
            made.close()
            raise
        return made

    def apply_settings(self, connection: Connection, *, is_own: bool = False) -> None:
        """Give a connection the settings that were set on others.

        If one cannot be set, the session's own connection reports it once, because no statement
        could correct it. Any other one is refused: its setting may be that of an open transaction.
        """
        self.settings.apply(connection, has_lake=self.backend.is_current(connection), forgets=is_own)

    @contextmanager
    def connection(self, transaction: Transaction | None) -> Iterator[Connection]:
        """Yield the connection of the transaction, or one for autocommit; its lock is held."""
        if transaction is None:
            with self.autocommit_connection() as connection:
                yield connection
        else:
            with transaction.connection.lock:
                try:
                    transaction.refuse_ended()
                    yield transaction.connection
                except EngineFailedError:
                    self._reported_loss = transaction.handle
                    raise
                finally:
                    transaction.touched_s = self.backend.clock.monotonic_s()
                    if transaction.connection.origin.is_lost:
                        self._lose(transaction)

    @contextmanager
    def autocommit_connection(self) -> Iterator[Connection]:
        """Return a connection for a statement outside of transactions: the session's own, unless a
        transaction uses it.
        """
        own = self.own_connection()
        with own.lock:
            if self._is_free(own):
                self.apply_settings(own, is_own=True)
                yield own
                return
        other = self._connect()
        with other.lock:
            try:
                yield other
            finally:
                other.close_when_read()

    def _is_free(self, connection: Connection) -> bool:
        """Return whether a statement outside of transactions may run on it; call with its lock."""
        with self._mutex:
            return connection is self._own and not self._is_in_transaction(connection)

    def _is_in_transaction(self, connection: Connection) -> bool:
        return any(each.connection is connection for each in self._transactions.values())

    # Transactions.

    @property
    def has_transactions(self) -> bool:
        """Whether transactions are open."""
        return bool(self._transactions)

    @property
    def is_in_sql_transaction(self) -> bool:
        """Whether statements that name no transaction are in one."""
        return self._by_sql is not None

    @property
    def holds_lock(self) -> bool:
        """Whether one of its transactions keeps others from committing to the lake."""
        with self._mutex:
            return any(each.holds_lock for each in self._transactions.values())

    def begin(self, call: Call, handle: bytes | None = None) -> bytes:
        """Open a transaction, on the session's own connection if that is free; return its handle."""
        with self.reading_lake():
            own = self.own_connection()
            with own.lock:
                if self._is_free(own):
                    self.apply_settings(own, is_own=True)
                    return self._begin(own, call, handle)
            other = self._connect()
        with other.lock:
            try:
                return self._begin(other, call, handle)
            except BaseException:
                other.close()
                raise

    def _begin(self, connection: Connection, call: Call, handle: bytes | None) -> bytes:
        opened = Transaction(
            handle or self.new_handle(),
            connection,
            self.lake,
            owner=self.shown_id,
            bytes_max=self.backend.settings.server_write_bytes_max,
            now_s=self.backend.clock.monotonic_s(),
            changing=self.changing_lake,
            is_current=self.backend.is_current,
            committed=lambda: self.backend.snapshot(self.engine),
        )
        with self._mutex:
            self._refuse_closed()
            if len(self._transactions) >= _TRANSACTIONS_MAX:
                raise LimitError(f"The session already has {_TRANSACTIONS_MAX} open transactions.", hint="End one.")
            self._transactions[opened.handle] = opened
        try:
            opened.begin(call)
        except BaseException:
            with self._mutex:
                self._transactions.pop(opened.handle, None)
            raise
        return opened.handle

    def find(self, transaction: bytes | None, *, join: bool = False) -> Transaction | None:
        """Return the transaction that a statement names; with `join`, the only open one."""
        with self._mutex:
            if transaction is None:
                transaction = self._by_sql
                if transaction is not None and transaction in self._expired:
                    # Reported once: the statement was meant for the transaction, and must not run
                    # without it.
                    self._by_sql = None
            if transaction is None and join and len(self._transactions) == 1:
                transaction = next(iter(self._transactions))
            if transaction is None:
                return None
            found = self._transactions.get(transaction)
            if found is None or found.is_ending:
                raise self._expired.reason(transaction)
            now_s = self.backend.clock.monotonic_s()
            if found.connection.origin.is_lost:
                expiry = Expiry.LOST
            elif found.is_overlong(now_s):
                expiry = Expiry.OVERLONG
            else:
                found.use(now_s)
                return found
            self._expire(found, expiry)
            # The error below reports it.
            self._by_sql = None if self._by_sql == transaction else self._by_sql
        self._finish_expired(found)
        raise self._expired.reason(transaction)

    def current(self, transaction: bytes | None) -> bytes | None:
        """Return the transaction for a statement that was prepared in one: that one, or the one
        opened after it.

        Clients keep prepared statements longer than transactions, and name no transaction when they
        run them.
        """
        with self._mutex:
            is_known = transaction is None or transaction in self._transactions or transaction in self._expired
            if is_known or len(self._transactions) > 1:
                return transaction
            return next(iter(self._transactions), None)

    def begin_by_sql(self, call: Call) -> None:
        """Run BEGIN as a statement: later statements that name no transaction are in it."""
        with self._mutex:
            if self._by_sql is not None:
                raise StateError("A transaction is already open.", hint="COMMIT or ROLLBACK it first.")
            # Reserved at once; statements that arrive before the transaction exists find none.
            self._by_sql = b""
        opened = None
        try:
            opened = self.begin(call)
        finally:
            self._by_sql = opened

    def end_by_sql(self, transaction: bytes | None, *, commit: bool, call: Call) -> None:
        """Run COMMIT or ROLLBACK as a statement."""
        ended = self.find(transaction)
        if ended is None:
            raise StateError("No transaction is open.", hint="Open one with BEGIN.")
        try:
            self.end(ended.handle, commit=commit, call=call)
        finally:
            self._begin_for_driver(transaction)

    def _begin_for_driver(self, transaction: bytes | None) -> None:
        """Open a transaction that a driver opened and SQL has ended: the driver continues to name
        it, and ends it itself later.
        """
        if transaction is not None:
            with suppress(CatchmentError):
                self.begin(Call(), transaction)

    def roll_back_expired(self, transaction: bytes | None) -> bool:
        """Run ROLLBACK as a statement if the transaction is rolled back already, or its engine has
        ended; return whether it was.
        """
        with self._mutex:
            handle = self._by_sql if transaction is None else transaction
            found = None if handle is None else self._transactions.get(handle)
            is_lost = found is not None and not found.is_ending and found.connection.origin.is_lost
            if handle is None or not (is_lost or handle in self._expired):
                return False
        self.end(handle, commit=False)
        with self._mutex:
            self._by_sql = None if self._by_sql == handle else self._by_sql
        self._begin_for_driver(transaction)
        return True

    def forget_reported_loss(self) -> None:
        """Let BEGIN open another transaction after one whose loss a statement has reported."""
        with self._mutex:
            if self._by_sql is not None and self._by_sql == self._reported_loss and self._by_sql in self._expired:
                self._by_sql = None

    def end(self, transaction: bytes, *, commit: bool, call: Call | None = None) -> None:
        """Commit a transaction, or roll it back."""
        if call is not None:
            call.refuse_stopped()
        with self._mutex:
            ended = self._transactions.get(transaction)
            if not commit and transaction in self._expired:
                # It was rolled back already, as the client requests.
                self._expired.forget(transaction)
                return
            if ended is None or ended.is_ending:
                raise self._expired.reason(transaction)
            is_overlong = commit and ended.is_overlong(self.backend.clock.monotonic_s())
            # It stays registered until it has ended: nothing else may run on its connection before.
            ended.is_ending = True
        with self.redacted_errors():
            self._finish(ended, commit=commit and not is_overlong, call=call or Call())
        if is_overlong:
            raise Expiry.OVERLONG.error()

    def _finish(self, ended: Transaction, *, commit: bool, call: Call) -> None:
        """End a transaction that no other caller can end any more."""
        with ended.connection.lock:
            try:
                if commit:
                    # If its tenant has moved away, the rows it has read may be outdated, and the
                    # rows it kept are for this primary.
                    with self.reading_lake(ended.touched):
                        ended.commit(self.enqueue, call)
                else:
                    ended.roll_back()
            except BaseException:
                ended.roll_back()
                raise
            finally:
                with self._mutex:
                    if self._transactions.get(ended.handle) is ended:
                        del self._transactions[ended.handle]
                    if self._by_sql == ended.handle and ended.handle not in self._expired:
                        self._by_sql = None
                if ended.connection is not self._own:
                    ended.connection.close()

    # Expiry and close.

    def expire_transactions(self, *, idle_before_s: float | None) -> int:
        """Roll back transactions that idled since `idle_before_s`, are open for too long, or lost."""
        now_s = self.backend.clock.monotonic_s()
        with self._mutex:
            found = [(each, each.lock_if_due(now_s, idle_before_s)) for each in self._transactions.values()]
            over = [(each, expiry) for each, expiry in found if expiry is not None]
            for each, expiry in over:
                self._expire(each, expiry)
        with ExitStack() as held:
            for each, _ in over:
                held.callback(each.connection.lock.release)
            for each, _ in over:
                self._finish_expired(each)
        return len(over)

    def _lose(self, transaction: Transaction) -> None:
        """Roll back a transaction whose engine has ended, unless it is ending already; the caller
        holds its connection's lock.
        """
        with self._mutex:
            if transaction.is_ending:
                return
            self._expire(transaction, Expiry.LOST)
        self._finish_expired(transaction)

    def _expire(self, transaction: Transaction, expiry: Expiry) -> None:
        """Mark a transaction as ended, under the mutex: a statement that arrives now is refused."""
        transaction.is_ending = True
        self._expired.add(transaction.handle, expiry)
        events.emit("transaction_expired", session=self.shown_id, user=self.principal.name, reason=expiry.value)

    def _finish_expired(self, transaction: Transaction) -> None:
        with suppress(CatchmentError):
            self._finish(transaction, commit=False, call=Call())

    def close(self) -> None:
        """Roll back the transactions, and release the session's buffered rows for delivery."""
        with self._mutex:
            self._is_closed = True
            open_ones = list(self._transactions)
        with ExitStack() as cleanup:
            if self.is_kept and self.queue is not None:
                cleanup.callback(self.queue.end_session, self.queue_name)
            if self._own is not None:
                cleanup.callback(self._own.close)
            for handle in open_ones:
                cleanup.callback(self._roll_back, handle)

    def _roll_back(self, handle: bytes) -> None:
        with suppress(CatchmentError):
            self.end(handle, commit=False)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise _ended()


def _ended() -> StateError:
    return StateError("The session has ended.", hint="Connect again.")
