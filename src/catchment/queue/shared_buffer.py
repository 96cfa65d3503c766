"""The shared layout: one DuckDB file, `buffer.duckdb`, for everybody.

Recovery is opening the file: there is nothing to scan. A table's parcels are slices, ranges of `dq_seq` that follow
each other without gap. The ledger's watermark of the table's producer is a `dq_seq` too: what it covers is in the lake,
and is never cut into a slice again, however a crash changed the cuts.

Since a table's rows are numbered once and for all, another buffer can hold the same rows: this one keeps them as a log
while their schema is held, ships them by number, and receives others' under the numbers that they bring. A table that
is dropped may come again, with whatever numbers: that is another life of it, and another producer to the ledger, so
that no watermark of the old life swallows rows of the new one.

Somebody may put an older copy of the file back. The ledger then knows numbers that this file has not given, and would
take new rows for flushed. So what the file had when it was opened is noted, until the ledger was asked once.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from catchment.errors import (
    BufferDamagedError,
    BufferHeldError,
    BufferOutdatedError,
    CatchmentError,
    CommitUnknownError,
    InvariantError,
    StorageFailedError,
)
from catchment.foundation import events, files, ids
from catchment.foundation.clock import Clock
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.meters import Meters
from catchment.foundation.settings import MIB, Settings
from catchment.lake import types
from catchment.lake.types import Column
from catchment.queue import failure, quarantine
from catchment.queue.buffer import KIND, SEQ, Ack, BufferedRows, FlushPayload, QuarantinedFile, Staged, TableState
from catchment.queue.group_commit import GroupCommit
from catchment.queue.replication import LogRows
from catchment.queue.store import Store, new_identity
from catchment.queue.table_log import TableLog, Version
from catchment.queue.writes import Write

FILE_NAME = "buffer.duckdb"
LOCK_NAME = "buffer.lock"
_IDENTITY = "dq_buffer"
_GROUP_MAX = 1_000
# So few that rows of any size can be counted before too many are in memory.
_SHIPPED_TOGETHER_ROWS = 2_048
_CHECKPOINT_AFTER_BYTES = 16 * MIB


class SharedBuffer:
    """The buffer in one file."""

    def __init__(
        self,
        root: Path,
        *,
        chunk_rows: int,
        clock: Clock,
        bytes_max: int = 0,
        meters: Meters | None = None,
    ) -> None:
        self._root = root
        self._chunk_rows = chunk_rows
        # Under a small cap, retired rows that are still in the WAL would take up the room of new ones for good.
        self._checkpoint_after_bytes = min(_CHECKPOINT_AFTER_BYTES, bytes_max // 8 or _CHECKPOINT_AFTER_BYTES)
        self._clock = clock
        self._is_closed = False
        # Whether DuckDB has given the file up, because its disk failed it; whoever comes next opens it anew.
        self._is_given_up = False
        # DuckDB keeps other processes from its file, but opens it twice in one: rows would get the same numbers.
        self._lock = self._take_lock()
        try:
            self._store = self._open()
        except BaseException:
            self._lock.release()
            raise
        self._group = GroupCommit[tuple[Write, ...], tuple[int, int]](
            self._commit, items_max=_GROUP_MAX, observe=(meters or Meters()).group_writes.observe
        )

    @classmethod
    def from_settings(cls, settings: Settings, *, clock: Clock, meters: Meters | None = None) -> "SharedBuffer":
        return cls(
            settings.queue_path,
            chunk_rows=settings.queue_flush_chunk_rows,
            clock=clock,
            bytes_max=settings.queue_max_db_bytes,
            meters=meters,
        )

    @property
    def incarnation(self) -> str:
        return self._store.identity.incarnation

    def producer(self, table: TableId) -> ProducerId:
        life = self._store.life(table)
        origin = table if life.origin_name is None else TableId(table.schema, life.origin_name)
        incarnation = self.incarnation if life.number == 1 else f"{self.incarnation}.{life.number}"
        return ProducerId(KIND, str(origin), incarnation)

    def columns(self, table: TableId, session: str) -> tuple[Column, ...] | None:
        log = self._store.log(table)
        return log.versions[-1].columns if log else None

    def append(self, table: TableId, columns: tuple[Column, ...], rows: pa.Table, *, session: str) -> Ack:
        first, last = self._group.submit((Write(table=table, columns=columns, rows=rows),))
        return Ack(table=table, source=self.incarnation, seq_first=first, seq_last=last)

    def tables(self, session: str | None = None) -> tuple[TableState, ...]:
        return tuple(_state(table, log) for table, log in sorted(self._store.logs().items()))

    def state(self, table: TableId) -> TableState | None:
        log = self._store.log(table)
        return None if log is None else _state(table, log)

    def seal(self) -> None:
        """Every acknowledged row can be cut into a slice at once."""

    def parcels(self, tables: Sequence[TableId] | None = None) -> list[FlushPayload]:
        return [
            parcel
            for table, log in sorted(self._store.logs().items())
            if tables is None or table in tables
            for parcel in self._slices(log)
        ]

    def stage(self, parcel: FlushPayload, folder: Path) -> Staged:
        path = folder / f"{parcel.id}.arrow"
        reader = self._reader(parcel)
        rows = 0
        schema = reader.schema.remove(0)
        try:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for batch in reader:
                    rows += batch.num_rows
                    writer.write_batch(batch.select(schema.names))
        except OSError as error:
            raise StorageFailedError(f"{path}: {error}", path=str(path)) from None
        self._require_all(parcel, rows)
        return Staged(path=path, relation=None, bytes=files.size_of(path))

    def read(self, parcel: FlushPayload) -> pa.Table:
        rows = self._reader(parcel).read_all()
        self._require_all(parcel, rows.num_rows)
        return rows.drop_columns([SEQ])

    def retire(self, parcel: FlushPayload) -> None:
        # The name may have begun another life meanwhile; the parcel's rows are kept under another one then.
        for table in self._store.logs_of(parcel.table.schema):
            if self.producer(table) == parcel.producer:
                with self._noticing():
                    self._store.retire(table, parcel.seq_last)
        self._checkpoint()

    def release(self, parcel: FlushPayload) -> None:
        """Nobody else can have the file open, so nothing was leased."""

    def flushed_through(self, table: TableId, seq: int) -> None:
        log = self._store.log(table)
        if log is None:
            return
        if self.covered(table, seq) > log.seq_last:
            raise InvariantError(f"The lake has {table} up to seq {seq}, the buffer only up to {log.seq_last}.")
        if self._store.unproven_from(table) is not None:
            self._alone(lambda store: store.prove(table))
        self._settle()
        with self._noticing():
            self._store.retire(table, seq)

    def covered(self, table: TableId, seq: int) -> int:
        opened = self._store.unproven_from(table)
        if opened is not None and seq > opened:
            # Rows behind that may be the lake's or new ones: which, only somebody who knows of the copy can tell.
            raise BufferOutdatedError(
                f"The lake has {table} up to seq {seq}, and the buffer was opened at {opened}: it is an older copy.",
                path=str(self._store.path),
            )
        return seq

    def held(self, table: TableId, session: str | None = None) -> list[BufferedRows]:
        log = self._store.log(table)
        if log is None:
            return []
        self._settle()
        found: list[BufferedRows] = []
        for version, first, last in log.ranges():
            try:
                rows = self._store.read(version, first, last).read_all()
            except BufferDamagedError:
                now = self._store.log(table)
                if now is not None and version in now.versions:
                    raise
                # Flushed and dropped meanwhile: the lake has its rows, and is looked at next. Or all of it was dropped.
                continue
            found.append(BufferedRows(parcel=self._parcel(log, version, first, last), rows=rows))
        return found

    def complete_through(self, table: TableId) -> dict[str, int]:
        log = self._store.log(table)
        return {self.incarnation: log.seq_last if log else 0}

    def retain_log(self, schema: str) -> None:
        self._alone(lambda store: store.retain_log(schema))

    def release_log(self, schema: str) -> None:
        # Most of it beside the writers, who wait for the rest.
        with self._noticing():
            for table, log in self._store.logs_of(schema).items():
                self._store.truncate_log(table, log.seq_flushed)
        self._alone(lambda store: store.release_log(schema))
        self._checkpoint()

    def held_schemas(self) -> frozenset[str]:
        return self._store.holds

    def truncate_log(self, table: TableId, seq: int) -> None:
        with self._noticing():
            self._store.truncate_log(table, seq)
        self._checkpoint()

    def positions(self, schema: str) -> dict[TableId, int]:
        return {
            table: log.seq_last
            for table, log in self._store.logs_of(schema).items()
            if self._store.life(table).origin_name is None
        }

    def read_log(self, table: TableId, after: int, *, rows_max: int, bytes_max: int | None = None) -> LogRows | None:
        self._settle()
        log = self._store.log(table)
        if log is None or after >= log.seq_last:
            return None
        self._require_kept(table, after)
        version, first, last = next(log.ranges(after))
        last = min(last, first + rows_max - 1)
        try:
            reader = self._store.read(version, first, last, batch_rows=_SHIPPED_TOGETHER_ROWS)
            rows, is_all = _first_of(reader, bytes_max)
        except BufferDamagedError:
            # Or let go of meanwhile, with the version's staging table.
            self._require_kept(table, after)
            raise
        # Those at the start go first, so a log that was let go of shows in what is missing there.
        numbers = rows.column(SEQ)
        if not rows.num_rows or numbers[0].as_py() != first or (is_all and rows.num_rows != last - first + 1):
            self._require_kept(table, after)
            raise InvariantError(f"{table} has {rows.num_rows} rows from {first} to {last}.")
        rows = rows.drop_columns([SEQ])
        return LogRows(table=table, columns=version.columns, seq_first=first, rows=rows)

    def append_replicated(self, shipments: Sequence[LogRows]) -> None:
        if shipments:
            self._group.submit(
                tuple(
                    Write(table=each.table, columns=each.columns, rows=each.rows, seq_first=each.seq_first)
                    for each in shipments
                )
            )

    def start_after(self, table: TableId, columns: tuple[Column, ...], seq: int) -> None:
        self._alone(lambda store: store.start_after(table, columns, seq))

    def start_seq(self, table: TableId) -> int | None:
        return self._store.life(table).seq_begun

    def drop(self, schema: str) -> None:
        self._alone(lambda store: store.drop(schema))
        self._checkpoint()

    def size_bytes(self) -> int:
        return self._store.file_bytes()

    def used_bytes(self) -> int:
        # A file that cannot be asked takes no more than its size.
        return self._store.file_bytes() if self._is_given_up else self._store.used_bytes()

    def set_aside(self) -> tuple[QuarantinedFile, ...]:
        return quarantine.found(self._root)

    def end_session(self, session: str) -> None:
        """Sessions leave nothing of their own behind."""

    def sweep(self) -> None:
        """Nothing is due: flushing is all the housekeeping there is."""

    def close(self) -> None:
        try:
            self._group.exclusively(self._close)
        finally:
            self._lock.release()

    def _close(self) -> None:
        self._is_closed = True
        self._store.close()

    def _take_lock(self) -> files.HeldLock:
        lock = files.FileLock(self._root / LOCK_NAME, clock=self._clock).take()
        if lock is None:
            raise BufferHeldError(f"{self._root / FILE_NAME} is open elsewhere.", path=str(self._root))
        return lock

    def _open(self) -> Store:
        try:
            return self._open_file()
        except BufferDamagedError as error:
            # The server must start, and what cannot be read today may be read tomorrow by other means.
            quarantine.put(self._root / FILE_NAME, reason=error.message, clock=self._clock)
            return self._open_file()

    def _open_file(self) -> Store:
        store = Store.open(
            self._root / FILE_NAME,
            identity_table=_IDENTITY,
            fresh=new_identity(secrets.token_hex(8), "", self._clock),
            journalled=True,
        )
        rows = sum(log.rows for log in store.logs().values())
        events.emit("buffer_opened", path=str(store.path), incarnation=store.identity.incarnation, rows=rows)
        return store

    def _commit(self, together: Sequence[tuple[Write, ...]]) -> list[tuple[int, int]]:
        """Keep what each has brought; returns the numbers of each one's last rows."""
        writes = [write for brought in together for write in brought]
        try:
            with self._open_store() as store:
                ranges = store.write(writes, self._clock.now())
        except CommitUnknownError as error:
            if self._is_given_up or any(_seq_last(self._store, each) != _seq_last(store, each) for each in writes):
                raise
            # The file could be opened anew, and has none of them.
            raise failure.refusal(self._root, error) from error
        ends = accumulate(len(writes) for writes in together)
        return [ranges[end - 1] for end in ends]

    def _alone(self, action: Callable[[Store], None]) -> None:
        """Do something to the store while nobody writes."""

        def act() -> None:
            with self._open_store() as store:
                action(store)

        self._group.exclusively(act)

    def _checkpoint(self) -> None:
        if self._store.wal_bytes() > self._checkpoint_after_bytes:
            # Little is left to write at this moment; left to itself, DuckDB would do it in the middle of some commit.
            self._alone(lambda store: store.checkpoint())

    def _settle(self) -> None:
        """Have every row that is acknowledged by now in the file, where it can be read."""
        if self._is_given_up or not self._store.is_settled:
            self._alone(lambda store: store.settle())

    @contextmanager
    def _open_store(self) -> Iterator[Store]:
        """The store, for one commit at a time."""
        if self._is_closed:
            raise BufferHeldError(f"{self._store.path} was closed.")
        if self._is_given_up:
            self._open_again()
        try:
            with self._noticing():
                yield self._store
        except CatchmentError:
            # Opened anew it has all that was acknowledged, and shows which numbers are taken. Where that fails too, the
            # next one tries, and this one's error stays: it says whether the rows may be there.
            if self._is_given_up:
                with suppress(CatchmentError):
                    self._open_again()
            raise

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """See whether DuckDB gives up the file, as it does when its disk fails it."""
        try:
            yield
        except CatchmentError as error:
            self._is_given_up = self._is_given_up or failure.is_given_up(error)
            raise

    def _open_again(self) -> None:
        try:
            proven = self._store.proven
            self._store.abandon()
            self._store = self._open_file()
            # Nobody else could have the file meanwhile.
            self._store.prove(*proven)
        except CommitUnknownError as error:
            # What is not known is how far its own rows were settled: the journal has them still.
            raise failure.refusal(self._root, error) from error
        self._is_given_up = False

    def _slices(self, log: TableLog) -> list[FlushPayload]:
        return [
            self._parcel(log, version, start, min(start + self._chunk_rows - 1, last))
            for version, first, last in log.ranges()
            for start in range(first, last + 1, self._chunk_rows)
        ]

    def _parcel(self, log: TableLog, version: Version, first: int, last: int) -> FlushPayload:
        table = version.table
        producer = self.producer(table)
        return FlushPayload(
            id=ids.unit_id(KIND, producer.incarnation, producer.source, first, last),
            table=table,
            producer=producer,
            source=self.incarnation,
            seq_first=first,
            seq_last=last,
            rows=last - first + 1,
            bytes=log.bytes * (last - first + 1) // max(1, log.rows),
            positioned=True,
            path=str(self._store.path),
            relation=version.staging,
            columns=version.columns,
        )

    def _reader(self, parcel: FlushPayload) -> pa.RecordBatchReader:
        self._settle()
        for log in self._store.logs_of(parcel.table.schema).values():
            for version, first, last in log.ranges():
                if version.staging == parcel.relation and first <= parcel.seq_first and parcel.seq_last <= last:
                    return self._store.read(version, parcel.seq_first, parcel.seq_last)
        raise InvariantError(f"{parcel.table} has no rows {parcel.seq_first} to {parcel.seq_last} in the buffer.")

    def _require_kept(self, table: TableId, after: int) -> None:
        log = self._store.log(table)
        if log is not None and after < log.seq_gone:
            raise InvariantError(f"The log of {table} starts behind seq {log.seq_gone}, not behind {after}.")

    def _require_all(self, parcel: FlushPayload, rows: int) -> None:
        if rows != parcel.rows:
            raise InvariantError(f"{parcel.table} has {rows} of the {parcel.rows} rows from {parcel.seq_first} on.")


def _seq_last(store: Store, write: Write) -> int:
    log = store.log(write.table)
    return 0 if log is None else log.seq_last


def _state(table: TableId, log: TableLog) -> TableState:
    return TableState(
        table=table,
        rows=log.rows,
        bytes=log.bytes,
        oldest_at=log.oldest_at,
        seq_last=log.seq_last,
        seq_flushed=log.seq_flushed,
        uuids=frozenset(filter(None, (types.table_of(version.columns) for version in log.versions))),
    )


def _first_of(reader: pa.RecordBatchReader, bytes_max: int | None) -> tuple[pa.Table, bool]:
    """Rows until they have that many bytes, and whether these are all."""
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if bytes_max is not None and size >= bytes_max:
            return pa.Table.from_batches(batches), False
    return pa.Table.from_batches(batches, reader.schema), True
