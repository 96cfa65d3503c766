"""One DuckDB file that keeps rows: staging tables with numbered rows, and what each of them is for.

Both layouts keep their rows in such files: the shared buffer is one, a session's segment is another. Every row has a
number, `dq_seq`, without gap from 1 within its table. Rows are let go of by number, never by DuckDB's `rowid`, which
a checkpoint changes.

    dq_meta, …       what the file says about itself: see `queue.meta`
    dq_<table>       the rows of version 1; later versions have a suffix
    <identity>       which life of which buffer this is

Rows that are flushed go, unless their schema is held: then they are kept as a log until they are let go of.

A file may have a journal beside it, which takes small writes until they are settled here, many in one transaction:
before anything is read, when the journal is full, together with a write that is not small, or when the file is opened.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from itertools import chain, groupby, repeat
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa

from catchment.errors import BufferDamagedError, CatchmentError, CommitUnknownError, StateError
from catchment.foundation import faults, files, sql
from catchment.foundation.clock import Clock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import MIB
from catchment.lake import types
from catchment.lake.types import Column
from catchment.queue import incoming, meta
from catchment.queue.buffer import AT, SEQ
from catchment.queue.failure import failing
from catchment.queue.journal import ENTRY_BYTES_MAX, SUFFIX, Entry, Journal, read
from catchment.queue.meta import PACKAGE, BufferIdentity, Contents, Generation
from catchment.queue.table_log import TableLog, Version
from catchment.queue.writes import Numbered, Write, groups_of, news_of, numbers_of

WAL = ".wal"
FLUSHED_PREFIX = "__dq_flushed_"
_READ_BATCH_ROWS = 100_000
# Size of the WAL at which DuckDB checkpoints by itself, between two writes, which then wait: 2 to 3 s
# for a million rows. Flushes checkpoint much earlier.
_CHECKPOINT_BYTES = 512 * MIB
_AT_TYPE = pa.timestamp("us")


class Store:
    """An open file. One thread appends, settles, holds, begins or drops at a time, which the owner sees to; reading,
    retiring and letting go go on beside it.
    """

    def __init__(self, path: Path, connection: duckdb.DuckDBPyConnection, contents: Contents) -> None:
        self.path = path
        self.identity = contents.identity
        self._connection = connection
        self._logs = contents.logs
        self._holds = contents.holds
        self._lives = contents.lives
        self._unproven = contents.unproven
        self._journal: Journal | None = None
        # What the journal has and DuckDB does not, in the order of acknowledgement.
        self._unsettled: list[Entry] = []
        self._is_torn = False
        # Guards the dictionary of logs, whose values are frozen: readers take one without waiting for a commit.
        self._mutex = threading.Lock()
        # Held by whoever deletes rows: what one deletes must be gone before another looks what there is to delete.
        self._deleting = threading.Lock()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        identity_table: str,
        fresh: BufferIdentity,
        journalled: bool = False,
    ) -> Self:
        """Open the file, replaying its WAL and its journal, or make it with the identity given."""
        files.make_folder(path.parent)
        config: dict[str, Any] = {
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            # One: small commits wait for no other thread, and many sessions' files may be open at once.
            "threads": "1",
            "checkpoint_threshold": f"{_CHECKPOINT_BYTES}b",
            "arrow_lossless_conversion": "true",
        }
        if not path.exists() and any(files.size_of(path.with_name(path.name + suffix)) for suffix in (WAL, SUFFIX)):
            raise BufferDamagedError(f"{path} is gone, and its WAL or its journal is there.", path=str(path))
        with failing(path):
            connection = duckdb.connect(str(path), config=config)
            try:
                contents = meta.opened(connection, identity_table=identity_table, fresh=fresh, ships=journalled)
                # The statements that write are trivial, and planning them is a good part of a small commit.
                connection.execute("PRAGMA disable_optimizer")
                store = cls(path, connection, contents)
                if journalled:
                    incarnation = contents.identity.incarnation
                    store._replay(Journal(path.with_name(path.name + SUFFIX), incarnation=incarnation))
                    store._doubt()
                files.sync_folder(path.parent)
            except BaseException:
                connection.close()
                raise
        return store

    def close(self) -> None:
        """Let go of the file; what is in the WAL and the journal is moved into it first."""
        with suppress(CatchmentError):
            # What cannot be settled now is in the journal still, and will be when the file is opened again.
            self.settle()
        journal = self._journal
        self.abandon()
        if journal is not None and self.is_settled:
            journal.remove()

    def abandon(self) -> None:
        """Let go of the file as it is; what is in the journal is settled when it is opened again."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()
        with failing(self.path):
            self._connection.close()

    def logs(self) -> dict[TableId, TableLog]:
        """Every table's log, as it stands."""
        with self._mutex:
            return dict(self._logs)

    def log(self, table: TableId) -> TableLog | None:
        """The table's log, as it stands."""
        with self._mutex:
            return self._logs.get(table)

    def write(self, writes: Sequence[Write], now: datetime) -> list[tuple[int, int]]:
        """Keep all of them or none; returns the numbers that each got."""
        for write in writes:
            if self._is_for_successor(write):
                self._part(write.table)
        logs: dict[TableId, TableLog] = {}
        ranges: dict[int, tuple[int, int]] = {}
        with self._wholly():
            if not self._note(writes, now, logs, ranges):
                with failing(self.path), self._transaction():
                    self._insert_unsettled()
                    for each in self._numbered(writes, now, logs, ranges):
                        at = pa.scalar(meta.naive(each.at), _AT_TYPE)
                        self._insert(each.version, each.seq_first, pa.repeat(at, each.rows.num_rows), each.rows)
                    faults.reach("queue.before_ack")
                self._have_settled()
            with self._mutex:
                for table, log in logs.items():
                    # What was retired meanwhile stays so.
                    before = self._logs.get(table)
                    self._logs[table] = log if before is None else log.kept_like(before)
        faults.reach("queue.after_ack")
        return [ranges[place] for place in range(len(writes))]

    @property
    def is_settled(self) -> bool:
        """Whether every row is in the file, where it can be read."""
        return not self._unsettled

    def settle(self) -> None:
        """Move what only the journal has into the file; the owner sees that nobody appends meanwhile."""
        if self._unsettled:
            with self._wholly():
                with failing(self.path), self._transaction():
                    self._insert_unsettled()
                self._have_settled()

    def read(
        self, version: Version, first: int, last: int, *, batch_rows: int = _READ_BATCH_ROWS
    ) -> pa.RecordBatchReader:
        """Rows of one version that are settled, in order, with their numbers."""
        names = sql.identifiers([SEQ, *(column.name for column in version.columns)])
        # Rows lie in the order of their numbers, because one thread at a time appends them; nothing needs sorting.
        query = f"SELECT {names} FROM {sql.identifier(version.staging)} WHERE {SEQ} BETWEEN {first} AND {last}"
        with failing(self.path):
            cursor = self._connection.cursor()
            return cursor.execute(query).to_arrow_reader(batch_rows)

    def retire(self, table: TableId, seq: int) -> None:
        """Delete settled rows up to `seq`, which the lake has, but for those that are held; may be repeated."""
        self._move_on(table, lambda log: log.flushed(seq))

    def truncate_log(self, table: TableId, seq: int) -> None:
        """Delete flushed rows up to `seq`, and those that are not flushed yet once they are.

        Only what is deleted outlives this object.
        """
        self._move_on(table, lambda log: log.truncate_log(seq))

    def _move_on(self, table: TableId, step: Callable[[TableLog], TableLog]) -> None:
        with self._deleting:
            log = self.log(table)
            if log is None:
                return
            after = step(log)
            if (after.seq_flushed, after.seq_gone) != (log.seq_flushed, log.seq_gone):
                with failing(self.path), self._connection.cursor() as cursor:
                    cursor.execute("BEGIN")
                    meta.delete_gone(cursor, log, after)
                    faults.reach("queue.before_retire")
                    cursor.execute("COMMIT")
            with self._mutex:
                self._logs[table] = self._logs[table].kept_like(after)

    @property
    def holds(self) -> frozenset[str]:
        """The schemas that are held, as DuckDB compares names."""
        return self._holds

    def life(self, table: TableId) -> Generation:
        """Which life of the table it is."""
        with self._mutex:
            return self._lives.get(table, Generation())

    def unproven_from(self, table: TableId) -> int | None:
        """How far the table was when the file was opened, until `prove` says that the ledger knows no more of it.

        What the file itself has noted as flushed is its own, whoever noted it.
        """
        with self._mutex:
            opened, log = self._unproven.get(table), self._logs.get(table)
        return None if opened is None else max(opened, log.seq_flushed if log else 0)

    @property
    def proven(self) -> frozenset[TableId]:
        """Tables of which the ledger knows no number that this file has not given."""
        with self._mutex:
            return frozenset(self._logs.keys() - self._unproven.keys())

    def prove(self, *tables: TableId) -> None:
        """The ledger knows no number of them that this file has not given: what it learns from now on is ours."""
        doubtful = [table for table in tables if self.unproven_from(table) is not None]
        if doubtful:
            with self._alone():
                for table in doubtful:
                    meta.set_unproven(self._connection, table, None)
            with self._mutex:
                for table in doubtful:
                    self._unproven.pop(table, None)

    def _doubt(self) -> None:
        """Whether this is the file that flushed last, or an older copy of it, only the ledger can tell."""
        new = {table: log.seq_last for table, log in self._logs.items() if table not in self._unproven}
        if new:
            with self._alone():
                for table, seq in new.items():
                    meta.set_unproven(self._connection, table, seq)
            self._unproven.update(new)

    def retain_log(self, schema: str) -> None:
        """Keep the rows of the schema's tables although they are flushed; may be repeated."""
        if sql.fold(schema) in self._holds:
            return
        with self._deleting:
            with self._alone():
                self._connection.execute("INSERT INTO held_schemas VALUES (?)", [sql.fold(schema)])
            self._learn({table: log.held() for table, log in self.logs_of(schema).items()})
            self._holds |= {sql.fold(schema)}

    def release_log(self, schema: str) -> None:
        """Delete the schema's rows that are flushed, and keep such rows no longer; may be repeated."""
        with self._deleting:
            logs = self.logs_of(schema)
            after = {table: log.unheld() for table, log in logs.items()}
            with self._alone():
                self._connection.execute("DELETE FROM held_schemas WHERE table_schema = ?", [sql.fold(schema)])
                for table, log in logs.items():
                    meta.delete_gone(self._connection, log, after[table])
            self._learn(after)
            self._holds -= {sql.fold(schema)}

    def start_after(self, table: TableId, columns: tuple[Column, ...], seq: int) -> None:
        """Have the table's numbers go on behind `seq`, up to which the lake has everything; may be repeated.

        StateError where rows are here that are not in the lake, or numbers that come after.
        """
        self.settle()
        with self._deleting:
            log, life = self.log(table), replace(self.life(table), seq_begun=seq)
            if log is not None and self.life(table) == life:
                return
            if log is not None and (log.rows or log.seq_last > seq):
                raise StateError(f"{table} is here up to seq {log.seq_last}, flushed up to {log.seq_flushed}.")
            begun = log or self._no_log(table)
            old = begun.versions
            with self._alone():
                if log is None or log.seq_last < seq:
                    begun = self._start_version(table, columns, begun.start_seq(seq)).without(old)
                    meta.drop_versions(self._connection, old)
                meta.set_life(self._connection, table, life)
            with self._mutex:
                self._logs[table] = begun
                self._lives[table] = life

    def _is_for_successor(self, write: Write) -> bool:
        """Whether the rows belong to another table than those that are here under the same name."""
        log = self.log(write.table) if self._journal is not None else None
        if log is None or log.versions[-1].columns is write.columns:
            return False
        uuids = {types.table_of(log.versions[-1].columns), types.table_of(write.columns)}
        return len(uuids - {None}) == 2

    def _part(self, table: TableId) -> None:
        """Have the name begin another life, and keep what is not flushed of the one before under a name of its own."""
        if sql.fold(table.schema) in self._holds:
            raise StateError(f"{table} is another table than the one whose rows its tenant's copy follows.")
        self.settle()
        if self._journal is not None:
            # Settled frames are passed over because the table has their numbers, which it will not have any more.
            self._journal.wipe()
        with self._deleting:
            log, life = self._logs[table], self.life(table)
            former = meta.former_of(table, log, self._logs)
            lives = {table: Generation(number=life.number + 1)}
            with self._alone():
                if log.rows:
                    lives[former] = replace(life, origin_name=table.name)
                    meta.rename(self._connection, table, former.name)
                else:
                    meta.drop_versions(self._connection, log.versions)
                    meta.set_unproven(self._connection, table, None)
                for each, its_life in lives.items():
                    meta.set_life(self._connection, each, its_life)
            with self._mutex:
                self._lives.update(lives)
                del self._logs[table]
                unproven = self._unproven.pop(table, None)
                if log.rows:
                    self._logs[former] = log.under(former)
                    if unproven is not None:
                        self._unproven[former] = unproven

    def drop(self, schema: str) -> None:
        """Forget the schema's tables, their rows and the hold; whatever comes under their names is another life."""
        self.settle()
        if self._journal is not None:
            # Settled frames are passed over because the table has their numbers, which it will not have any more.
            self._journal.wipe()
        with self._deleting:
            # Rows of tables that are gone, or have another name by now, are not in the schema any more.
            logs = {table: log for table, log in self.logs_of(schema).items() if not self.life(table).origin_name}
            lives = {table: Generation(number=self.life(table).number + 1) for table in logs}
            with self._alone():
                for table, log in logs.items():
                    meta.drop_versions(self._connection, log.versions)
                    meta.set_life(self._connection, table, lives[table])
                    meta.set_unproven(self._connection, table, None)
                self._connection.execute("DELETE FROM held_schemas WHERE table_schema = ?", [sql.fold(schema)])
            with self._mutex:
                self._lives.update(lives)
                for table in logs:
                    del self._logs[table]
                    self._unproven.pop(table, None)
            self._holds -= {sql.fold(schema)}

    def logs_of(self, schema: str) -> dict[TableId, TableLog]:
        """The logs of a schema's tables, as they stand."""
        return {table: log for table, log in self.logs().items() if sql.fold(table.schema) == sql.fold(schema)}

    def _learn(self, logs: Mapping[TableId, TableLog]) -> None:
        with self._mutex:
            self._logs.update(logs)

    def mark_flushed(self, table: TableId, staging: str) -> None:
        """Rename one of the table's staging tables, so that whoever opens the file sees that the lake has it.

        Only for files that take no more rows; may be repeated.
        """
        log = self.log(table)
        marked = [version for version in log.versions if version.staging == staging] if log else []
        with failing(self.path), self._connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for version in marked:
                cursor.execute(
                    f"ALTER TABLE {sql.identifier(staging)} RENAME TO {sql.identifier(FLUSHED_PREFIX + staging)}"
                )
                cursor.execute(sql.statement(PACKAGE, "version_remove"), [*meta.key(table), version.number])
            cursor.execute("COMMIT")
        with self._mutex:
            left = log.without(marked) if log else None
            if left is not None and left.versions:
                self._logs[table] = left
            else:
                self._logs.pop(table, None)

    def checkpoint(self) -> None:
        """Move what is in the WAL into the file."""
        with failing(self.path):
            self._connection.execute("CHECKPOINT")

    def wal_bytes(self) -> int:
        """Size of the WAL."""
        return files.size_of(self.path.with_name(self.path.name + WAL))

    def used_bytes(self) -> int:
        """Room that rows take: blocks in use, WAL and journal, without what the files could give back."""
        with failing(self.path), self._connection.cursor() as cursor:
            row = cursor.execute("SELECT block_size * used_blocks FROM pragma_database_size()").fetchone()
        return (int(row[0]) if row else 0) + self.wal_bytes() + self._journal_bytes()

    def file_bytes(self) -> int:
        """Size of the file and its WAL, and of what is in the journal."""
        return files.size_of(self.path) + self.wal_bytes() + self._journal_bytes()

    def _journal_bytes(self) -> int:
        return self._journal.size if self._journal else 0

    @contextmanager
    def _wholly(self) -> Iterator[None]:
        """What is on the disk and what this object knows of it change together.

        A thread that is told to end in the middle may have changed one of them. Then only a new opening can tell.
        """
        if self._is_torn and self._journal is not None:
            raise BufferDamagedError(f"{self.path}: a write was interrupted.", path=str(self.path))
        self._is_torn = True
        try:
            yield
        except CatchmentError:
            # It says what was kept.
            self._is_torn = False
            raise
        self._is_torn = False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A transaction of what is no write, while nobody writes."""
        with self._wholly(), failing(self.path), self._transaction():
            yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
        except BaseException:
            with suppress(duckdb.Error):
                self._connection.execute("ROLLBACK")
            raise
        try:
            self._connection.execute("COMMIT")
        except duckdb.Error as error:
            # Whether the rows are there, only the file knows now: whoever holds this store opens it anew.
            raise CommitUnknownError(f"{self.path} may or may not have taken the rows: {error}") from None

    def _no_log(self, table: TableId) -> TableLog:
        return TableLog(versions=(), is_held=sql.fold(table.schema) in self._holds)

    def _start_version(self, table: TableId, columns: tuple[Column, ...], log: TableLog) -> TableLog:
        number = log.versions[-1].number + 1 if log.versions else 1
        version = Version(
            table=table,
            number=number,
            staging=meta.staging_name(self._connection, table, number),
            columns=columns,
            seq_first=log.seq_last + 1,
        )
        meta.add_version(self._connection, version, seq_flushed=log.seq_flushed)
        if self._journal is not None and not log.versions:
            # An older copy of the file may have been put back that did not know the table yet.
            meta.set_unproven(self._connection, table, log.seq_last)
            self._unproven[table] = log.seq_last
        return replace(log, versions=(*log.versions, version))

    def _numbered(
        self,
        writes: Sequence[Write],
        now: datetime,
        logs: dict[TableId, TableLog],
        ranges: dict[int, tuple[int, int]],
    ) -> Iterator[Numbered]:
        """Give the rows their numbers, under new versions where their columns are new; notes both in what is given."""
        for places in groups_of(writes):
            table, columns = writes[places[0]].table, writes[places[0]].columns
            log = logs.get(table) or self.log(table) or self._no_log(table)
            some = [news_of(writes[place], log) for place in places]
            rows = pa.concat_tables(some) if len(some) > 1 else some[0]
            seq = log.seq_last
            for place, part in zip(places, some, strict=True):
                seq += part.num_rows
                ranges[place] = numbers_of(writes[place], seq)
            if writes[places[0]].seq_first is not None and not rows.num_rows and log.versions:
                continue
            if not log.versions or log.versions[-1].columns != columns:
                log = self._start_version(table, columns, log)
            logs[table] = log.written(rows.num_rows, incoming.size_of(rows), now)
            if rows.num_rows:
                yield Numbered(version=log.versions[-1], seq_first=log.seq_last + 1, at=now, rows=rows)

    def _note(
        self,
        writes: Sequence[Write],
        now: datetime,
        logs: dict[TableId, TableLog],
        ranges: dict[int, tuple[int, int]],
    ) -> bool:
        """Keep the writes in the journal; False, and nothing done, where they are for DuckDB."""
        if self._journal is None or self._journal.is_full or not all(map(self._is_small, writes)):
            return False
        entries = [
            Entry.of(each.version.table, each.seq_first, each.at, each.rows)
            for each in self._numbered(writes, now, logs, ranges)
        ]
        faults.reach("queue.before_ack")
        if entries:
            self._journal.append(entries)
            self._unsettled += entries
        return True

    def _is_small(self, write: Write) -> bool:
        """Whether the journal may take it: the store knows the columns, and nothing can go wrong later."""
        log = self.log(write.table)
        return (
            log is not None
            and log.versions[-1].columns == write.columns
            and incoming.size_of(write.rows) <= ENTRY_BYTES_MAX
            and incoming.needs_no_cast(write.rows, write.columns)
        )

    def _replay(self, journal: Journal) -> None:
        """Settle what the journal has and the file does not; from now on the journal is this store's."""
        try:
            for entry in journal.replay(self._has):
                if self._has(entry):
                    continue
                log, rows = self._logs.get(entry.table), read([entry])
                if log is None or entry.seq_first > log.seq_last + 1:
                    raise BufferDamagedError(f"{self.path} lacks rows before its journal's.", path=str(self.path))
                self._unsettled.append(entry)
                self._logs[entry.table] = log.written(rows.num_rows, rows.nbytes, entry.at)
            self.settle()
        except BaseException:
            journal.close()
            raise
        self._journal = journal

    def _has(self, entry: Entry) -> bool:
        """Whether the entry was settled; or it was never acknowledged, and others got its numbers."""
        log = self._logs.get(entry.table)
        return log is not None and entry.seq_first <= log.seq_last

    def _insert_unsettled(self) -> None:
        """Insert what only the journal has, into the versions that it was written for: those are the last ones yet."""
        by_table: dict[TableId, list[Entry]] = {}
        for entry in self._unsettled:
            by_table.setdefault(entry.table, []).append(entry)
        for table, entries in by_table.items():
            version = self._logs[table].versions[-1]
            # Rows must lie in the order of their numbers, so only neighbours go together; between them is no gap.
            for _, neighbours in groupby(entries, key=lambda each: each.shape):
                alike = list(neighbours)
                times = pa.array([meta.naive(each.at) for each in alike], _AT_TYPE)
                owners = chain.from_iterable(repeat(at, each.count) for at, each in enumerate(alike))
                at = times.take(pa.array(owners, pa.int64()))
                self._insert(version, alike[0].seq_first, at, read(alike).combine_chunks())

    def _have_settled(self) -> None:
        if self._unsettled:
            faults.reach("queue.after_settle")
            self._unsettled.clear()
            if self._journal is not None:
                self._journal.restart()

    def _insert(self, version: Version, seq_first: int, times: pa.Array, rows: pa.Table) -> None:
        """Insert rows, which have the numbers from `seq_first` on, and the time of each."""
        expressions = incoming.select_list(rows.schema, version.columns)
        seqs = pa.arange(seq_first, seq_first + rows.num_rows)
        numbered = rows.append_column(SEQ, seqs).append_column(AT, times)
        # A bare capsule: DuckDB reads a table through a slower way.
        self._connection.register("arriving", numbered.__arrow_c_stream__())
        try:
            self._connection.execute(
                f"INSERT INTO {sql.identifier(version.staging)} SELECT {SEQ}, {AT}, {expressions} FROM arriving"
            )
        finally:
            self._connection.unregister("arriving")


def new_identity(incarnation: str, session: str, clock: Clock) -> BufferIdentity:
    """What a file that is made now says of itself."""
    return BufferIdentity(incarnation=incarnation, session=session, created_at=clock.now())
