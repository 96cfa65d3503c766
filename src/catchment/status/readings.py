"""Sources of the status: each function reads one source, and raises the error that prevents it."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from catchment.app import App
from catchment.control import ControlDatabase
from catchment.errors import CatchmentError, LakeMissingError, StateError
from catchment.lake import last_audit
from catchment.lake.last_audit import LastAudit
from catchment.lake.overview import NOTHING, Overview, overview
from catchment.pipeline.legacy import known_imports
from catchment.pipeline.legacy.folders import ImportFolders, ImportPhase
from catchment.pipeline.legacy.import_plan import ImportOptions
from catchment.pipeline.legacy.report import ImportStatus as LegacyStatus
from catchment.pipeline.plan import ADOPT_BYTES_MIN
from catchment.queue.coordinator import QueueStatus, TableStatus
from catchment.status import schemas
from catchment.status.model import (
    Audit,
    Delivered,
    FinishedMove,
    Import,
    Imports,
    LakePart,
    LakeTable,
    LeafProblem,
    MoveFacts,
    QuarantinedFileStatus,
    Queue,
    QueueTable,
    SchemaDatabase,
    ShardFacts,
    TenantFacts,
    Tenants,
)
from catchment.status.recorder import Recorder
from catchment.tenants.control import topology_of
from catchment.tenants.model import Complete, Finalizing, MoveInfo

# Tables, and tenants, that the status lists; totals cover all of them.
TABLES_MAX = 200
DELIVERIES_MAX = 20
PROBLEMS_MAX = 20
FINISHED_MAX = 20
UNCLEAR = "unclear"
_UNCLEAR = LegacyStatus(
    phase=ImportPhase.IMPORTING,
    data="",
    migrating="",
    migrated="",
    leaves_left=0,
    leaves_imported=0,
    bytes_left=0,
    tables_made=(),
    quarantined=(),
    failures=(),
)


def queue(found: QueueStatus, lake: LakePart | None, recorder: Recorder) -> Queue:
    """Read the queue; dead letters are included if the lake has answered."""
    letters = None if lake is None else {each.table: each.dead_letters for each in lake.tables}
    tables = [_queue_table(each, found.at, letters, recorder) for each in found.tables]
    # Failing tables first, then the largest.
    tables.sort(key=lambda each: (-each.failures, -each.bytes, each.table))
    ages = [each.oldest_age_s for each in tables if each.oldest_age_s is not None]
    return Queue(
        layout=found.layout,
        root=found.root,
        rows=sum(each.rows for each in tables),
        bytes=found.bytes,
        bytes_max=found.bytes_max,
        oldest_age_s=max(ages, default=None),
        tables_total=len(tables),
        tables=tuple(tables[:TABLES_MAX]),
        set_aside=tuple(QuarantinedFileStatus(path=str(each.path), reason=each.reason) for each in found.quarantined),
    )


def _queue_table(each: TableStatus, now: datetime, letters: dict[str, int] | None, recorder: Recorder) -> QueueTable:
    state, failure, name = each.state, each.failure, str(each.state.table)
    return QueueTable(
        table=name,
        rows=state.rows,
        bytes=state.bytes,
        oldest_age_s=_age_s(now, state.oldest_at) if state.rows else None,
        trigger=each.trigger,
        flushing=each.flushing,
        seq_last=state.seq_last,
        seq_flushed=state.seq_flushed,
        failures=0 if failure is None else failure.failures,
        reason=None if failure is None else failure.reason,
        retry_at=None if failure is None else failure.retry_at,
        dead_letters=None if letters is None else letters.get(name, 0),
        last_flushes=recorder.flushes(name),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSeen:
    """Result of one read of the lake: its state, and the state of its schemas' migrations."""

    lake: LakePart
    schemas: tuple[SchemaDatabase, ...]


def lake(app: App) -> LakeSeen:
    """Read the lake from its catalog; a missing lake is not created and gives empty values."""
    try:
        seen = overview(app.existing_lake, small_bytes=ADOPT_BYTES_MIN, deliveries_max=DELIVERIES_MAX)
    except LakeMissingError:
        seen = NOTHING
    part = _lake_part(seen, last_audit.last(app.settings.home))
    return LakeSeen(lake=part, schemas=schemas.recorded(app.settings.lake_name, seen.migrated))


def _lake_part(seen: Overview, done: LastAudit | None) -> LakePart:
    tables = [
        LakeTable(
            table=str(each.table),
            files=each.files,
            bytes=each.bytes,
            rows=each.rows,
            small_files=each.small_files,
            dead_letters=seen.dead_letters.get(each.table, 0),
        )
        for each in seen.tables
    ]
    files, small = sum(each.files for each in tables), sum(each.small_files for each in tables)
    # Tables with the most dead letters first, then those with the most files.
    tables.sort(key=lambda each: (-each.dead_letters, -each.files, each.table))
    return LakePart(
        tables_total=len(tables),
        files=files,
        bytes=sum(each.bytes for each in tables),
        rows=sum(each.rows for each in tables),
        small_files=small,
        small_file_share=round(small / files, 4) if files else 0.0,
        snapshots=seen.snapshots,
        snapshot_newest=seen.snapshot_newest,
        snapshot_at=seen.snapshot_at,
        # Includes dead letters of dropped tables.
        dead_letters=sum(seen.dead_letters.values()),
        tables=tuple(tables[:TABLES_MAX]),
        last_deliveries=_delivered(seen),
        last_audit=None if done is None else Audit(at=done.at, ok=done.ok, findings=done.findings, notes=done.notes),
    )


def _delivered(seen: Overview) -> tuple[Delivered, ...]:
    return tuple(
        Delivered(
            at=each.delivered_at,
            table=str(each.table),
            unit=each.unit_id,
            producer=str(each.producer),
            rows=each.rows,
            bytes=each.bytes,
            snapshot=each.snapshot_id,
        )
        for each in seen.deliveries
    )


def imports(app: App) -> Imports:
    """Read the legacy imports of this home from their folders."""
    found = (_import(app, place, options) for place, options in known_imports.remembered(app.settings.home))
    return Imports(imports=tuple(each for each in found if each.phase != ImportPhase.NOTHING))


def _import(app: App, place: ImportFolders, options: ImportOptions) -> Import:
    try:
        status = app.legacy_import(place, options).status()
    except CatchmentError as error:
        # An import with contradicting folders must not hide the others.
        status, phase = _UNCLEAR, UNCLEAR
        problems: tuple[LeafProblem, ...] = (LeafProblem(leaf="", reason=error.message),)
    else:
        problems = tuple(LeafProblem(leaf=each.leaf, reason=each.reason) for each in status.failures[:PROBLEMS_MAX])
        phase = status.phase.value
    leaves = status.leaves_left + status.leaves_imported
    return Import(
        id=hashlib.sha256(f"{place.data}\0{place.migration}".encode()).hexdigest()[:8],
        data=str(place.data),
        phase=phase,
        running=status.running,
        progress=round(status.leaves_imported / leaves, 4) if leaves else float(status.phase is ImportPhase.DONE),
        leaves_left=status.leaves_left,
        leaves_imported=status.leaves_imported,
        leaves_failed=len(status.failures),
        files_quarantined=len(status.quarantined),
        files_left_out=status.files_left_out,
        bytes_left=status.bytes_left,
        problems=problems,
    )


def tenants(app: App) -> Tenants:
    """Read tenants, shards and moves from the control database; a missing one is not created."""
    examined = ControlDatabase.examine(app.settings)
    if not examined.exists:
        return Tenants(tenants_total=0, shards=(), tenants=(), moves=())
    if examined.pending:
        # Opening it would upgrade it, and reading the status must not change anything.
        raise StateError("The control database is older than this program.", hint="`catchment serve` upgrades it.")
    now = app.clock.now()
    facts = app.control_store.facts()
    seen = topology_of(facts, now=now)
    lags = {shard: report.replication_lag_s for shard, report in seen.reports.items()}
    return Tenants(
        tenants_total=len(seen.assignments),
        shards=tuple(
            ShardFacts(
                shard=str(each.id),
                region=each.region,
                draining=each.is_draining,
                tenants=sum(tenant.shard == each.id for tenant in seen.assignments),
                seen_age_s=_age_s(now, seen.reports[each.id].seen_at),
                lag_s=lags[each.id],
            )
            for each in seen.shards
        ),
        tenants=tuple(
            TenantFacts(tenant=str(each.id), name=each.name, shard=str(each.shard), epoch=each.epoch)
            for each in seen.assignments[:TABLES_MAX]
        ),
        moves=tuple(_move(each, now, lags.get(each.source, 0.0)) for each in seen.moves),
        finished=_finished(facts.moves),
    )


def _move(move: MoveInfo, now: datetime, lag_s: float) -> MoveFacts:
    return MoveFacts(
        tenant=str(move.tenant),
        move=move.token,
        source=str(move.source),
        target=str(move.target),
        phase=move.state.name,
        phase_age_s=_age_s(now, move.updated_at) or 0.0,
        lag_s=lag_s,
        pause_ms=_pause_ms(move),
    )


def _finished(moves: Iterable[MoveInfo]) -> tuple[FinishedMove, ...]:
    over = [(move.finished_at, move) for move in moves if move.finished_at is not None]
    over.sort(key=lambda each: (each[0], each[1].id), reverse=True)
    return tuple(
        FinishedMove(
            tenant=str(move.tenant),
            move=move.token,
            source=str(move.source),
            target=str(move.target),
            outcome=move.outcome or "aborted",
            at=at,
            seconds=_age_s(at, move.created_at) or 0.0,
            pause_ms=_pause_ms(move),
        )
        for at, move in over[:FINISHED_MAX]
    )


def _pause_ms(move: MoveInfo) -> float | None:
    return move.state.pause_ms if isinstance(move.state, Finalizing | Complete) else None


def _age_s(now: datetime, then: datetime | None) -> float | None:
    return None if then is None else max(0.0, round((now - then).total_seconds(), 3))
