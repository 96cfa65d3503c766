"""Executes a plan: creates tables, delivers leaves in batches, moves each into the backup.

A leaf that fails stays in `migrating/`. If a commit is refused as a whole, it is retried in halves
until the failing leaf is found.
"""

import glob
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb

from catchment.foundation import events, faults, ids, sql
from catchment.foundation.ids import TableId
from catchment.lake import Commit, Lake, extensions
from catchment.lake.commit import AddColumn, Change, CreateTable
from catchment.lake.tables import PartitionKey, created_by
from catchment.pipeline.deliver import Deliverer, DeliveryReport
from catchment.pipeline.legacy import file_moves
from catchment.pipeline.legacy.folders import ImportFolders, ImportJournal
from catchment.pipeline.legacy.import_plan import (
    ImportOptions,
    LegacyPlan,
    TablePlan,
    producer_of,
    unit_id,
    without_files,
)
from catchment.pipeline.legacy.tree import Leaf
from catchment.pipeline.plan import Unit

Stop = Callable[[], bool]


@dataclass(slots=True, kw_only=True)
class Run:
    """State of a run: the reports of each table, failures and quarantined files, by leaf."""

    plan: LegacyPlan
    stop: Stop
    reports: dict[TableId, list[DeliveryReport]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    quarantined: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Importer:
    """Executes a plan for leaves in `migrating/`; creates the deliverer only if it is needed."""

    def __init__(self, folders: ImportFolders, options: ImportOptions, make_deliverer: Callable[[], Deliverer]) -> None:
        self._folders = folders
        self._options = options
        self._make_deliverer = make_deliverer

    def run(self, run: Run) -> None:
        """Deliver the plan's leaves, and move each into the backup; failures are recorded in `run`."""
        tables = [table for table in run.plan.tables if table.leaves]
        run.failures.update({leaf: why for table in run.plan.tables for leaf, why in table.blocked.items()})
        if run.quarantined:
            self._folders.note(quarantined=run.quarantined)
        if not tables:
            return
        deliverer = self._make_deliverer()
        self._make_tables(deliverer.lake, tables)
        for table in tables:
            run.failures.update(self._changed_since(deliverer.lake, table))
        tables = [table.without(run.failures) for table in tables]
        starts = {table.id: (table, table.starts_with) for table in tables if table.starts_with}
        if starts:
            self._deliver(deliverer, run, starts)
            self._add_late_columns(deliverer.lake, [table for table, _ in starts.values()])
        done = {leaf.path for _, leaves in starts.values() for leaf in leaves}
        rest = {table.id: (table, [leaf for leaf in table.leaves if leaf.path not in done]) for table in tables}
        if any(leaves for _, leaves in rest.values()):
            self._deliver(deliverer, run, {name: each for name, each in rest.items() if each[1]})

    def _make_tables(self, lake: Lake, tables: Sequence[TablePlan]) -> None:
        """Create missing tables and columns in one commit; see `with_made_tables` for crashes."""
        record_made_tables(self._folders, lake)
        changes: list[Change] = []
        for table in tables:
            if table.exists:
                changes += [AddColumn(table=table.id, column=column) for column in table.added]
            else:
                columns = tuple(column for column in table.columns if column not in table.late)
                keys = tuple(PartitionKey(column=name) for name in table.partition_by)
                changes.append(CreateTable(table=table.id, columns=columns, partition_by=keys))
        if changes:
            making = ids.new_job_id(lake.clock)
            self._folders.note(making=making)
            message = f"tables for {len(tables)} legacy tables"
            lake.commit(Commit(message=message, changes=tuple(changes), info={"import": making}))
            faults.reach("legacy.after_tables")
            record_made_tables(self._folders, lake)

    def _changed_since(self, lake: Lake, plan: TablePlan) -> Iterator[tuple[str, str]]:
        """Yield leaves that changed after delivery, before they were moved: now in doubt."""
        table = lake.table(plan.id)
        with lake.ledger() as ledger:
            deliveries = [each for each in ledger.deliveries(producer_of(plan.id)) if each.table_uuid == table.uuid]
        known = {each.unit_id for each in deliveries}
        backups = [self._folders.migrated, *(root for root, _ in self._folders.earlier())]
        sources = {each.source for each in deliveries}
        for leaf in plan.leaves:
            moved = any((root / leaf.path).exists() for root in backups)
            if leaf.path in sources and unit_id(plan.id, leaf) not in known and not moved:
                yield (
                    leaf.path,
                    "it is already in the lake, and its files have changed since: restore them",
                )

    def _add_late_columns(self, lake: Lake, tables: Sequence[TablePlan]) -> None:
        """Add the columns that some files lack to tables that have a file by now."""
        changes = tuple(AddColumn(table=table.id, column=column) for table in tables for column in table.late)
        lake.commit(Commit(message=f"more columns for {len(tables)} legacy tables", changes=changes))

    def _deliver(
        self, deliverer: Deliverer, run: Run, work: Mapping[TableId, tuple[TablePlan, Sequence[Leaf]]]
    ) -> None:
        """Deliver leaves of several tables; retry a refused commit in halves."""
        units = {table.id: self._units(table, leaves) for table, leaves in work.values()}
        plans = [
            deliverer.plan_units(list(units[table.id]), producer=producer_of(table.id), table=table.id, mode=table.mode)
            for table, _ in work.values()
        ]
        retire = self._retire
        reports = deliverer.deliver_together(
            [(each, retire) for each in plans], digests=self._options.digests, stop=run.stop
        )
        again: dict[TableId, tuple[TablePlan, Sequence[Leaf]]] = {}
        for report in reports:
            table, leaves = work[report.table]
            run.reports.setdefault(report.table, []).append(report)
            by_id = {unit.id: unit for unit in units[report.table]}
            failed = {by_id[each.unit_id].source: each.reason for each in report.failures if each.unit_id in by_id}
            readable = self._without_unreadable(run, leaves, failed)
            run.failures.update({leaf: why for leaf, why in failed.items() if leaf not in readable})
            if any(leaf.files for leaf in readable.values()):
                again[table.id] = (table, [leaf for leaf in readable.values() if leaf.files])
            if report.error is not None:
                others = [leaf for leaf in leaves if leaf.path not in readable]
                self._deliver_halves(deliverer, run, table, others, report.error.message)
        if again:
            self._deliver(deliverer, run, again)

    def _deliver_halves(
        self, deliverer: Deliverer, run: Run, table: TablePlan, leaves: Sequence[Leaf], reason: str
    ) -> None:
        left = [
            leaf for leaf in leaves if (self._folders.migrating / leaf.path).exists() and leaf.path not in run.failures
        ]
        if len(left) <= 1:
            run.failures.update({leaf.path: reason for leaf in left})
            return
        middle = len(left) // 2
        for half in (left[:middle], left[middle:]):
            self._deliver(deliverer, run, {table.id: (table, half)})

    def _units(self, table: TablePlan, leaves: Sequence[Leaf]) -> list[Unit]:
        return [table.unit(self._folders.migrating, leaf) for leaf in leaves]

    def _retire(self, unit: Unit) -> None:
        file_moves.retire(self._folders, unit.source)
        events.emit("legacy_leaf_imported", leaf=unit.source, unit=unit.id, bytes=unit.bytes)

    def _without_unreadable(self, run: Run, leaves: Sequence[Leaf], failed: Mapping[str, str]) -> dict[str, Leaf]:
        """Return failed leaves, by path, without unreadable files, if quarantine is allowed."""
        if not self._options.quarantine:
            return {}
        readable = {}
        for leaf in leaves:
            if leaf.path in failed:
                bad = [
                    each.name
                    for each in leaf.files
                    if not _is_readable(self._folders.migrating / leaf.path / each.name)
                ]
                if bad:
                    run.quarantined[leaf.path] = (*run.quarantined.get(leaf.path, ()), *bad)
                    readable[leaf.path] = without_files(leaf, bad)
        if readable:
            self._folders.note(quarantined=run.quarantined)
        return readable

    def has_left(self, run: Run) -> bool:
        """Return whether a leaf that should be imported is still in `migrating/`."""
        wanted = {leaf.path for table in run.plan.tables for leaf in table.leaves} | set(run.failures)
        return any(
            (self._folders.migrating / leaf).exists() for leaf in wanted if not self._is_all_quarantined(run, leaf)
        )

    def _is_all_quarantined(self, run: Run, leaf: str) -> bool:
        quarantined = set(run.quarantined.get(leaf, ()))
        names = {each.name for seen in run.plan.seen if seen.path == leaf for each in seen.files}
        return bool(names) and names <= quarantined


def with_made_tables(journal: ImportJournal, lake: Lake) -> ImportJournal:
    """Return the journal with the tables of a commit of unknown outcome, if the lake has them."""
    if not journal.making:
        return journal
    with lake.snapshot() as connection:
        created = created_by(connection, lake.name, journal.making)
    made = {**journal.tables_made, **{str(table): uuid for table, uuid in created.items()}}
    return replace(journal, tables_made=made, making="")


def record_made_tables(folders: ImportFolders, lake: Lake) -> None:
    """Record the tables that the import created, if a crash after a commit prevented it."""
    journal = folders.journal()
    if journal.making:
        known = with_made_tables(journal, lake)
        folders.note(tables_made=known.tables_made, making=known.making)


def _is_readable(path: Path) -> bool:
    """Return whether every value of the file can be read; its footer alone does not show that."""
    try:
        with extensions.connect() as connection:
            listed = sql.literal(glob.escape(str(path)))
            connection.execute(
                f"SELECT sum(hash(t)) FROM read_parquet({listed}, hive_partitioning = false) t"
            ).fetchall()
    except duckdb.Error:
        return False
    return True
