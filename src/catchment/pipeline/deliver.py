"""Delivering: the state machine that flush, legacy import and backfill share.

    plan ──▶ write (Spark) ──▶ place ──▶ commit (files + ledger, one transaction) ──▶ retire
             │                 │         │ conflict: redo the commit, keep the files
             │                 │         │ unknown: the ledger knows
             └─ killed: nothing is visible; the files are orphans     └─ killed: the ledger has the units; only retire

A unit that fails leaves its reason in the report and its source where it is; the others go on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path, PurePath
from typing import Protocol

from catchment import events, faults, files
from catchment.backoff import retry
from catchment.errors import (
    CommitUnknownError,
    ConflictError,
    InputError,
    InvariantError,
    LakeUnavailableError,
    LockTimeoutError,
    StorageFailedError,
)
from catchment.ids import ProducerId, TableId
from catchment.lake import Claim, Commit, Delivery, Lake
from catchment.lake.commit import Advance, Change, Record, RegisterFiles, TableIs, Undelivered
from catchment.lake.staging import JobFolder, Staging
from catchment.pipeline.plan import Batch, Bounds, Plan, Stint, Unit, plan, stints
from catchment.pipeline.spark import Runner
from catchment.pipeline.work import Mode, Task, UnitFailure
from catchment.pipeline.write import Written, write
from catchment.settings import Settings

_ROUNDS_MAX = 10
_INFO_UNITS_MAX = 100
_TASKS_PER_BATCH_MAX = 100_000

Retire = Callable[[Unit], None]


class Source(Protocol):
    """Where units come from, and what becomes of them once they are delivered."""

    @property
    def producer(self) -> ProducerId:
        """Under whose name the ledger records the units."""
        ...

    @property
    def table(self) -> TableId:
        """The table they go into."""
        ...

    def units(self) -> Sequence[Unit]:
        """Every unit that is there to deliver, delivered ones included; reading facts only."""
        ...

    def retire(self, unit: Unit) -> None:
        """Make the delivered unit's source go away. Must be safe to repeat after a crash half-way."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a delivery did: units delivered now, units that the lake had already, and units that failed."""

    job_id: str
    table: TableId
    delivered: int
    skipped: int
    rows: int
    files: int
    bytes: int
    write_s: float
    commit_s: float
    failures: tuple[UnitFailure, ...]

    @property
    def ok(self) -> bool:
        return not self.failures


@dataclass(slots=True)
class _Tally:
    """What has been done so far, and where the producer stands as far as is known."""

    claim: Claim
    delivered: int = 0
    skipped: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    write_s: float = 0.0
    commit_s: float = 0.0
    failures: list[UnitFailure] = field(default_factory=list)


class Deliverer:
    """Delivers what a source has into a lake, exactly once, however often and by however many processes it is run."""

    def __init__(self, lake: Lake, runner: Runner, settings: Settings) -> None:
        self.lake = lake
        self.runner = runner
        self.memory_mb = settings.deliver_task_memory_mb
        self.bounds = Bounds(
            file_bytes=settings.lake_target_file_bytes,
            adopt_bytes_min=settings.deliver_adopt_bytes_min,
            units_per_commit_max=settings.deliver_units_per_commit_max,
            parallelism=runner.parallelism,
        )

    def plan(self, source: Source, mode: Mode = Mode.AUTO) -> Plan:
        """What `deliver` would do now, without effect on anything."""
        units = source.units()
        self._refuse_own_files(units)
        table, delivered = self.lake.table_and_units(source.table, (unit.id for unit in units))
        return plan(
            producer=source.producer,
            table=table,
            units=units,
            delivered=delivered,
            mode=mode,
            bounds=self.bounds,
        )

    def deliver(self, plan: Plan, retire: Retire, *, digests: bool = False, claim: Claim | None = None) -> Report:
        """Do the plan, retiring each batch once it is delivered.

        `digests` makes adopted files be read to the end; rewritten ones always are. `claim` is the epoch to deliver
        under; without one, the producer is joined as it stands.
        """
        tally = _Tally(claim=claim or self.lake.join(plan.producer))
        with Staging(self.lake.address.data_path, clock=self.lake.clock).job() as job:
            self._retire(plan.delivered, retire, tally)
            for number, batch in enumerate(plan.batches):
                run = _BatchRun(self, plan, job, number=number, digests=digests, tally=tally)
                self._retire(run.deliver(batch), retire, tally)
            faults.reach("deliver.before_clean")
        return Report(
            job_id=job.job_id,
            table=plan.target.id,
            delivered=tally.delivered,
            skipped=len(plan.delivered) + tally.skipped,
            rows=tally.rows,
            files=tally.files,
            bytes=tally.bytes,
            write_s=tally.write_s,
            commit_s=tally.commit_s,
            failures=tuple(tally.failures),
        )

    def run(self, source: Source, *, mode: Mode = Mode.AUTO, digests: bool = False) -> Report:
        """Plan, deliver and retire."""
        return self.deliver(self.plan(source, mode), source.retire, digests=digests)

    def _refuse_own_files(self, units: Sequence[Unit]) -> None:
        # What the lake owns it would get twice, and upkeep deletes from its folder what it does not own.
        own = files.real_path(self.lake.address.data_path) + "/"
        for each in (each for unit in units for each in unit.inputs):
            if files.real_path(each.uri).startswith(own):
                raise InputError(f"{each.uri} lies in the lake's own data path.", hint="Deliver files from elsewhere.")

    def _retire(self, units: Sequence[Unit], retire: Retire, tally: _Tally) -> None:
        for unit in units:
            faults.reach("retire.before_unit")
            try:
                retire(unit)
            except StorageFailedError as error:
                # It is delivered, and the next run tries again; the others must not wait for it.
                reason = f"{unit.source} is delivered, but cannot be retired: {error.message}"
                tally.failures.append(UnitFailure(unit_id=unit.id, path=unit.source, reason=reason))
            faults.reach("retire.after_unit")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A folder that is ready to be registered, and what it must hold."""

    folder: Path
    names: frozenset[str]


class _BatchRun:
    """One batch on its way: written, placed, committed."""

    def __init__(
        self, owner: Deliverer, plan: Plan, job: JobFolder, *, number: int, digests: bool, tally: _Tally
    ) -> None:
        self._owner = owner
        self._lake = owner.lake
        self._plan = plan
        self._job = job
        self._number = number
        self._digests = digests
        self._tally = tally
        self._tasks = 0

    def deliver(self, batch: Batch) -> list[Unit]:
        """Write and commit the batch; returns the units that the lake has now, whoever brought them.

        Units that another process delivers meanwhile are taken out, and the rest is written again without them.
        """
        there: list[Unit] = []
        left, work = batch.units, batch.stints
        for round_number in range(_ROUNDS_MAX):
            written = self._write(left, work)
            left = tuple(unit for unit in left if unit.id in written.units)
            if not left:
                return there
            placed = self._place(written, round_number)
            lost = self._commit(left, written, placed)
            if not lost:
                return [*there, *left]
            files.remove_tree(placed.folder)
            there.extend(unit for unit in left if unit.id in lost)
            self._tally.skipped += len(lost)
            left = tuple(unit for unit in left if unit.id not in lost)
            work = stints(left, self._plan.mode, self._owner.bounds)
        raise ConflictError(f"Other processes keep delivering units of batch {self._number}.")

    def _write(self, units: Sequence[Unit], work: Sequence[Stint]) -> Written:
        faults.reach("deliver.before_write")
        started_s = self._lake.clock.monotonic_s()
        written = write(
            units,
            work,
            mode=self._plan.mode,
            bounds=self._owner.bounds,
            runner=self._owner.runner,
            make_task=self._task,
        )
        self._tally.failures.extend(written.failures)
        self._tally.write_s += self._lake.clock.monotonic_s() - started_s
        faults.reach("deliver.after_write")
        return written

    def _task(self, stint: Stint) -> Task:
        self._tasks += 1
        if self._tasks >= _TASKS_PER_BATCH_MAX:
            raise InvariantError(f"Batch {self._number} has come to {self._tasks} tasks.")
        return Task(
            number=self._number * _TASKS_PER_BATCH_MAX + self._tasks,
            mode=stint.mode,
            parts=stint.parts,
            shape=self._plan.shape,
            folder=str(self._job.path),
            memory_mb=self._owner.memory_mb,
            digest=self._digests,
        )

    def _place(self, written: Written, round_number: int) -> _Placed:
        """Move the files into a folder that holds nothing else, so that it can be registered whole."""
        root = self._job.table_folder(self._plan.target.folder, self._number * _ROUNDS_MAX + round_number)
        folders = {root / each.place for each in written.files}
        for folder in folders:
            files.make_folder(folder)
        names = [str(PurePath(each.place, f"{at:06d}.parquet")) for at, each in enumerate(written.files)]
        for name, each in zip(names, written.files, strict=True):
            files.move(files.local_path(each.path), root / name)
        for folder in folders:
            files.sync_folders_up(folder, to=files.local_path(self._lake.address.data_path))
        faults.reach("deliver.after_place")
        return _Placed(folder=root, names=frozenset(names))

    def _commit(self, units: Sequence[Unit], written: Written, placed: _Placed) -> frozenset[str]:
        """Commit the batch, redone on conflict; returns units that somebody else delivered first, else nothing."""
        started_s = self._lake.clock.monotonic_s()
        attempts = count(1)
        lost = retry(
            lambda: self._commit_once(units, written, placed, attempt=next(attempts)),
            policy=self._lake.redo(),
            clock=self._lake.clock,
            on=(ConflictError, CommitUnknownError, LakeUnavailableError, LockTimeoutError),
        )
        self._tally.commit_s += self._lake.clock.monotonic_s() - started_s
        if not lost:
            self._count(units, written)
        return lost

    def _commit_once(self, units: Sequence[Unit], written: Written, placed: _Placed, *, attempt: int) -> frozenset[str]:
        if attempt > 1:
            there = self._look_again(units)
            if there:
                # Either our own COMMIT landed though we were told nothing, or another process was faster.
                ours = all(each.job_id == self._job.job_id for each in there.values())
                return frozenset() if ours else frozenset(there)
        try:
            self._lake.commit(self._value(units, written, placed))
        except (ConflictError, CommitUnknownError) as error:
            events.emit("commit_redone", job=self._job.job_id, batch=self._number, reason=error.message)
            raise
        faults.reach("deliver.after_commit")
        self._tally.claim = replace(self._tally.claim, seq=self._tally.claim.seq + len(units))
        return frozenset()

    def _look_again(self, units: Sequence[Unit]) -> dict[str, Delivery]:
        """Where the producer stands now, under the epoch that we hold, and which of the units are there."""
        with self._lake.ledger() as ledger:
            current = ledger.read(self._plan.producer)
            there = ledger.delivered((unit.id for unit in units), self._plan.target.uuid)
        if current is not None:
            self._tally.claim = replace(self._tally.claim, seq=current.seq)
        return there

    def _value(self, units: Sequence[Unit], written: Written, placed: _Placed) -> Commit:
        claim = self._tally.claim
        seq = claim.seq
        changes: list[Change] = [
            Advance(claim=claim, seq_to=seq + len(units)),
            Record(deliveries=tuple(self._delivery(unit, written, seq + at) for at, unit in enumerate(units, 1))),
        ]
        if placed.names:
            changes.append(
                RegisterFiles(
                    table=self._plan.target.id,
                    folder=str(placed.folder),
                    names=placed.names,
                    partitioned=bool(self._plan.shape.partition_by),
                    allow_missing=written.adopted,
                )
            )
        return Commit(
            message=f"deliver {len(units)} units to {self._plan.target.id}",
            requires=(
                TableIs(table=self._plan.target),
                Undelivered(unit_ids=tuple(unit.id for unit in units), table_uuid=self._plan.target.uuid),
            ),
            changes=tuple(changes),
            info={
                "job": self._job.job_id,
                "producer": str(self._plan.producer),
                "units": [unit.id for unit in units[:_INFO_UNITS_MAX]],
            },
        )

    def _delivery(self, unit: Unit, written: Written, seq: int) -> Delivery:
        facts = written.units[unit.id]
        return Delivery(
            unit_id=unit.id,
            producer=self._plan.producer,
            epoch=self._tally.claim.epoch,
            seq_first=seq,
            seq_last=seq,
            table=self._plan.target.id,
            table_uuid=self._plan.target.uuid,
            mode=facts.mode,
            rows=facts.rows,
            bytes=unit.bytes,
            digest=facts.digest,
            source=unit.source,
            job_id=self._job.job_id,
            delivered_at=self._lake.clock.now(),
        )

    def _count(self, units: Sequence[Unit], written: Written) -> None:
        rows = sum(written.units[unit.id].rows for unit in units)
        self._tally.delivered += len(units)
        self._tally.rows += rows
        self._tally.files += len(written.files)
        self._tally.bytes += sum(each.bytes for each in written.files)
        events.emit(
            "delivered",
            job=self._job.job_id,
            table=str(self._plan.target.id),
            units=len(units),
            rows=rows,
            files=len(written.files),
        )
