"""Delivery: the state machine that flush, legacy import and backfill share.

    plan ──▶ write (Spark) ──▶ place ──▶ commit (files or rows, and ledger: one transaction) ──▶ retire
             │                 │         │ conflict: redo the commit, keep the files
             │                 │         │ unknown: ask the ledger
             └─ killed: nothing is visible; the files are orphans     └─ killed: the ledger has the units; only retire

If a unit fails, its reason is in the report and its source stays in place; the others continue.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from catchment.errors import CatchmentError, InputError, StorageFailedError
from catchment.foundation import events, faults, files
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.settings import Settings
from catchment.lake import Claim, Lake, ProducerState, Table
from catchment.lake.staging import Staging
from catchment.pipeline.batch import BatchRun, JobContext, PlanPart, PlanProgress
from catchment.pipeline.plan import ADOPT_BYTES_MIN, Bounds, Plan, Unit, plan
from catchment.pipeline.runner import Runner
from catchment.pipeline.work import Mode, UnitFailure

# Limits the files that one transaction registers and the work that a failed commit loses; large
# enough that the fixed cost of a commit does not matter.
UNITS_PER_COMMIT_MAX = 5_000

Retire = Callable[[Unit], None]


class Source(Protocol):
    """A source of units, and how to retire them once they are delivered."""

    @property
    def producer(self) -> ProducerId:
        """The name under which the ledger records the units."""
        ...

    @property
    def table(self) -> TableId:
        """The table that the units are delivered to."""
        ...

    def units(self) -> Sequence[Unit]:
        """Return every unit of the source, including delivered ones. Only reads metadata."""
        ...

    def retire(self, unit: Unit) -> None:
        """Remove the delivered unit's source. Must be safe to repeat after a crash halfway through."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryReport:
    """Result of a delivery: delivered units, units that the lake already had, and failed units.

    `buried` counts rows quarantined as dead letters. `insert_reason` is why rows were inserted
    instead of registered as files, if they were; `error` why the lake refused the whole delivery,
    if it did.
    """

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
    buried: int = 0
    insert_reason: str | None = None
    error: CatchmentError | None = None

    @property
    def ok(self) -> bool:
        return not self.failures and self.error is None


class Deliverer:
    """Delivers units to a lake exactly once, even if repeated, or run by several processes."""

    def __init__(
        self,
        lake: Lake,
        runner: Runner,
        settings: Settings,
        *,
        file_bytes_min: int = 1,
        units_per_commit_max: int | None = None,
        bytes_per_commit_max: int | None = None,
    ) -> None:
        self.lake = lake
        self.runner = runner
        self.memory_mb = settings.deliver_task_memory_mb
        self.bounds = Bounds(
            file_bytes=settings.lake_target_file_bytes,
            adopt_bytes_min=ADOPT_BYTES_MIN,
            units_per_commit_max=units_per_commit_max or UNITS_PER_COMMIT_MAX,
            parallelism=runner.parallelism,
            file_bytes_min=file_bytes_min,
            bytes_per_commit_max=bytes_per_commit_max,
        )

    def plan(self, source: Source, mode: Mode = Mode.AUTO) -> Plan:
        """Plan a delivery as of now, without side effects."""
        units = source.units()
        self._refuse_own_files(units)
        return self.plan_units(units, producer=source.producer, table=source.table, mode=mode)

    def plan_new(self, source: Source, table: Table, mode: Mode = Mode.AUTO) -> Plan:
        """Plan for a table that does not exist yet, in a lake that need not exist either."""
        units = source.units()
        self._refuse_own_files(units)
        claim = Claim(producer=source.producer, epoch=0, seq=0)
        state = ProducerState(snapshot_id=0, table=table, claim=claim, delivered=frozenset())
        return plan(state=state, units=units, mode=mode, bounds=self.bounds)

    def plan_units(
        self, units: Sequence[Unit], *, producer: ProducerId, table: TableId, mode: Mode, claim: Claim | None = None
    ) -> Plan:
        """Plan for known units. Pass a `claim` if the producer's position is known too.

        Such a claim may be older than the plan only if all units have positions in the sequence
        after it.
        """

        def ids_to_check(claim: Claim) -> Iterable[str]:
            # The ledger advances a producer with each delivery, so units after its position were
            # never delivered.
            return (unit.id for unit in units if unit.seqs is None or unit.seqs[0] <= claim.seq)

        # A rewritten file has bounds for all its columns, even if other files have none.
        state = self.lake.producer_state(producer, table, ids_to_check, shape_only=mode is Mode.REWRITE, claim=claim)
        return plan(state=state, units=units, mode=mode, bounds=self.bounds)

    def deliver(
        self, plan: Plan, retire: Retire, *, digests: bool = False, claim: Claim | None = None
    ) -> DeliveryReport:
        """Execute the plan, retiring each batch once it is delivered.

        With `digests`, adopted files are read to the end; rewritten ones always are. `claim` is the
        epoch to deliver under; without it, that of the plan is used.
        """
        (report,) = self.deliver_together([(replace(plan, claim=claim or plan.claim), retire)], digests=digests)
        if report.error is not None:
            raise report.error
        return report

    def deliver_together(
        self,
        orders: Sequence[tuple[Plan, Retire]],
        *,
        digests: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> tuple[DeliveryReport, ...]:
        """Execute several plans, each with its own producer, as one job with shared transactions.

        `stop` is called before each batch; once it returns True, the remaining units stay
        undelivered.
        """
        all_progress = [PlanProgress(claim=plan.claim) for plan, _ in orders]
        staging = Staging(self.lake.address.data_path, clock=self.lake.clock)
        with staging.job() as job, events.context(job=job.job_id):
            context = JobContext(
                lake=self.lake,
                runner=self.runner,
                bounds=self.bounds,
                job=job,
                memory_mb=self.memory_mb,
                digests=digests,
            )
            for (plan, retire), progress in zip(orders, all_progress, strict=True):
                self._retire(plan.delivered, retire, progress)
            for number in range(max((len(plan.batches) for plan, _ in orders), default=0)):
                if stop():
                    break
                parts = [
                    (
                        PlanPart(plan, progress, remaining=plan.batches[number].units, work=plan.batches[number].tasks),
                        retire,
                    )
                    for (plan, retire), progress in zip(orders, all_progress, strict=True)
                    if number < len(plan.batches) and not _is_stuck(plan, progress)
                ]
                BatchRun(context, number=number).deliver([part for part, _ in parts])
                for part, retire in parts:
                    self._retire(part.delivered, retire, part.progress)
            faults.reach("deliver.before_clean")
        reports = tuple(
            _report(job.job_id, plan, progress) for (plan, _), progress in zip(orders, all_progress, strict=True)
        )
        for report, (plan, _), progress in zip(reports, orders, all_progress, strict=True):
            if report.skipped:
                events.emit(
                    "replay_skipped",
                    job=report.job_id,
                    table=str(report.table),
                    units=report.skipped,
                    unit_ids=events.first_few([*(unit.id for unit in plan.delivered), *progress.skipped]),
                )
        return reports

    def run(self, source: Source, *, mode: Mode = Mode.AUTO, digests: bool = False) -> DeliveryReport:
        """Plan, deliver and retire."""
        return self.deliver(self.plan(source, mode), source.retire, digests=digests)

    def _refuse_own_files(self, units: Sequence[Unit]) -> None:
        # The lake would have its own files twice, and maintenance deletes unlisted files from its
        # folder.
        own = files.real_path(self.lake.address.data_path) + "/"
        uris = [each.uri for unit in units for each in unit.inputs]
        for uri, real in zip(uris, files.real_paths(uris), strict=True):
            if real.startswith(own):
                raise InputError(
                    f"{uri} is inside the lake's own data path.", hint="Deliver files from another folder."
                )

    def _retire(self, units: Sequence[Unit], retire: Retire, progress: PlanProgress) -> None:
        for unit in units:
            faults.reach("retire.before_unit")
            try:
                retire(unit)
            except StorageFailedError as error:
                # The unit is delivered, and the next run retires it; the others must not wait for
                # it.
                reason = f"{unit.source} is delivered, but cannot be retired: {error.message}"
                progress.failures.append(UnitFailure(unit_id=unit.id, path=unit.source, reason=reason))
            faults.reach("retire.after_unit")


def _is_stuck(plan: Plan, progress: PlanProgress) -> bool:
    """Return whether later batches are pointless: the plan is refused, or earlier units failed."""
    ordered = any(unit.seqs is not None for batch in plan.batches for unit in batch.units)
    return progress.error is not None or (ordered and bool(progress.failures))


def _report(job_id: str, plan: Plan, progress: PlanProgress) -> DeliveryReport:
    return DeliveryReport(
        job_id=job_id,
        table=plan.target.id,
        delivered=progress.delivered,
        skipped=len(plan.delivered) + len(progress.skipped),
        rows=progress.rows,
        files=progress.files,
        bytes=progress.bytes,
        write_s=progress.write_s,
        commit_s=progress.commit_s,
        failures=tuple(progress.failures),
        buried=progress.buried,
        insert_reason=plan.insert_reason,
        error=progress.error,
    )
