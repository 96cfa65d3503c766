"""Replication of the shared layout: the log is read, truncated and appended by number."""

from collections.abc import Sequence

import pyarrow as pa

from catchment.errors import BufferDamagedError, InvariantError
from catchment.foundation.ids import TableId
from catchment.lake.types import Column
from catchment.queue.buffer import SEQ
from catchment.queue.replication import LogRows
from catchment.queue.shared.buffer_file import BufferFile
from catchment.queue.store.table_log import Write

# Few enough that the bytes of rows of any size can be counted before too many are in memory.
_LOG_BATCH_ROWS = 2_048


class SharedReplication:
    """The `Replication` of a shared buffer."""

    def __init__(self, file: BufferFile) -> None:
        self._file = file

    def retain_log(self, schema: str) -> None:
        self._file.exclusively(lambda store: store.retain_log(schema))

    def release_log(self, schema: str) -> None:
        # Delete most of it while writers continue; they wait for the rest.
        with self._file.noting_invalidation():
            for table, log in self._file.store.logs_of(schema).items():
                self._file.store.truncate_log(table, log.seq_flushed)
        self._file.exclusively(lambda store: store.release_log(schema))
        self._file.checkpoint()

    def retained_schemas(self) -> frozenset[str]:
        return self._file.store.retained_schemas

    def truncate_log(self, table: TableId, seq: int) -> None:
        with self._file.noting_invalidation():
            self._file.store.truncate_log(table, seq)
        self._file.checkpoint()

    def positions(self, schema: str) -> dict[TableId, int]:
        return {
            table: log.seq_last
            for table, log in self._file.store.logs_of(schema).items()
            if self._file.store.generation(table).origin_name is None
        }

    def read_log(self, table: TableId, after: int, *, rows_max: int, bytes_max: int | None = None) -> LogRows | None:
        self._file.settle()
        log = self._file.store.log(table)
        if log is None or after >= log.seq_last:
            return None
        self._require_in_log(table, after)
        version, first, last = next(log.ranges(after))
        last = min(last, first + rows_max - 1)
        try:
            reader = self._file.store.read(version, first, last, batch_rows=_LOG_BATCH_ROWS)
            rows, is_all = _first_of(reader, bytes_max)
        except BufferDamagedError:
            # If the log was truncated since, with the version's staging table, this raises a
            # clearer error.
            self._require_in_log(table, after)
            raise
        # Rows are deleted from the start, so a log that was truncated since lacks its first rows.
        numbers = rows.column(SEQ)
        if not rows.num_rows or numbers[0].as_py() != first or (is_all and rows.num_rows != last - first + 1):
            self._require_in_log(table, after)
            raise InvariantError(f"{table} has {rows.num_rows} rows from {first} to {last}.")
        rows = rows.drop_columns([SEQ])
        return LogRows(table=table, columns=version.columns, seq_first=first, rows=rows)

    def append_replicated(self, batches: Sequence[LogRows]) -> None:
        if batches:
            self._file.write(
                *(
                    Write(table=each.table, columns=each.columns, rows=each.rows, seq_first=each.seq_first)
                    for each in batches
                )
            )

    def start_after(self, table: TableId, columns: tuple[Column, ...], seq: int) -> None:
        self._file.exclusively(lambda store: store.start_after(table, columns, seq))

    def start_seq(self, table: TableId) -> int | None:
        return self._file.store.generation(table).start_seq

    def drop(self, schema: str) -> None:
        self._file.exclusively(lambda store: store.drop(schema))
        self._file.checkpoint()

    def _require_in_log(self, table: TableId, after: int) -> None:
        log = self._file.store.log(table)
        if log is not None and after < log.seq_gone:
            raise InvariantError(f"The log of {table} starts after seq {log.seq_gone}, not after {after}.")


def _first_of(reader: pa.RecordBatchReader, bytes_max: int | None) -> tuple[pa.Table, bool]:
    """Return rows up to that many bytes, and whether these are all."""
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if bytes_max is not None and size >= bytes_max:
            return pa.Table.from_batches(batches), False
    return pa.Table.from_batches(batches, reader.schema), True
