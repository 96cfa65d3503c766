"""Flush: delivers payloads of the queue's buffer as units, several tables in one Spark job.

A payload is delivered to the table and columns that its rows are bound to, even if they were
renamed since. If the table has been dropped, the rows stay buffered: they are stranded, and do not
block others.

    payloads ──▶ stage (Arrow files, or the sealed segments) ──▶ deliver together ──▶ retire
                                                                       │
      a unit that cannot be delivered is split: the commit that delivers its good rows
      stores its bad ones as dead letters
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile

import pyarrow as pa

from catchment.errors import BufferOutdatedError, CatchmentError, InputError, PreconditionError
from catchment.foundation import events, faults, files, ids
from catchment.foundation.ids import TableId
from catchment.foundation.settings import MIB
from catchment.lake import Claim, DeadLetter, Table, dead_letters, extensions, reshape, tables, types
from catchment.lake.staging import JobFolder, Staging
from catchment.pipeline.bad_rows import sift, write_arrow
from catchment.pipeline.deliver import Deliverer, DeliveryReport, Retire
from catchment.pipeline.plan import Plan, Unit
from catchment.pipeline.work import Format, Input, Mode
from catchment.queue.buffer import AT, SEQ, Buffer, FlushPayload, Progress, TableFlush, merged

# The queue exists to avoid small files: a second file is started only if both become this large.
FILE_BYTES_MIN = 64 * MIB
_STAGED_BYTES_MAX = 1024 * MIB
_WEIGHT_AT_FIRST = 0.3
_STAGERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedTable:
    """A plan for payloads that are buffered under one name."""

    table: TableId
    plan: Plan
    retire: Retire


@dataclass(slots=True)
class _FlushJob:
    """Payloads that one job delivers, table by table, and their results.

    `targets` has the current name of each payload's table, by payload id.
    """

    staging: JobFolder
    payloads: dict[str, FlushPayload]
    targets: Mapping[str, TableId]
    units: dict[str, Unit] = field(default_factory=dict)
    separated: set[str] = field(default_factory=set)
    done: list[TableFlush] = field(default_factory=list)
    unretired: list[FlushPayload] = field(default_factory=list)

    def arrived(self, unit_id: str) -> None:
        self.units.pop(unit_id, None)
        self.unretired.append(self.payloads[unit_id])

    def take_arrived(self) -> list[FlushPayload]:
        arrived, self.unretired = self.unretired, []
        return arrived

    def of(self, table: TableId) -> list[Unit]:
        return [unit for unit_id, unit in self.units.items() if self.payloads[unit_id].table == table]

    def next_of(self, table: TableId) -> list[Unit]:
        """Return the first units under the name, in order, that belong to one table of the lake."""
        units = self.of(table)
        return list(takewhile(lambda unit: self.targets[unit.id] == self.targets[units[0].id], units))

    def give_up(self, table: TableId, error: str) -> None:
        self.done.append(TableFlush(table=table, errors=(error,)))
        for unit in self.of(table):
            del self.units[unit.id]


class FlushPipeline:
    """Delivers payloads of one buffer into one lake."""

    def __init__(self, deliverer: Deliverer, buffer: Buffer) -> None:
        self._deliverer = deliverer
        self._lake = deliverer.lake
        self._buffer = buffer
        # Parquet bytes per byte of Arrow, by table, measured in its last flush.
        self._weights: dict[TableId, float] = {}
        # Positions of the tables' producers when rows were chosen, for the next plan.
        self._claims: dict[TableId, Claim | None] = {}

    def catch_up(self, tables: Sequence[TableId]) -> dict[TableId, str]:
        # The lake may have been unavailable when this process started.
        self._lake.open()
        producers = {table: self._buffer.producer(table) for table in tables}
        with self._lake.ledger() as ledger:
            found = ledger.read_all(producers.values())
        claims = {table: found.get(producer) for table, producer in producers.items()}
        self._claims.update(claims)
        refused: dict[TableId, str] = {}
        for table, claim in claims.items():
            before = self._buffer.state(table)
            try:
                self._buffer.flushed_through(table, 0 if claim is None else claim.seq)
            except BufferOutdatedError as error:
                refused[table] = error.message
                continue
            after = self._buffer.state(table)
            if before is not None and after is not None and after.seq_flushed > before.seq_flushed:
                # The lake already had these rows; the process that delivered them ended before it
                # retired them.
                seqs = f"{before.seq_flushed + 1}..{after.seq_flushed}"
                rows = after.seq_flushed - before.seq_flushed
                events.emit("replay_skipped", table=str(table), seqs=seqs, rows=rows)
        return refused

    def flush(
        self, payloads: Sequence[FlushPayload], progress: Progress | None = None, *, into: TableId | None = None
    ) -> tuple[TableFlush, ...]:
        stuck: set[TableId] = set()
        try:
            targets = self._targets(payloads, into)
            remaining = self._without_arrived(payloads, targets, into)
            done = [
                TableFlush(table=payload.table, stranded=payload.rows)
                for payload in remaining
                if payload.id not in targets
            ]
            for some in _groups([payload for payload in remaining if payload.id in targets]):
                # Rows of a table are delivered in order: those after failed ones have to wait.
                for each in self._deliver([payload for payload in some if payload.table not in stuck], targets):
                    done.append(each)
                    if each.errors:
                        stuck.add(each.table)
                    if progress is not None:
                        progress(each)
        finally:
            for payload in payloads:
                self._buffer.release(payload)
        return merged(done)

    def _targets(self, payloads: Sequence[FlushPayload], into: TableId | None) -> dict[str, TableId]:
        """Return each payload's table, by payload id; payloads of dropped tables are left out."""
        if into is not None:
            return dict.fromkeys((payload.id for payload in payloads), into)
        uuids = {payload.id: types.table_of(payload.columns) for payload in payloads}
        with self._lake.snapshot() as connection:
            names = {uuid: table for table, uuid in tables.list_uuids(connection, self._lake.name).items()}
        targets = {payload.id: names.get(uuids[payload.id] or "") for payload in payloads}
        # Rows bound to no table, by an earlier version of Catchment or for another lake, are
        # matched by the table's name.
        unbound = {payload.id: payload.table for payload in payloads if uuids[payload.id] is None}
        return {**{unit_id: home for unit_id, home in targets.items() if home is not None}, **unbound}

    def _without_arrived(
        self, payloads: Sequence[FlushPayload], targets: Mapping[str, TableId], into: TableId | None
    ) -> list[FlushPayload]:
        """Retire payloads that were delivered before their table was dropped; return the others.

        The process that delivered them may have ended before it retired them. Deliveries into an
        existing table detect this themselves, and payloads with positions are recognized by their
        producer's position.
        """
        doubtful: dict[str, list[FlushPayload]] = {}
        for payload in payloads:
            uuid = types.table_of(payload.columns)
            if uuid is not None and payload.seqs is None and (into is not None or payload.id not in targets):
                doubtful.setdefault(uuid, []).append(payload)
        if not doubtful:
            return list(payloads)
        with self._lake.ledger() as ledger:
            arrived = {
                unit_id
                for uuid, some in doubtful.items()
                for unit_id in ledger.delivered_ids((payload.id for payload in some), uuid)
            }
        for payload in payloads:
            if payload.id in arrived:
                self._buffer.retire(payload)
        return [payload for payload in payloads if payload.id not in arrived]

    def _deliver(self, payloads: Sequence[FlushPayload], targets: Mapping[str, TableId]) -> list[TableFlush]:
        if not payloads:
            return []
        with Staging(self._lake.address.data_path, clock=self._lake.clock).job() as staging:
            job = _FlushJob(staging=staging, payloads={payload.id: payload for payload in payloads}, targets=targets)
            started_s = self._lake.clock.monotonic_s()
            # Half of reading the buffer is waiting: read two at once, in the payloads' order.
            with ThreadPoolExecutor(_STAGERS) as stagers:
                for unit in stagers.map(events.carried(partial(self._staged, staging)), payloads):
                    job.units[unit.id] = unit
            read_s = self._lake.clock.monotonic_s() - started_s
            faults.reach("queue.after_stage")
            write_s = commit_s = 0.0
            while job.units:
                planned = list(self._plan_tables(job))
                reports = self._deliverer.deliver_together([(order.plan, order.retire) for order in planned])
                for order, report in zip(planned, reports, strict=True):
                    self._handle_report(job, order, report)
                # Tables delivered together share their time.
                write_s += max((report.write_s for report in reports), default=0.0)
                commit_s += max((report.commit_s for report in reports), default=0.0)
                self._retire(job)
            events.emit("flush_timed", parcels=len(payloads), read_s=read_s, write_s=write_s, commit_s=commit_s)
        return job.done

    def _staged(self, staging: JobFolder, payload: FlushPayload) -> Unit:
        staged = self._buffer.stage(payload, staging.path)
        source = Input(
            uri=str(staged.path),
            bytes=staged.bytes,
            format=Format.ARROW if staged.relation is None else Format.DUCKDB,
            relation=staged.relation or "",
            without=() if staged.relation is None else (SEQ, AT),
            weight=self._weights.get(payload.table, _WEIGHT_AT_FIRST),
        )
        return _unit(payload, (source,))

    def _plan_tables(self, job: _FlushJob) -> Iterator[_PlannedTable]:
        for table in sorted({payload.table for payload in job.payloads.values()}):
            units = job.next_of(table)
            if units:
                payload = job.payloads[units[0].id]
                try:
                    plan = self._planned(job, units, payload)
                except InputError as error:
                    job.give_up(table, error.message)
                else:
                    yield _PlannedTable(table=table, plan=plan, retire=lambda unit: job.arrived(unit.id))

    def _planned(self, job: _FlushJob, units: Sequence[Unit], first: FlushPayload) -> Plan:
        home = job.targets[first.id]
        target = self._lake.find_shape(home)
        if target is not None:
            # Sifted rows already have the table's columns.
            units = [
                unit if unit.id in job.separated else _matched(unit, job.payloads[unit.id], target) for unit in units
            ]
        plan = self._deliverer.plan_units(
            units,
            producer=first.producer,
            table=home,
            mode=Mode.REWRITE,
            claim=self._claim(first.table, units),
        )
        if target is not None and plan.target.columns != target.columns:
            raise PreconditionError(f"{home} has just been changed.", hint="Flush again.")
        return plan

    def _claim(self, table: TableId, units: Sequence[Unit]) -> Claim | None:
        """Return and forget the claim read when the units were chosen, if they continue from it."""
        claim, first = self._claims.pop(table, None), units[0].seqs
        return claim if claim is not None and first is not None and first[0] == claim.seq + 1 else None

    def _retire(self, job: _FlushJob) -> None:
        """Retire delivered payloads; the last of consecutive slices retires all of them."""
        last: dict[tuple[TableId, str], FlushPayload] = {}
        for payload in job.take_arrived():
            last[payload.table, payload.id if payload.seqs is None else ""] = payload
        for payload in last.values():
            self._buffer.retire(payload)
            faults.reach("queue.after_retire")

    def _handle_report(self, job: _FlushJob, order: _PlannedTable, report: DeliveryReport) -> None:
        table, plan = order.table, order.plan
        staged = sum(unit.bytes for batch in plan.batches for unit in batch.units)
        if report.ok and report.bytes and staged:
            self._weights[table] = report.bytes / staged
        failures = [each for each in report.failures if each.unit_id in job.units]
        job.done.append(
            TableFlush(
                table=table,
                rows=report.rows,
                buried=report.buried,
                files=report.files,
                bytes=report.bytes,
                parcels=report.delivered,
            )
        )
        if failures and (failures[0].transient or failures[0].unit_id in job.separated):
            # Out of memory, disk or time: the rows are not bad, stay buffered, and are tried again.
            job.give_up(table, failures[0].reason)
        elif report.error is not None and not failures:
            job.give_up(table, report.error.message)
        elif failures:
            # The first failed unit blocks later ones; once it is separated, they can be delivered.
            try:
                self._separate(job, failures[0].unit_id, plan)
            except CatchmentError as error:
                job.give_up(table, error.message)

    def _separate(self, job: _FlushJob, unit_id: str, plan: Plan) -> None:
        payload = job.payloads[unit_id]
        rows = _selected(self._buffer.read(payload), _select(payload, plan.target))
        folder = job.staging.path / "sifted"
        files.make_folder(folder)
        separated = sift(rows, plan, memory_mb=self._deliverer.memory_mb, scratch=folder / "scratch")
        inputs: tuple[Input, ...] = ()
        if separated.good.num_rows:
            path = write_arrow(separated.good, folder / f"{unit_id}.arrow")
            inputs = (Input(uri=str(path), bytes=files.size_of(path), format=Format.ARROW),)
        letters = tuple(
            DeadLetter(
                id=ids.unit_id("letter", unit_id, at),
                unit_id=unit_id,
                producer=payload.producer,
                seq=payload.seq_first + at,
                table=plan.target.id,
                reason=reason,
                row=dead_letters.packed(rows.slice(at, 1)),
                buried_at=self._lake.clock.now(),
            )
            for at, reason in sorted(separated.bad.items())
        )
        events.emit(
            "sifted",
            table=str(payload.table),
            unit=unit_id,
            letter_ids=events.first_few([letter.id for letter in letters]),
            rows=payload.rows,
            bad=len(letters),
        )
        job.units[unit_id] = replace(_unit(payload, inputs), buried=letters)
        job.separated.add(unit_id)


def _unit(payload: FlushPayload, inputs: tuple[Input, ...]) -> Unit:
    return Unit(
        id=payload.id,
        source=f"{payload.path}#{payload.table}[{payload.seq_first}..{payload.seq_last}]",
        inputs=inputs,
        seqs=payload.seqs,
    )


def _matched(unit: Unit, payload: FlushPayload, target: Table) -> Unit:
    """Return the unit with its columns matched to the table's by their DuckLake identity."""
    select = _select(payload, target)
    return replace(unit, inputs=tuple(replace(each, select=select) for each in unit.inputs))


def _select(payload: FlushPayload, target: Table) -> tuple[str, ...]:
    """Return expressions that convert the payload's rows to the table; none if they fit."""
    if payload.columns == target.columns or not reshape.are_bound(payload.columns, target.columns):
        return ()
    return tuple(reshape.select_bound(payload.columns, target.columns))


def _selected(rows: pa.Table, select: tuple[str, ...]) -> pa.Table:
    if not select:
        return rows
    with extensions.scratch() as connection:
        connection.register("catchment_rows", rows)
        try:
            return connection.execute(f"SELECT {', '.join(select)} FROM catchment_rows").to_arrow_table()
        finally:
            connection.unregister("catchment_rows")


def _groups(payloads: Sequence[FlushPayload]) -> Iterator[list[FlushPayload]]:
    """Split the payloads, in order, into groups that may be staged at once."""
    group: list[FlushPayload] = []
    size = 0
    for payload in payloads:
        if group and size + payload.bytes > _STAGED_BYTES_MAX:
            yield group
            group, size = [], 0
        group.append(payload)
        size += payload.bytes
    if group:
        yield group
