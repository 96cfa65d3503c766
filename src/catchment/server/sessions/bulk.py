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
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from catchment.errors import (
    CommitUnknownError,
    ConflictError,
    InputError,
    InvariantError,
    PreconditionError,
    StorageFailedError,
)
from catchment.foundation import events, faults, files, sql
from catchment.foundation.ids import TableId
from catchment.foundation.meters import Meters
from catchment.lake import Commit, Lake, extensions, types
from catchment.lake.attach import LakeAddress
from catchment.lake.commit import RegisterFiles, TableIs
from catchment.lake.instance import Instance
from catchment.lake.sandbox import Sandbox
from catchment.lake.staging import JobFolder, Staging
from catchment.lake.tables import Table
from catchment.pipeline.parquet_writer import OutputFile, copy, wrongly_null
from catchment.queue.group_commit import GroupCommit
from catchment.queue.incoming import columns_of
from catchment.server.sessions.transactions import exclusive
from catchment.server.values import Call

if TYPE_CHECKING:
    from catchment.server.sessions.session import Session

_ROWS = "catchment_stream"
_SPILL = "files"
_STREAMS_PER_COMMIT_MAX = 16
# Half of DuckDB's default row group size keeps encoded buffers below 8 MiB. DuckDB's allocator
# requests larger ones from the system each time; with several writing threads, avoiding that saves
# a seventh of the CPU.
_GROUP_ROWS = 61_440


class FileWriter:
    """A DuckDB instance that writes files and has no lake attached.

    In the lake's own instance, the catalog's small queries would busy-wait for threads that are
    writing.
    """

    def __init__(self, sandbox: Sandbox, address: LakeAddress, *, threads_max: int, meters: Meters) -> None:
        # Two instances must not spill into the same folder.
        self._sandbox = replace(sandbox, spill_path=sandbox.spill_path / _SPILL)
        self._address = address
        self._threads_max = threads_max
        self.instance = Instance("files", self._connect, failures=meters.engines_replaced)

    def _connect(self) -> duckdb.DuckDBPyConnection:
        instance = extensions.connect(threads=self._threads_max or None)
        self._sandbox.apply(instance, self._address)
        return instance


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkFiles:
    """The files of a complete stream, not yet registered in the lake."""

    table: Table
    folder: Path
    outputs: Sequence[OutputFile]
    job_id: str
    call: Call

    @property
    def rows(self) -> int:
        return sum(output.rows for output in self.outputs)

    @property
    def change(self) -> RegisterFiles:
        """The change that registers the files."""
        names = frozenset(str(Path(output.path).relative_to(self.folder)) for output in self.outputs)
        return RegisterFiles(table=self.table.id, folder=str(self.folder), names=names, partitioned=False)


class Registrar:
    """Registers the files of streams in the lake. Thread-safe."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._commits = GroupCommit[BulkFiles, None](self._commit, items_max=_STREAMS_PER_COMMIT_MAX)

    def register(self, written: BulkFiles) -> None:
        """Register the files, in one transaction with those of all waiting streams."""
        try:
            self._commits.submit(written)
        except PreconditionError:
            raise ConflictError(
                f"The table {written.table.id} changed while its rows were received.", hint="Send them again."
            ) from None

    def _commit(self, streams: Sequence[BulkFiles]) -> Sequence[None]:
        rows = sum(stream.rows for stream in streams)
        tables = sorted({str(stream.table.id) for stream in streams})
        commit = Commit(
            message=f"ingest {rows} rows into {', '.join(tables)}",
            requires=tuple(TableIs(table=stream.table) for stream in streams),
            changes=tuple(stream.change for stream in streams),
            info={"jobs": [stream.job_id for stream in streams], "rows": rows},
        )
        with exclusive(self._lake, streams[0].call, "an ingest"):
            for stream in streams:
                stream.call.refuse_stopped()
            self._lake.commit(commit, is_locked=True)
        return [None] * len(streams)


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


def deliver(session: "Session", table: Table, rows: pa.RecordBatchReader, call: Call) -> int:
    """Write the rows into the table and return their number."""
    lake = session.lake
    with session.changing_lake(), Staging(lake.address.data_path, clock=lake.clock).job() as job:
        folder = job.table_folder(table.folder, 0)
        try:
            outputs = _write(session, table, rows, folder, call)
            faults.reach("ingest.after_write")
            if outputs:
                written = BulkFiles(table=table, folder=folder, outputs=outputs, job_id=job.job_id, call=call)
                session.backend.registrar.register(written)
        except (CommitUnknownError, InvariantError):
            # The files may already be registered: the thread that commits for several streams may
            # not have reported back yet.
            raise
        except BaseException:
            _clean(folder.parent, job)
            raise
        faults.reach("ingest.after_commit")
    return sum(output.rows for output in outputs)


def _write(session: "Session", table: Table, rows: pa.RecordBatchReader, folder: Path, call: Call) -> list[OutputFile]:
    files.make_folder(folder)
    backend = session.backend
    writer = backend.file_writer(session.engine)
    origin = writer.origin()
    with closing(writer.cursor()) as raw:
        connection = backend.wrap(raw, origin, session.engine)
        with connection.registered(_ROWS, rows, call), connection.interruptible(call):
            columns = sql.identifiers(column.name for column in table.columns)
            outputs = copy(
                raw,
                f"SELECT {columns} FROM {_ROWS}",
                table.columns,
                folder,
                file_bytes=session.lake.limits.target_file_bytes,
                group_rows=_GROUP_ROWS,
            )
            name = wrongly_null(raw, outputs, table.columns)
    if name is not None:
        raise InputError(f"NOT NULL constraint failed: {table.id.name}.{name}")
    call.refuse_stopped()
    for output in outputs:
        files.sync_file(Path(output.path))
    files.sync_folders_up([folder], to=files.local_path(session.lake.address.data_path))
    return outputs


def _clean(folder: Path, job: JobFolder) -> None:
    try:
        files.remove_tree(folder)
        files.remove_tree(job.path)
    except StorageFailedError as error:
        # The client gets the error of its write; the next maintenance removes the rest.
        events.emit("staging_left", level=logging.WARNING, job=job.job_id, reason=error.message)
