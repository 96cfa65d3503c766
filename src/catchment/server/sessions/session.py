"""Sessions: the state of one client, from its first call until it disconnects or expires.

    token ──▶ session ──▶ a connection (its DuckDB connection: temporary tables, USE)
                     ├──▶ transactions, each on a connection; the first on the session's own
                     ├──▶ prepared statements
                     ├──▶ for a tenant on another shard: a session on the server of its primary
                     └──▶ results that wait to be read, by ticket

A handle (ticket, transaction, prepared statement) begins with its session's id, so that a client
which sends no token still finds its session. Handles and tokens cannot be guessed.
"""

import secrets
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TypeVar

import duckdb
import pyarrow as pa

from catchment.errors import CatchmentError, EngineFailedError, LimitError, StateError
from catchment.foundation import events
from catchment.foundation.ids import TableId
from catchment.lake import Lake
from catchment.queue import DqCoordinator
from catchment.server.engine.parsing import LocalParser, Parser
from catchment.server.sessions import ingest
from catchment.server.sessions.backend import Backend
from catchment.server.sessions.connections import Connection
from catchment.server.sessions.dispatch import Dispatcher
from catchment.server.sessions.kept_settings import KeptSettings
from catchment.server.sessions.prepared import PreparedStatement
from catchment.server.sessions.running_calls import RunningCalls
from catchment.server.sessions.statements import Statements
from catchment.server.sessions.transactions import Expiry, RolledBackTransactions, Transaction
from catchment.server.sessions.waiting_results import WaitingResults
from catchment.server.shards import forward
from catchment.server.shards.forward import Rewindable
from catchment.server.shards.peers import PeerSession
from catchment.server.sql.statement_plan import NamedStatement, Plain, Step, plan
from catchment.server.sql.tenant_isolation import hide_internal_tables
from catchment.server.statement_log import shown_session
from catchment.server.values import Call, IngestTarget, Principal, StatementOutcome
from catchment.tenants.model import TenantId

PREPARED_MAX = 1_000
_TRANSACTIONS_MAX = 8
_RESULTS_MAX = 64
DEFAULT_QUEUE_NAME = "default"

T = TypeVar("T")


class Session:
    """One client's session. Several threads may call at once; calls that need the same connection
    wait for each other.

    A caller that needs both locks takes a connection's lock first and the session's second.
    """

    def __init__(self, session_id: str, principal: Principal, backend: Backend) -> None:
        self.id = session_id
        # Enough to tell it from others in displays, too little to call with.
        self.shown_id = shown_session(session_id)
        self.principal = principal
        self.scope = backend.scope(principal.tenant)
        self.touched_s = backend.clock.monotonic_s()
        # Whether the client knows its token; if so, the session outlives the call that opened it.
        self.is_kept = False
        # Whether its client would get another session under the same token, without noticing.
        self.is_replaceable = False
        # Whether its client has identified itself.
        self.is_logged_in = True
        self._backend = backend
        # The engine process that runs its statements; None if this process does.
        self.engine = backend.engine()
        self.parser: Parser = LocalParser() if self.engine is None else self.engine.parser
        self._mutex = threading.RLock()
        self._own: Connection | None = None
        self._transactions: dict[bytes, Transaction] = {}
        # Transactions that were rolled back for idling, or with their DuckDB instance.
        self._expired = RolledBackTransactions(_TRANSACTIONS_MAX)
        self._by_sql: bytes | None = None
        self._prepared: dict[bytes, PreparedStatement] = {}
        # Statements that were prepared by SQL, by name.
        self.named_statements: dict[str, str] = {}
        self._waiting = WaitingResults(_RESULTS_MAX)
        self.calls = RunningCalls()
        self._dispatcher = Dispatcher(backend, principal)
        self._used = 0
        self._has_state = False
        self.settings = KeptSettings()
        # Whether it accepts no more calls, and whether its resources are released.
        self._is_over = False
        self._is_closed = False

    # Called by the service.

    def begin_use(self) -> None:
        """Keep the session from expiring until `end_use`, because a call uses it."""
        with self._mutex:
            self._refuse_closed()
            self._used += 1

    def end_use(self) -> None:
        """Mark the end of a call's use."""
        with self._mutex:
            self._used -= 1
            self.touched_s = self._backend.clock.monotonic_s()

    @property
    def is_used(self) -> bool:
        """Whether a call is using the session."""
        return self._used > 0

    @property
    def is_stateless(self) -> bool:
        """Whether the session can be closed without losing state."""
        return not (self._transactions or self._prepared or self._waiting or self._has_state or self._used)

    @property
    def is_unclaimed(self) -> bool:
        """Whether its client may never return; such a session does not count towards the limit."""
        return self.is_stateless and not self.is_kept

    def give_up(self) -> bool:
        """Accept no more calls if no state would be lost; if True, the caller must `close` it."""
        with self._mutex:
            self._is_over = self._is_over or self.is_stateless
            return self._is_over

    def execute(
        self,
        text: str,
        call: Call,
        *,
        transaction: bytes | None = None,
        parameters: pa.Table | None = None,
        is_update: bool = False,
    ) -> StatementOutcome:
        """Run the text's statements in order and return the outcome of the last.

        With `is_update`, the caller reads only the number of changed rows.
        """
        self._backend.refuse_suspect(text)
        with self._redacted_errors():
            steps = self.plan(text)
        if parameters is not None and len(steps) > 1:
            raise StateError("Parameters can be used only with a single statement.")
        outcome: StatementOutcome | None = None
        is_split = len(steps) > 1 and self._dispatcher.forwarding() is not None
        texts = forward.texts(text) if is_split else (text,) * len(steps)
        for own, step in zip(texts, steps, strict=True):
            if outcome is not None:
                outcome.result.close()
            counts = is_update or step is not steps[-1]
            outcome = self._run(own, step, call, transaction, parameters, is_update=counts)
        if outcome is None:
            raise StateError("The text contains no statement.")
        return outcome

    def _run(
        self,
        text: str,
        step: Step,
        call: Call,
        transaction: bytes | None,
        parameters: pa.Table | None,
        *,
        is_update: bool,
    ) -> StatementOutcome:
        """Run one statement: locally if it is in a transaction, otherwise on the tenant's primary."""

        def here() -> StatementOutcome:
            with self._redacted_errors():
                return Statements(self).run(step, call, transaction, parameters)

        self._refuse_closed()
        if transaction is not None or self._by_sql is not None:
            return here()
        if forward.begins(step):
            return self._dispatcher.begin(here, call)

        def there(peer: PeerSession) -> StatementOutcome:
            may_change = forward.may_change(step)
            if may_change and isinstance(step, Plain | NamedStatement):
                # It may leave state in the connection there, as it may here.
                self.mark_state()
            return peer.execute(text, call, parameters=parameters, is_update=is_update, may_change=may_change)

        return self._dispatcher.run(here, there, call)

    def at_primary(self, here: Callable[[], T], there: Callable[[PeerSession], T], call: Call) -> T:
        """Run one operation or the other, depending on where the session's tenant has its primary."""
        self._refuse_closed()
        return self._dispatcher.run(here, there, call)

    def prepare(self, text: str, *, transaction: bytes | None = None, call: Call | None = None) -> PreparedStatement:
        """Inspect a statement, to run it later."""
        self._backend.refuse_suspect(text)
        with self._mutex:
            if len(self._prepared) >= PREPARED_MAX:
                raise LimitError(
                    f"The session already has {len(self._prepared):,} prepared statements.", hint="Close some."
                )
        handle, call = self._new_handle(), call or Call()

        def here() -> PreparedStatement:
            with self.reading_lake(), self._redacted_errors():
                return PreparedStatement.of(self, handle, text, transaction, call)

        if transaction is not None or self._by_sql is not None:
            prepared = here()
        else:
            prepared = self.at_primary(
                here, lambda peer: PreparedStatement.known(self, handle, text, peer.prepare(text, call)), call
            )
        with self._mutex:
            self._prepared[prepared.handle] = prepared
        return prepared

    def prepared(self, handle: bytes) -> PreparedStatement:
        """Return the prepared statement of that handle."""
        with self._mutex:
            found = self._prepared.get(handle)
        if found is None:
            raise StateError("The prepared statement does not exist.", hint="Prepare it again.")
        return found

    def close_prepared(self, handle: bytes) -> None:
        """Forget a prepared statement."""
        with self._mutex:
            self._prepared.pop(handle, None)

    def begin(self, call: Call | None = None) -> bytes:
        """Open a transaction; for a tenant, only on its primary."""
        self._refuse_closed()
        given = call or Call()
        return self._dispatcher.begin(lambda: self._open(given), given)

    def _open(self, call: Call, handle: bytes | None = None) -> bytes:
        with self.reading_lake():
            own = self.own_connection()
            with own.lock:
                if self._is_free(own):
                    return self._begin(own, call, handle)
            other = self._backend.connect(self.engine, self.scope)
        with other.lock:
            try:
                return self._begin(other, call, handle)
            except BaseException:
                other.close()
                raise

    def _begin(self, connection: Connection, call: Call, handle: bytes | None) -> bytes:
        opened = Transaction(
            handle or self._new_handle(),
            connection,
            self._backend.lake,
            owner=self.shown_id,
            bytes_max=self._backend.settings.server_write_bytes_max,
            now_s=self._backend.clock.monotonic_s(),
            changing=self.changing_lake,
            is_current=self._backend.is_current,
            committed=lambda: self._backend.snapshot(self.engine),
        )
        with self._mutex:
            if len(self._transactions) >= _TRANSACTIONS_MAX:
                raise LimitError(f"The session already has {_TRANSACTIONS_MAX} open transactions.", hint="End one.")
            self._transactions[opened.handle] = opened
        try:
            opened.begin(call)
        except BaseException:
            self._transactions.pop(opened.handle, None)
            raise
        return opened.handle

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
            is_overlong = commit and ended.is_overlong(self._backend.clock.monotonic_s())
            # It stays registered until it has ended: nothing else may run on its connection before.
            ended.is_ending = True
        with self._redacted_errors():
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
            except CatchmentError:
                ended.roll_back()
                raise
            finally:
                with self._mutex:
                    self._transactions.pop(ended.handle, None)
                    if self._by_sql == ended.handle and ended.handle not in self._expired:
                        self._by_sql = None
                if ended.connection is not self._own:
                    ended.connection.close()

    def ingest(
        self, target: IngestTarget, rows: pa.RecordBatchReader, call: Call, *, transaction: bytes | None = None
    ) -> int:
        """Write a stream of rows to a table, or to the queue; all of them, or none."""

        def here(given: pa.RecordBatchReader) -> int:
            with self.reading_lake(), self._redacted_errors():
                return ingest.ingest(self, target, given, call, transaction)

        self._refuse_closed()
        if self._dispatcher.forwarding() is None or transaction is not None or self._transactions:
            return here(rows)
        again = Rewindable(rows)
        return self._dispatcher.run(
            lambda: again.read(here),
            lambda peer: again.read(lambda given: peer.ingest(target, given, call)),
            call,
        )

    def keep(self, outcome: StatementOutcome) -> bytes:
        """Keep a result until it is read."""
        handle = self._new_handle()
        self._waiting.keep(handle, outcome)
        return handle

    def take(self, handle: bytes) -> StatementOutcome:
        """Return the result that waits under the handle, once."""
        return self._waiting.take(handle)

    def cancel(self, handle: bytes) -> bool:
        """Cancel the operation of the handle; False if there is none."""
        return self.calls.cancel(handle) or self._waiting.discard(handle)

    @contextmanager
    def metadata(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Return a connection for catalog queries, with the lake as its default catalog."""
        with self._backend.snapshot(self.engine) as (connection, _):
            yield connection

    # Called by other parts of the server.

    @property
    def backend(self) -> Backend:
        """The state that all sessions share."""
        return self._backend

    @property
    def lake(self) -> Lake:
        """The lake."""
        return self._backend.lake

    @property
    def queue(self) -> DqCoordinator | None:
        """The queue, unless it is disabled."""
        return self._backend.queue

    @property
    def queue_name(self) -> str:
        """The session's name in the queue. Clients without a known session share one."""
        return self.id if self.is_kept else DEFAULT_QUEUE_NAME

    def plan(self, text: str) -> tuple[Step, ...]:
        """Plan the steps of a text; Catchment's names without a schema are in the session's schema."""
        return plan(text) if self.scope is None else plan(text, self.scope.schema)

    def enqueue(self, table: TableId, rows: pa.Table) -> None:
        """Pass rows to the queue; every write of this session to the queue uses this method."""
        self._backend.enqueue(self.principal.tenant, table, rows, session=self.queue_name)

    def reading_lake(self, touched: Collection[TenantId] = ()) -> AbstractContextManager[None]:
        """Hold while rows of the lake are read; for a user without a tenant, those of the tenants
        `touched`.
        """
        return self._backend.touching(touched) if touched else self._backend.reading(self.principal.tenant)

    def changing_lake(self) -> AbstractContextManager[None]:
        """Hold while the lake is changed."""
        return self._backend.changing(self.principal.tenant)

    def _redacted_errors(self) -> AbstractContextManager[None]:
        """Remove names from errors that the session's user may not see."""
        return hide_internal_tables() if self.scope is None else self.scope.redact_errors()

    def own_connection(self) -> Connection:
        """Return the session's own connection, opened again if its DuckDB instance was abandoned."""
        with self._mutex:
            self._refuse_closed()
            own = self._own
            if own is not None and (self._backend.is_current(own) or self._is_in_transaction(own)):
                return own
        made = self._backend.connect(self.engine, self.scope)
        self.settings.apply(made)
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
        self._refuse_closed()
        if found is None:
            raise StateError("The session has ended.", hint="Connect again.")
        return found

    def _refuse_closed(self) -> None:
        if self._is_over:
            raise StateError("The session has ended.", hint="Connect again.")

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
            now_s = self._backend.clock.monotonic_s()
            if not found.is_overlong(now_s):
                found.use(now_s)
                return found
            self._expire(found, Expiry.OVERLONG)
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
            opened = self._open(call)
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
            if transaction is not None:
                # A driver opened it: the driver continues to name it, and ends it itself later.
                with suppress(CatchmentError):
                    self._open(call, transaction)

    @property
    def holds_lock(self) -> bool:
        """Whether one of its transactions keeps others from committing to the lake."""
        with self._mutex:
            return any(each.holds_lock for each in self._transactions.values())

    def mark_state(self) -> None:
        """Record that a statement left state in the session's connection."""
        self._has_state = True

    @contextmanager
    def autocommit_connection(self) -> Iterator[Connection]:
        """Return a connection for a statement outside of transactions: the session's own, unless a
        transaction uses it.
        """
        own = self.own_connection()
        with own.lock:
            if self._is_free(own):
                yield own
                return
        other = self._backend.connect(self.engine, self.scope)
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

    def _new_handle(self) -> bytes:
        return f"{self.id}.{secrets.token_hex(16)}".encode()

    # Expiry and close.

    def expire_transactions(self, before_s: float) -> int:
        """Roll back transactions that have been idle since `before_s`, open for too long, or lost."""
        now_s = self._backend.clock.monotonic_s()
        with self._mutex:
            idle_before_s = None if self._used else before_s
            found = [(each, each.lock_if_due(now_s, idle_before_s)) for each in self._transactions.values()]
            over = [(each, expiry) for each, expiry in found if expiry is not None]
            for each, expiry in over:
                self._expire(each, expiry)
        for each, _ in over:
            try:
                self._finish_expired(each)
            finally:
                each.connection.lock.release()
        return len(over)

    def _expire(self, transaction: Transaction, expiry: Expiry) -> None:
        """Mark a transaction as ended, under the mutex: a statement that arrives now is refused."""
        transaction.is_ending = True
        self._expired.add(transaction.handle, expiry)
        events.emit("transaction_expired", session=self.shown_id, user=self.principal.name, reason=expiry.value)

    def _finish_expired(self, transaction: Transaction) -> None:
        with suppress(CatchmentError):
            self._finish(transaction, commit=False, call=Call())

    def release(self) -> None:
        """Close the session's sessions on other servers: its client may never return."""
        self._dispatcher.release()

    def close(self) -> None:
        """End the session: roll back its transactions, and release its buffered rows for delivery."""
        with self._mutex:
            if self._is_closed:
                return
            self._is_over = self._is_closed = True
            self.calls.cancel_all()
            waiting = self._waiting.take_all()
            open_ones = list(self._transactions)
            self._prepared.clear()
        with ExitStack() as cleanup:
            if self.is_kept and self.queue is not None:
                cleanup.callback(self.queue.end_session, self.queue_name)
            if self._own is not None:
                cleanup.callback(self._own.close)
            cleanup.callback(self.release)
            for outcome in waiting:
                cleanup.callback(outcome.result.close)
            for handle in open_ones:
                cleanup.callback(self._roll_back, handle)

    def _roll_back(self, handle: bytes) -> None:
        with suppress(CatchmentError):
            self.end(handle, commit=False)
