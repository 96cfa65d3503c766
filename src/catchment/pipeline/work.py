"""The values that travel between the driver and Spark's workers: small, frozen, picklable."""

from dataclasses import dataclass
from enum import StrEnum

from catchment.lake.snapshot_schema import FileName, SnapshotField
from catchment.lake.tables import PartitionKey, SortKey
from catchment.lake.types import Column


class Format(StrEnum):
    """What an input file is."""

    PARQUET = "parquet"
    ARROW = "arrow"
    DUCKDB = "duckdb"


class Mode(StrEnum):
    """How a unit's files come into the lake: as they are, rewritten and registered, or rewritten and inserted."""

    REWRITE = "rewrite"
    ADOPT = "adopt"
    INSERT = "insert"
    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile:
    """How a data file of another lake is read as of a snapshot, without that lake's catalog.

    `names` are given where the file itself has no numbers of fields. `is_partial`: rows of later snapshots are in it;
    so with deletions. `place` is the folder that it belongs in when it is adopted, `obstacle` why it cannot be.
    """

    fields: tuple[SnapshotField, ...]
    snapshot: int
    names: tuple[FileName, ...] | None = None
    is_partial: bool = False
    deletes: str | None = None
    deletes_are_partial: bool = False
    place: str = "."
    obstacle: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One file to read, as it was when it was planned; 0 for `modified_ns` leaves that unchecked.

    `relation` names the table inside a DuckDB file, and `without` columns of it that stay behind; `hive_keys` are
    columns found in the path. `weight` is how large it becomes as Parquet, per byte. `lake_file` says how a file of
    another lake is read. `select` are expressions that turn what the file has into columns of the table, if its own
    columns are not matched by their names.
    """

    uri: str
    bytes: int
    modified_ns: int = 0
    format: Format = Format.PARQUET
    relation: str = ""
    without: tuple[str, ...] = ()
    weight: float = 1.0
    hive_keys: tuple[str, ...] = ()
    lake_file: LakeFile | None = None
    select: tuple[str, ...] = ()

    @property
    def expected_bytes(self) -> int:
        """What it will come to as Parquet."""
        return int(self.bytes * self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPart:
    """An input as a part of its unit; a unit with several inputs may be spread over several tasks."""

    unit_id: str
    input: Input


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputShape:
    """What the written files must look like; `inserted` says that an INSERT reads them, and the lake writes its own."""

    columns: tuple[Column, ...]
    partition_by: tuple[PartitionKey, ...] = ()
    sort_by: tuple[SortKey, ...] = ()
    file_bytes: int = 128 * 1024 * 1024
    inserted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one Spark task does: these parts, in this mode, into a folder of its own under `folder`.

    `threads` is more than one where fewer tasks run than could at the same time.
    """

    number: int
    mode: Mode
    parts: tuple[UnitPart, ...]
    shape: OutputShape
    folder: str
    memory_mb: int
    digest: bool
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A file that a finished task wrote. `place` is the folder it belongs in, below the one that is registered."""

    path: str
    place: str
    rows: int
    bytes: int
    digest: str | None
    unit_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """What a finished task read of a unit; parts of one unit add up."""

    unit_id: str
    rows: int
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFailure:
    """Why a unit cannot be delivered. `rewritable`: only its file's layout is in the way, rewriting would do.

    `transient`: memory, disk or time were too little; the unit is not to blame, and may succeed later.
    """

    unit_id: str
    path: str
    reason: str
    rewritable: bool = False
    transient: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Everything a task hands back. Only the files named here are ever registered."""

    number: int
    files: tuple[FileFacts, ...]
    units: tuple[UnitFacts, ...]
    failures: tuple[UnitFailure, ...]
