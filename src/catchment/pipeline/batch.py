"""Execution of one batch: units of one or several plans, written and committed together.

A batch is written by one job and committed in one transaction. A plan part has one plan's units in
the batch. Parts share only the transaction. If it is refused because of one of them, each part is
committed separately, so that a failing table does not block the others.
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
    Change,
    InsertFiles,
    Precondition,
    RecordDeadLetters,
    RecordUnits,
    RegisterFiles,
    TableIs,
    Undelivered,
)
from catchment.lake.staging import JobFolder
from catchment.pipeline.plan import Bounds, Plan, TaskSpec, Unit, task_specs
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
    """One plan's part of a batch: units `remaining` to be committed, and units `delivered`."""

    plan: Plan
    progress: PlanProgress
    remaining: tuple[Unit, ...]
    work: tuple[TaskSpec, ...]
    delivered: list[Unit] = field(default_factory=list)
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
        return tuple(unit.id for unit in self.remaining)


class BatchRun:
    """Writes, places and commits the plan parts of one batch."""

    def __init__(self, context: JobContext, *, number: int) -> None:
        self._context = context
        self._lake = context.lake
        self._number = number
        self._tasks = 0

    def deliver(self, parts: Sequence[PlanPart]) -> None:
        """Process every part as far as possible; results are in its `delivered` and its `progress`.

        Units that another process delivers in the meantime are removed, and the rest is written
        again without them.
        """
        pending = list(parts)
        for round_number in range(_ROUNDS_MAX):
            self._write(pending)
            pending = [part for part in pending if part.remaining]
            if not pending:
                return
            self._place(pending, round_number)
            self._commit(pending)
            pending = [part for part in pending if part.remaining and part.progress.error is None]
            for part in pending:
                files.remove_tree(part.folder)
                part.stale = False
                part.work = task_specs(part.remaining, part.plan.mode, self._context.bounds)
            if not pending:
                return
        raise ConflictError(f"Other processes keep delivering units of batch {self._number}.")

    def _write(self, parts: Sequence[PlanPart]) -> None:
        faults.reach("deliver.before_write")
        started_s = self._lake.clock.monotonic_s()
        todo = list(parts)
        while todo:
            self._write_once(todo)
            todo = [part for part in todo if self._drop_failed(part)]
        elapsed_s = self._lake.clock.monotonic_s() - started_s
        for part in parts:
            part.progress.write_s += elapsed_s
        faults.reach("deliver.after_write")

    def _write_once(self, parts: Sequence[PlanPart]) -> None:
        plans = {unit.id: part.plan for part in parts for unit in part.remaining}
        work = [spec for part in parts for spec in part.work]
        idle = max(1, self._context.bounds.parallelism // max(1, len(work)))
        written = write(
            [part.remaining for part in parts],
            work,
            mode=_common_mode(parts),
            bounds=self._context.bounds,
            runner=self._context.runner,
            make_task=lambda spec: self._task(spec, plans[spec.parts[0].unit_id], idle),
        )
        for part in parts:
            part.written = written.of(part.ids)
            part.progress.failures.extend(part.written.failures)

    def _drop_failed(self, part: PlanPart) -> bool:
        """Drop failed units; return whether files must be rewritten without units that wait."""
        unbroken: list[Unit] = []
        good = [unit for unit in part.remaining if unit.id in part.written.units]
        for unit in part.remaining:
            if unit.id not in part.written.units:
                if unit.seqs is not None:
                    break
            else:
                unbroken.append(unit)
        part.remaining = tuple(unbroken)
        if len(unbroken) == len(good):
            return False
        part.work = task_specs(part.remaining, part.plan.mode, self._context.bounds)
        return bool(part.remaining)

    def _task(self, spec: TaskSpec, plan: Plan, threads: int) -> Task:
        # With several threads the output is one file, so output that must be split into several
        # gets one thread.
        small = spec.bytes <= plan.shape.file_bytes
        self._tasks += 1
        if self._tasks >= _TASKS_PER_BATCH_MAX:
            raise InvariantError(f"Batch {self._number} has reached {self._tasks} tasks.")
        return Task(
            number=self._number * _TASKS_PER_BATCH_MAX + self._tasks,
            mode=spec.mode,
            parts=spec.parts,
            shape=plan.shape,
            folder=str(self._context.job.path),
            memory_mb=self._context.memory_mb,
            digest=self._context.digests,
            threads=threads if small else 1,
        )

    def _place(self, parts: Iterable[PlanPart], round_number: int) -> None:
        """Move the files into folders of their own, to be registered or removed as a whole."""
        taken: set[Path] = set()
        for part in parts:
            target, number = part.plan.target, self._number * _ROUNDS_MAX + round_number
            job = self._context.job
            root = job.insert_folder(target.uuid, number) if part.inserts else job.table_folder(target.folder, number)
            # Two producers may deliver to one table, and a table keeps its folder when another
            # table takes its name.
            while root in taken:
                root = root.with_name(f"{root.name}-again")
            taken.add(root)
            folders = {root / each.place for each in part.written.files}
            for folder in folders:
                files.make_folder(folder)
            names = [str(PurePath(each.place, f"{at:06d}.parquet")) for at, each in enumerate(part.written.files)]
            for name, each in zip(names, part.written.files, strict=True):
                files.move(files.local_path(each.path), root / name)
            if not part.inserts:
                files.sync_folders_up(folders, to=files.local_path(self._lake.address.data_path))
            part.folder, part.names = root, frozenset(names)
        faults.reach("deliver.after_place")

    def _commit(self, parts: Sequence[PlanPart]) -> None:
        """Commit the parts together or, if that is refused, one by one."""
        started_s = self._lake.clock.monotonic_s()
        try:
            self._commit_together(parts)
        except (InputError, FencedError) as error:
            if len(parts) == 1:
                parts[0].progress.error = error
            else:
                for part in parts:
                    self._commit([part])
        elapsed_s = self._lake.clock.monotonic_s() - started_s
        for part in parts:
            part.progress.commit_s += elapsed_s

    def _commit_together(self, parts: Sequence[PlanPart]) -> None:
        attempts = count(1)
        retry(
            lambda: self._commit_once(parts, attempt=next(attempts)),
            policy=self._lake.redo(),
            clock=self._lake.clock,
            on=(ConflictError, CommitUnknownError, LakeUnavailableError, LockTimeoutError),
        )

    def _commit_once(self, parts: Sequence[PlanPart], *, attempt: int) -> None:
        ready = [part for part in parts if part.remaining and not part.stale]
        whole = [part for part in ready if attempt == 1 or not self._recheck(part)]
        if not whole:
            return
        try:
            self._lake.commit(self._build_commit(whole))
        except (ConflictError, CommitUnknownError) as error:
            events.emit(
                "commit_redone",
                job=self._context.job.job_id,
                batch=self._number,
                unit_ids=events.first_few([unit.id for part in whole for unit in part.remaining]),
                error=type(error).__name__,
                reason=error.message,
            )
            raise
        faults.reach("deliver.after_commit")
        for part in whole:
            self._mark_delivered(part)

    def _recheck(self, part: PlanPart) -> bool:
        """Read the producer's position again; return whether the lake has some of the units."""
        with self._lake.ledger() as ledger:
            current = ledger.read(part.plan.producer)
            delivered = ledger.delivered(part.ids, part.plan.target.uuid)
        if current is not None:
            part.progress.claim = replace(part.progress.claim, seq=current.seq)
        if not delivered:
            return False
        if all(each.job_id == self._context.job.job_id for each in delivered.values()):
            # Our own COMMIT succeeded, but no confirmation arrived.
            part.progress.claim = replace(part.progress.claim, seq=part.progress.claim.seq - _seqs(part.remaining))
            self._mark_delivered(part)
        else:
            lost = [unit for unit in part.remaining if unit.id in delivered]
            part.delivered.extend(lost)
            part.progress.skipped += [unit.id for unit in lost]
            part.remaining = tuple(unit for unit in part.remaining if unit.id not in delivered)
            part.stale = True
        return True

    def _build_commit(self, parts: Sequence[PlanPart]) -> Commit:
        requires: list[Precondition] = []
        changes: list[Change] = []
        for part in parts:
            target, deliveries = part.plan.target, tuple(self._deliveries(part))
            requires += [
                TableIs(table=target),
                Undelivered(unit_ids=part.ids, table_uuid=target.uuid),
            ]
            changes += [
                Advance(claim=part.progress.claim, seq_to=deliveries[-1].seq_last),
                RecordUnits(deliveries=deliveries),
            ]
            letters = tuple(letter for unit in part.remaining for letter in unit.buried)
            if letters:
                changes.append(RecordDeadLetters(letters=letters))
            if part.names:
                changes.append(_file_change(part))
        units = [unit_id for part in parts for unit_id in part.ids]
        names = ", ".join(str(part.plan.target.id) for part in parts)
        return Commit(
            message=f"deliver {len(units)} units to {names}",
            requires=tuple(requires),
            changes=tuple(changes),
            as_of=min(part.plan.as_of for part in parts),
            info={
                "job": self._context.job.job_id,
                "producers": [str(part.plan.producer) for part in parts],
                "units": units[:_INFO_UNITS_MAX],
            },
        )

    def _deliveries(self, part: PlanPart) -> Iterable[Delivery]:
        seq, claim = part.progress.claim.seq, part.progress.claim
        for unit in part.remaining:
            first, last = unit.seqs or (seq + 1, seq + 1)
            if first != seq + 1:
                raise PreconditionError(
                    f"{claim.producer} is at seq {seq}, but unit {unit.id} starts at {first}.",
                    hint="Another process delivers for the same producer. Plan and deliver again.",
                )
            facts = part.written.units[unit.id]
            yield Delivery(
                unit_id=unit.id,
                producer=claim.producer,
                epoch=claim.epoch,
                seq_first=first,
                seq_last=last,
                table=part.plan.target.id,
                table_uuid=part.plan.target.uuid,
                mode=Mode.INSERT if part.inserts else facts.mode,
                rows=facts.rows,
                bytes=unit.bytes,
                digest=facts.digest,
                source=unit.source,
                job_id=self._context.job.job_id,
                delivered_at=self._lake.clock.now(),
            )
            seq = last

    def _mark_delivered(self, part: PlanPart) -> None:
        progress = part.progress
        rows = sum(part.written.units[unit.id].rows for unit in part.remaining)
        progress.claim = replace(progress.claim, seq=progress.claim.seq + _seqs(part.remaining))
        progress.delivered += len(part.remaining)
        progress.rows += rows
        progress.buried += sum(len(unit.buried) for unit in part.remaining)
        progress.files += len(part.written.files)
        progress.bytes += sum(each.bytes for each in part.written.files)
        events.emit(
            "delivered",
            job=self._context.job.job_id,
            table=str(part.plan.target.id),
            units=len(part.remaining),
            unit_ids=events.first_few([unit.id for unit in part.remaining]),
            rows=rows,
            files=len(part.written.files),
        )
        part.delivered.extend(part.remaining)
        part.remaining = ()
        if part.inserts:
            # DuckLake has written its own files; these would stay here unencrypted until the end of
            # the job.
            files.remove_tree(part.folder)


def _file_change(part: PlanPart) -> Change:
    """Return the change that registers or inserts the part's files."""
    target = part.plan.target
    if part.inserts:
        paths = tuple(str(part.folder / name) for name in sorted(part.names))
        return InsertFiles(table=target, paths=paths, rows=sum(each.rows for each in part.written.files))
    return RegisterFiles(
        table=target.id,
        folder=str(part.folder),
        names=part.names,
        partitioned=bool(part.plan.shape.partition_by),
        allow_missing=part.written.adopted,
    )


def _common_mode(parts: Iterable[PlanPart]) -> Mode:
    # Files for an INSERT are always rewritten first, in any mode.
    modes = {part.plan.mode for part in parts if not part.inserts} or {Mode.REWRITE}
    if len(modes) != 1:
        raise InvariantError(f"Plans of one job have several modes: {', '.join(sorted(modes))}.")
    return modes.pop()


def _seqs(units: Iterable[Unit]) -> int:
    """Return how many numbers of their producer's sequence the units use."""
    return sum(1 if unit.seqs is None else unit.seqs[1] - unit.seqs[0] + 1 for unit in units)
