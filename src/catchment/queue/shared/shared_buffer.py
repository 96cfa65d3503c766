"""The shared layout: one DuckDB file, `buffer.duckdb`, for all sessions.

Recovery consists of opening the file. A table's payloads are slices: ranges of `dq_seq` that follow
each other without gap. The ledger's watermark of the table's producer is a `dq_seq` too: rows up to
it are in the lake and never part of a slice again, even if a crash changed the slices' borders.

Each of a table's rows has one number forever, so another buffer can store the same rows. This one
keeps rows as a log while the log of their schema is retained, reads them by number, and appends
rows of others under the numbers that they have. A table that is dropped may be created again, with
any numbers. That is another generation of it and another producer to the ledger, so that the old
generation's watermark does not hide rows of the new one.

An operator may restore an older copy of the file. The ledger then has numbers that this file has
not assigned, and new rows would count as flushed. So the positions at opening are stored until they
have been compared with the ledger once.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from catchment.errors import (
    BufferDamagedError,
    BufferOutdatedError,
    InvariantError,
    StorageFailedError,
)
from catchment.foundation import files, ids
from catchment.foundation.clock import Clock
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.meters import Meters
from catchment.foundation.settings import Settings
from catchment.lake import types
from catchment.lake.types import Column
from catchment.queue.buffer import KIND, SEQ, Ack, BufferedRows, FlushPayload, QuarantinedFile, Staged, TableState
from catchment.queue.shared.buffer_file import FILE_NAME, BufferFile
from catchment.queue.shared.shared_replication import SharedReplication
from catchment.queue.store import file_failures
from catchment.queue.store.store import WAL
from catchment.queue.store.table_log import TableLog, Version, Write


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
        self._file = BufferFile(root, clock=clock, bytes_max=bytes_max, meters=meters)
        self._replication = SharedReplication(self._file)

    @classmethod
    def from_settings(cls, settings: Settings, *, clock: Clock, meters: Meters | None = None) -> "SharedBuffer":
        return cls(
            settings.queue_path,
            chunk_rows=settings.queue_flush_chunk_rows,
            clock=clock,
            bytes_max=settings.queue_max_db_bytes,
            meters=meters,
        )

    @staticmethod
    def exists(root: Path) -> bool:
        """Return whether there is a buffer of this layout under the root."""
        path = root / FILE_NAME
        return path.exists() or path.with_name(FILE_NAME + WAL).exists()

    @staticmethod
    def leftover(root: Path) -> str | None:
        """Return a note on rows of this layout for a process that uses another one, or None."""
        path = root / FILE_NAME
        if not path.exists():
            return None
        return f"{path} is of the layout `shared`: to flush it, set DUCKLING_QUEUE_LAYOUT=shared."

    @property
    def generation(self) -> str:
        return self._file.generation

    @property
    def replication(self) -> SharedReplication:
        return self._replication

    @property
    def separates_sessions(self) -> bool:
        return False

    def producer(self, table: TableId) -> ProducerId:
        table_generation = self._file.store.generation(table)
        origin = table if table_generation.origin_name is None else TableId(table.schema, table_generation.origin_name)
        generation = self.generation if table_generation.number == 1 else f"{self.generation}.{table_generation.number}"
        return ProducerId(KIND, str(origin), generation)

    def columns(self, table: TableId, session: str) -> tuple[Column, ...] | None:
        log = self._file.store.log(table)
        return log.versions[-1].columns if log else None

    def append(self, table: TableId, columns: tuple[Column, ...], rows: pa.Table, *, session: str) -> Ack:
        first, last = self._file.write(Write(table=table, columns=columns, rows=rows))
        return Ack(table=table, source=self.generation, seq_first=first, seq_last=last)

    def tables(self, session: str | None = None) -> tuple[TableState, ...]:
        return tuple(_state(table, log) for table, log in sorted(self._file.store.logs().items()))

    def state(self, table: TableId) -> TableState | None:
        log = self._file.store.log(table)
        return None if log is None else _state(table, log)

    def seal(self) -> None:
        """Do nothing: every acknowledged row can be part of a slice at once."""

    def payloads(self, tables: Sequence[TableId] | None = None) -> list[FlushPayload]:
        return [
            payload
            for table, log in sorted(self._file.store.logs().items())
            if tables is None or table in tables
            for payload in self._slices(log)
        ]

    def stage(self, payload: FlushPayload, folder: Path) -> Staged:
        path = folder / f"{payload.id}.arrow"
        reader = self._reader(payload)
        rows = 0
        schema = reader.schema.remove(0)
        try:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for batch in reader:
                    rows += batch.num_rows
                    writer.write_batch(batch.select(schema.names))
        except OSError as error:
            raise StorageFailedError(f"{path}: {error}", path=str(path)) from None
        self._require_all(payload, rows)
        return Staged(path=path, relation=None, bytes=files.size_of(path))

    def read(self, payload: FlushPayload) -> pa.Table:
        rows = self._reader(payload).read_all()
        self._require_all(payload, rows.num_rows)
        return rows.drop_columns([SEQ])

    def retire(self, payload: FlushPayload) -> None:
        # The name may have another generation by now; the payload's rows are then stored under
        # another name.
        for table in self._file.store.logs_of(payload.table.schema):
            if self.producer(table) == payload.producer:
                with self._file.noting_invalidation():
                    self._file.store.retire(table, payload.seq_last)
        self._file.checkpoint()

    def release(self, payload: FlushPayload) -> None:
        """Do nothing: no other process can have the file open, so nothing was leased."""

    def flushed_through(self, table: TableId, seq: int) -> None:
        log = self._file.store.log(table)
        if log is None:
            return
        if self.check_watermark(table, seq) > log.seq_last:
            raise InvariantError(f"The lake has {table} up to seq {seq}, the buffer only up to {log.seq_last}.")
        if self._file.store.unproven_from(table) is not None:
            self._file.exclusively(lambda store: store.prove(table))
        self._file.settle()
        with self._file.noting_invalidation():
            self._file.store.retire(table, seq)

    def check_watermark(self, table: TableId, seq: int) -> int:
        opened = self._file.store.unproven_from(table)
        if opened is not None and seq > opened:
            # Rows after that number may be in the lake already, or new. Only an operator who knows
            # about the copy can tell.
            raise BufferOutdatedError(
                f"The lake has {table} up to seq {seq}, and the buffer was opened at {opened}: it is an older copy.",
                path=str(self._file.store.path),
            )
        return seq

    def buffered_rows(self, table: TableId, session: str | None = None) -> list[BufferedRows]:
        log = self._file.store.log(table)
        if log is None:
            return []
        self._file.settle()
        found: list[BufferedRows] = []
        for version, first, last in log.ranges():
            try:
                rows = self._file.store.read(version, first, last).read_all()
            except BufferDamagedError:
                now = self._file.store.log(table)
                if now is not None and version in now.versions:
                    raise
                # Flushed and dropped since: the lake has its rows and is read next. Or the whole
                # table was dropped.
                continue
            found.append(BufferedRows(payload=self._payload(log, version, first, last), rows=rows))
        return found

    def complete_through(self, table: TableId) -> dict[str, int]:
        log = self._file.store.log(table)
        return {self.generation: log.seq_last if log else 0}

    def leasable_sources(self, table: TableId) -> frozenset[str]:
        """Return none: only one process at a time has the file open."""
        return frozenset()

    def notes(self) -> tuple[str, ...]:
        return ()

    def size_bytes(self) -> int:
        return self._file.store.file_bytes()

    def used_bytes(self) -> int:
        return self._file.used_bytes()

    def quarantined(self) -> tuple[QuarantinedFile, ...]:
        return file_failures.quarantined(self._root)

    def end_session(self, session: str) -> None:
        """Do nothing: all sessions share one file."""

    def sweep(self) -> None:
        """Do nothing: there is no maintenance except flushing."""

    def close(self) -> None:
        self._file.close()

    def _slices(self, log: TableLog) -> list[FlushPayload]:
        return [
            self._payload(log, version, start, min(start + self._chunk_rows - 1, last))
            for version, first, last in log.ranges()
            for start in range(first, last + 1, self._chunk_rows)
        ]

    def _payload(self, log: TableLog, version: Version, first: int, last: int) -> FlushPayload:
        table = version.table
        producer = self.producer(table)
        return FlushPayload(
            id=ids.unit_id(KIND, producer.generation, producer.source, first, last),
            table=table,
            producer=producer,
            source=self.generation,
            seq_first=first,
            seq_last=last,
            rows=last - first + 1,
            bytes=log.bytes * (last - first + 1) // max(1, log.rows),
            seqs=(first, last),
            path=str(self._file.store.path),
            relation=version.staging,
            columns=version.columns,
        )

    def _reader(self, payload: FlushPayload) -> pa.RecordBatchReader:
        self._file.settle()
        for log in self._file.store.logs_of(payload.table.schema).values():
            for version, first, last in log.ranges():
                if version.staging == payload.relation and first <= payload.seq_first and payload.seq_last <= last:
                    return self._file.store.read(version, payload.seq_first, payload.seq_last)
        raise InvariantError(f"{payload.table} has no rows {payload.seq_first} to {payload.seq_last} in the buffer.")

    def _require_all(self, payload: FlushPayload, rows: int) -> None:
        if rows != payload.rows:
            raise InvariantError(f"{payload.table} has {rows} of the {payload.rows} rows from {payload.seq_first} on.")


def _state(table: TableId, log: TableLog) -> TableState:
    return TableState(
        table=table,
        rows=log.rows,
        bytes=log.bytes,
        oldest_at=log.oldest_at,
        seq_last=log.seq_last,
        seq_flushed=log.seq_flushed,
        ready_rows=log.rows,
        uuids=frozenset(filter(None, (types.table_of(version.columns) for version in log.versions))),
    )
