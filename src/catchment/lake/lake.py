"""An open lake: reads, and the only way to write."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Self, TypeVar

import duckdb
import pyarrow as pa

from catchment.errors import (
    CatchmentError,
    CommitUnknownError,
    ConflictError,
    EngineFailedError,
    InvariantError,
    LakeMissingError,
    LakeUnavailableError,
    StorageFailedError,
)
from catchment.foundation import events, faults, files, ids, sql
from catchment.foundation.backoff import Backoff, retry
from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.meters import Meters
from catchment.foundation.settings import MIB, Settings
from catchment.lake import commit as commits
from catchment.lake import failures, options, tables
from catchment.lake.attach import (
    CONNECTION_SETTINGS,
    DuckDbCatalog,
    LakeAddress,
    PostgresCatalog,
    SqliteCatalog,
    detach,
    open_connection,
    parse_catalog,
)
from catchment.lake.audit import AuditReport, audit
from catchment.lake.commit import Advance, Commit, RecordUnits
from catchment.lake.dead_letters import DeadLetter, DeadLetters
from catchment.lake.instance import Instance, Origin
from catchment.lake.ledger import Claim, Delivery, Ledger
from catchment.lake.lock_factory import lock_for
from catchment.lake.locks import CommitLock
from catchment.lake.sandbox import Sandbox
from catchment.lake.sqlite_wal import OpenWal
from catchment.lake.tables import LEDGER_SCHEMA, Table

T = TypeVar("T")

# From this many files on, a transaction gets its own instance: opening one takes as long as
# committing that many files.
_FILES_ALONE_MIN = 100
_SHAPES_MAX = 1_000
# With the waits between them 13 to 27 s: longer than a catalog's database usually takes to restart.
# Conflicts are rare, because writers take turns at the commit lock.
COMMIT_ATTEMPTS_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeLimits:
    """Limits of writes to a lake: waits, file size, threads."""

    # Longer than a merge of files usually takes; a wait that fails counts as one attempt to commit.
    lock_timeout_s: float = 120
    transaction_s_max: float = 600
    target_file_bytes: int = 128 * MIB
    threads_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """A table, a producer's claim, and the candidate units that the table has; all at one snapshot."""

    snapshot_id: int
    table: Table
    claim: Claim
    delivered: frozenset[str]


class Lake:
    """A DuckLake with a ledger in it.

    To read, use `cursor()`, which returns a new connection. To write, use `write()`, a transaction
    under the commit lock, or `commit()`, which applies a Commit in one. A connection whose COMMIT
    failed is never used again: with a SQLite catalog it would crash the process.
    """

    def __init__(
        self,
        address: LakeAddress,
        *,
        limits: LakeLimits | None = None,
        clock: Clock | None = None,
        commit_lock: CommitLock | None = None,
        sandbox: Sandbox | None = None,
        holds_wal: bool = False,
        meters: Meters | None = None,
    ) -> None:
        """`holds_wal` keeps a SQLite catalog's WAL open: for servers with many writers."""
        self.address = address
        self.limits = limits or LakeLimits()
        self.clock: Clock = clock or SystemClock()
        self._commit_lock = commit_lock or lock_for(address.catalog, clock=self.clock)
        self._sandbox = sandbox
        counter = None if meters is None else meters.engines_replaced
        self._instance = Instance("lake", self._connect, release=partial(detach, address), failures=counter)
        # Changes with every commit through this object: cached tables may be outdated then.
        self.commits = 0
        self._counter = count(1)
        self._shapes: dict[TableId, Table] = {}
        self._shapes_mutex = threading.Lock()
        self._is_open = False
        # True for a lake of another program without a ledger: nothing may be written to it.
        self._is_foreign = False
        self._wal = OpenWal(address.catalog.path) if holds_wal and isinstance(address.catalog, SqliteCatalog) else None

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        *,
        clock: Clock | None = None,
        sandbox: Sandbox | None = None,
        holds_wal: bool = False,
        meters: Meters | None = None,
    ) -> Self:
        """Return the lake of the settings, opened on first use; untrusted SQL needs a `sandbox`."""
        address = LakeAddress(
            catalog=parse_catalog(settings.catalog_url.get_secret_value()),
            data_path=str(files.local_path(settings.data_path).absolute()),
            name=settings.lake_name,
        )
        limits = LakeLimits(
            transaction_s_max=settings.lake_transaction_seconds_max,
            target_file_bytes=settings.lake_target_file_bytes,
            threads_max=settings.lake_threads_max,
        )
        return cls(address, limits=limits, clock=clock, sandbox=sandbox, holds_wal=holds_wal, meters=meters)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def generation(self) -> int:
        """Generation of the current DuckDB instance."""
        return self._instance.generation

    def origin(self) -> Origin:
        """Return the origin of connections from `cursor()`; call it before `cursor()`."""
        return self._instance.origin()

    @property
    def failed(self) -> threading.Event:
        """Set when an instance failed internally; cleared by the closer of its remaining sessions."""
        return self._instance.failed

    def open(self, *, create: bool = True) -> None:
        """Attach the lake. With `create`, create the lake, its ledger and its options if missing.

        Without `create`, raise LakeMissingError if there is no lake. A lake that another program
        created has no ledger: it is read-only then, with an empty ledger, and stays unchanged until
        `open()` creates one.
        """
        if self._is_open and (not self._is_foreign or not (create or self._examine()[0])):
            return
        if not create:
            self._attach_existing()
        elif self._is_foreign:
            # Attach again: with `create`, the catalog is prepared for several processes.
            self._instance.give_up()
        has_ledger, has_options = self._examine()
        self._is_foreign = not (has_ledger or create)
        if create and not has_ledger:
            self._retrying(self._create_ledger)
        if create and not has_options:
            self._retrying(self._set_options)
        if self._wal is not None and not self._is_foreign:
            self._hold(self._wal)
        self._is_open = True

    def close(self) -> None:
        """Close all connections to the catalog."""
        if self._wal is not None and self._is_open:
            self._wal.release()
            with suppress(CatchmentError):
                # Removes the WAL, so that the next process has nothing to recover.
                self.newest_snapshot()
        self._instance.close()
        self._commit_lock.close()
        self._is_open = False

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection to read, with the lake as default catalog; the caller closes it."""
        origin, cursor = self.origin(), self._bare_cursor()
        self._execute(cursor, f"USE {sql.identifier(self.name)}", origin)
        return cursor

    def find_table(self, table: TableId) -> Table | None:
        """Return the table as it is in the catalog now, or None."""
        with self._reading() as cursor:
            return self._find_table(cursor, table)

    def find_shape(self, table: TableId) -> Table | None:
        """Return the table from a cache that schema changes invalidate; bounds may be outdated."""
        with self._reading() as cursor:
            return self._find_shape(cursor, table)

    def table(self, table: TableId) -> Table:
        """Return the table as it is in the catalog now, or raise TableMissingError."""
        with self._reading() as cursor:
            return tables.require_table(cursor, self.name, table, data_path=self.address.data_path)

    def table_in(self, connection: duckdb.DuckDBPyConnection, table: TableId) -> Table:
        """Return the table as the connection's transaction sees it."""
        return tables.require_table(connection, self.name, table, data_path=self.address.data_path)

    def insert(self, table: TableId, rows: pa.Table) -> None:
        """Insert rows in one transaction, without the ledger: not exactly-once."""
        commits.refuse_ledger(table)
        self._retrying(lambda: self._insert(table, rows), on=(ConflictError,))

    def tables(self) -> tuple[TableId, ...]:
        """Return every user table."""
        with self._reading() as cursor:
            return tables.list_tables(cursor, self.name)

    def usage(self, schema: str) -> tuple[int, int]:
        """Return the number of tables in a schema, and the bytes of their files."""
        with self._reading() as connection:
            query = sql.statement(tables.PACKAGE, "schema_usage", metadata=tables.metadata_of(self.name))
            row = connection.execute(query, [schema]).fetchone()
        return (int(row[0]), int(row[1])) if row else (0, 0)

    def identity(self) -> str:
        """Return the lake's unique id, which does not depend on its address."""
        with self._reading() as connection:
            return tables.identity_of(connection, self.name)

    def is_encrypted(self) -> bool:
        """Whether the lake encrypts its data files."""
        with self._reading() as connection:
            return tables.is_encrypted(connection, self.name)

    def newest_snapshot(self) -> int:
        """Return the number of the newest snapshot."""
        with self._reading() as connection:
            query = f"SELECT max(snapshot_id) FROM {tables.metadata_of(self.name)}.ducklake_snapshot"
            row = connection.execute(query).fetchone()
        return int(row[0]) if row else 0

    def producer_state(
        self,
        producer: ProducerId,
        table: TableId,
        asked: Callable[[Claim], Iterable[str]],
        *,
        shape_only: bool = False,
        claim: Claim | None = None,
    ) -> ProducerState:
        """Return a producer's state for a table at one snapshot, for planning a delivery.

        `asked` returns the ids of the candidate units, given the producer's claim. With
        `shape_only` the table is as `find_shape` returns it. A `claim` that was read before is used
        as it is: the commit refuses an outdated one.
        """
        with self._reading() as cursor:
            ledger = self.ledger_on(cursor)
            # The snapshot is read first: facts from the catalog's own tables may be newer than it,
            # never older.
            snapshot_id = tables.snapshot_of(cursor, self.name)
            found = (self._find_shape(cursor, table) if shape_only else None) or self.table_in(cursor, table)
            known_claim = claim or ledger.join(producer)
            return ProducerState(
                snapshot_id=snapshot_id,
                table=found,
                claim=known_claim,
                delivered=ledger.delivered_ids(asked(known_claim), found.uuid),
            )

    @property
    def has_ledger(self) -> bool:
        """Whether the lake has a ledger; another program's lake has none until opened for writing."""
        return not self._is_foreign

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Open the ledger for reading."""
        with self._reading() as cursor:
            yield self.ledger_on(cursor)

    def ledger_on(self, connection: duckdb.DuckDBPyConnection) -> Ledger:
        """Return the ledger as the connection's transaction sees it; empty if there is none yet."""
        return Ledger(connection, self.name, is_there=self.has_ledger)

    @contextmanager
    def snapshot(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open a connection that sees one snapshot, with the lake as its default catalog."""
        with self._reading() as cursor:
            cursor.execute(f"USE {sql.identifier(self.name)}")
            yield cursor

    def dead_letters(
        self, ids: Sequence[str] | None = None, *, table: TableId | None = None, letters_max: int | None = None
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first, at most `letters_max`."""
        with self._reading() as cursor:
            return DeadLetters(cursor, self.name).find(ids, table=table, letters_max=letters_max)

    def audit(self, producer: ProducerId | None = None) -> AuditReport:
        """Prove from ledger and tables that every unit was delivered exactly once."""
        with self._reading() as cursor:
            return audit(cursor, self.ledger_on(cursor), producer, data_path=self.address.data_path)

    def join(self, producer: ProducerId) -> Claim:
        """Return the producer's claim, which processes may share; its first delivery seeds it."""
        with self.ledger() as ledger:
            return ledger.join(producer)

    def claim(self, producer: ProducerId) -> Claim:
        """Take the producer over: deliveries under an older epoch raise FencedError."""
        return self._retrying(lambda: self._take(producer))

    def set_watermark(self, producer: ProducerId, table: TableId, seq: int) -> None:
        """Start a producer's deliveries after `seq`, unless they are beyond it already; idempotent.

        Earlier rows were delivered in another way: the ledger records them as one unit without
        rows.
        """
        self._retrying(lambda: self._set_watermark(producer, table, seq))

    def commit(self, commit: Commit, *, is_locked: bool = False) -> None:
        """Apply the commit in one transaction; if `is_locked`, the caller has the `exclusive` lock."""
        # Not for a DuckDB catalog: a process cannot open its file twice, and its time per file does
        # not grow with their number.
        alone = commit.files >= _FILES_ALONE_MIN and not isinstance(self.address.catalog, DuckDbCatalog)
        with (
            nullcontext() if is_locked else self.exclusive(),
            self._transaction(alone=alone, into=map(files.local_path, commit.inserts_into)) as connection,
        ):
            commits.apply(
                commit,
                commits.Target(
                    connection=connection,
                    lake_name=self.name,
                    now=self.clock.now(),
                    find_table=lambda table: self._find_table(connection, table),
                ),
            )
            faults.reach("deliver.before_commit")

    @contextmanager
    def write(self, *, into: Path | None = None, purpose: str = "a commit") -> Iterator[duckdb.DuckDBPyConnection]:
        """Run a write transaction under the commit lock; it is rolled back if the block raises.

        `into` is the folder that DuckLake itself writes files to inside the block. DuckLake does
        not sync them, so they are synced before the commit: after a power cut, a catalog must not
        list lost files. Writers that wait for the lock see the `purpose`.
        """
        with self.exclusive(purpose=purpose), self._transaction(into=[] if into is None else [into]) as connection:
            yield connection

    @contextmanager
    def _transaction(self, *, alone: bool = False, into: Iterable[Path] = ()) -> Iterator[duckdb.DuckDBPyConnection]:
        """Run a write transaction; if `alone`, on a separate instance with one thread.

        With SQLite and PostgreSQL, DuckLake queries the catalog again for every file that it
        commits. With several threads these queries move between them, and the waiting threads keep
        cores busy: it takes two to three times as long. The number of threads is per instance, and
        readers need theirs.
        """
        if self._is_foreign:
            raise InvariantError(f"The lake at {self.address.catalog} has no ledger, and was opened for reading.")
        instance = Instance("commit", lambda: self._connect(create=False, threads=1)) if alone else self._instance
        origin, connection = instance.origin(), instance.cursor() if alone else self._bare_cursor()
        try:
            started_s = self.clock.monotonic_s()
            self._execute(connection, "BEGIN", origin)
            try:
                # DuckLake writes more than a few rows of the ledger to a file.
                data_path = files.local_path(self.address.data_path)
                watched = [data_path / LEDGER_SCHEMA, *into]
                with files.syncing_new(watched, ".parquet", to=data_path):
                    connection.execute(f"USE {sql.identifier(self.name)}")
                    yield connection
                    self._refuse_overlong(started_s)
                    origin.refuse_lost()
            except BaseException as error:
                self._roll_back(connection, origin, alone=alone)
                origin.note(error)
                if isinstance(error, duckdb.Error):
                    raise failures.before_commit(error, self.address) from None
                raise
            self._commit(connection, origin, alone=alone)
        finally:
            connection.close()
            if alone:
                instance.close()

    @contextmanager
    def exclusive(self, timeout_s: float | None = None, *, purpose: str = "a commit") -> Iterator[None]:
        """Hold the commit lock, for write transactions on a connection of `cursor()`.

        LockTimeoutError names its holder; `purpose` is what others see while it is held here.
        """
        with self._commit_lock.held(self.limits.lock_timeout_s if timeout_s is None else timeout_s, purpose):
            yield

    def commit_on(self, connection: duckdb.DuckDBPyConnection, origin: Origin) -> None:
        """COMMIT on a connection of `cursor()`, which must not be used any more if this fails."""
        origin.refuse_lost()
        self._commit(connection, origin)

    def redo(self) -> Backoff:
        """Return the backoff for conflicting commits."""
        return Backoff(attempts_max=COMMIT_ATTEMPTS_MAX, first_ms=20, wait_ms_max=2_000)

    def _hold(self, wal: OpenWal) -> None:
        try:
            if wal.hold():
                self.newest_snapshot()
                wal.hold_index()
        except StorageFailedError as error:
            # Without it, the lake works, but more slowly.
            events.emit("wal_not_held", level=logging.WARNING, reason=error.message)

    def _attach_existing(self) -> None:
        catalog = self.address.catalog
        if not isinstance(catalog, PostgresCatalog) and not catalog.path.exists():
            raise LakeMissingError(f"There is no lake at {catalog}.")
        self._instance.open_with(lambda: self._connect(create=False))

    def _examine(self) -> tuple[bool, bool]:
        """Return whether the lake has a ledger, and whether it has Catchment's options."""
        with self._reading() as cursor:
            has_options = options.are_set(cursor, self.name, file_bytes=self.limits.target_file_bytes)
            return Ledger(cursor, self.name).exists(), has_options

    def _connect(self, *, create: bool = True, threads: int | None = None) -> duckdb.DuckDBPyConnection:
        connection = open_connection(
            self.address,
            clock=self.clock,
            settings=CONNECTION_SETTINGS,
            threads=threads or self.limits.threads_max or None,
            create=create and not self._is_foreign,
        )
        if self._sandbox is not None:
            self._sandbox.apply(connection, self.address)
        return connection

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        # One transaction per call: its reads are consistent, and DuckLake loads its metadata once.
        origin = self.origin()
        with self._bare_cursor() as cursor:
            try:
                cursor.execute("BEGIN")
                yield cursor
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                origin.note(error)
                if isinstance(error, duckdb.Error):
                    raise failures.before_commit(error, self.address) from None
                raise

    def _bare_cursor(self) -> duckdb.DuckDBPyConnection:
        return self._instance.cursor()

    def _create_ledger(self) -> None:
        with self.write() as connection:
            ledger = Ledger(connection, self.name)
            if not ledger.exists():
                ledger.create(self.clock.now())
                events.emit("lake_created", catalog=str(self.address.catalog), data_path=self.address.data_path)

    def _set_options(self) -> None:
        with self.write() as connection:
            options.set_all(connection, self.name, file_bytes=self.limits.target_file_bytes)

    def _take(self, producer: ProducerId) -> Claim:
        with self.write() as connection:
            ledger = Ledger(connection, self.name)
            if ledger.read(producer) is None:
                ledger.seed(producer, self.clock.now())
            ledger.claim(producer, self.clock.now())
            taken = ledger.read(producer)
        if taken is None:
            raise InvariantError(f"Producer {producer} is not in the ledger right after it was seeded.")
        return taken

    def _set_watermark(self, producer: ProducerId, table: TableId, seq: int) -> None:
        claim = self.join(producer)
        if claim.seq >= seq:
            return
        history = Delivery(
            unit_id=ids.unit_id("history", str(producer), claim.seq + 1, seq),
            producer=producer,
            epoch=claim.epoch,
            seq_first=claim.seq + 1,
            seq_last=seq,
            table=table,
            table_uuid=self.table(table).uuid,
            mode="history",
            rows=0,
            bytes=0,
            digest=None,
            source=f"{table} up to {seq}, delivered in another way",
            job_id=ids.new_job_id(self.clock),
            delivered_at=self.clock.now(),
        )
        changes = (Advance(claim=claim, seq_to=seq), RecordUnits(deliveries=(history,)))
        self.commit(Commit(message=f"start {producer} after {seq}", changes=changes))

    def _retrying(
        self,
        operation: Callable[[], T],
        on: tuple[type[CatchmentError], ...] = (ConflictError, CommitUnknownError, LakeUnavailableError),
    ) -> T:
        return retry(operation, policy=self.redo(), clock=self.clock, on=on)

    def _insert(self, table: TableId, rows: pa.Table) -> None:
        with self.write(into=files.local_path(self.table(table).require_computable().folder)) as connection:
            connection.register("catchment_rows", rows)
            try:
                connection.execute(
                    f"INSERT INTO {sql.qualified(self.name, table.schema, table.name)} BY NAME "
                    "FROM temp.main.catchment_rows"
                )
            finally:
                connection.unregister("catchment_rows")

    def _find_shape(self, connection: duckdb.DuckDBPyConnection, table: TableId) -> Table | None:
        # One thread at a time: of several that need a new table, one reads it and the others find
        # it.
        with self._shapes_mutex:
            known = self._shapes.pop(table, None)
            if known is None or not tables.is_as_it_was(connection, self.name, known):
                known = self._find_table(connection, table)
            if known is not None:
                self._shapes[table] = known
                if len(self._shapes) > _SHAPES_MAX:
                    del self._shapes[next(iter(self._shapes))]
            return known

    def _find_table(self, connection: duckdb.DuckDBPyConnection, table: TableId) -> Table | None:
        return tables.find_table(connection, self.name, table, data_path=self.address.data_path)

    def _execute(self, connection: duckdb.DuckDBPyConnection, statement: str, origin: Origin) -> None:
        try:
            connection.execute(statement)
        except duckdb.Error as error:
            origin.note(error)
            raise failures.before_commit(error, self.address) from None

    def _commit(self, connection: duckdb.DuckDBPyConnection, origin: Origin, *, alone: bool = False) -> None:
        try:
            connection.execute("COMMIT")
        except duckdb.Error as error:
            self._discard(error, origin, alone=alone)
            raise failures.during_commit(error, self.address) from None
        except EngineFailedError as error:
            raise failures.of_engine(error) from None
        finally:
            self.commits = next(self._counter)

    def _roll_back(self, connection: duckdb.DuckDBPyConnection, origin: Origin, *, alone: bool) -> None:
        try:
            connection.execute("ROLLBACK")
        except duckdb.Error as error:
            # The connection is unusable; the catalog rolls its transaction back when it is closed.
            self._discard(error, origin, alone=alone)

    def _discard(self, error: duckdb.Error, origin: Origin, *, alone: bool) -> None:
        """Replace the instance after a failed COMMIT if needed; if `alone`, it is closed anyway."""
        origin.note(error)
        is_current = origin == origin.instance.origin()
        if not alone and is_current and failures.spoils_instance(error, self.address):
            origin.instance.give_up()

    def _refuse_overlong(self, started_s: float) -> None:
        elapsed_s = self.clock.monotonic_s() - started_s
        if elapsed_s > self.limits.transaction_s_max:
            raise ConflictError(
                f"The transaction was open for {elapsed_s:.0f} s; beyond {self.limits.transaction_s_max:g} s snapshot "
                "expiry could hide a conflict.",
                hint="Deliver fewer units per commit, or raise CATCHMENT_LAKE_TRANSACTION_SECONDS_MAX.",
            )
