"""Backfill: copy a schema's tables, as of a snapshot of one lake, into another lake exactly once.

    claim (plan again after another run) ──▶ create tables ──▶ deliver files, a unit each ──▶ record the marks

A data file at the snapshot is a unit of the target's ledger, so an interrupted run resumes where it
stopped. A file is adopted unchanged if it contains exactly the table's rows and columns. Otherwise
it is rewritten with the deletions and the columns of the snapshot.

Maintenance of the source may merge files of the snapshot into others, and it is then unknown which
of their rows were copied. Such a table is created again and copied from the start, unless it has
its mark: a unit without files that records that it is complete. Every run takes over the producers,
so that a forgotten run with a plan of older files is fenced.

Only its age protects the snapshot. Maintenance expires it after `lake_snapshot_keep_hours`, and
deletes merged files after `lake_orphan_keep_hours`. A backfill that takes longer fails, and its
copied files stay recorded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from catchment.errors import ConflictError, InputError
from catchment.foundation import files, ids, sql
from catchment.foundation.backoff import retry
from catchment.foundation.ids import ProducerId, TableId
from catchment.foundation.text import plural
from catchment.lake import Claim, Commit, Delivery, Lake, Table, tables, types
from catchment.lake.commit import (
    Advance,
    Change,
    CreateTable,
    DropTable,
    Precondition,
    RecordUnits,
    TableIs,
    Undelivered,
)
from catchment.lake.ledger import Ledger
from catchment.lake.placeholders import has_token
from catchment.lake.snapshot_schema import SnapshotFile, SnapshotTable, differences, has_snapshot, schema_at
from catchment.pipeline.deliver import Deliverer, DeliveryReport
from catchment.pipeline.plan import Plan, Unit
from catchment.pipeline.work import Input, LakeFile, Mode

KIND = "tenant"
Progress = Callable[[int, int], None]
# Text in a `key=value` folder that stands for NULL; an empty value does too.
_NO_VALUE = ("null", "__hive_default_partition__", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCopy:
    """Work to do for one table. `reasons` are known reasons to rewrite a file, by unit.

    `target` is None if the table does not exist yet. If `is_stale`, it has rows of files that the
    source has merged since, and is created again.
    """

    source: Table
    claim: Claim
    units: tuple[Unit, ...]
    mark: Unit
    reasons: Mapping[str, str]
    target: Table | None
    delivered: frozenset[str]
    is_stale: bool

    @property
    def id(self) -> TableId:
        return self.source.id

    @property
    def producer(self) -> ProducerId:
        return self.claim.producer

    @property
    def is_complete(self) -> bool:
        return self.mark.id in self.delivered

    @property
    def bytes(self) -> int:
        return sum(unit.bytes for unit in self.units)

    @property
    def left(self) -> tuple[Unit, ...]:
        """Units that the target does not have."""
        if self.is_complete:
            return ()
        return tuple(unit for unit in self.units if self.is_stale or unit.id not in self.delivered)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPlan:
    """A backfill as it would run now."""

    schema: str
    snapshot: int
    token: str
    tables: tuple[TableCopy, ...]

    @property
    def bytes(self) -> int:
        return sum(table.bytes for table in self.tables)

    @property
    def is_complete(self) -> bool:
        """Whether the target has everything."""
        return all(table.is_complete for table in self.tables)

    def explain(self) -> Iterator[str]:
        """Yield the plan as sentences for the operator."""
        left = [unit for table in self.tables for unit in table.left]
        size = sum(unit.bytes for unit in left) / 1e6
        yield (
            f"{plural(len(self.tables), 'table')} of schema {self.schema} at snapshot {self.snapshot}: "
            f"{plural(len(left), 'file')} with {size:,.1f} MB to copy."
        )
        for table in self.tables:
            yield from _explained(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfilledTable:
    """Files and rows that a run copied for one table; the target already had `skipped` files."""

    table: TableId
    copied: int
    skipped: int
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """Result of a run."""

    tables: tuple[BackfilledTable, ...]
    seconds: float

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def files(self) -> int:
        return sum(table.files for table in self.tables)

    @property
    def bytes(self) -> int:
        return sum(table.bytes for table in self.tables)


class Backfill:
    """Copies tables from one lake into the one that the deliverer delivers to."""

    def __init__(self, source: Lake, target: Deliverer) -> None:
        self._source = source
        self._deliverer = target
        self._target = target.lake
        if files.real_path(source.address.data_path) == files.real_path(self._target.address.data_path):
            raise InputError("Source and target of a backfill are the same lake.", hint="Name two lakes.")

    def plan(self, schema: str, snapshot: int, token: str) -> BackfillPlan:
        """Plan a run as of now, without side effects.

        `token` names the backfill: another token starts a new one.
        """
        encrypted = self._target.is_encrypted()
        return BackfillPlan(
            schema=schema,
            snapshot=snapshot,
            token=token,
            tables=tuple(
                self._copy(replace(past, table=replace(past.table, encrypted=encrypted)), snapshot, token)
                for past in schema_at(self._source, schema, snapshot)
            ),
        )

    def run(self, plan: BackfillPlan, progress: Progress | None = None) -> BackfillReport:
        """Copy missing files. `progress` is called with the bytes done and the total.

        Changes since the plan was made are taken into account.
        """
        started_s = self._target.clock.monotonic_s()
        reports: list[BackfilledTable] = []
        if not plan.is_complete:
            claims = self._claim([table.producer for table in plan.tables])
            if not all(_follows(claims[table.producer], table.claim) for table in plan.tables):
                plan = self.plan(plan.schema, plan.snapshot, plan.token)
            todo = [table for table in plan.tables if not table.is_complete]
            self._make_tables(todo, claims)
            reports = self._deliver(plan, todo, claims, progress or (lambda done, total: None))
        seconds = self._target.clock.monotonic_s() - started_s
        done = {report.table for report in reports}
        reports += [_skipped_report(table) for table in plan.tables if table.id not in done]
        return BackfillReport(tables=tuple(sorted(reports, key=lambda report: report.table)), seconds=seconds)

    def _copy(self, past: SnapshotTable, snapshot: int, token: str) -> TableCopy:
        table = past.table
        for column in table.columns:
            types.require_deliverable(column)
        producer = ProducerId(KIND, str(table.id), token)
        key = (token, table.uuid, snapshot)
        units: list[Unit] = []
        reasons: dict[str, str] = {}
        for file in past.files:
            source = _input(past, file, snapshot)
            unit = Unit(
                id=ids.unit_id(KIND, *key, file.path),
                source=file.path,
                inputs=(source,),
                prefers=Mode.ADOPT if _required(source).obstacle is None else Mode.REWRITE,
            )
            units.append(unit)
            reason = _required(source).obstacle
            if reason is not None:
                reasons[unit.id] = reason
        mark = Unit(id=ids.unit_id(KIND, *key), source=f"{table.id} at snapshot {snapshot}", inputs=())
        target, claim, delivered, is_stale = self._target_state(table, producer, mark, {unit.id for unit in units})
        return TableCopy(
            source=table,
            claim=claim,
            units=tuple(units),
            mark=mark,
            reasons=reasons,
            target=target,
            delivered=delivered,
            is_stale=is_stale,
        )

    def _target_state(
        self, source: Table, producer: ProducerId, mark: Unit, wanted: set[str]
    ) -> tuple[Table | None, Claim, frozenset[str], bool]:
        """Return the target's table, the claim, delivered units, and whether files were merged."""
        lake = self._target
        with lake.snapshot() as connection:
            ledger = Ledger(connection, lake.name)
            claim = ledger.join(producer)
            target = tables.find_table(connection, lake.name, source.id, data_path=lake.address.data_path)
            if target is None:
                return None, claim, frozenset(), False
            deliveries = ledger.deliveries(producer)
            row = connection.execute(
                f"SELECT count(*) FROM {sql.qualified(lake.name, source.id.schema, source.id.name)}"
            ).fetchone()
        own = [each for each in deliveries if each.table_uuid == target.uuid]
        delivered = frozenset(each.unit_id for each in own)
        if mark.id in delivered:
            return target, claim, delivered, False
        unequal = differences(source, target)
        if unequal:
            raise InputError(
                f"The target has a different table {source.id}: {'; '.join(unequal)}.",
                hint="Drop it there, or change it to match the source.",
            )
        copied_rows = sum(each.rows for each in own)
        if row is not None and row[0] != copied_rows:
            raise InputError(
                f"Table {source.id} of the target has {row[0]} rows, of which this backfill delivered {copied_rows}.",
                hint="Find out where the rows come from. Drop the table there if they are not needed.",
            )
        return target, claim, delivered, not delivered <= wanted

    def _claim(self, producers: Sequence[ProducerId]) -> dict[ProducerId, Claim]:
        """Take over all producers in one transaction."""
        lake = self._target

        def take() -> dict[ProducerId, Claim]:
            with lake.write() as connection:
                ledger = Ledger(connection, lake.name)
                for producer in producers:
                    if ledger.read(producer) is None:
                        ledger.seed(producer, lake.clock.now())
                    ledger.claim(producer, lake.clock.now())
                return {producer: ledger.join(producer) for producer in producers}

        return retry(take, policy=lake.redo(), clock=lake.clock, on=ConflictError)

    def _make_tables(self, copies: Sequence[TableCopy], claims: Mapping[ProducerId, Claim]) -> None:
        """Create missing tables and recreate stale ones, unless another run took over."""
        requires: list[Precondition] = []
        changes: list[Change] = []
        for table in copies:
            if table.target is not None and not table.is_stale:
                continue
            claim = claims[table.producer]
            changes.append(Advance(claim=claim, seq_to=claim.seq))
            if table.target is not None:
                requires.append(TableIs(table=table.target))
                changes.append(DropTable(table=table.id))
            changes.append(
                CreateTable(
                    table=table.id,
                    columns=table.source.columns,
                    partition_by=table.source.partition_by,
                    sort_by=table.source.sort_by,
                )
            )
        if changes:
            self._commit(Commit(message="tables of a backfill", requires=tuple(requires), changes=tuple(changes)))

    def _deliver(
        self,
        plan: BackfillPlan,
        copies: Sequence[TableCopy],
        claims: Mapping[ProducerId, Claim],
        progress: Progress,
    ) -> list[BackfilledTable]:
        done = sum(table.bytes for table in plan.tables if table.is_complete)

        def retire(unit: Unit) -> None:
            nonlocal done
            done += unit.bytes
            progress(done, plan.bytes)

        orders = [self._order(table, table.units, claims) for table in copies]
        reports = self._deliverer.deliver_together([(order, retire) for order in orders])
        self._refuse_failures(plan, reports)
        self._mark(copies, orders, reports)
        return [_report(report) for report in reports]

    def _mark(self, copies: Sequence[TableCopy], orders: Sequence[Plan], reports: Sequence[DeliveryReport]) -> None:
        """Record that the tables are complete, in one commit."""
        requires: list[Precondition] = []
        changes: list[Change] = []
        for table, order, report in zip(copies, orders, reports, strict=True):
            claim = replace(order.claim, seq=order.claim.seq + report.delivered)
            requires += [
                TableIs(table=order.target),
                Undelivered(unit_ids=(table.mark.id,), table_uuid=order.target.uuid),
            ]
            delivery = Delivery(
                unit_id=table.mark.id,
                producer=claim.producer,
                epoch=claim.epoch,
                seq_first=claim.seq + 1,
                seq_last=claim.seq + 1,
                table=table.id,
                table_uuid=order.target.uuid,
                mode=Mode.REWRITE,
                rows=0,
                bytes=0,
                digest=None,
                source=table.mark.source,
                job_id=report.job_id,
                delivered_at=self._target.clock.now(),
            )
            changes += [Advance(claim=claim, seq_to=claim.seq + 1), RecordUnits(deliveries=(delivery,))]
        if changes:
            self._commit(Commit(message="a backfill is complete", requires=tuple(requires), changes=tuple(changes)))

    def _commit(self, commit: Commit) -> None:
        lake = self._target
        retry(lambda: lake.commit(commit), policy=lake.redo(), clock=lake.clock, on=ConflictError)

    def _order(self, table: TableCopy, units: Sequence[Unit], claims: Mapping[ProducerId, Claim]) -> Plan:
        planned = self._deliverer.plan_units(units, producer=table.producer, table=table.id, mode=Mode.AUTO)
        # With the epoch that this run claimed: a process that has taken over since then fences it.
        return replace(planned, claim=replace(planned.claim, epoch=claims[table.producer].epoch))

    def _refuse_failures(self, plan: BackfillPlan, reports: Sequence[DeliveryReport]) -> None:
        for report in reports:
            if report.error is not None:
                raise report.error
        failures = [failure for report in reports for failure in report.failures]
        if failures:
            gone = not has_snapshot(self._source, plan.snapshot)
            why = f"Snapshot {plan.snapshot} has expired. " if gone else ""
            raise InputError(
                f"{why}{plural(len(failures), 'file')} could not be copied; the first: {failures[0].reason}",
                hint=(
                    "Start again with a newer snapshot and another token."
                    if gone
                    else "Copied files are recorded. Run it again; if files are gone, use a newer snapshot."
                ),
            )


def _follows(claim: Claim, before: Claim) -> bool:
    """Return whether no other process took over the producer or delivered for it in between."""
    return (claim.epoch, claim.seq) == (before.epoch + 1, before.seq)


def _input(past: SnapshotTable, file: SnapshotFile, snapshot: int) -> Input:
    place, obstacle = _place(past.table, file)
    how = LakeFile(
        fields=past.fields,
        snapshot=snapshot,
        names=file.names,
        is_partial=file.is_partial,
        deletes=file.deletes,
        deletes_are_partial=file.deletes_are_partial,
        place=place,
        obstacle=obstacle,
    )
    return Input(uri=file.path, bytes=file.bytes, lake_file=how)


def _place(table: Table, file: SnapshotFile) -> tuple[str, str | None]:
    """Return the folder for the file, and why it cannot be adopted, as far as the catalog shows."""
    if table.insert_reason is not None:
        return ".", f"its rows are inserted, because {table.insert_reason}"
    if file.deletes is not None:
        return ".", "some of its rows are deleted"
    if file.is_partial:
        return ".", "it was merged from files of several snapshots"
    values = file.partition
    if values is None or len(values) != len(table.partition_by):
        return ".", "it is not partitioned as the table is"
    plain = [value for value in values if value is not None and value.casefold() not in _NO_VALUE]
    if len(plain) != len(values) or any(has_token(value) for value in plain):
        return ".", "it is partitioned by a value that a folder name cannot represent"
    keys = (key.folder for key in table.partition_by)
    return "/".join(f"{key}={quote(value, safe='')}" for key, value in zip(keys, plain, strict=True)) or ".", None


def _required(source: Input) -> LakeFile:
    assert source.lake_file is not None
    return source.lake_file


def _explained(table: TableCopy) -> Iterator[str]:
    if table.is_complete:
        yield f"{table.id}: complete."
        return
    rewritten = [unit for unit in table.left if unit.id in table.reasons]
    adopted = plural(len(table.left) - len(rewritten), "file")
    parts = [f"{adopted} to adopt if the columns match the table's", f"{len(rewritten)} to rewrite"]
    if table.target is None:
        parts.insert(0, "to be created")
    if table.is_stale:
        parts.insert(0, "to be created again, because copied files of it have been merged since")
    elif table.delivered:
        parts.append(f"{len(table.delivered)} already copied")
    yield f"{table.id}: {', '.join(parts)}."
    for reason in dict.fromkeys(table.reasons[unit.id] for unit in rewritten):
        number = sum(1 for unit in rewritten if table.reasons[unit.id] == reason)
        yield f"{table.id}: {plural(number, 'file')} to rewrite: {reason}."


def _report(report: DeliveryReport) -> BackfilledTable:
    return BackfilledTable(
        table=report.table,
        copied=report.delivered,
        skipped=report.skipped,
        rows=report.rows,
        files=report.files,
        bytes=report.bytes,
    )


def _skipped_report(table: TableCopy) -> BackfilledTable:
    return BackfilledTable(table=table.id, copied=0, skipped=len(table.units), rows=0, files=0, bytes=0)
