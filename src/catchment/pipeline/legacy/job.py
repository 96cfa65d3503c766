"""The legacy import: detect, plan, run, verify, undo. Every step can be stopped or killed and begun again.

detect ──▶ plan ──▶ prepare (the tree moves) ──▶ deliver leaves, moving each into the backup ──▶ finalize
                                                  │ killed: what the ledger has is only moved
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
from catchment.pipeline.legacy.importer import Importer, Run, Stop, settle, settled
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
from catchment.pipeline.plan import plural

# What one commit takes: large enough to be cheap, small enough that stopping does not take long.
UNITS_PER_COMMIT_MAX = 2_500
BYTES_PER_COMMIT_MAX = 4096 * MIB
_DISK_SPARE_BYTES = 64 * MIB
_UNDO_ATTEMPTS_MAX = 5


class LegacyImport:
    """One import of one place into one lake. `lake` makes it when asked to; `deliverer` is made when work starts."""

    def __init__(
        self,
        place: ImportFolders,
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
        """`own_files` are the lake's beside its data, which must not lie in the tree either.

        `begun` is called when a run is about to change something.
        """
        self.place = place
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
        """Where the place stands."""
        return self.place.phase()

    def plan(self) -> LegacyPlan:
        """What `run` would do now, without effect on anything."""
        if self.is_running:
            raise self._taken()
        phase = self.place.phase()
        if phase is ImportPhase.UNDOING:
            raise _undo_first()
        if self.is_half_moved:
            raise InputError(
                f"The move of {self.place.data} was interrupted.", hint="`catchment legacy run` goes on with it."
            )
        return self._plan(phase)

    @property
    def is_running(self) -> bool:
        """Whether a process works on the place at this moment."""
        return not files.FileLock(self.place.lock, clock=self._clock).is_free()

    @property
    def is_finished(self) -> bool:
        """Whether an import has come to its end, and nothing new is there."""
        return self.place.phase() is ImportPhase.DONE and self.place.journal().done

    @property
    def is_half_moved(self) -> bool:
        """Whether moving the tree was begun and not finished; no plan can be made of what lies in two places."""
        return self.place.phase() is ImportPhase.READY and self.place.journal().preparing

    def _plan(self, phase: ImportPhase) -> LegacyPlan:
        self._refuse_own_files()
        made = plan(self._facts(phase), self.options)
        adopted = bytes_adopted(made.tables)
        needed = sum(table.bytes for table in made.tables) - adopted
        # Where the files will lie when they are adopted, not where they lie now.
        if not files.same_device(self.place.migrating, self._data_path):
            needed += adopted
        refusals = [*self._refuse_strays(made)]
        free = files.free_bytes(self._data_path)
        if needed + _DISK_SPARE_BYTES > free:
            refusals.append(f"The lake needs {needed / 1e6:,.1f} MB more, and {free / 1e6:,.1f} MB are free.")
        if phase is ImportPhase.READY and not files.same_device(self.place.data, self.place.migration):
            tree = sum(each.stat().st_size for each in self.place.data.rglob("*") if each.is_file())
            room = files.free_bytes(self.place.migration)
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
        """Why nothing is imported if nothing can be; strays may be the rest of an import that is under way."""
        strays = [each for each in planned.strays if each.parquet_files]
        is_rest = planned.phase is ImportPhase.IMPORTING and self._imported()
        if strays and not planned.seen and not planned.leaves_moved and not is_rest:
            count = sum(each.parquet_files for each in strays)
            yield f"None of {plural(count, 'Parquet file')} can be imported: {strays[0].path}: {strays[0].reason}."

    def run(self, planned: LegacyPlan | None = None, *, stop: Stop = lambda: False) -> LegacyReport:
        """Import everything that can be imported. `planned` is used as it is, where nothing has happened since."""
        with self._lock():
            started_s = self._clock.monotonic_s()
            self._say("legacy_started", data=str(self.place.data))
            phase = self.place.phase()
            if phase is ImportPhase.UNDOING:
                raise _undo_first()
            self._refuse_other_lake()
            if self.place.journal().preparing:
                file_moves.prepare(self.place)
                planned, phase = None, ImportPhase.IMPORTING
            if phase is ImportPhase.DONE and not self.place.journal().done:
                file_moves.finish(self.place)
            if phase not in (ImportPhase.READY, ImportPhase.IMPORTING):
                return self._report(Run(plan=_EMPTY_PLAN, stop=stop), started_s)
            work = planned if planned is not None and planned.phase is phase else self._plan(phase)
            _refuse(work)
            self._begun()
            if phase is ImportPhase.READY:
                work = self._while_nothing_has_moved(work)
                self.place.note(lake=self._lake_name)
                file_moves.prepare(self.place)
                self._say("legacy_moved", to=str(self.place.migrating))
            if work is planned and self._described(self.place.migrating).leaves != work.seen:
                work = self._plan(ImportPhase.IMPORTING)
            run = Run(plan=work, stop=stop, quarantined=dict(work.quarantined))
            importer = Importer(self.place, self.options, self._deliverer)
            importer.run(run)
            if not importer.has_left(run):
                file_moves.finalize(self.place)
            report = self._report(run, started_s)
            files.replace_text(self.place.report, json.dumps(asdict(report), indent=1))
            self._say("legacy_finished", phase=report.phase, rows=report.rows, failures=len(report.failures))
            return report

    def _while_nothing_has_moved(self, work: LegacyPlan) -> LegacyPlan:
        """Open the lake that the rows go into, and plan again if its tables are not those of the plan any more."""
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
        """Where the import stands, from the folders and the journal."""
        running = self.is_running
        phase, journal = self.place.phase(), self._journal()
        left = self._described(self.place.root) if phase in (ImportPhase.READY, ImportPhase.IMPORTING) else _EMPTY_TREE
        # While an undo is under way, the database that tells tables from strays is nowhere for sure.
        imported = () if phase is ImportPhase.UNDOING else self._imported()
        last = self.last_report()
        return ImportStatus(
            phase=phase,
            data=str(self.place.data),
            migrating=str(self.place.migrating),
            migrated=str(self.place.migrated),
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
        return sum(each.parquet_files for each in self._described(self.place.migrated).strays)

    def last_report(self) -> dict[str, Any]:
        """The report of the last run, as it was written down; empty where there was none."""
        try:
            found: dict[str, Any] = json.loads(self.place.report.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found

    def verify(self) -> Verification:
        """Compare every imported leaf with the ledger and the lake, reading all data of both."""
        lake = self._find_lake()
        if lake is None:
            raise InputError("There is no lake yet.", hint="Import first: `catchment legacy run`.")
        if self.place.journal().undoing:
            raise _undo_first()
        self._refuse_other_lake()
        return self._verify(lake)

    def _verify(self, lake: Lake) -> Verification:
        leaves = rows = 0
        mismatches: list[Mismatch] = []
        journals = [self._journal(), *(each for _, each in self.place.earlier())]
        for name, found in self._to_prove().items():
            table = lake.find_table(name)
            alone = table is not None and any(each.has_made(str(name), table.uuid) for each in journals)
            count, total, wrong = check_table(lake, name, found, alone=alone)
            leaves, rows = leaves + count, rows + total
            mismatches += wrong
        return Verification(leaves=leaves, rows=rows, mismatches=tuple(mismatches))

    def undo(self) -> tuple[str, ...]:
        """Take the imported tables out of the lake and put the tree back, where the backup has all their rows."""
        with self._lock():
            lake = self._find_lake()
            if lake is not None:
                settle(self.place, lake)
            dropped = self.plan_undo(prove=False)
            if lake is not None:
                self._drop(lake, dropped)
            self.place.note(undoing=True)
            faults.reach("legacy.after_drop")
            file_moves.put_back(self.place)
            self.place.forget()
            files.remove(self.place.report)
            self._say("legacy_undone", tables=list(dropped))
            return dropped

    def plan_undo(self, *, prove: bool = True) -> tuple[str, ...]:
        """The tables that `undo` would drop now; an error where it would refuse. Without effect on anything.

        Without `prove`, their rows are not compared with the backup.
        """
        phase = self.place.phase()
        if phase is ImportPhase.NOTHING or (phase is ImportPhase.READY and not self.place.migrated.exists()):
            raise InputError("There is no import to undo.", hint="`catchment legacy status` says what there is.")
        self._refuse_other_lake()
        if phase is not ImportPhase.UNDOING:
            self._refuse_undo(prove=prove)
        return tuple(sorted(self._ours()))

    def _ours(self) -> Iterator[str]:
        """The tables that the import made, but none whose name another table has now."""
        journal, lake = self._journal(), self._find_lake()
        for name in journal.tables_made:
            table = None if lake is None else lake.find_table(TableId.parse(name))
            if table is None or journal.has_made(name, table.uuid):
                yield name

    def _drop(self, lake: Lake, names: Sequence[str]) -> None:
        """Drop the tables, as long as they hold what the backup holds at that very moment.

        Which tables are meant is noted first, by uuid: after a crash, those that still stand are proven once more, and
        a table that somebody made since under the same name is left alone.
        """
        journal = self.place.journal()
        found = {name: lake.find_table(TableId.parse(name)) for name in names}
        meant = journal.dropping if journal.undoing else {name: t.uuid for name, t in found.items() if t is not None}
        standing = [table for name, table in found.items() if table is not None and meant.get(name) == table.uuid]
        for _ in range(_UNDO_ATTEMPTS_MAX if standing else 0):
            snapshot_id = lake.newest_snapshot()
            proof = self._verify(lake)
            # They are dropped together: as long as one stands, nothing has been undone.
            self.place.note(undoing=proof.ok, dropping=meant if proof.ok else {})
            self._refuse_changed(proof)
            try:
                lake.commit(
                    Commit(
                        message="undo a legacy import",
                        requires=tuple(Untouched(table=table, snapshot_id=snapshot_id) for table in standing),
                        changes=tuple(DropTable(table=table.id) for table in standing),
                    )
                )
            except PreconditionError:
                continue
            return
        if standing:
            self.place.note(undoing=False, dropping={})
            raise ConflictError("The imported tables change all the time.", hint="Stop whoever writes, then undo.")

    def _refuse_own_files(self) -> None:
        """A tree that holds the lake, or lies in it, would take the lake's own files along when it moves."""
        tree, lake, *others = (
            Path(files.real_path(str(each))) for each in (self.place.data, self._data_path, *self._own_files)
        )
        if tree.is_relative_to(lake) or any(each.is_relative_to(tree) for each in (lake, *others)):
            raise InputError(
                f"The lake's files and the tree in {self.place.data} lie in each other.",
                hint="Give the lake another home with --lake-home, or CATCHMENT_HOME.",
            )

    @property
    def _lake_name(self) -> str:
        return files.real_path(str(self._data_path))

    def _refuse_other_lake(self) -> None:
        begun = self.place.journal().lake
        if begun and begun != self._lake_name and self.place.phase() is not ImportPhase.READY:
            raise InputError(
                f"This import goes into the lake with data in {begun}, not in {self._lake_name}.",
                hint="Name the same lake as before with --lake-home, or CATCHMENT_HOME.",
            )

    def _refuse_undo(self, *, prove: bool) -> None:
        journal = self._journal()
        if self.place.data.exists() and any(self.place.data.iterdir()):
            raise InputError(f"{self.place.data} is not empty.", hint="Move what is there away, then undo.")
        lake = self._find_lake()
        if lake is None:
            if journal.tables_made:
                raise InputError(
                    f"There is no lake with data in {self._lake_name}, and the import made tables in one.",
                    hint="Name the lake with --lake-home, or CATCHMENT_HOME.",
                )
            return
        filled = {str(table) for table, _ in self._imported()} | set(self._unmoved(lake))
        kept = sorted(filled - set(journal.tables_made))
        if kept:
            raise InputError(
                f"{', '.join(kept)} was there before the import: its own rows cannot be told from the imported ones.",
                hint="Delete the imported rows yourself; the backup stays where it is.",
            )
        if prove:
            self._refuse_changed(self._verify(lake))

    def _unmoved(self, lake: Lake) -> Iterator[str]:
        """Tables that have leaves which were not moved into the backup any more."""
        for name, found in self._found_in(self.place.migrating, self.place.journal(), sure=False):
            table = lake.find_table(name)
            if table is not None:
                with lake.ledger() as ledger:
                    if ledger.delivered_ids((unit_id(name, each.leaf) for each in found), table.uuid):
                        yield str(name)

    def _refuse_changed(self, found: Verification) -> None:
        if not found.ok:
            first = found.mismatches[0]
            raise InputError(
                f"The lake's tables are not what was imported: {first.table} {first.leaf}: {first.reason}.",
                hint="An undo would lose what something else has written. `catchment legacy verify` lists it all.",
            )

    def _facts(self, phase: ImportPhase) -> TreeFacts:
        root = self.place.data if phase is ImportPhase.READY else self.place.migrating
        if phase not in (ImportPhase.READY, ImportPhase.IMPORTING):
            return TreeFacts(phase=phase, tree=_EMPTY_TREE, views=(), surveys={}, existing={}, adopt_bytes_min=0)
        views = read_views(root) if self.place.marker else None
        tree = self._described(root, views)
        by_table = tables_of(tree.leaves)
        lake = self._find_lake()
        tables = {} if lake is None else {name: lake.find_table(self._id(name)) for name in by_table}
        aside = self.place.journal().quarantined if phase is ImportPhase.IMPORTING else {}
        readable = {
            name: [without_files(leaf, aside.get(leaf.path, ())) for leaf in leaves]
            for name, leaves in by_table.items()
        }
        return TreeFacts(
            phase=phase,
            tree=tree,
            views=views,
            surveys={name: survey(root, leaves) for name, leaves in readable.items()},
            existing={name: table for name, table in tables.items() if table is not None},
            quarantined={leaf: tuple(names) for leaf, names in aside.items()},
            adopt_bytes_min=self._adopt_bytes_min,
            above=keys_of(self.place.migrating),
            moved=self._described(self.place.migrating, views).leaves if phase is ImportPhase.READY else (),
            encrypted=lake is not None and lake.is_encrypted(),
        )

    def _described(self, root: Path, views: Sequence[LegacyView] | None = None) -> Tree:
        """The tree, tables without a view set apart; `views` are read from `root` where they are not given."""
        # A home may have its database beside the folders of its workspaces.
        beside = bool(self.place.marker) and not self.place.workspace
        tree = walk(root, keys=[key.name for key in self.options.keys], table=self.options.table, workspaces=beside)
        if not self.place.marker:
            return tree
        return tree.of(view.name for view in (read_views(root) if views is None else views))

    def _id(self, name: str) -> TableId:
        return TableId(self.options.schema, name)

    def _imported(self) -> list[tuple[TableId, list[Found]]]:
        """The leaves in the backup that were imported, by table."""
        return self._found_in(self.place.migrated, self.place.journal())

    def _journal(self) -> ImportJournal:
        """What the import wrote down; of a commit that was cut off, the lake is asked."""
        journal = self.place.journal()
        lake = self._find_lake() if journal.making else None
        return journal if lake is None else settled(journal, lake)

    def _to_prove(self) -> dict[TableId, list[Found]]:
        """All that the lake should have, by table: this backup, earlier ones, leaves in the lake that were not moved.

        A table that the import made and put nothing into must be empty, so it is here too.
        """
        journal = self._journal()
        proven: dict[TableId, list[Found]] = {TableId.parse(name): [] for name in journal.tables_made}
        places = [(self.place.migrating, journal), *self.place.earlier()]
        found = [*self._imported(), *(each for root, note in places for each in self._found_in(root, note, sure=False))]
        for table, leaves in found:
            proven.setdefault(table, []).extend(leaves)
        return proven

    def _found_in(self, root: Path, journal: ImportJournal, *, sure: bool = True) -> list[tuple[TableId, list[Found]]]:
        if not root.exists():
            return []
        there = self.place.marker and (root / self.place.marker).is_file()
        views = read_views(root if there else self.place.migrating) if self.place.marker else None
        tree = self._described(root, views)
        aside = journal.quarantined
        found = []
        for name, leaves in tables_of(tree.leaves).items():
            whole = (without_files(leaf, aside.get(leaf.path, ())) for leaf in leaves)
            found.append((self._id(name), [Found(root=root, leaf=leaf, sure=sure) for leaf in whole if leaf.files]))
        return found

    def _report(self, run: Run, started_s: float) -> LegacyReport:
        phase = self.place.phase()
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

    def _say(self, verb: str, **facts: Any) -> None:
        files.make_folder(self.place.migration)
        listed = " ".join(f"{name}={value}" for name, value in facts.items())
        files.append_line(self.place.log, f"{self._clock.now().isoformat(timespec='milliseconds')} {verb} {listed}")
        events.emit(verb, **facts)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        lock = files.FileLock(self.place.lock, clock=self._clock).take()
        if lock is None:
            raise self._taken()
        try:
            yield
        finally:
            lock.release()

    def _taken(self) -> LockTimeoutError:
        return LockTimeoutError(
            f"Another import of {self.place.data} is running.", hint="Wait for it, or stop it, then try again."
        )


def _refuse(planned: LegacyPlan) -> None:
    if planned.refusals:
        hint = "Make room, or import to another disk." if planned.seen else "`catchment legacy plan` names every file."
        raise InputError(" ".join(planned.refusals), hint=hint)


def _undo_first() -> InputError:
    return InputError("An undo was begun and not finished.", hint="Finish it: `catchment legacy undo`.")


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
