"""The legacy import: detect, plan, run, verify, undo. Every step can be killed and repeated.

detect ──▶ plan ──▶ prepare (the tree moves) ──▶ deliver leaves, moving each into the backup ──▶ finalize
                                                  │ killed: leaves that the ledger has are only moved
                                                  └ a leaf that fails stays in migrating/, for `retry`
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from catchment.errors import ConflictError, InputError, LockTimeoutError, PreconditionError
from catchment.foundation import events, faults, files
from catchment.foundation.clock import Clock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import MIB
from catchment.foundation.text import plural
from catchment.lake import Commit, Lake
from catchment.lake.commit import DropTable, Untouched
from catchment.pipeline.deliver import Deliverer, DeliveryReport
from catchment.pipeline.legacy import file_moves
from catchment.pipeline.legacy.folders import ImportFolders, ImportJournal, ImportPhase
from catchment.pipeline.legacy.import_plan import (
    ImportOptions,
    LegacyPlan,
    TreeFacts,
    bytes_adopted,
    keys_of,
    plan,
    seconds_estimate,
    unit_id,
    without_files,
)
from catchment.pipeline.legacy.importer import Importer, Run, Stop, record_made_tables, with_made_tables
from catchment.pipeline.legacy.report import (
    ImportedTable,
    ImportStatus,
    LeafFailure,
    LegacyReport,
    Mismatch,
    Verification,
)
from catchment.pipeline.legacy.survey import survey
from catchment.pipeline.legacy.tree import Tree, tables_of, walk
from catchment.pipeline.legacy.verification import Found, check_table
from catchment.pipeline.legacy.views import LegacyView, read_views

# Limits of one commit: large enough to be cheap, small enough that a stop does not take long.
UNITS_PER_COMMIT_MAX = 2_500
BYTES_PER_COMMIT_MAX = 4096 * MIB
_DISK_SPARE_BYTES = 64 * MIB
_UNDO_ATTEMPTS_MAX = 5


class LegacyImport:
    """One import of a tree into a lake. `deliverer` is called when work starts."""

    def __init__(
        self,
        folders: ImportFolders,
        options: ImportOptions,
        *,
        find_lake: Callable[[], Lake | None],
        deliverer: Callable[[], Deliverer],
        parallelism: int,
        adopt_bytes_min: int,
        data_path: Path,
        clock: Clock,
        own_files: Sequence[Path] = (),
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """`own_files` are the lake's files outside its data folder; they must not be in the tree.

        `begun` is called when a run is about to change something.
        """
        self.folders = folders
        self.options = options
        self._find_lake = find_lake
        self._deliverer = deliverer
        self._parallelism = parallelism
        self._adopt_bytes_min = adopt_bytes_min
        self._data_path = data_path
        self._clock = clock
        self._own_files = own_files
        self._begun = begun

    def detect(self) -> ImportPhase:
        """Return the import's phase."""
        return self.folders.phase()

    def plan(self) -> LegacyPlan:
        """Plan a run as of now, without side effects."""
        if self.is_running:
            raise self._already_running()
        phase = self.folders.phase()
        if phase is ImportPhase.UNDOING:
            raise _undo_first()
        if self.is_half_moved:
            raise InputError(
                f"The move of {self.folders.data} was interrupted.", hint="`catchment legacy run` continues it."
            )
        return self._plan(phase)

    @property
    def is_running(self) -> bool:
        """Whether a process works on this import now."""
        return not files.FileLock(self.folders.lock, clock=self._clock).is_free()

    @property
    def is_finished(self) -> bool:
        """Whether an import is complete, and there is no new data."""
        return self.folders.phase() is ImportPhase.DONE and self.folders.journal().done

    @property
    def is_half_moved(self) -> bool:
        """Whether the tree's move was interrupted; a tree in two places cannot be planned."""
        return self.folders.phase() is ImportPhase.READY and self.folders.journal().preparing

    def _plan(self, phase: ImportPhase) -> LegacyPlan:
        self._refuse_own_files()
        made = plan(self._tree_facts(phase), self.options)
        adopted = bytes_adopted(made.tables)
        needed = sum(table.bytes for table in made.tables) - adopted
        # Compared from `migrating/`, where the files are when they are adopted.
        if not files.same_device(self.folders.migrating, self._data_path):
            needed += adopted
        refusals = [*self._refuse_strays(made)]
        free = files.free_bytes(self._data_path)
        if needed + _DISK_SPARE_BYTES > free:
            refusals.append(f"The lake needs {needed / 1e6:,.1f} MB more, and {free / 1e6:,.1f} MB are free.")
        if phase is ImportPhase.READY and not files.same_device(self.folders.data, self.folders.migration):
            tree = sum(each.stat().st_size for each in self.folders.data.rglob("*") if each.is_file())
            room = files.free_bytes(self.folders.migration)
            if tree + _DISK_SPARE_BYTES > room:
                refusals.append(f"Moving the tree takes {tree / 1e6:,.1f} MB, and {room / 1e6:,.1f} MB are free.")
        return replace(
            made,
            disk_needed_bytes=needed,
            disk_free_bytes=free,
            refusals=tuple(refusals),
            seconds=seconds_estimate(made.tables, parallelism=self._parallelism, digests=self.options.digests),
        )

    def _refuse_strays(self, planned: LegacyPlan) -> Iterator[str]:
        """Yield why nothing can be imported, unless the strays belong to an import in progress."""
        strays = [each for each in planned.strays if each.parquet_files]
        is_rest = planned.phase is ImportPhase.IMPORTING and self._imported()
        if strays and not planned.seen and not planned.leaves_moved and not is_rest:
            count = sum(each.parquet_files for each in strays)
            yield f"None of {plural(count, 'Parquet file')} can be imported: {strays[0].path}: {strays[0].reason}."

    def run(self, planned: LegacyPlan | None = None, *, stop: Stop = lambda: False) -> LegacyReport:
        """Import everything that can be imported, by `planned` if nothing has changed since."""
        with self._lock():
            started_s = self._clock.monotonic_s()
            self._log_event("legacy_started", data=str(self.folders.data))
            phase = self.folders.phase()
            if phase is ImportPhase.UNDOING:
                raise _undo_first()
            self._refuse_other_lake()
            if self.folders.journal().preparing:
                file_moves.prepare(self.folders)
                planned, phase = None, ImportPhase.IMPORTING
            if phase is ImportPhase.DONE and not self.folders.journal().done:
                file_moves.finish(self.folders)
            if phase not in (ImportPhase.READY, ImportPhase.IMPORTING):
                return self._report(Run(plan=_EMPTY_PLAN, stop=stop), started_s)
            work = planned if planned is not None and planned.phase is phase else self._plan(phase)
            _refuse(work)
            self._begun()
            if phase is ImportPhase.READY:
                work = self._while_nothing_has_moved(work)
                self.folders.note(lake=self._lake_name)
                file_moves.prepare(self.folders)
                self._log_event("legacy_moved", to=str(self.folders.migrating))
            if work is planned and self._read_tree(self.folders.migrating).leaves != work.seen:
                work = self._plan(ImportPhase.IMPORTING)
            run = Run(plan=work, stop=stop, quarantined=dict(work.quarantined))
            importer = Importer(self.folders, self.options, self._deliverer)
            importer.run(run)
            if not importer.has_left(run):
                file_moves.finalize(self.folders)
            report = self._report(run, started_s)
            files.replace_text(self.folders.report, json.dumps(asdict(report), indent=1))
            self._log_event("legacy_finished", phase=report.phase, rows=report.rows, failures=len(report.failures))
            return report

    def _while_nothing_has_moved(self, work: LegacyPlan) -> LegacyPlan:
        """Open the target lake, and plan again if its tables no longer match the plan."""
        wanted = [table for table in work.tables if table.leaves]
        if not wanted:
            return work
        lake = self._deliverer().lake
        if all((lake.find_table(table.id) is not None) == table.exists for table in wanted):
            return work
        again = self._plan(work.phase)
        _refuse(again)
        return again

    def status(self) -> ImportStatus:
        """Return the import's status, from the folders and the journal."""
        running = self.is_running
        phase, journal = self.folders.phase(), self._journal()
        left = (
            self._read_tree(self.folders.root) if phase in (ImportPhase.READY, ImportPhase.IMPORTING) else _EMPTY_TREE
        )
        # During an undo, it is unknown where the database is that distinguishes tables from strays.
        imported = () if phase is ImportPhase.UNDOING else self._imported()
        last = self.last_report()
        return ImportStatus(
            phase=phase,
            data=str(self.folders.data),
            migrating=str(self.folders.migrating),
            migrated=str(self.folders.migrated),
            leaves_left=len(left.leaves),
            leaves_imported=sum(len(found) for _, found in imported),
            bytes_left=sum(leaf.bytes for leaf in left.leaves),
            tables_made=tuple(sorted(journal.tables_made)),
            quarantined=_paths(journal.quarantined),
            failures=tuple(LeafFailure(**each) for each in last.get("failures", ()))
            if phase is ImportPhase.IMPORTING
            else (),
            running=running,
            files_left_out=self._left_out() if phase is ImportPhase.DONE else 0,
        )

    def _left_out(self) -> int:
        return sum(each.parquet_files for each in self._read_tree(self.folders.migrated).strays)

    def last_report(self) -> dict[str, Any]:
        """Return the stored report of the last run; empty if there was none."""
        try:
            found: dict[str, Any] = json.loads(self.folders.report.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found

    def verify(self) -> Verification:
        """Compare every imported leaf with the ledger and the lake, reading all data of both."""
        lake = self._find_lake()
        if lake is None:
            raise InputError("There is no lake yet.", hint="Import first: `catchment legacy run`.")
        if self.folders.journal().undoing:
            raise _undo_first()
        self._refuse_other_lake()
        return self._verify(lake)

    def _verify(self, lake: Lake) -> Verification:
        leaves = rows = 0
        mismatches: list[Mismatch] = []
        journals = [self._journal(), *(each for _, each in self.folders.earlier())]
        for name, found in self._expected_leaves().items():
            table = lake.find_table(name)
            alone = table is not None and any(each.has_made(str(name), table.uuid) for each in journals)
            count, total, wrong = check_table(lake, name, found, alone=alone)
            leaves, rows = leaves + count, rows + total
            mismatches += wrong
        return Verification(leaves=leaves, rows=rows, mismatches=tuple(mismatches))

    def undo(self) -> tuple[str, ...]:
        """Drop the imported tables and put the tree back, if the backup has all their rows."""
        with self._lock():
            lake = self._find_lake()
            if lake is not None:
                record_made_tables(self.folders, lake)
            dropped = self.plan_undo(prove=False)
            if lake is not None:
                self._drop(lake, dropped)
            self.folders.note(undoing=True)
            faults.reach("legacy.after_drop")
            file_moves.put_back(self.folders)
            self.folders.forget()
            files.remove(self.folders.report)
            self._log_event("legacy_undone", tables=list(dropped))
            return dropped

    def plan_undo(self, *, prove: bool = True) -> tuple[str, ...]:
        """Return the tables that `undo` would drop now, or raise its refusal. No side effects.

        Without `prove`, their rows are not compared with the backup.
        """
        phase = self.folders.phase()
        if phase is ImportPhase.NOTHING or (phase is ImportPhase.READY and not self.folders.migrated.exists()):
            raise InputError("There is no import to undo.", hint="`catchment legacy status` shows the import's state.")
        self._refuse_other_lake()
        if phase is not ImportPhase.UNDOING:
            self._refuse_undo(prove=prove)
        return tuple(sorted(self._own_tables()))

    def _own_tables(self) -> Iterator[str]:
        """Yield the tables that the import created, unless another table has the name by now."""
        journal, lake = self._journal(), self._find_lake()
        for name in journal.tables_made:
            table = None if lake is None else lake.find_table(TableId.parse(name))
            if table is None or journal.has_made(name, table.uuid):
                yield name

    def _drop(self, lake: Lake, names: Sequence[str]) -> None:
        """Drop the tables, provided that they have exactly the backup's rows at that moment.

        The tables are recorded first, by uuid: after a crash, those that still exist are verified
        again, and a table created since under the same name is left alone.
        """
        journal = self.folders.journal()
        found = {name: lake.find_table(TableId.parse(name)) for name in names}
        targets = journal.dropping if journal.undoing else {name: t.uuid for name, t in found.items() if t is not None}
        existing = [table for name, table in found.items() if table is not None and targets.get(name) == table.uuid]
        for _ in range(_UNDO_ATTEMPTS_MAX if existing else 0):
            snapshot_id = lake.newest_snapshot()
            proof = self._verify(lake)
            # They are dropped together: as long as one exists, nothing has been undone.
            self.folders.note(undoing=proof.ok, dropping=targets if proof.ok else {})
            self._refuse_changed(proof)
            try:
                lake.commit(
                    Commit(
                        message="undo a legacy import",
                        requires=tuple(Untouched(table=table, snapshot_id=snapshot_id) for table in existing),
                        changes=tuple(DropTable(table=table.id) for table in existing),
                    )
                )
            except PreconditionError:
                continue
            return
        if existing:
            self.folders.note(undoing=False, dropping={})
            raise ConflictError(
                "The imported tables keep changing.", hint="Stop the processes that write to them, then undo."
            )

    def _refuse_own_files(self) -> None:
        """Refuse a tree that contains the lake, or is inside it: it is going to be moved."""
        tree, lake, *others = (
            Path(files.real_path(str(each))) for each in (self.folders.data, self._data_path, *self._own_files)
        )
        if tree.is_relative_to(lake) or any(each.is_relative_to(tree) for each in (lake, *others)):
            raise InputError(
                f"The tree in {self.folders.data} contains the lake's files, or is inside them.",
                hint="Give the lake another home with --lake-home or CATCHMENT_HOME.",
            )

    @property
    def _lake_name(self) -> str:
        return files.real_path(str(self._data_path))

    def _refuse_other_lake(self) -> None:
        lake_before = self.folders.journal().lake
        if lake_before and lake_before != self._lake_name and self.folders.phase() is not ImportPhase.READY:
            raise InputError(
                f"This import was started for the lake with data in {lake_before}, not in {self._lake_name}.",
                hint="Name the same lake as before with --lake-home or CATCHMENT_HOME.",
            )

    def _refuse_undo(self, *, prove: bool) -> None:
        journal = self._journal()
        if self.folders.data.exists() and any(self.folders.data.iterdir()):
            raise InputError(f"{self.folders.data} is not empty.", hint="Move its contents away, then undo.")
        lake = self._find_lake()
        if lake is None:
            if journal.tables_made:
                raise InputError(
                    f"There is no lake with data in {self._lake_name}, but the import created tables in one.",
                    hint="Name the lake with --lake-home or CATCHMENT_HOME.",
                )
            return
        filled = {str(table) for table, _ in self._imported()} | set(self._unmoved(lake))
        kept = sorted(filled - set(journal.tables_made))
        if kept:
            raise InputError(
                f"{', '.join(kept)} existed before the import: its own rows and the imported ones look alike.",
                hint="Delete the imported rows yourself; the backup stays where it is.",
            )
        if prove:
            self._refuse_changed(self._verify(lake))

    def _unmoved(self, lake: Lake) -> Iterator[str]:
        """Yield tables with leaves that were delivered but not moved into the backup."""
        for name, found in self._found_in(self.folders.migrating, self.folders.journal(), must_be_recorded=False):
            table = lake.find_table(name)
            if table is not None:
                with lake.ledger() as ledger:
                    if ledger.delivered_ids((unit_id(name, each.leaf) for each in found), table.uuid):
                        yield str(name)

    def _refuse_changed(self, found: Verification) -> None:
        if not found.ok:
            first = found.mismatches[0]
            raise InputError(
                f"The lake's tables differ from the import: {first.table} {first.leaf}: {first.reason}.",
                hint="An undo would lose rows from other writers. `catchment legacy verify` lists all differences.",
            )

    def _tree_facts(self, phase: ImportPhase) -> TreeFacts:
        root = self.folders.data if phase is ImportPhase.READY else self.folders.migrating
        if phase not in (ImportPhase.READY, ImportPhase.IMPORTING):
            return TreeFacts(phase=phase, tree=_EMPTY_TREE, views=(), surveys={}, existing={}, adopt_bytes_min=0)
        views = read_views(root) if self.folders.marker else None
        tree = self._read_tree(root, views)
        by_table = tables_of(tree.leaves)
        lake = self._find_lake()
        tables = {} if lake is None else {name: lake.find_table(self._id(name)) for name in by_table}
        quarantined = self.folders.journal().quarantined if phase is ImportPhase.IMPORTING else {}
        readable = {
            name: [without_files(leaf, quarantined.get(leaf.path, ())) for leaf in leaves]
            for name, leaves in by_table.items()
        }
        return TreeFacts(
            phase=phase,
            tree=tree,
            views=views,
            surveys={name: survey(root, leaves) for name, leaves in readable.items()},
            existing={name: table for name, table in tables.items() if table is not None},
            quarantined={leaf: tuple(names) for leaf, names in quarantined.items()},
            adopt_bytes_min=self._adopt_bytes_min,
            above=keys_of(self.folders.migrating),
            moved=self._read_tree(self.folders.migrating, views).leaves if phase is ImportPhase.READY else (),
            encrypted=lake is not None and lake.is_encrypted(),
        )

    def _read_tree(self, root: Path, views: Sequence[LegacyView] | None = None) -> Tree:
        """Read the tree; tables without a view are strays. `views` default to those of `root`."""
        # A home may have its database next to the folders of its workspaces.
        beside = bool(self.folders.marker) and not self.folders.workspace
        tree = walk(root, keys=[key.name for key in self.options.keys], table=self.options.table, workspaces=beside)
        if not self.folders.marker:
            return tree
        return tree.of(view.name for view in (read_views(root) if views is None else views))

    def _id(self, name: str) -> TableId:
        return TableId(self.options.schema, name)

    def _imported(self) -> list[tuple[TableId, list[Found]]]:
        """Return the imported leaves in the backup, by table."""
        return self._found_in(self.folders.migrated, self.folders.journal())

    def _journal(self) -> ImportJournal:
        """Read the journal; the outcome of an interrupted commit is read from the lake."""
        journal = self.folders.journal()
        lake = self._find_lake() if journal.making else None
        return journal if lake is None else with_made_tables(journal, lake)

    def _expected_leaves(self) -> dict[TableId, list[Found]]:
        """Return all leaves that the lake should have, by table.

        They are in this backup, in earlier ones, or delivered and not moved yet. A table that the
        import created and left without rows must be empty, so it is included.
        """
        journal = self._journal()
        proven: dict[TableId, list[Found]] = {TableId.parse(name): [] for name in journal.tables_made}
        folders_with_journals = [(self.folders.migrating, journal), *self.folders.earlier()]
        found = [
            *self._imported(),
            *(
                each
                for root, note in folders_with_journals
                for each in self._found_in(root, note, must_be_recorded=False)
            ),
        ]
        for table, leaves in found:
            proven.setdefault(table, []).extend(leaves)
        return proven

    def _found_in(
        self, root: Path, journal: ImportJournal, *, must_be_recorded: bool = True
    ) -> list[tuple[TableId, list[Found]]]:
        if not root.exists():
            return []
        has_marker = self.folders.marker and (root / self.folders.marker).is_file()
        views = read_views(root if has_marker else self.folders.migrating) if self.folders.marker else None
        tree = self._read_tree(root, views)
        quarantined = journal.quarantined
        found = []
        for name, leaves in tables_of(tree.leaves).items():
            whole = (without_files(leaf, quarantined.get(leaf.path, ())) for leaf in leaves)
            found.append(
                (
                    self._id(name),
                    [Found(root=root, leaf=leaf, must_be_recorded=must_be_recorded) for leaf in whole if leaf.files],
                )
            )
        return found

    def _report(self, run: Run, started_s: float) -> LegacyReport:
        phase = self.folders.phase()
        return LegacyReport(
            phase=phase,
            tables=tuple(_table_report(table, reports) for table, reports in run.reports.items()),
            failures=tuple(
                LeafFailure(leaf=leaf, reason=why, unreadable=run.plan.may_be_unreadable(leaf))
                for leaf, why in sorted(run.failures.items())
            ),
            quarantined=_paths(run.quarantined),
            strays=tuple(stray.path for stray in run.plan.strays),
            stopped=phase is ImportPhase.IMPORTING and run.stop(),
            seconds=self._clock.monotonic_s() - started_s,
        )

    def _log_event(self, verb: str, **facts: Any) -> None:
        files.make_folder(self.folders.migration)
        listed = " ".join(f"{name}={value}" for name, value in facts.items())
        files.append_line(self.folders.log, f"{self._clock.now().isoformat(timespec='milliseconds')} {verb} {listed}")
        events.emit(verb, **facts)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        lock = files.FileLock(self.folders.lock, clock=self._clock).take()
        if lock is None:
            raise self._already_running()
        try:
            yield
        finally:
            lock.release()

    def _already_running(self) -> LockTimeoutError:
        return LockTimeoutError(
            f"Another import of {self.folders.data} is running.", hint="Wait for it, or stop it, then try again."
        )


def _refuse(planned: LegacyPlan) -> None:
    if planned.refusals:
        hint = "Make room, or import to another disk." if planned.seen else "`catchment legacy plan` lists every file."
        raise InputError(" ".join(planned.refusals), hint=hint)


def _undo_first() -> InputError:
    return InputError("An undo was started and not finished.", hint="Finish it: `catchment legacy undo`.")


def _table_report(table: TableId, reports: Sequence[DeliveryReport]) -> ImportedTable:
    return ImportedTable(
        table=str(table),
        leaves=sum(each.delivered for each in reports),
        rows=sum(each.rows for each in reports),
        files=sum(each.files for each in reports),
        bytes=sum(each.bytes for each in reports),
        already=sum(each.skipped for each in reports),
    )


def _paths(quarantined: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    return tuple(f"{leaf}/{name}" for leaf, names in sorted(quarantined.items()) for name in names)


_EMPTY_TREE = Tree(leaves=(), empty=(), strays=())
_EMPTY_PLAN = LegacyPlan(
    phase=ImportPhase.NOTHING, tables=(), empty=(), strays=(), bad=(), quarantined={}, views_without_data=()
)
