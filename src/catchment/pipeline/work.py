"""Values exchanged between the driver and Spark's workers: small, frozen, picklable."""

from dataclasses import dataclass
from enum import StrEnum

from catchment.lake.snapshot_schema import FileName, SnapshotField
from catchment.lake.tables import PartitionKey, SortKey
from catchment.lake.types import Column


class Format(StrEnum):
    """The format of an input file."""

    PARQUET = "parquet"
    ARROW = "arrow"
    DUCKDB = "duckdb"


class Mode(StrEnum):
    """How a unit's files are delivered: unchanged, rewritten and registered, or inserted."""

    REWRITE = "rewrite"
    ADOPT = "adopt"
    INSERT = "insert"
    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile:
    """How to read a data file of another lake as of a snapshot, without that lake's catalog.

    `names` are given if the file itself has no field numbers. If `is_partial`, it also contains
    rows of later snapshots; likewise for deletions. `place` is its folder if it is adopted,
    `obstacle` the reason why it cannot be.
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
    """A file to read, as it was when it was planned; a `modified_ns` of 0 is not checked.

    `relation` names the table inside a DuckDB file, and `without` its columns that are not read;
    `hive_keys` are columns found in the path. `weight` is its size as Parquet, per byte.
    `lake_file` describes a file of another lake. `select` are expressions that convert the file's
    columns into the table's, if they are not matched by name.
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
        """Estimated size as Parquet."""
        return int(self.bytes * self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPart:
    """An input as a part of its unit; a unit with several inputs may be spread over several tasks."""

    unit_id: str
    input: Input


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputShape:
    """Layout of written files; if `inserted`, an INSERT reads them, and the lake writes its own."""

    columns: tuple[Column, ...]
    partition_by: tuple[PartitionKey, ...] = ()
    sort_by: tuple[SortKey, ...] = ()
    file_bytes: int = 128 * 1024 * 1024
    inserted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The work of one Spark task: parts to write, in one mode, into a new folder under `folder`.

    `threads` is more than one if fewer tasks run than could at the same time.
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
    """A file that a finished task wrote. `place` is its folder, relative to the registered one."""

    path: str
    place: str
    rows: int
    bytes: int
    digest: str | None
    unit_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """Rows that a finished task read of a unit; the parts of one unit add up."""

    unit_id: str
    rows: int
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFailure:
    """Why a unit cannot be delivered. If `rewritable`, only its file's layout prevents it.

    If `transient`, memory, disk or time ran out; the unit is not the cause and may succeed later.
    """

    unit_id: str
    path: str
    reason: str
    rewritable: bool = False
    transient: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of a task. Only files named here are ever registered."""

    number: int
    files: tuple[FileFacts, ...]
    units: tuple[UnitFacts, ...]
    failures: tuple[UnitFailure, ...]
