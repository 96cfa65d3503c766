"""A lake that is open: reading from it, and the one way of writing to it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

import duckdb

from catchment import events, faults, files, sql
from catchment.backoff import Backoff, retry
from catchment.clock import Clock, SystemClock
from catchment.errors import (
    CatchmentError,
    CommitUnknownError,
    ConflictError,
    InputError,
    InvariantError,
    LakeUnavailableError,
)
from catchment.ids import ProducerId, TableId
from catchment.lake import commit as commits
from catchment.lake import tables
from catchment.lake.attach import DuckDbCatalog, LakeAddress, open_connection, parse_catalog
from catchment.lake.audit import AuditReport, audit
from catchment.lake.commit import Commit
from catchment.lake.ledger import Claim, Ledger
from catchment.lake.locks import CommitLock, lock_for
from catchment.lake.tables import LEDGER_SCHEMA, Table
from catchment.lake.types import Column
from catchment.settings import MIB, Settings

T = TypeVar("T")

# What DuckLake itself retries inside COMMIT: conflicts on the catalog's own keys, not ours.
_DUCKLAKE_RETRIES: dict[str, sql.Value] = {
    "ducklake_max_retry_count": 20,
    "ducklake_retry_wait_ms": 50,
    "ducklake_retry_backoff": 1.3,
}
# Texts by which DuckLake, SQLite and PostgreSQL say that a transaction lost a race and left nothing behind.
_CONFLICT_WORDS = ("conflict", "database is locked", "primary key", "unique", "concurrent", "serialize", "deadlock")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeLimits:
    """Bounds of everything that writing to a lake waits for."""

    commit_attempts_max: int = 20
    lock_timeout_s: float = 120
    transaction_s_max: float = 600
    target_file_bytes: int = 128 * MIB


class Lake:
    """A DuckLake with a ledger in it.

    Reading: `cursor()` gives a connection of the caller's own. Writing: `write()` is one transaction under the commit
    lock, `commit()` applies a Commit in one. A connection whose COMMIT failed is never used again: with a SQLite
    catalog it would crash the process in its next registration.
    """

    def __init__(
        self,
        address: LakeAddress,
        *,
        limits: LakeLimits | None = None,
        clock: Clock | None = None,
        commit_lock: CommitLock | None = None,
    ) -> None:
        self.address = address
        self.limits = limits or LakeLimits()
        self.clock: Clock = clock or SystemClock()
        self._commit_lock = commit_lock or lock_for(address.catalog, clock=self.clock)
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._instance_mutex = threading.Lock()

    @classmethod
    def from_settings(cls, settings: Settings, *, clock: Clock | None = None) -> Self:
        """The lake that the settings name; opened on first use."""
        address = LakeAddress(
            catalog=parse_catalog(settings.catalog_url.get_secret_value()),
            data_path=str(files.local_path(settings.data_path).absolute()),
            name=settings.lake_name,
        )
        limits = LakeLimits(
            commit_attempts_max=settings.lake_commit_attempts_max,
            lock_timeout_s=settings.lake_lock_timeout_seconds,
            transaction_s_max=settings.lake_transaction_seconds_max,
            target_file_bytes=settings.lake_target_file_bytes,
        )
        return cls(address, limits=limits, clock=clock)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self.address.name

    def open(self) -> None:
        """Attach the lake, creating it and its ledger where they do not exist."""
        with self.ledger() as ledger:
            ready = ledger.exists() and ledger.is_closed_to_compaction()
        if not ready:
            self._retrying(self._create_ledger)
            self._retrying(self._set_options)

    def close(self) -> None:
        """Let go of the catalog."""
        with self._instance_mutex:
            if self._instance is not None:
                self._instance.close()
                self._instance = None
        self._commit_lock.close()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection for reading, with the lake as its default catalog; the caller closes it."""
        with self._instance_mutex:
            if self._instance is None:
                self._instance = open_connection(self.address, clock=self.clock, settings=_DUCKLAKE_RETRIES)
            cursor = self._instance.cursor()
        cursor.execute(f"USE {sql.identifier(self.name)}")
        return cursor

    def find_table(self, table: TableId) -> Table | None:
        """The table as the catalog has it now, or None."""
        with self._reading() as cursor:
            return tables.find_table(cursor, self.name, table, data_path=self.address.data_path)

    def table(self, table: TableId) -> Table:
        """The table as the catalog has it now."""
        with self._reading() as cursor:
            return tables.require_table(cursor, self.name, table, data_path=self.address.data_path)

    def tables(self) -> tuple[TableId, ...]:
        """Every user table."""
        with self._reading() as cursor:
            return tables.list_tables(cursor, self.name)

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """The ledger, for reading."""
        with self._reading() as cursor:
            yield Ledger(cursor, self.name)

    def audit(self, producer: ProducerId | None = None) -> AuditReport:
        """Prove from ledger and tables that every unit was delivered exactly once."""
        with self._reading() as cursor:
            return audit(cursor, self.name, producer)

    def join(self, producer: ProducerId) -> Claim:
        """The producer as it stands, seeded if new; others that joined or claimed the same epoch stay welcome."""
        return self._retrying(lambda: self._seeded(producer, claim=False))

    def claim(self, producer: ProducerId) -> Claim:
        """Take the producer over: whoever delivers under an older epoch gets FencedError."""
        return self._retrying(lambda: self._seeded(producer, claim=True))

    def commit(self, commit: Commit) -> None:
        """Apply the commit once, in one transaction; see `lake.commit` for the ways it fails."""
        with self.write() as connection:
            commits.apply(
                commit,
                commits.Target(
                    connection=connection,
                    lake_name=self.name,
                    now=self.clock.now(),
                    columns_of=lambda table: self._columns(connection, table),
                ),
            )
            faults.reach("deliver.before_commit")

    @contextmanager
    def write(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """One write transaction under the commit lock: committed when the block ends well, else rolled back."""
        with self._commit_lock.held(self.limits.lock_timeout_s):
            connection = self.cursor()
            try:
                started_s = self.clock.monotonic_s()
                self._execute(connection, "BEGIN")
                try:
                    yield connection
                    self._refuse_overlong(started_s)
                except BaseException as error:
                    self._roll_back(connection)
                    if isinstance(error, duckdb.Error):
                        raise _before_commit(error) from error
                    raise
                self._commit(connection)
            finally:
                connection.close()

    def redo(self) -> Backoff:
        """How conflicting commits are redone."""
        return Backoff(attempts_max=self.limits.commit_attempts_max, first_ms=20, wait_ms_max=2_000)

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self.cursor() as cursor:
            try:
                yield cursor
            except duckdb.Error as error:
                raise _before_commit(error) from error

    def _create_ledger(self) -> None:
        with self.write() as connection:
            ledger = Ledger(connection, self.name)
            if not ledger.exists():
                ledger.create(self.clock.now())
                events.emit("lake_created", catalog=str(self.address.catalog), data_path=self.address.data_path)

    def _set_options(self) -> None:
        with self.write() as connection:
            for statement in _options(self.name, self.limits):
                connection.execute(statement)

    def _seeded(self, producer: ProducerId, *, claim: bool) -> Claim:
        with self.ledger() as ledger:
            found = ledger.read(producer)
        if found is not None and not claim:
            return found
        with self.write() as connection:
            ledger = Ledger(connection, self.name)
            if ledger.read(producer) is None:
                ledger.seed(producer, self.clock.now())
            if claim:
                ledger.claim(producer, self.clock.now())
            taken = ledger.read(producer)
        if taken is None:
            raise InvariantError(f"Producer {producer} is not in the ledger right after it was seeded.")
        return taken

    def _retrying(self, operation: Callable[[], T]) -> T:
        return retry(operation, policy=self.redo(), clock=self.clock, on=(ConflictError, LakeUnavailableError))

    def _columns(self, connection: duckdb.DuckDBPyConnection, table: TableId) -> tuple[Column, ...] | None:
        found = tables.find_table(connection, self.name, table, data_path=self.address.data_path)
        return None if found is None else found.columns

    def _execute(self, connection: duckdb.DuckDBPyConnection, statement: str) -> None:
        try:
            connection.execute(statement)
        except duckdb.Error as error:
            raise _before_commit(error) from error

    def _commit(self, connection: duckdb.DuckDBPyConnection) -> None:
        try:
            connection.execute("COMMIT")
        except duckdb.Error as error:
            self._discard(error)
            raise _during_commit(error) from error

    def _roll_back(self, connection: duckdb.DuckDBPyConnection) -> None:
        try:
            connection.execute("ROLLBACK")
        except duckdb.Error as error:
            # The connection is beyond use; what it had open is rolled back by the catalog when it goes.
            self._discard(error)

    def _discard(self, error: duckdb.Error) -> None:
        # Readers that still hold a cursor keep the old instance alive until they are done. A DuckDB-file catalog
        # cannot be opened twice by one process, and a conflict does it no harm: there the instance stays, unless
        # DuckDB itself has given it up.
        with self._instance_mutex:
            if not isinstance(self.address.catalog, DuckDbCatalog):
                self._instance = None
            elif isinstance(error, duckdb.FatalException) and self._instance is not None:
                self._instance.close()
                self._instance = None

    def _refuse_overlong(self, started_s: float) -> None:
        elapsed_s = self.clock.monotonic_s() - started_s
        if elapsed_s > self.limits.transaction_s_max:
            raise ConflictError(
                f"The transaction was open for {elapsed_s:.0f} s; beyond {self.limits.transaction_s_max:g} s snapshot "
                "expiry could hide a conflict.",
                hint="Deliver fewer units per commit, or raise CATCHMENT_LAKE_TRANSACTION_SECONDS_MAX.",
            )


def _options(lake_name: str, limits: LakeLimits) -> Iterator[str]:
    # User tables are never inlined: inlined structs come back damaged from SQLite and PostgreSQL, and the queue does
    # the same job better. The ledger's one-row updates are, and nobody but our own upkeep may compact it.
    call = f"CALL {sql.identifier(lake_name)}.set_option"
    yield f"{call}('data_inlining_row_limit', 0)"
    yield f"{call}('data_inlining_row_limit', 10, schema => {sql.literal(LEDGER_SCHEMA)})"
    yield f"{call}('parquet_compression', 'zstd')"
    yield f"{call}('target_file_size', {sql.literal(f'{limits.target_file_bytes} bytes')})"
    # Last, because `open` takes this one as the sign that all are set.
    yield f"{call}('auto_compact', false, schema => {sql.literal(LEDGER_SCHEMA)})"


def _before_commit(error: duckdb.Error) -> CatchmentError:
    text = str(error)
    if isinstance(error, duckdb.InternalException | duckdb.FatalException):
        return InvariantError(f"DuckDB failed: {text}")
    if isinstance(error, duckdb.DataError | duckdb.IntegrityError | duckdb.ProgrammingError | duckdb.NotSupportedError):
        return InputError(f"The lake refuses the change: {text}")
    if any(word in text.lower() for word in _CONFLICT_WORDS):
        return ConflictError(text)
    return LakeUnavailableError(f"The lake does not answer: {text}")


def _during_commit(error: duckdb.Error) -> CatchmentError:
    text = str(error)
    if any(word in text.lower() for word in _CONFLICT_WORDS):
        return ConflictError(text)
    return CommitUnknownError(f"COMMIT failed: {text}")
