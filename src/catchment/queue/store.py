"""One DuckDB file that keeps rows: staging tables with numbered rows, and what each of them is for.

Both layouts keep their rows in such files: the shared buffer is one, a session's segment is another. Every row has a
number, `dq_seq`, without gap from 1 within its table. Rows are let go of by number, never by DuckDB's `rowid`, which
a checkpoint changes.

    dq_meta          one row per version of a table's columns: its staging table, where it starts, what is flushed
    dq_<table>       the rows of version 1; later versions have a suffix
    <identity>       which life of which buffer this is

A file may have a journal beside it, which takes small writes until they are settled here, many in one transaction:
before anything is read, when the journal is full, together with a write that is not small, or when the file is opened.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa

from catchment import faults, files, sql
from catchment.clock import Clock
from catchment.errors import (
    BufferDamagedError,
    BufferHeldError,
    CatchmentError,
    CommitUnknownError,
    InputError,
    InvariantError,
    StorageFailedError,
)
from catchment.ids import DEFAULT_SCHEMA, TableId
from catchment.lake.types import Column
from catchment.queue import arrivals
from catchment.queue.buffer import AT, SEQ
from catchment.queue.journal import ENTRY_BYTES_MAX, SUFFIX, Entry, Journal
from catchment.queue.log import Log, Mark, Version

PACKAGE = "catchment.queue"
WAL = ".wal"
FLUSHED_PREFIX = "__dq_flushed_"
_SAMPLE_ROWS = 1_000
_READ_BATCH_ROWS = 100_000
_AT_TYPE = pa.timestamp("us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Rows to keep, which fit the columns."""

    table: TableId
    columns: tuple[Column, ...]
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which life of which buffer a file is."""

    incarnation: str
    session: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """Rows that have their numbers, and the version that they belong to."""

    version: Version
    seq_first: int
    at: datetime
    rows: pa.Table


class Store:
    """An open file. One thread appends or settles at a time, which the owner sees to; reading and retiring go on
    beside it.
    """

    def __init__(
        self, path: Path, connection: duckdb.DuckDBPyConnection, identity: Identity, logs: dict[TableId, Log]
    ) -> None:
        self.path = path
        self.identity = identity
        self._connection = connection
        self._logs = logs
        self._journal: Journal | None = None
        # What the journal has and DuckDB does not, in the order of acknowledgement.
        self._unsettled: list[Entry] = []
        self._is_torn = False
        # Guards the dictionary of logs, whose values are frozen: readers take one without waiting for a commit.
        self._mutex = threading.Lock()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        identity_table: str,
        fresh: Identity,
        checkpoint_bytes: int,
        journalled: bool = False,
    ) -> Self:
        """Open the file, replaying its WAL and its journal, or make it with the identity given."""
        files.make_folder(path.parent)
        config: dict[str, Any] = {
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            # One: small commits wait for no other thread, and many sessions' files may be open at once.
            "threads": "1",
            "checkpoint_threshold": f"{checkpoint_bytes}b",
            "arrow_lossless_conversion": "true",
        }
        if not path.exists() and any(files.size_of(path.with_name(path.name + suffix)) for suffix in (WAL, SUFFIX)):
            raise BufferDamagedError(f"{path} is gone, and its WAL or its journal is there.", path=str(path))
        with _failing(path):
            connection = duckdb.connect(str(path), config=config)
            try:
                connection.execute(sql.statement(PACKAGE, "store_create", identity=identity_table))
                identity = _identity(connection, identity_table, fresh)
                logs = dict(_logs(connection))
                # The statements that write are trivial, and planning them is a good part of a small commit.
                connection.execute("PRAGMA disable_optimizer")
                store = cls(path, connection, identity, logs)
                if journalled:
                    store._replay(Journal(path.with_name(path.name + SUFFIX), incarnation=identity.incarnation))
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
        with _failing(self.path):
            self._connection.close()

    def logs(self) -> dict[TableId, Log]:
        """Every table's log, as it stands."""
        with self._mutex:
            return dict(self._logs)

    def log(self, table: TableId) -> Log | None:
        """The table's log, as it stands."""
        with self._mutex:
            return self._logs.get(table)

    def write(self, writes: Sequence[Write], now: datetime) -> list[tuple[int, int]]:
        """Keep all of them or none; returns the numbers that each got."""
        logs: dict[TableId, Log] = {}
        ranges: dict[int, tuple[int, int]] = {}
        with self._wholly():
            if not self._note(writes, now, logs, ranges):
                with _failing(self.path), self._transaction():
                    self._insert_unsettled()
                    for each in self._numbered(writes, now, logs, ranges):
                        self._insert([each])
                    faults.reach("queue.before_ack")
                self._have_settled()
            with self._mutex:
                for table, log in logs.items():
                    # What was retired meanwhile stays so.
                    before = self._logs.get(table)
                    if before is not None and before.seq_flushed != log.seq_flushed:
                        log = log.flushed(before.seq_flushed).without(_gone(log, before))
                    self._logs[table] = log
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
                with _failing(self.path), self._transaction():
                    self._insert_unsettled()
                self._have_settled()

    def read(self, version: Version, first: int, last: int) -> pa.RecordBatchReader:
        """Rows of one version that are settled, in order, with their numbers."""
        names = sql.identifiers([SEQ, *(column.name for column in version.columns)])
        # Rows lie in the order of their numbers, because one thread at a time appends them; nothing needs sorting.
        query = f"SELECT {names} FROM {sql.identifier(version.staging)} WHERE {SEQ} BETWEEN {first} AND {last}"
        with _failing(self.path):
            cursor = self._connection.cursor()
            return cursor.execute(query).to_arrow_reader(_READ_BATCH_ROWS)

    def retire(self, table: TableId, seq: int) -> None:
        """Delete settled rows up to `seq`, which the lake has; nothing where they are gone already."""
        log = self.log(table)
        if log is None or seq <= log.seq_flushed:
            return
        after = log.flushed(seq)
        gone = after.emptied()
        with _failing(self.path), self._connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for version in gone:
                cursor.execute(f"DROP TABLE IF EXISTS {sql.identifier(version.staging)}")
                cursor.execute(sql.statement(PACKAGE, "version_remove"), [*_key(table), version.number])
            for version in after.without(gone).versions:
                cursor.execute(f"DELETE FROM {sql.identifier(version.staging)} WHERE {SEQ} <= {after.seq_flushed}")
            cursor.execute(sql.statement(PACKAGE, "version_flushed"), [after.seq_flushed, *_key(table)])
            faults.reach("queue.before_retire")
            cursor.execute("COMMIT")
        with self._mutex:
            self._logs[table] = self._logs[table].flushed(seq).without(gone)

    def mark_flushed(self, table: TableId, staging: str) -> None:
        """Rename one of the table's staging tables, so that whoever opens the file sees that the lake has it.

        Only for files that take no more rows; may be repeated.
        """
        log = self.log(table)
        marked = [version for version in log.versions if version.staging == staging] if log else []
        with _failing(self.path), self._connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for version in marked:
                cursor.execute(
                    f"ALTER TABLE {sql.identifier(staging)} RENAME TO {sql.identifier(FLUSHED_PREFIX + staging)}"
                )
                cursor.execute(sql.statement(PACKAGE, "version_remove"), [*_key(table), version.number])
            cursor.execute("COMMIT")
        with self._mutex:
            left = log.without(marked) if log else None
            if left is not None and left.versions:
                self._logs[table] = left
            else:
                self._logs.pop(table, None)

    def checkpoint(self) -> None:
        """Move what is in the WAL into the file."""
        with _failing(self.path):
            self._connection.execute("CHECKPOINT")

    def wal_bytes(self) -> int:
        """Size of the WAL."""
        return files.size_of(self.path.with_name(self.path.name + WAL))

    def used_bytes(self) -> int:
        """Room that rows take: blocks in use, WAL and journal, without what the files could give back."""
        with _failing(self.path), self._connection.cursor() as cursor:
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

    def _start_version(self, table: TableId, columns: tuple[Column, ...], log: Log | None) -> Log:
        number = log.versions[-1].number + 1 if log else 1
        version = Version(
            table=table,
            number=number,
            staging=self._staging_name(table, number),
            columns=columns,
            seq_first=log.seq_last + 1 if log else 1,
        )
        payload = "".join(f", {sql.identifier(column.name)} {column.type}" for column in columns)
        self._connection.execute(
            f"CREATE TABLE {sql.identifier(version.staging)} ({SEQ} BIGINT NOT NULL, {AT} TIMESTAMP NOT NULL{payload})"
        )
        self._connection.execute(
            "INSERT INTO dq_meta VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                *_key(table),
                number,
                version.staging,
                json.dumps([asdict(column) for column in columns]),
                version.seq_first,
                log.seq_flushed if log else 0,
            ],
        )
        return replace(log, versions=(*log.versions, version)) if log else Log(versions=(version,))

    def _staging_name(self, table: TableId, number: int) -> str:
        place = table.name if table.schema == DEFAULT_SCHEMA else f"{table.schema}.{table.name}"
        wanted = f"dq_{place}" if number == 1 else f"dq_{place}@{number}"
        taken = {row[0] for row in self._connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
        # Tables `a.b` of the default schema and `b` of schema `a` would meet, and so would names that differ in case.
        folded = {sql.fold(name) for name in taken}
        while sql.fold(wanted) in folded:
            wanted += "'"
        return wanted

    def _numbered(
        self,
        writes: Sequence[Write],
        now: datetime,
        logs: dict[TableId, Log],
        ranges: dict[int, tuple[int, int]],
    ) -> Iterator[Numbered]:
        """Give the rows their numbers, under new versions where their columns are new; notes both in what is given."""
        for (table, columns, _), places in _alike(writes).items():
            log = logs.get(table) or self.log(table)
            if log is None or log.versions[-1].columns != columns:
                log = self._start_version(table, columns, log)
            some = [writes[place].rows for place in places]
            rows = pa.concat_tables(some) if len(some) > 1 else some[0]
            seq = log.seq_last
            for place, part in zip(places, some, strict=True):
                ranges[place] = (seq + 1, seq + part.num_rows)
                seq += part.num_rows
            logs[table] = log.written(rows.num_rows, rows.nbytes, now)
            yield Numbered(version=log.versions[-1], seq_first=log.seq_last + 1, at=now, rows=rows)

    def _note(
        self,
        writes: Sequence[Write],
        now: datetime,
        logs: dict[TableId, Log],
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
        self._journal.append(entries)
        self._unsettled += entries
        return True

    def _is_small(self, write: Write) -> bool:
        """Whether the journal may take it: the store knows the columns, and nothing can go wrong later."""
        log = self.log(write.table)
        return (
            log is not None
            and log.versions[-1].columns == write.columns
            and write.rows.nbytes <= ENTRY_BYTES_MAX
            and arrivals.are_plain(write.rows, write.columns)
        )

    def _replay(self, journal: Journal) -> None:
        """Settle what the journal has and the file does not; from now on the journal is this store's."""
        try:
            for entry in journal.replay(self._has):
                if self._has(entry):
                    continue
                log, rows = self._logs.get(entry.table), entry.rows
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
        by_table: dict[TableId, list[Numbered]] = {}
        for entry in self._unsettled:
            version = self._logs[entry.table].versions[-1]
            numbered = Numbered(version=version, seq_first=entry.seq_first, at=entry.at, rows=entry.rows)
            by_table.setdefault(entry.table, []).append(numbered)
        for entries in by_table.values():
            # Rows must lie in the order of their numbers, so only neighbours go together.
            for _, alike in groupby(entries, key=lambda each: each.rows.schema):
                self._insert(list(alike))

    def _have_settled(self) -> None:
        if self._unsettled:
            faults.reach("queue.after_settle")
            self._unsettled.clear()
            if self._journal is not None:
                self._journal.restart()

    def _insert(self, alike: Sequence[Numbered]) -> None:
        """Insert rows of one version and one shape."""
        version = alike[0].version
        rows = pa.concat_tables([each.rows for each in alike]).combine_chunks() if len(alike) > 1 else alike[0].rows
        expressions = arrivals.select_list(rows.schema, version.columns)
        seqs = pa.concat_arrays([pa.arange(each.seq_first, each.seq_first + each.rows.num_rows) for each in alike])
        at = pa.concat_arrays([pa.repeat(pa.scalar(_naive(each.at), _AT_TYPE), each.rows.num_rows) for each in alike])
        numbered = rows.append_column(SEQ, seqs).append_column(AT, at)
        # A bare capsule: DuckDB reads a table through a slower way.
        self._connection.register("arriving", numbered.__arrow_c_stream__())
        try:
            self._connection.execute(
                f"INSERT INTO {sql.identifier(version.staging)} SELECT {SEQ}, {AT}, {expressions} FROM arriving"
            )
        finally:
            self._connection.unregister("arriving")


def _alike(writes: Sequence[Write]) -> dict[tuple[TableId, tuple[Column, ...], pa.Schema], list[int]]:
    """Writes that one statement can insert, by their places."""
    found: dict[tuple[TableId, tuple[Column, ...], pa.Schema], list[int]] = {}
    for place, write in enumerate(writes):
        found.setdefault((write.table, write.columns, write.rows.schema), []).append(place)
    return found


def _gone(log: Log, now: Log) -> list[Version]:
    """Versions that were dropped while the log was written: they are older than any that is left."""
    return [version for version in log.versions if version.number < now.versions[0].number]


def _identity(connection: duckdb.DuckDBPyConnection, table: str, fresh: Identity) -> Identity:
    select = f"SELECT incarnation, session, created_at FROM {sql.identifier(table)}"
    rows = connection.execute(select).fetchall()
    if not rows:
        connection.execute(
            f"INSERT INTO {sql.identifier(table)} VALUES (?, ?, ?)",
            [fresh.incarnation, fresh.session, _naive(fresh.created_at)],
        )
        rows = connection.execute(select).fetchall()
    if len(rows) != 1:
        raise InvariantError(f"{table} holds {len(rows)} rows instead of one.")
    incarnation, session, created_at = rows[0]
    return Identity(incarnation=incarnation, session=session, created_at=created_at.replace(tzinfo=UTC))


def _logs(connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[TableId, Log]]:
    found: dict[TableId, list[tuple[Version, int]]] = {}
    for schema, name, number, staging, columns, first, flushed in connection.execute(
        "SELECT * FROM dq_meta ORDER BY table_schema, table_name, version"
    ).fetchall():
        version = Version(
            table=TableId(schema, name),
            number=number,
            staging=staging,
            columns=tuple(Column(**each) for each in json.loads(columns)),
            seq_first=first,
        )
        found.setdefault(version.table, []).append((version, flushed))
    for table, versions in found.items():
        yield table, _log(connection, [version for version, _ in versions], max(flushed for _, flushed in versions))


def _log(connection: duckdb.DuckDBPyConnection, versions: list[Version], flushed: int) -> Log:
    """What the rows say: they are the truth, `last_flushed_seq` only counts once they are gone."""
    log = Log(versions=tuple(versions), seq_last=max(flushed, versions[-1].seq_first - 1), seq_flushed=flushed)
    marks: list[Mark] = []
    for version in versions:
        staging = sql.identifier(version.staging)
        marks += [
            Mark(seq, at.replace(tzinfo=UTC))
            for seq, at in connection.execute(
                f"SELECT max({SEQ}), min({AT}) FROM {staging} GROUP BY date_trunc('second', {AT}) ORDER BY 1"
            ).fetchall()
        ]
    if not marks:
        return log
    sample = connection.execute(f"FROM {sql.identifier(versions[-1].staging)} LIMIT {_SAMPLE_ROWS}").to_arrow_table()
    return replace(
        log,
        seq_last=max(log.seq_last, marks[-1].seq_last),
        rows_written=max(1, sample.num_rows),
        bytes_written=sample.nbytes,
        marks=tuple(marks),
    )


def _key(table: TableId) -> tuple[str, str]:
    return table.schema, table.name


def _naive(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)


# Texts by which DuckDB says that a file is open elsewhere, or that the system refuses something.
_HELD = ("Could not set lock", "Conflicting lock", "Unique file handle conflict", "already attached", "already open")
_FAILING = (
    "No space",
    "Cannot open file",
    "Permission denied",
    "Too many open files",
    "Read-only file system",
    "Cannot allocate memory",
    "Out of Memory",
)


def failure(path: Path, error: duckdb.Error) -> CatchmentError:
    """DuckDB's error about a file, as what the caller can do about it."""
    text = " ".join(str(error).split())
    if any(words in text for words in _HELD):
        return BufferHeldError(f"{path} is open elsewhere.", path=str(path))
    if isinstance(error, duckdb.TransactionException) or any(words in text for words in _FAILING):
        return StorageFailedError(f"{path}: {text}", path=str(path))
    if isinstance(error, duckdb.DataError):
        return InputError(f"The rows cannot be kept: {text}")
    # What is left at opening is damage, and moves the file out of the way; an open one DuckDB gives up like this.
    return BufferDamagedError(f"{path}: {text}", path=str(path))


@contextmanager
def _failing(path: Path) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise failure(path, error) from error


def new_identity(incarnation: str, session: str, clock: Clock) -> Identity:
    """What a file that is made now says of itself."""
    return Identity(incarnation=incarnation, session=session, created_at=clock.now())
