"""The files of long ingest streams: what writes them, and what registers them in the lake."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from catchment.errors import ConflictError, PreconditionError
from catchment.foundation.meters import Meters
from catchment.lake import Commit, Lake, extensions
from catchment.lake.attach import LakeAddress
from catchment.lake.commit import RegisterFiles, TableIs
from catchment.lake.instance import Instance
from catchment.lake.sandbox import Sandbox
from catchment.lake.tables import Table
from catchment.pipeline.parquet_writer import OutputFile
from catchment.queue.group_commit import GroupCommit
from catchment.server.sessions.transactions import exclusive
from catchment.server.values import Call

_SPILL = "files"
_STREAMS_PER_COMMIT_MAX = 16


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
