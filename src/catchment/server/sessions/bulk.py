"""Long ingest streams: written to files while they arrive, then registered in a short transaction.

    stream ──▶ files in the table's folder ──▶ commit (register them)
               │ failed, refused or cancelled:  │ refused: the files are removed
               │ the files are removed          │ unknown: they stay; maintenance removes them
               │                                │ if the lake does not have them
               └─ killed: nothing is visible; the files are orphans

The lake's commit lock is held for the transaction only: neither a slow client nor a large table
blocks other writers, and several streams are written at the same time. Streams that end while a
transaction is running share the next one. Only rows that a table accepts unchanged are written this
way; all others are left to INSERT, with its casts and defaults.
"""

import logging
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from catchment.errors import CommitUnknownError, InputError, InvariantError, StorageFailedError
from catchment.foundation import events, faults, files, sql
from catchment.foundation.ids import TableId
from catchment.lake import Lake, types
from catchment.lake.staging import JobFolder, Staging
from catchment.lake.tables import Table
from catchment.pipeline.parquet_writer import OutputFile, copy, wrongly_null
from catchment.queue.incoming import columns_of
from catchment.server.sessions.session_state import SessionState
from catchment.server.sessions.stream_files import BulkFiles
from catchment.server.values import Call

_ROWS = "catchment_stream"
# Half of DuckDB's default row group size keeps encoded buffers below 8 MiB. DuckDB's allocator
# requests larger ones from the system each time; with several writing threads, avoiding that saves
# a seventh of the CPU.
_GROUP_ROWS = 61_440


def direct_target(lake: Lake, table: TableId, schema: pa.Schema) -> Table | None:
    """Return the table if it accepts rows of the schema unchanged, in any order; otherwise None."""
    found = lake.find_shape(table)
    if found is None or found.partition_by or found.sort_by or found.insert_reason is not None:
        return None
    try:
        arriving = {sql.fold(column.name): types.normal(column.type) for column in columns_of(schema)}
    except InputError:
        # The INSERT reports the error in the columns.
        return None
    return found if arriving == {sql.fold(column.name): column.type for column in found.columns} else None


def deliver(state: SessionState, table: Table, rows: pa.RecordBatchReader, call: Call) -> int:
    """Write the rows into the table and return their number."""
    lake = state.lake
    with state.changing_lake(), Staging(lake.address.data_path, clock=lake.clock).job() as job:
        folder = job.table_folder(table.folder, 0)
        try:
            outputs = _write(state, table, rows, folder, call)
            faults.reach("ingest.after_write")
            if outputs:
                written = BulkFiles(table=table, folder=folder, outputs=outputs, job_id=job.job_id, call=call)
                state.backend.registrar.register(written)
        except (CommitUnknownError, InvariantError):
            # The files may already be registered: the thread that commits for several streams may
            # not have reported back yet.
            raise
        except BaseException:
            _clean(folder.parent, job)
            raise
        faults.reach("ingest.after_commit")
    return sum(output.rows for output in outputs)


def _write(state: SessionState, table: Table, rows: pa.RecordBatchReader, folder: Path, call: Call) -> list[OutputFile]:
    files.make_folder(folder)
    backend = state.backend
    writer = backend.file_writer(state.engine)
    origin = writer.origin()
    with closing(writer.cursor()) as raw:
        connection = backend.wrap(raw, origin, state.engine)
        with connection.registered(_ROWS, rows, call), connection.interruptible(call):
            columns = sql.identifiers(column.name for column in table.columns)
            outputs = copy(
                raw,
                f"SELECT {columns} FROM {_ROWS}",
                table.columns,
                folder,
                file_bytes=state.lake.limits.target_file_bytes,
                group_rows=_GROUP_ROWS,
            )
            name = wrongly_null(raw, outputs, table.columns)
    if name is not None:
        raise InputError(f"NOT NULL constraint failed: {table.id.name}.{name}")
    call.refuse_stopped()
    for output in outputs:
        files.sync_file(Path(output.path))
    files.sync_folders_up([folder], to=files.local_path(state.lake.address.data_path))
    return outputs


def _clean(folder: Path, job: JobFolder) -> None:
    try:
        files.remove_tree(folder)
        files.remove_tree(job.path)
    except StorageFailedError as error:
        # The client gets the error of its write; the next maintenance removes the rest.
        events.emit("staging_left", level=logging.WARNING, job=job.job_id, reason=error.message)
