"""Segments on disk: folders, names and content. The folder is a segment's state.

    {root}/active/duckling_queue_{uuid}_{timestamp}.db     a session writes it
    {root}/sealed/duckling_queue_{uuid}_{timestamp}.db     complete, on its way to the lake
    {root}/flushed/duckling_queue_{uuid}_{timestamp}.db    the lake has it; kept for a while

The timestamp is in seconds since 1970. A name is never used twice, and stays the same through all
folders.
"""

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import duckdb
import pyarrow as pa

from catchment.errors import CatchmentError, InvariantError, StorageFailedError
from catchment.foundation import files, sql
from catchment.foundation.clock import Clock
from catchment.foundation.ids import TableId
from catchment.lake import extensions
from catchment.lake.types import Column
from catchment.queue.buffer import AT, SEQ
from catchment.queue.store.file_failures import translated
from catchment.queue.store.store import WAL
from catchment.queue.store.table_log import TableLog

# The table in which a segment records the session that wrote it.
IDENTITY = "__session_queue_metadata"
_NAME = re.compile(r"duckling_queue_([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})_(\d{1,12})\.db")
_SAMPLE_ROWS = 1_000


class SegmentState(StrEnum):
    """The states of a segment, by their folders."""

    ACTIVE = "active"
    SEALED = "sealed"
    FLUSHED = "flushed"


_NEXT = {SegmentState.ACTIVE: SegmentState.SEALED, SegmentState.SEALED: SegmentState.FLUSHED}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SegmentName:
    """Identifies a segment. Older ones sort first."""

    timestamp: int
    uuid: str

    @classmethod
    def new(cls, clock: Clock) -> "SegmentName":
        """Return a new, unique name."""
        return cls(timestamp=int(clock.now().timestamp()), uuid=str(uuid.uuid4()))

    @classmethod
    def parse(cls, text: str) -> "SegmentName | None":
        """Parse a file's name; None if it is not that of a segment."""
        match = _NAME.fullmatch(text)
        return cls(timestamp=int(match[2]), uuid=match[1]) if match else None

    def __str__(self) -> str:
        return f"duckling_queue_{self.uuid}_{self.timestamp}.db"


class SegmentFolders:
    """The folders under one root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self) -> None:
        """Create the folders, durably: otherwise a power cut could lose a folder with its segments."""
        for state in SegmentState:
            files.make_folder(self.root / state)
        files.sync_folder(self.root)

    def path(self, state: SegmentState, name: SegmentName) -> Path:
        """Return the segment's path in that state."""
        return self.root / state / str(name)

    def names(self, state: SegmentState) -> list[SegmentName]:
        """Return the segments in that state, oldest first."""
        # A WAL without its file counts too: it may be all that is left of acknowledged rows.
        found = {SegmentName.parse(path.name.removesuffix(WAL)) for path in (self.root / state).iterdir()}
        return sorted(name for name in found if name is not None)

    def contains(self, state: SegmentState, name: SegmentName) -> bool:
        """Return whether the segment, or at least its WAL, exists."""
        path = self.path(state, name)
        return path.exists() or wal_of(path).exists()

    def bytes(self, state: SegmentState) -> int:
        """Return the size of the segments in that state, with their WALs."""
        paths = [self.path(state, name) for name in self.names(state)]
        return sum(files.size_of(path) + files.size_of(wal_of(path)) for path in paths)

    def advance(self, name: SegmentName, state: SegmentState) -> None:
        """Move the segment from that state to the next one, durably."""
        following = _NEXT.get(state)
        if following is None:
            raise InvariantError(f"{name} is {state}, which is the last state.")
        files.move(self.path(state, name), self.path(following, name))
        files.sync_folder(self.root / following)
        files.sync_folder(self.root / state)

    def remove(self, name: SegmentName, state: SegmentState) -> None:
        """Delete the segment."""
        # The file is deleted before its WAL, because a file without its WAL would open and lack
        # rows.
        files.remove(self.path(state, name))
        files.remove(wal_of(self.path(state, name)))
        files.sync_folder(self.root / state)


def wal_of(path: Path) -> Path:
    """Return the path of the file's write-ahead log."""
    return path.with_name(path.name + WAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPart:
    """The unflushed rows of one version of a table in a segment; becomes a payload."""

    table: TableId
    version: int
    relation: str
    seq_first: int
    seq_last: int
    rows: int
    bytes: int
    oldest_at: datetime | None
    columns: tuple[Column, ...]


def parts_of(log: TableLog) -> list[SegmentPart]:
    """Return the parts of a table in a segment that is being written."""
    return [
        SegmentPart(
            table=version.table,
            version=version.number,
            relation=version.staging,
            seq_first=first,
            seq_last=last,
            rows=last - first + 1,
            bytes=log.bytes * (last - first + 1) // max(1, log.rows),
            oldest_at=log.oldest_at,
            columns=version.columns,
        )
        for version, first, last in log.ranges()
    ]


class SealedFile:
    """A sealed segment, open for reading: others may read it at the same time, none can write it."""

    def __init__(self, path: Path, connection: duckdb.DuckDBPyConnection) -> None:
        self._path = path
        self._connection = connection

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator["SealedFile"]:
        """Open the file for the duration of the block."""
        try:
            with extensions.attached(path) as connection:
                yield cls(path, connection)
        except duckdb.Error as error:
            raise _failure(path, error) from None

    def parts(self) -> tuple[SegmentPart, ...]:
        """Return every part that has rows and is not marked as flushed."""
        known = self._connection.execute(
            "SELECT table_schema, table_name, version, staging, columns FROM dq_meta ORDER BY ALL"
        ).fetchall()
        found = (
            self._part(TableId(schema, name), version, staging, columns)
            for schema, name, version, staging, columns in known
        )
        return tuple(part for part in found if part.rows)

    def session(self) -> str:
        """Return the session that wrote the segment."""
        found: tuple[str, ...] | None = self._connection.execute(f"SELECT session FROM {IDENTITY}").fetchone()
        return found[0] if found else ""

    def rows(self, relation: str) -> pa.Table:
        """Return the rows of one part, in order, with their numbers."""
        # Rows lie in the order of their numbers, because one thread at a time appended them.
        return self._connection.execute(f"SELECT * EXCLUDE ({AT}) FROM {sql.identifier(relation)}").to_arrow_table()

    def _part(self, table: TableId, version: int, relation: str, columns: str) -> SegmentPart:
        # Counted, because `dq_meta` has the start of a version and not its end.
        facts = self._connection.execute(
            f"SELECT count(*), min({SEQ}), max({SEQ}), min({AT}) FROM {sql.identifier(relation)}"
        ).fetchall()
        rows, first, last, at = facts[0]
        # The size of its rows in Arrow, as for an active segment; the file itself has many gaps.
        sample = self._connection.execute(f"FROM {sql.identifier(relation)} LIMIT {_SAMPLE_ROWS}").to_arrow_table()
        return SegmentPart(
            table=table,
            version=version,
            relation=relation,
            seq_first=first or 0,
            seq_last=last or 0,
            rows=rows,
            bytes=sample.nbytes * rows // max(1, sample.num_rows),
            oldest_at=at.replace(tzinfo=UTC) if at else None,
            columns=tuple(map(Column.from_json, json.loads(columns))),
        )


def _failure(path: Path, error: duckdb.Error) -> CatchmentError:
    """Translate an error about reading a sealed segment."""
    if not path.exists():
        return StorageFailedError(f"{path}: {error}", path=str(path))
    return translated(path, error)
