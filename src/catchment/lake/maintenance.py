"""Maintenance: merges files, expires snapshots, removes old and orphaned files, during deliveries.

Each step has two forms, a dry run that counts and a run that acts, with the same selection, so that
a dry run reports exactly what a run would do. Order matters: merging and expiry leave old files,
cleaning deletes them, and orphans are searched last.

    merge ──▶ settle the ledger ──▶ expire ──▶ clean ──▶ orphans
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb

from catchment.errors import InputError, LakeUnavailableError, StorageFailedError
from catchment.foundation import events, faults, files, sql
from catchment.foundation.settings import Settings
from catchment.lake import staging, tables, types
from catchment.lake.lake import Lake
from catchment.lake.staging import Staging
from catchment.lake.tables import LEDGER_SCHEMA, PACKAGE, Table

_MERGED_FILES_PER_COMMIT_MAX = 8
_BETWEEN_MERGES_S = 0.05
_PURPOSE = "maintenance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """Minimum ages of the snapshots and files that maintenance removes."""

    snapshot: timedelta
    orphan: timedelta

    @classmethod
    def from_settings(cls, settings: Settings) -> "Ages":
        return cls(
            snapshot=timedelta(hours=settings.lake_snapshot_keep_hours),
            orphan=timedelta(hours=settings.lake_orphan_keep_hours),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceStep:
    """Result of one step: `count` units done, or to be done; `error` is why it did not finish."""

    name: str
    subject: str
    count: int
    unit: str
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport:
    """Every step, in order; `done` is false for a dry run."""

    done: bool
    steps: tuple[MaintenanceStep, ...]

    @property
    def ok(self) -> bool:
        return all(step.error is None for step in self.steps)


def maintain(lake: Lake, ages: Ages, *, dry_run: bool = False) -> MaintenanceReport:
    """Run every step. Each commits separately, so maintenance may be stopped and repeated."""
    now = lake.clock.now()
    selection = _DryRun(lake) if dry_run else _ActualRun(lake)
    steps: list[MaintenanceStep] = []

    def note(step: MaintenanceStep) -> None:
        steps.append(step)
        facts: dict[str, Any] = {"step": step.name, "subject": step.subject, "count": step.count, "dry_run": dry_run}
        if step.error is None:
            events.emit("upkeep_step_done", **facts)
        else:
            events.emit("upkeep_step_failed", level=logging.WARNING, reason=step.error, **facts)

    for table in map(lake.table, lake.tables()):
        note(_merge(selection, table))
    faults.reach("upkeep.after_merge")
    note(MaintenanceStep(name="settle", subject="ledger", count=selection.settle(), unit="rows"))
    note(
        MaintenanceStep(name="expire", subject=lake.name, count=selection.expire(now - ages.snapshot), unit="snapshots")
    )
    faults.reach("upkeep.after_expire")
    note(MaintenanceStep(name="clean", subject=lake.name, count=selection.clean(now - ages.orphan), unit="files"))
    faults.reach("upkeep.after_clean")
    note(MaintenanceStep(name="orphans", subject=lake.name, count=selection.orphans(now - ages.orphan), unit="files"))
    return MaintenanceReport(done=not dry_run, steps=tuple(steps))


def _merge(selection: "_DryRun", table: Table) -> MaintenanceStep:
    """Merge the table's files; if one cannot be read, report it and continue with other tables."""
    count, reason = 0, None
    try:
        count = selection.merge(table) if _is_mergeable(table) else 0
    except (InputError, LakeUnavailableError, StorageFailedError) as error:
        reason = error.message
    return MaintenanceStep(name="merge", subject=str(table.id), count=count, unit="files", error=reason)


class _DryRun:
    """Counts the pending work of each step."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._staging = Staging(lake.address.data_path, clock=lake.clock)

    def merge(self, table: Table) -> int:
        parameters = [table.id.schema, table.id.name, self._lake.limits.target_file_bytes]
        with self._lake.cursor() as cursor:
            return _count(cursor, self._statement("maintenance_small_files"), parameters)

    def settle(self) -> int:
        with self._lake.cursor() as cursor:
            found = cursor.execute(self._statement("maintenance_inlined_tables"), [LEDGER_SCHEMA]).fetchall()
            metadata = tables.metadata_of(self._lake.name)
            return sum(_count(cursor, f"SELECT count(*) FROM {sql.qualified(metadata, name)}", []) for (name,) in found)

    def expire(self, before: datetime) -> int:
        with self._lake.cursor() as cursor:
            return len(_call(cursor, "ducklake_expire_snapshots", self._lake.name, before, dry_run=True))

    def clean(self, before: datetime) -> int:
        with self._lake.cursor() as cursor:
            return len(_call(cursor, "ducklake_cleanup_old_files", self._lake.name, before, dry_run=True))

    def orphans(self, before: datetime) -> int:
        return len(self._orphans(before))

    def _orphans(self, before: datetime) -> list[Path]:
        # Live jobs are listed before DuckLake's orphans: a job that commits in between was alive,
        # so its files stay.
        alive = self._staging.live_jobs()
        with self._lake.cursor() as cursor:
            listed = _call(cursor, "ducklake_delete_orphaned_files", self._lake.name, before, dry_run=True)
        return [files.local_path(path) for path in listed if _is_abandoned(path, alive, before)]

    def _statement(self, name: str) -> str:
        return sql.statement(PACKAGE, name, metadata=tables.metadata_of(self._lake.name))


class _ActualRun(_DryRun):
    """Performs the steps."""

    def merge(self, table: Table) -> int:
        # A few outputs per transaction, so that no transaction is open for long.
        merged = 0
        while processed := self._merge_some(table):
            merged += processed
            # Waiting processes poll the lock: give a delivery time to take it.
            self._lake.clock.sleep(_BETWEEN_MERGES_S)
        return merged

    def _merge_some(self, table: Table) -> int:
        with self._lake.write(into=files.local_path(table.folder), purpose=_PURPOSE) as connection:
            rows = connection.execute(
                "SELECT files_processed "
                "FROM ducklake_merge_adjacent_files(?, ?, schema => ?, max_compacted_files => ?)",
                [self._lake.name, table.id.name, table.id.schema, _MERGED_FILES_PER_COMMIT_MAX],
            ).fetchall()
        return sum(int(row[0]) for row in rows)

    def settle(self) -> int:
        # The ledger is excluded from compaction, except inside this transaction, under the commit
        # lock, so that dead versions of its rows do not pile up in the catalog.
        call = f"CALL {sql.identifier(self._lake.name)}.set_option"
        with self._lake.write(purpose=_PURPOSE) as connection:
            connection.execute(f"{call}('auto_compact', true, schema => {sql.literal(LEDGER_SCHEMA)})")
            flushed = 0
            for name in ("producers", "deliveries"):
                rows = connection.execute(
                    "SELECT rows_flushed FROM ducklake_flush_inlined_data(?, schema_name => ?, table_name => ?)",
                    [self._lake.name, LEDGER_SCHEMA, name],
                ).fetchall()
                flushed += sum(int(row[0]) for row in rows)
            connection.execute(f"{call}('auto_compact', false, schema => {sql.literal(LEDGER_SCHEMA)})")
        return flushed

    def expire(self, before: datetime) -> int:
        with self._lake.write(purpose=_PURPOSE) as connection:
            return len(_call(connection, "ducklake_expire_snapshots", self._lake.name, before, dry_run=False))

    def clean(self, before: datetime) -> int:
        with self._lake.write(purpose=_PURPOSE) as connection:
            return len(_call(connection, "ducklake_cleanup_old_files", self._lake.name, before, dry_run=False))

    def orphans(self, before: datetime) -> int:
        orphans = self._orphans(before)
        for path in orphans:
            files.remove(path)
        self._staging.remove_dead(before=before)
        for folder in {job_folder for path in orphans for job_folder in _job_folders(path)}:
            files.remove_empty_folders(folder)
        return len(orphans)


def _is_mergeable(table: Table) -> bool:
    """Return whether DuckLake may rewrite the table here, and its rows can be found afterwards.

    DuckLake writes Bloom filters, which cannot be disabled; with one, DuckDB does not find BLOB
    values that are not text.
    """
    return tables.uncomputable(table.columns, table.sort_by) is None and not any(
        types.holds(column.type, frozenset({"blob"})) for column in table.columns
    )


def _is_abandoned(path: str, alive: frozenset[str], before: datetime) -> bool:
    job_id = staging.job_of(path)
    # Files that no job of Catchment wrote are DuckLake's own; it has checked their age already.
    return job_id is None or (job_id not in alive and staging.is_older(job_id, before))


def _job_folders(path: Path) -> Iterator[Path]:
    job_id = staging.job_of(str(path))
    return (parent for parent in path.parents if parent.name == job_id)


def _call(
    connection: duckdb.DuckDBPyConnection, function: str, lake_name: str, before: datetime, *, dry_run: bool
) -> list[str]:
    rows = connection.execute(
        f"SELECT COLUMNS(*)::VARCHAR FROM {function}(?, dry_run => ?, older_than => ?::TIMESTAMPTZ)",
        [lake_name, dry_run, before.isoformat()],
    ).fetchall()
    return [str(row[0]) for row in rows]


def _count(connection: duckdb.DuckDBPyConnection, text: str, parameters: list[object]) -> int:
    row = connection.execute(text, parameters).fetchone()
    return int(row[0]) if row else 0
