"""One DuckDB file with rows: staging tables of numbered rows, and tables that describe them.

Both layouts use such files: the shared buffer is one, a session's segment is another. Every row has
a number, `dq_seq`, without gap from 1 within its table. Rows are deleted by number, never by
DuckDB's `rowid`, which a checkpoint changes.

    dq_meta, …       the file's metadata: see `file_tables`
    dq_<table>       the rows of version 1; later versions have a suffix
    <identity>       the generation of the buffer that the file belongs to

Flushed rows are deleted, unless the log of their schema is retained: then they are kept until the
log is truncated.

A file may have a journal next to it, which takes small writes until they are settled in the file,
many in one transaction: before anything is read, when the journal is full, together with a write
that is not small, or when the file is opened.
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
from catchment.foundation.ids import TableId
from catchment.foundation.settings import MIB
from catchment.lake import types
from catchment.lake.types import Column
from catchment.queue import incoming
from catchment.queue.buffer import SEQ
from catchment.queue.store import file_tables
from catchment.queue.store.file_failures import translating
from catchment.queue.store.file_tables import BufferIdentity, Contents, Generation
from catchment.queue.store.journal import ENTRY_BYTES_MAX, SUFFIX, Entry, Journal, read
from catchment.queue.store.table_log import (
    NumberedRows,
    TableLog,
    Version,
    Write,
    insert_groups,
    new_rows,
    seq_range,
)

WAL = ".wal"
_READ_BATCH_ROWS = 100_000
# Size of the WAL at which DuckDB checkpoints by itself, between two writes, which then wait: 2 to 3
# s for a million rows. Flushes checkpoint much earlier.
_CHECKPOINT_BYTES = 512 * MIB
_AT_TYPE = pa.timestamp("us")


class Store:
    """An open file.

    The owner ensures that one thread at a time writes, settles, retains, starts or drops. Reading,
    retiring and truncating may run concurrently.
    """

    def __init__(self, path: Path, connection: duckdb.DuckDBPyConnection, contents: Contents) -> None:
        self.path = path
        self.identity = contents.identity
        self._connection = connection
        self._logs = contents.logs
        self._retained_schemas = contents.retained_schemas
        self._generations = contents.generations
        self._unproven = contents.unproven
        self._journal: Journal | None = None
        # Entries that the journal has and DuckDB does not, in the order of acknowledgement.
        self._unsettled: list[Entry] = []
        self._is_torn = False
        # Guards the dictionary of logs, whose values are frozen: readers get one without waiting
        # for a commit.
        self._mutex = threading.Lock()
        # Held while rows are deleted: one deletion must be complete before the next one determines
        # its rows.
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
        """Open the file, replaying its WAL and its journal, or create it with the identity `fresh`."""
        files.make_folder(path.parent)
        config: dict[str, Any] = {
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            # One: small commits do not wait for another thread, and many sessions' files may be
            # open at once.
            "threads": "1",
            "checkpoint_threshold": f"{_CHECKPOINT_BYTES}b",
            "arrow_lossless_conversion": "true",
        }
        if not path.exists() and any(files.size_of(path.with_name(path.name + suffix)) for suffix in (WAL, SUFFIX)):
            raise BufferDamagedError(f"{path} is missing, but its WAL or its journal exists.", path=str(path))
        with translating(path):
            connection = duckdb.connect(str(path), config=config)
            try:
                contents = file_tables.opened(
                    connection, identity_table=identity_table, fresh=fresh, is_replicated=journalled
                )
                # The statements that write are trivial, and planning them is a good part of a small
                # commit.
                connection.execute("PRAGMA disable_optimizer")
                store = cls(path, connection, contents)
                if journalled:
                    generation = contents.identity.generation
                    store._replay(Journal(path.with_name(path.name + SUFFIX), generation=generation))
                    store._mark_unproven()
                files.sync_folder(path.parent)
            except BaseException:
                connection.close()
                raise
        return store

    def close(self) -> None:
        """Close the file, after moving the content of WAL and journal into it."""
        with suppress(CatchmentError):
            # Entries that cannot be settled now stay in the journal and are settled at the next
            # opening.
            self.settle()
        journal = self._journal
        self.abandon()
        if journal is not None and self.is_settled:
            journal.remove()

    def abandon(self) -> None:
        """Close the file as it is; the journal's entries are settled when it is opened again."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()
        with translating(self.path):
            self._connection.close()

    def logs(self) -> dict[TableId, TableLog]:
        """Return every table's log."""
        with self._mutex:
            return dict(self._logs)

    def log(self, table: TableId) -> TableLog | None:
        """Return the table's log, or None."""
        with self._mutex:
            return self._logs.get(table)

    def write(self, writes: Sequence[Write], now: datetime) -> list[tuple[int, int]]:
        """Store all writes or none; return the numbers that each got."""
        for write in writes:
            if self._is_for_successor(write):
                self._start_generation(write.table)
        logs: dict[TableId, TableLog] = {}
        ranges: dict[int, tuple[int, int]] = {}
        with self._atomically():
            if not self._write_to_journal(writes, now, logs, ranges):
                with translating(self.path), self._transaction():
                    self._insert_unsettled()
                    for each in self._numbered(writes, now, logs, ranges):
                        at = pa.scalar(file_tables.utc_naive(each.at), _AT_TYPE)
                        times = pa.repeat(at, each.rows.num_rows)
                        file_tables.insert(self._connection, each.version, each.seq_first, times, each.rows)
                    faults.reach("queue.before_ack")
                self._finish_settling()
            with self._mutex:
                for table, log in logs.items():
                    # Rows that were retired since stay retired.
                    before = self._logs.get(table)
                    self._logs[table] = log if before is None else log.with_progress_of(before)
        faults.reach("queue.after_ack")
        return [ranges[position] for position in range(len(writes))]

    @property
    def is_settled(self) -> bool:
        """Whether every row is in the file, where it can be read."""
        return not self._unsettled

    def settle(self) -> None:
        """Move the journal's entries into the file; the owner allows no write at the same time."""
        if self._unsettled:
            with self._atomically():
                with translating(self.path), self._transaction():
                    self._insert_unsettled()
                self._finish_settling()

    def read(
        self, version: Version, first: int, last: int, *, batch_rows: int = _READ_BATCH_ROWS
    ) -> pa.RecordBatchReader:
        """Return settled rows of one version, in order, with their numbers."""
        names = sql.identifiers([SEQ, *(column.name for column in version.columns)])
        # Rows lie in the order of their numbers, because one thread at a time appends them; no sort
        # is needed.
        query = f"SELECT {names} FROM {sql.identifier(version.staging)} WHERE {SEQ} BETWEEN {first} AND {last}"
        with translating(self.path):
            cursor = self._connection.cursor()
            return cursor.execute(query).to_arrow_reader(batch_rows)

    def retire(self, table: TableId, seq: int) -> None:
        """Delete settled rows up to `seq`, unless their log is retained; may be repeated."""
        self._trim(table, lambda log: log.flushed(seq))

    def truncate_log(self, table: TableId, seq: int) -> None:
        """Delete flushed rows up to `seq`, and those not flushed yet once they are.

        The deletions are durable; `seq` is not, and is lost with this object.
        """
        self._trim(table, lambda log: log.truncate_log(seq))

    def _trim(self, table: TableId, step: Callable[[TableLog], TableLog]) -> None:
        with self._deleting:
            log = self.log(table)
            if log is None:
                return
            after = step(log)
            if (after.seq_flushed, after.seq_gone) != (log.seq_flushed, log.seq_gone):
                with translating(self.path), self._connection.cursor() as cursor:
                    cursor.execute("BEGIN")
                    file_tables.delete_gone(cursor, log, after)
                    faults.reach("queue.before_retire")
                    cursor.execute("COMMIT")
            with self._mutex:
                self._logs[table] = self._logs[table].with_progress_of(after)

    @property
    def retained_schemas(self) -> frozenset[str]:
        """The schemas whose log is retained, folded as DuckDB compares names."""
        return self._retained_schemas

    def generation(self, table: TableId) -> Generation:
        """Return the table's generation."""
        with self._mutex:
            return self._generations.get(table, Generation())

    def unproven_from(self, table: TableId) -> int | None:
        """Return the table's last number when the file was opened, until `prove`; None afterwards.

        At least the last number that the file records as flushed.
        """
        with self._mutex:
            opened, log = self._unproven.get(table), self._logs.get(table)
        return None if opened is None else max(opened, log.seq_flushed if log else 0)

    @property
    def proven(self) -> frozenset[TableId]:
        """Tables whose numbers in the ledger were all assigned by this file."""
        with self._mutex:
            return frozenset(self._logs.keys() - self._unproven.keys())

    def prove(self, *tables: TableId) -> None:
        """Record that this file assigned all numbers that the ledger has of these tables."""
        doubtful = [table for table in tables if self.unproven_from(table) is not None]
        if doubtful:
            with self._exclusive_transaction():
                for table in doubtful:
                    file_tables.set_unproven(self._connection, table, None)
            with self._mutex:
                for table in doubtful:
                    self._unproven.pop(table, None)

    def _mark_unproven(self) -> None:
        """Record the positions at opening: only the ledger can tell whether this is an older copy."""
        new = {table: log.seq_last for table, log in self._logs.items() if table not in self._unproven}
        if new:
            with self._exclusive_transaction():
                for table, seq in new.items():
                    file_tables.set_unproven(self._connection, table, seq)
            self._unproven.update(new)

    def retain_log(self, schema: str) -> None:
        """Keep rows of the schema's tables even if they are flushed; may be repeated."""
        if sql.fold(schema) in self._retained_schemas:
            return
        with self._deleting:
            with self._exclusive_transaction():
                self._connection.execute("INSERT INTO held_schemas VALUES (?)", [sql.fold(schema)])
            self._set_logs({table: log.retained() for table, log in self.logs_of(schema).items()})
            self._retained_schemas |= {sql.fold(schema)}

    def release_log(self, schema: str) -> None:
        """Delete flushed rows of the schema's tables, and stop keeping them; may be repeated."""
        with self._deleting:
            logs = self.logs_of(schema)
            after = {table: log.released() for table, log in logs.items()}
            with self._exclusive_transaction():
                self._connection.execute("DELETE FROM held_schemas WHERE table_schema = ?", [sql.fold(schema)])
                for table, log in logs.items():
                    file_tables.delete_gone(self._connection, log, after[table])
            self._set_logs(after)
            self._retained_schemas -= {sql.fold(schema)}

    def start_after(self, table: TableId, columns: tuple[Column, ...], seq: int) -> None:
        """Start the table's sequence after `seq`; rows up to `seq` are already in the lake.

        May be repeated. Raises StateError if the buffer has rows that the lake lacks, or numbers
        after `seq`.
        """
        self.settle()
        with self._deleting:
            log, generation = self.log(table), replace(self.generation(table), start_seq=seq)
            if log is not None and self.generation(table) == generation:
                return
            if log is not None and (log.rows or log.seq_last > seq):
                raise StateError(f"{table} is here up to seq {log.seq_last}, flushed up to {log.seq_flushed}.")
            started = log or self._empty_log(table)
            old = started.versions
            with self._exclusive_transaction():
                if log is None or log.seq_last < seq:
                    started = self._start_version(table, columns, started.starting_after(seq)).without(old)
                    file_tables.drop_versions(self._connection, old)
                file_tables.set_generation(self._connection, table, generation)
            with self._mutex:
                self._logs[table] = started
                self._generations[table] = generation

    def _is_for_successor(self, write: Write) -> bool:
        """Return whether the rows belong to another table than the buffered ones of the same name."""
        log = self.log(write.table) if self._journal is not None else None
        if log is None or log.versions[-1].columns is write.columns:
            return False
        uuids = {types.table_of(log.versions[-1].columns), types.table_of(write.columns)}
        return len(uuids - {None}) == 2

    def _start_generation(self, table: TableId) -> None:
        """Start another generation of the name; keep the unflushed rows under another name."""
        if sql.fold(table.schema) in self._retained_schemas:
            raise StateError(f"{table} is not the table that its tenant's replica follows.")
        self.settle()
        if self._journal is not None:
            # Replay skips settled frames by their numbers, which the table is about to lose.
            self._journal.wipe()
        with self._deleting:
            log, generation = self._logs[table], self.generation(table)
            former = file_tables.former_of(table, log, self._logs)
            generations = {table: Generation(number=generation.number + 1)}
            with self._exclusive_transaction():
                if log.rows:
                    generations[former] = replace(generation, origin_name=table.name)
                    file_tables.rename(self._connection, table, former.name)
                else:
                    file_tables.drop_versions(self._connection, log.versions)
                    file_tables.set_unproven(self._connection, table, None)
                for each, its_generation in generations.items():
                    file_tables.set_generation(self._connection, each, its_generation)
            with self._mutex:
                self._generations.update(generations)
                del self._logs[table]
                unproven = self._unproven.pop(table, None)
                if log.rows:
                    self._logs[former] = log.under(former)
                    if unproven is not None:
                        self._unproven[former] = unproven

    def drop(self, schema: str) -> None:
        """Forget the schema's tables, their rows and retained logs; their names start a generation."""
        self.settle()
        if self._journal is not None:
            # Replay skips settled frames by their numbers, which the table is about to lose.
            self._journal.wipe()
        with self._deleting:
            # Rows of tables that were dropped or renamed are not in the schema any more.
            logs = {table: log for table, log in self.logs_of(schema).items() if not self.generation(table).origin_name}
            generations = {table: Generation(number=self.generation(table).number + 1) for table in logs}
            with self._exclusive_transaction():
                for table, log in logs.items():
                    file_tables.drop_versions(self._connection, log.versions)
                    file_tables.set_generation(self._connection, table, generations[table])
                    file_tables.set_unproven(self._connection, table, None)
                self._connection.execute("DELETE FROM held_schemas WHERE table_schema = ?", [sql.fold(schema)])
            with self._mutex:
                self._generations.update(generations)
                for table in logs:
                    del self._logs[table]
                    self._unproven.pop(table, None)
            self._retained_schemas -= {sql.fold(schema)}

    def logs_of(self, schema: str) -> dict[TableId, TableLog]:
        """Return the logs of a schema's tables."""
        return {table: log for table, log in self.logs().items() if sql.fold(table.schema) == sql.fold(schema)}

    def _set_logs(self, logs: Mapping[TableId, TableLog]) -> None:
        with self._mutex:
            self._logs.update(logs)

    def mark_flushed(self, table: TableId, staging: str) -> None:
        """Rename one of the table's staging tables to show that the lake has its rows.

        Only for files that take no more rows; may be repeated.
        """
        log = self.log(table)
        marked = [version for version in log.versions if version.staging == staging] if log else []
        with translating(self.path), self._connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for version in marked:
                file_tables.mark_flushed(cursor, version)
            cursor.execute("COMMIT")
        with self._mutex:
            left = log.without(marked) if log else None
            if left is not None and left.versions:
                self._logs[table] = left
            else:
                self._logs.pop(table, None)

    def checkpoint(self) -> None:
        """Move the content of the WAL into the file."""
        with translating(self.path):
            self._connection.execute("CHECKPOINT")

    def wal_bytes(self) -> int:
        """Return the size of the WAL."""
        return files.size_of(self.path.with_name(self.path.name + WAL))

    def used_bytes(self) -> int:
        """Return the space that rows take: used blocks, WAL and journal, without free blocks."""
        with translating(self.path), self._connection.cursor() as cursor:
            row = cursor.execute("SELECT block_size * used_blocks FROM pragma_database_size()").fetchone()
        return (int(row[0]) if row else 0) + self.wal_bytes() + self._journal_bytes()

    def file_bytes(self) -> int:
        """Return the size of the file, its WAL, and the used part of the journal."""
        return files.size_of(self.path) + self.wal_bytes() + self._journal_bytes()

    def _journal_bytes(self) -> int:
        return self._journal.size if self._journal else 0

    @contextmanager
    def _atomically(self) -> Iterator[None]:
        """Change the disk and this object's state together.

        A thread that is interrupted in between may have changed only one of them. Then the file has
        to be opened again.
        """
        if self._is_torn and self._journal is not None:
            raise BufferDamagedError(f"{self.path}: a write was interrupted.", path=str(self.path))
        self._is_torn = True
        try:
            yield
        except CatchmentError:
            # The error tells whether the rows were stored.
            self._is_torn = False
            raise
        self._is_torn = False

    @contextmanager
    def _exclusive_transaction(self) -> Iterator[None]:
        """Run a transaction that is not a write, while nothing is written."""
        with self._atomically(), translating(self.path), self._transaction():
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
            # Only the file shows whether the rows are stored: the owner has to open it again.
            raise CommitUnknownError(f"{self.path} may or may not have stored the rows: {error}") from None

    def _empty_log(self, table: TableId) -> TableLog:
        return TableLog(versions=(), is_retained=sql.fold(table.schema) in self._retained_schemas)

    def _start_version(self, table: TableId, columns: tuple[Column, ...], log: TableLog) -> TableLog:
        number = log.versions[-1].number + 1 if log.versions else 1
        version = Version(
            table=table,
            number=number,
            staging=file_tables.staging_name(self._connection, table, number),
            columns=columns,
            seq_first=log.seq_last + 1,
        )
        file_tables.add_version(self._connection, version, seq_flushed=log.seq_flushed)
        if self._journal is not None and not log.versions:
            # An older copy of the file may have been restored, which did not have the table yet.
            file_tables.set_unproven(self._connection, table, log.seq_last)
            self._unproven[table] = log.seq_last
        return replace(log, versions=(*log.versions, version))

    def _numbered(
        self,
        writes: Sequence[Write],
        now: datetime,
        logs: dict[TableId, TableLog],
        ranges: dict[int, tuple[int, int]],
    ) -> Iterator[NumberedRows]:
        """Number the rows, under new versions if their columns are new; fills `logs` and `ranges`."""
        for positions in insert_groups(writes):
            table, columns = writes[positions[0]].table, writes[positions[0]].columns
            log = logs.get(table) or self.log(table) or self._empty_log(table)
            some = [new_rows(writes[position], log) for position in positions]
            rows = pa.concat_tables(some) if len(some) > 1 else some[0]
            seq = log.seq_last
            for position, part in zip(positions, some, strict=True):
                seq += part.num_rows
                ranges[position] = seq_range(writes[position], seq)
            if writes[positions[0]].seq_first is not None and not rows.num_rows and log.versions:
                continue
            if not log.versions or log.versions[-1].columns != columns:
                log = self._start_version(table, columns, log)
            logs[table] = log.written(rows.num_rows, incoming.size_of(rows), now)
            if rows.num_rows:
                yield NumberedRows(version=log.versions[-1], seq_first=log.seq_last + 1, at=now, rows=rows)

    def _write_to_journal(
        self,
        writes: Sequence[Write],
        now: datetime,
        logs: dict[TableId, TableLog],
        ranges: dict[int, tuple[int, int]],
    ) -> bool:
        """Store the writes in the journal; return False, with no effect, if DuckDB has to."""
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
        """Return whether the journal may take the write: known columns, and settling cannot fail."""
        log = self.log(write.table)
        return (
            log is not None
            and log.versions[-1].columns == write.columns
            and incoming.size_of(write.rows) <= ENTRY_BYTES_MAX
            and incoming.needs_no_cast(write.rows, write.columns)
        )

    def _replay(self, journal: Journal) -> None:
        """Settle the journal's entries that the file lacks; the store owns the journal afterwards."""
        try:
            for entry in journal.replay(self._is_in_file):
                if self._is_in_file(entry):
                    continue
                log, rows = self._logs.get(entry.table), read([entry])
                if log is None or entry.seq_first > log.seq_last + 1:
                    raise BufferDamagedError(f"{self.path} lacks rows that precede its journal.", path=str(self.path))
                self._unsettled.append(entry)
                self._logs[entry.table] = log.written(rows.num_rows, rows.nbytes, entry.at)
            self.settle()
        except BaseException:
            journal.close()
            raise
        self._journal = journal

    def _is_in_file(self, entry: Entry) -> bool:
        """Return whether the entry is settled, or was not acknowledged and its numbers are taken."""
        log = self._logs.get(entry.table)
        return log is not None and entry.seq_first <= log.seq_last

    def _insert_unsettled(self) -> None:
        """Insert the journal's entries into the tables' last versions, which they were written for."""
        by_table: dict[TableId, list[Entry]] = {}
        for entry in self._unsettled:
            by_table.setdefault(entry.table, []).append(entry)
        for table, entries in by_table.items():
            version = self._logs[table].versions[-1]
            # Rows must lie in the order of their numbers, so only adjacent entries are combined;
            # there is no gap between them.
            for _, neighbours in groupby(entries, key=lambda each: each.shape):
                alike = list(neighbours)
                times = pa.array([file_tables.utc_naive(each.at) for each in alike], _AT_TYPE)
                owners = chain.from_iterable(repeat(at, each.count) for at, each in enumerate(alike))
                at = times.take(pa.array(owners, pa.int64()))
                file_tables.insert(self._connection, version, alike[0].seq_first, at, read(alike).combine_chunks())

    def _finish_settling(self) -> None:
        if self._unsettled:
            faults.reach("queue.after_settle")
            self._unsettled.clear()
            if self._journal is not None:
                self._journal.restart()
