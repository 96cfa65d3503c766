"""`Status`: the state of everything at one moment. Frozen, JSON-able values; `keys.py` describes
the keys.

A part whose source is unreachable contains the reason; the other parts are not affected.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import PurePath
from typing import Any, Generic, TypeVar

from catchment.foundation.meters import Distribution

T = TypeVar("T")
ADMIN = "admin"
FOR_ADMINS = "for admins only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """A successful flush of one table."""

    at: datetime
    rows: int
    files: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTable:
    """One table of the queue. `failures` and the fields after it are about consecutive failures."""

    table: str
    rows: int
    bytes: int
    oldest_age_s: float | None
    trigger: str | None
    flushing: bool
    seq_last: int
    seq_flushed: int
    failures: int
    reason: str | None
    retry_at: datetime | None
    dead_letters: int | None
    last_flushes: tuple[Flush, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedFileStatus:
    """A buffer file that could not be opened."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Rows that wait for the lake. Of many tables, failing ones and then the largest are listed."""

    layout: str
    root: str
    rows: int
    bytes: int
    bytes_max: int
    oldest_age_s: float | None
    tables_total: int
    tables: tuple[QueueTable, ...]
    set_aside: tuple[QuarantinedFileStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals acknowledged by this process; rate, latencies and group size cover the last `window_s`
    seconds.
    """

    acked_rows: int
    acked_bytes: int
    window_s: float
    acked_rows_per_s: float
    ack_p50_s: float | None
    ack_p99_s: float | None
    group_writes_mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Trend over the last minutes: values in equal steps, oldest first; None for missing readings."""

    span_s: float
    acked_rows_per_s: tuple[float, ...]
    ack_p99_s: tuple[float | None, ...]
    delivered_rows_per_s: tuple[float, ...]
    buffered_rows: tuple[int | None, ...]


NO_TREND = Trend(span_s=0.0, acked_rows_per_s=(), ack_p99_s=(), delivered_rows_per_s=(), buffered_rows=())


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable:
    """The files of one table."""

    table: str
    files: int
    bytes: int
    rows: int
    small_files: int
    dead_letters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A unit that the ledger has recorded."""

    at: datetime
    table: str
    unit: str
    producer: str
    rows: int
    bytes: int
    snapshot: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The last audit of this home."""

    at: datetime
    ok: bool
    findings: int
    notes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePart:
    """The lake. Of many tables, those with the most dead letters, then the most files, are listed."""

    tables_total: int
    files: int
    bytes: int
    rows: int
    small_files: int
    small_file_share: float
    snapshots: int
    snapshot_newest: int
    snapshot_at: datetime | None
    dead_letters: int
    tables: tuple[LakeTable, ...]
    last_deliveries: tuple[Delivered, ...]
    last_audit: Audit | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafProblem:
    """A leaf that was not imported."""

    leaf: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """A legacy import into this home's lake. `progress` is the share of imported leaves.

    `files_left_out` are Parquet files of a finished import that belong to no table's leaf and were
    not imported.
    """

    id: str
    data: str
    phase: str
    running: bool
    progress: float
    leaves_left: int
    leaves_imported: int
    leaves_failed: int
    files_quarantined: int
    files_left_out: int
    bytes_left: int
    problems: tuple[LeafProblem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """Legacy imports of this home."""

    imports: tuple[Import, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """A script that needs attention: pending, or different from the applied one, with a diff."""

    script: str
    kind: str
    summary: str
    statements: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaDatabase:
    """A database whose schema is migrated.

    `pending` and `differences` are None if scripts and models are elsewhere and therefore unknown.
    """

    name: str
    state: str
    applied: int
    pending: tuple[str, ...] | None
    last: str | None
    differences: tuple[str, ...] | None = None
    scripts: tuple[ScriptFacts, ...] = ()
    errors: tuple[str, ...] = ()
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schemas:
    """The control database, lake schemas that have migrations, and the project's database."""

    databases: tuple[SchemaDatabase, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """A shard, as it last reported itself."""

    shard: str
    region: str
    draining: bool
    tenants: int
    seen_age_s: float | None
    lag_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFacts:
    """The shard of a tenant."""

    tenant: str
    name: str
    shard: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFacts:
    """A move in progress: how far the replicas of its source are behind, and how long its writers
    had to wait.
    """

    tenant: str
    move: str
    source: str
    target: str
    phase: str
    phase_age_s: float
    lag_s: float
    pause_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedMove:
    """A finished move; `pause_ms` is None if it was not recorded or nothing was switched."""

    tenant: str
    move: str
    source: str
    target: str
    outcome: str
    at: datetime
    seconds: float
    pause_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """Tenants by shard, moves in progress and finished moves. Of many tenants, the first by number
    are listed.
    """

    tenants_total: int
    shards: tuple[ShardFacts, ...]
    tenants: tuple[TenantFacts, ...]
    moves: tuple[MoveFacts, ...]
    finished: tuple[FinishedMove, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """A client's session."""

    session: str
    user: str
    role: str
    tenant: str | None
    idle_s: float
    busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementStatus:
    """A running or slow statement; its duration ends when its result is available."""

    at: datetime
    session: str
    user: str
    seconds: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """An engine: the process that runs clients' SQL; `last_end` is why the former one ended."""

    name: str
    pid: int | None
    bytes: int
    replaced: int
    last_end: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Open sessions, running statements, slow statements, newest first, and engines."""

    sessions_total: int
    sessions_max: int
    statements_running: int
    slow_seconds: float
    sessions: tuple[SessionFacts, ...]
    running: tuple[StatementStatus, ...]
    slow: tuple[StatementStatus, ...]
    engines: tuple[EngineStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether anything needs attention. Writes are accepted unless a reason states otherwise."""

    ok: bool
    reasons: tuple[str, ...]

    @property
    def word(self) -> str:
        """`ok` or `degraded`."""
        return "ok" if self.ok else "degraded"


@dataclass(frozen=True, slots=True)
class StatusPart(Generic[T]):
    """A part of the status as of `at`: its value, or why it is unavailable."""

    at: datetime
    value: T | None = None
    unavailable: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the value's keys with `at` and `unavailable`; without a value, those two alone."""
        return {"at": self.at.isoformat(), "unavailable": self.unavailable, **(_json(self.value) if self.value else {})}


Reading = int | Distribution | Mapping[str, int] | Mapping[str, Distribution]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The whole status. `meters` are this process's meters since its start."""

    at: datetime
    version: str
    home: str
    shard: str | None
    serving: bool
    health: Health
    totals: Totals
    queue: StatusPart[Queue]
    lake: StatusPart[LakePart]
    legacy: StatusPart[Imports]
    schemas: StatusPart[Schemas]
    tenants: StatusPart[Tenants]
    sessions: StatusPart[Sessions]
    meters: Mapping[str, Reading]
    trend: Trend = NO_TREND

    def for_role(self, role: str) -> "Status":
        """Restrict the status to a role: SQL, paths, other users and error texts are for admins."""
        if role == ADMIN:
            return self
        return replace(
            self,
            home=FOR_ADMINS,
            queue=_without(self.queue, _queue_for_all),
            lake=_without(self.lake, lambda lake: lake),
            legacy=_without(self.legacy, _imports_for_all),
            schemas=_without(self.schemas, _schemas_for_all),
            tenants=_without(self.tenants, lambda tenants: tenants),
            sessions=_without(self.sessions, lambda found: replace(found, sessions=(), running=(), slow=())),
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON; keys are stable across versions. Times are ISO 8601 in UTC."""
        return {
            "at": self.at.isoformat(),
            "version": self.version,
            "home": self.home,
            "shard": self.shard,
            "serving": self.serving,
            "health": {"state": self.health.word, "reasons": list(self.health.reasons)},
            "totals": _json(self.totals),
            "trend": _json(self.trend),
            **{name: getattr(self, name).to_json() for name in PARTS},
            "meters": _json(self.meters),
        }


PARTS = ("queue", "lake", "legacy", "schemas", "tenants", "sessions")


def _without(part: StatusPart[T], hide: Any) -> StatusPart[T]:
    hidden = None if part.value is None else hide(part.value)
    return replace(part, value=hidden, unavailable=part.unavailable and FOR_ADMINS)


def _queue_for_all(queue: Queue) -> Queue:
    return replace(
        queue,
        root=FOR_ADMINS,
        tables=tuple(replace(each, reason=each.reason and FOR_ADMINS) for each in queue.tables),
        set_aside=tuple(QuarantinedFileStatus(path=FOR_ADMINS, reason=FOR_ADMINS) for _ in queue.set_aside),
    )


def _imports_for_all(found: Imports) -> Imports:
    return Imports(
        imports=tuple(
            replace(
                each,
                data=FOR_ADMINS,
                problems=tuple(LeafProblem(leaf=problem.leaf, reason=FOR_ADMINS) for problem in each.problems),
            )
            for each in found.imports
        )
    )


def _schemas_for_all(found: Schemas) -> Schemas:
    return Schemas(
        databases=tuple(
            replace(
                each,
                name=PurePath(each.name).name,
                scripts=tuple(replace(script, text=FOR_ADMINS) for script in each.scripts),
                errors=tuple(FOR_ADMINS for _ in each.errors),
            )
            for each in found.databases
        )
    )


def _json(value: Any) -> Any:
    if isinstance(value, Distribution):
        return {
            "bounds": list(value.bounds),
            "counts": list(value.counts),
            "sum": value.sum,
            "count": value.count,
        }
    if dataclasses.is_dataclass(value):
        return {each.name: _json(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _json(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_json(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value
