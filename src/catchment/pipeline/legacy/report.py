"""Results of an import, a verification or an undo, as read by the command line, JSON and tests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catchment.pipeline.legacy.folders import ImportPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTable:
    """Result of this run for one table."""

    table: str
    leaves: int
    rows: int
    files: int
    bytes: int
    already: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafFailure:
    """A leaf that stays in `migrating/`, and why; `unreadable` if one of its files may be."""

    leaf: str
    reason: str
    unreadable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyReport:
    """Result of a run, and the remaining leaves."""

    phase: ImportPhase
    tables: tuple[ImportedTable, ...]
    failures: tuple[LeafFailure, ...]
    quarantined: tuple[str, ...]
    strays: tuple[str, ...]
    stopped: bool
    seconds: float

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "LegacyReport":
        """Return the report from its stored form."""
        return cls(
            **{
                **facts,
                "phase": ImportPhase(facts["phase"]),
                "tables": tuple(ImportedTable(**each) for each in facts["tables"]),
                "failures": tuple(LeafFailure(**each) for each in facts["failures"]),
                "quarantined": tuple(facts["quarantined"]),
                "strays": tuple(facts["strays"]),
            }
        )

    @property
    def ok(self) -> bool:
        return self.phase is ImportPhase.DONE

    @property
    def leaves(self) -> int:
        return sum(table.leaves for table in self.tables)

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A leaf whose rows differ between the backup, the ledger and the lake."""

    table: str
    leaf: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Result of comparing every leaf of the backup with the ledger and the lake."""

    leaves: int
    rows: int
    mismatches: tuple[Mismatch, ...]

    @property
    def ok(self) -> bool:
        return not self.mismatches


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportStatus:
    """Status of an import. `files_left_out` counts Parquet files of the backup outside any leaf."""

    phase: ImportPhase
    data: str
    migrating: str
    migrated: str
    leaves_left: int
    leaves_imported: int
    bytes_left: int
    tables_made: tuple[str, ...]
    quarantined: tuple[str, ...]
    failures: tuple[LeafFailure, ...]
    running: bool = False
    files_left_out: int = 0
