"""Execution of one batch: units of one or several plans, written by one job and committed in one
transaction.

A plan part holds one plan's units in the batch. Parts share nothing but their transaction. If it is
refused because of one of them, each is committed by itself, so that a failing table does not hold
back the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path, PurePath

from catchment.errors import (
    CatchmentError,
    CommitUnknownError,
    ConflictError,
    FencedError,
    InputError,
    InvariantError,
    LakeUnavailableError,
    LockTimeoutError,
    PreconditionError,
)
from catchment.foundation import events, faults, files
from catchment.foundation.backoff import retry
from catchment.lake import Claim, Commit, Delivery, Lake
from catchment.lake.commit import (
    Advance,
    Bury,
    Change,
    InsertFiles,
    Precondition,
    RecordUnits,
    RegisterFiles,
    TableIs,
    Undelivered,
)
from catchment.lake.staging import JobFolder
from catchment.pipeline.plan import Bounds, Plan, TaskSpec, Unit, stints
from catchment.pipeline.runner import Runner
from catchment.pipeline.work import Mode, Task, UnitFailure
from catchment.pipeline.write import WrittenFiles, write

_ROUNDS_MAX = 10
_INFO_UNITS_MAX = 100
_TASKS_PER_BATCH_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """Objects and limits that every batch of a job uses."""

    lake: Lake
    runner: Runner
    bounds: Bounds
    job: JobFolder
    memory_mb: int
    digests: bool


@dataclass(slots=True)
class PlanProgress:
    """Work done for a plan so far, and its producer's last known position."""

    claim: Claim
    delivered: int = 0
    skipped: list[str] = field(default_factory=list)
    rows: int = 0
    files: int = 0
    bytes: int = 0
    buried: int = 0
    write_s: float = 0.0
    commit_s: float = 0.0
    failures: list[UnitFailure] = field(default_factory=list)
    error: CatchmentError | None = None


@dataclass(slots=True)
class PlanPart:
    """One plan's part of a batch: `left` is still to be committed, `there` is in the lake,
    whichever process delivered it.
    """

    plan: Plan
    tally: PlanProgress
    left: tuple[Unit, ...]
    work: tuple[TaskSpec, ...]
    there: list[Unit] = field(default_factory=list)
    written: WrittenFiles = field(default_factory=lambda: WrittenFiles(files=(), units={}, failures=()))
    folder: Path = Path()
    names: frozenset[str] = frozenset()
    # Its files contain units that another process delivered: write them again, do not commit them.
    stale: bool = False

    @property
    def inserts(self) -> bool:
        """Whether its files are read by an INSERT instead of being registered."""
        return self.plan.mode is Mode.INSERT

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(unit.id for unit in self.left)


class BatchRun:
    """Writes, places and commits the plan parts of one batch."""

    def __init__(self, desk: JobContext, *, number: int) -> None:
        self._desk = desk
        self._lake = desk.lake
        self._number = number
        self._tasks = 0

    def deliver(self, shares: Sequence[PlanPart]) -> None:
        """Process every part as far as possible: its units end up in `there`, failures and error in
        its `tally`.

        Units that another process delivers in the meantime are removed, and the rest is written
        again without them.
        """
        pending = list(shares)
        for round_number in range(_ROUNDS_MAX):
            self._write(pending)
            pending = [share for share in pending if share.left]
            if not pending:
                return
            self._place(pending, round_number)
            self._commit(pending)
            pending = [share for share in pending if share.left and share.tally.error is None]
            for share in pending:
                files.remove_tree(share.folder)
                share.stale = False
                share.work = stints(share.left, share.plan.mode, self._desk.bounds)
            if not pending:
                return
        raise ConflictError(f"Other processes keep delivering units of batch {self._number}.")

    def _write(self, shares: Sequence[PlanPart]) -> None:
        faults.reach("deliver.before_write")
        started_s = self._lake.clock.monotonic_s()
        todo = list(shares)
        while todo:
            self._write_once(todo)
            todo = [share for share in todo if self._is_broken(share)]
        elapsed_s = self._lake.clock.monotonic_s() - started_s
        for share in shares:
            share.tally.write_s += elapsed_s
        faults.reach("deliver.after_write")

    def _write_once(self, shares: Sequence[PlanPart]) -> None:
        plans = {unit.id: share.plan for share in shares for unit in share.left}
        work = [stint for share in shares for stint in share.work]
        idle = max(1, self._desk.bounds.parallelism // max(1, len(work)))
        written = write(
            [share.left for share in shares],
            work,
            mode=_common_mode(shares),
            bounds=self._desk.bounds,
            runner=self._desk.runner,
            make_task=lambda stint: self._task(stint, plans[stint.parts[0].unit_id], idle),
        )
        for share in shares:
            share.written = written.of(share.ids)
            share.tally.failures.extend(share.written.failures)

    def _is_broken(self, share: PlanPart) -> bool:
        """Drop failed units. Return True if files must be written again because they contain units
        that have to wait.
        """
        unbroken: list[Unit] = []
        good = [unit for unit in share.left if unit.id in share.written.units]
        for unit in share.left:
            if unit.id not in share.written.units:
                if unit.seqs is not None:
                    break
            else:
                unbroken.append(unit)
        share.left = tuple(unbroken)
        if len(unbroken) == len(good):
            return False
        share.work = stints(share.left, share.plan.mode, self._desk.bounds)
        return bool(share.left)

    def _task(self, stint: TaskSpec, plan: Plan, threads: int) -> Task:
        # With several threads the output is one file, so output that must be split into several
        # gets one thread.
        small = stint.bytes <= plan.shape.file_bytes
        self._tasks += 1
        if self._tasks >= _TASKS_PER_BATCH_MAX:
            raise InvariantError(f"Batch {self._number} has reached {self._tasks} tasks.")
        return Task(
            number=self._number * _TASKS_PER_BATCH_MAX + self._tasks,
            mode=stint.mode,
            parts=stint.parts,
            shape=plan.shape,
            folder=str(self._desk.job.path),
            memory_mb=self._desk.memory_mb,
            digest=self._desk.digests,
            threads=threads if small else 1,
        )

    def _place(self, shares: Iterable[PlanPart], round_number: int) -> None:
        """Move the files into folders that contain nothing else, so that each can be registered or
        removed as a whole.
        """
        taken: set[Path] = set()
        for share in shares:
            target, number = share.plan.target, self._number * _ROUNDS_MAX + round_number
            job = self._desk.job
            root = job.insert_folder(target.uuid, number) if share.inserts else job.table_folder(target.folder, number)
            # Two producers may deliver to one table, and a table keeps its folder when its name is
            # given to another one.
            while root in taken:
                root = root.with_name(f"{root.name}-again")
            taken.add(root)
            folders = {root / each.place for each in share.written.files}
            for folder in folders:
                files.make_folder(folder)
            names = [str(PurePath(each.place, f"{at:06d}.parquet")) for at, each in enumerate(share.written.files)]
            for name, each in zip(names, share.written.files, strict=True):
                files.move(files.local_path(each.path), root / name)
            if not share.inserts:
                files.sync_folders_up(folders, to=files.local_path(self._lake.address.data_path))
            share.folder, share.names = root, frozenset(names)
        faults.reach("deliver.after_place")

    def _commit(self, shares: Sequence[PlanPart]) -> None:
        """Commit the parts together or, if that is refused, each by itself."""
        started_s = self._lake.clock.monotonic_s()
        try:
            self._commit_together(shares)
        except (InputError, FencedError) as error:
            if len(shares) == 1:
                shares[0].tally.error = error
            else:
                for share in shares:
                    self._commit([share])
        elapsed_s = self._lake.clock.monotonic_s() - started_s
        for share in shares:
            share.tally.commit_s += elapsed_s

    def _commit_together(self, shares: Sequence[PlanPart]) -> None:
        attempts = count(1)
        retry(
            lambda: self._commit_once(shares, attempt=next(attempts)),
            policy=self._lake.redo(),
            clock=self._lake.clock,
            on=(ConflictError, CommitUnknownError, LakeUnavailableError, LockTimeoutError),
        )

    def _commit_once(self, shares: Sequence[PlanPart], *, attempt: int) -> None:
        ready = [share for share in shares if share.left and not share.stale]
        whole = [share for share in ready if attempt == 1 or not self._look_again(share)]
        if not whole:
            return
        try:
            self._lake.commit(self._value(whole))
        except (ConflictError, CommitUnknownError) as error:
            events.emit(
                "commit_redone",
                job=self._desk.job.job_id,
                batch=self._number,
                unit_ids=events.first_few([unit.id for share in whole for unit in share.left]),
                error=type(error).__name__,
                reason=error.message,
            )
            raise
        faults.reach("deliver.after_commit")
        for share in whole:
            self._done(share)

    def _look_again(self, share: PlanPart) -> bool:
        """Read the producer's position again, under the epoch that we hold. Return True if units
        are already in the lake.
        """
        with self._lake.ledger() as ledger:
            current = ledger.read(share.plan.producer)
            there = ledger.delivered(share.ids, share.plan.target.uuid)
        if current is not None:
            share.tally.claim = replace(share.tally.claim, seq=current.seq)
        if not there:
            return False
        if all(each.job_id == self._desk.job.job_id for each in there.values()):
            # Our own COMMIT succeeded, but no confirmation arrived.
            share.tally.claim = replace(share.tally.claim, seq=share.tally.claim.seq - _seqs(share.left))
            self._done(share)
        else:
            lost = [unit for unit in share.left if unit.id in there]
            share.there.extend(lost)
            share.tally.skipped += [unit.id for unit in lost]
            share.left = tuple(unit for unit in share.left if unit.id not in there)
            share.stale = True
        return True

    def _value(self, shares: Sequence[PlanPart]) -> Commit:
        requires: list[Precondition] = []
        changes: list[Change] = []
        for share in shares:
            target, deliveries = share.plan.target, tuple(self._deliveries(share))
            requires += [
                TableIs(table=target),
                Undelivered(unit_ids=share.ids, table_uuid=target.uuid),
            ]
            changes += [
                Advance(claim=share.tally.claim, seq_to=deliveries[-1].seq_last),
                RecordUnits(deliveries=deliveries),
            ]
            letters = tuple(letter for unit in share.left for letter in unit.buried)
            if letters:
                changes.append(Bury(letters=letters))
            if share.names:
                changes.append(_brought(share))
        units = [unit_id for share in shares for unit_id in share.ids]
        names = ", ".join(str(share.plan.target.id) for share in shares)
        return Commit(
            message=f"deliver {len(units)} units to {names}",
            requires=tuple(requires),
            changes=tuple(changes),
            as_of=min(share.plan.as_of for share in shares),
            info={
                "job": self._desk.job.job_id,
                "producers": [str(share.plan.producer) for share in shares],
                "units": units[:_INFO_UNITS_MAX],
            },
        )

    def _deliveries(self, share: PlanPart) -> Iterable[Delivery]:
        seq, claim = share.tally.claim.seq, share.tally.claim
        for unit in share.left:
            first, last = unit.seqs or (seq + 1, seq + 1)
            if first != seq + 1:
                raise PreconditionError(
                    f"{claim.producer} is at seq {seq}, but unit {unit.id} starts at {first}.",
                    hint="Another process delivers for the same producer. Plan and deliver again.",
                )
            facts = share.written.units[unit.id]
            yield Delivery(
                unit_id=unit.id,
                producer=claim.producer,
                epoch=claim.epoch,
                seq_first=first,
                seq_last=last,
                table=share.plan.target.id,
                table_uuid=share.plan.target.uuid,
                mode=Mode.INSERT if share.inserts else facts.mode,
                rows=facts.rows,
                bytes=unit.bytes,
                digest=facts.digest,
                source=unit.source,
                job_id=self._desk.job.job_id,
                delivered_at=self._lake.clock.now(),
            )
            seq = last

    def _done(self, share: PlanPart) -> None:
        tally = share.tally
        rows = sum(share.written.units[unit.id].rows for unit in share.left)
        tally.claim = replace(tally.claim, seq=tally.claim.seq + _seqs(share.left))
        tally.delivered += len(share.left)
        tally.rows += rows
        tally.buried += sum(len(unit.buried) for unit in share.left)
        tally.files += len(share.written.files)
        tally.bytes += sum(each.bytes for each in share.written.files)
        events.emit(
            "delivered",
            job=self._desk.job.job_id,
            table=str(share.plan.target.id),
            units=len(share.left),
            unit_ids=events.first_few([unit.id for unit in share.left]),
            rows=rows,
            files=len(share.written.files),
        )
        share.there.extend(share.left)
        share.left = ()
        if share.inserts:
            # The lake has its own rows now; these would stay here unencrypted until the end of the
            # job.
            files.remove_tree(share.folder)


def _brought(share: PlanPart) -> Change:
    """Return the change that brings the part's files into its table."""
    target = share.plan.target
    if share.inserts:
        paths = tuple(str(share.folder / name) for name in sorted(share.names))
        return InsertFiles(table=target, paths=paths, rows=sum(each.rows for each in share.written.files))
    return RegisterFiles(
        table=target.id,
        folder=str(share.folder),
        names=share.names,
        partitioned=bool(share.plan.shape.partition_by),
        allow_missing=share.written.adopted,
    )


def _common_mode(shares: Iterable[PlanPart]) -> Mode:
    # Files for an INSERT are always rewritten first, whatever the mode of the others.
    modes = {share.plan.mode for share in shares if not share.inserts} or {Mode.REWRITE}
    if len(modes) != 1:
        raise InvariantError(f"Plans of one job have several modes: {', '.join(sorted(modes))}.")
    return modes.pop()


def _seqs(units: Iterable[Unit]) -> int:
    """Return how many numbers of their producer's sequence the units take."""
    return sum(1 if unit.seqs is None else unit.seqs[1] - unit.seqs[0] + 1 for unit in units)
