"""A status in which every part has values."""

from dataclasses import replace
from datetime import UTC, datetime

from catchment.foundation.meters import Meters
from catchment.status import Health, Status, StatusPart
from catchment.status.model import (
    Audit,
    Delivered,
    EngineStatus,
    FinishedMove,
    Flush,
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
    Schemas,
    ScriptFacts,
    SessionFacts,
    Sessions,
    ShardFacts,
    StatementStatus,
    TenantFacts,
    Tenants,
    Totals,
)
from catchment.status.reader import meter_readings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
# What only admins may see begins with this.
SECRET = "secret"
_STATEMENT = StatementStatus(at=NOW, session="secret-session", user="secret-user", seconds=2.0, text="SELECT 'secret'")
_TABLE = QueueTable(
    table="main.events",
    rows=3,
    bytes=40,
    oldest_age_s=2.5,
    trigger="rows",
    flushing=True,
    seq_last=23,
    seq_flushed=20,
    failures=2,
    reason="secret reason of a flush",
    retry_at=NOW,
    dead_letters=1,
    last_flushes=(Flush(at=NOW, rows=20, files=1, bytes=300, seconds=0.5),),
)
_QUEUE = Queue(
    layout="shared",
    root="/secret/queue",
    rows=3,
    bytes=4_000,
    bytes_max=10_000,
    oldest_age_s=2.5,
    tables_total=1,
    tables=(_TABLE,),
    set_aside=(QuarantinedFileStatus(path="/secret/file", reason="secret damage"),),
)
_LAKE = LakePart(
    tables_total=1,
    files=4,
    bytes=900,
    rows=20,
    small_files=3,
    small_file_share=0.75,
    snapshots=7,
    snapshot_newest=6,
    snapshot_at=NOW,
    dead_letters=1,
    tables=(LakeTable(table="main.events", files=4, bytes=900, rows=20, small_files=3, dead_letters=1),),
    last_deliveries=(Delivered(at=NOW, table="main.events", unit="u", producer="p", rows=20, bytes=300, snapshot=6),),
    last_audit=Audit(at=NOW, ok=True, findings=0, notes=1),
)
_IMPORT = Import(
    id="0a1b2c3d",
    data="/secret/data",
    phase="importing",
    running=True,
    progress=0.5,
    leaves_left=2,
    leaves_imported=2,
    leaves_failed=1,
    files_quarantined=1,
    files_left_out=0,
    bytes_left=70,
    problems=(LeafProblem(leaf="tp_table=a", reason="secret reason of a leaf"),),
)
_DATABASE = SchemaDatabase(
    name="lake:main",
    state="PENDING",
    applied=3,
    pending=("004.y.sql",),
    last="003.x.sql",
    differences=("events.kind: the column is missing",),
    scripts=(
        ScriptFacts(
            script="004.y.sql",
            kind="pending",
            summary="Events have a kind.",
            statements=1,
            text="SELECT 'secret script'",
        ),
    ),
    errors=("secret path of a script",),
    next="apply 004.y.sql next",
)
_TENANTS = Tenants(
    tenants_total=1,
    shards=(ShardFacts(shard="a", region="eu", draining=False, tenants=1, seen_age_s=1.0, lag_s=0.2),),
    tenants=(TenantFacts(tenant="t7", name="seven", shard="a", epoch=2),),
    moves=(
        MoveFacts(
            tenant="t7",
            move="m",
            source="a",
            target="b",
            phase="Finalizing",
            phase_age_s=9.0,
            lag_s=0.2,
            pause_ms=30.0,
        ),
    ),
    finished=(
        FinishedMove(
            tenant="t7", move="l", source="b", target="a", outcome="aborted", at=NOW, seconds=70.0, pause_ms=None
        ),
    ),
)
_SESSIONS = Sessions(
    sessions_total=1,
    sessions_max=100,
    statements_running=1,
    slow_seconds=1.0,
    sessions=(SessionFacts(session="secret-id", user="secret-ann", role="admin", tenant=None, idle_s=1.0, busy=False),),
    running=(_STATEMENT,),
    slow=(_STATEMENT,),
    engines=(EngineStatus(name="engine 1", pid=42, bytes=110_000_000, replaced=1, last_end="signal 9 (SIGKILL)"),),
)


def full_status(*, lake_away: str | None = None) -> Status:
    """A status with values in every part, or with an unreachable lake."""
    meters = Meters()
    meters.acked(rows=3, size=40, seconds=0.002)
    status = Status(
        at=NOW,
        version="1.2.3",
        home="/secret/home",
        shard="a",
        serving=True,
        health=Health(ok=False, reasons=("Flushes of main.events fail: 2 in a row.",)),
        totals=Totals(
            acked_rows=3,
            acked_bytes=40,
            window_s=60.0,
            acked_rows_per_s=0.05,
            ack_p50_s=0.002,
            ack_p99_s=0.002,
            group_writes_mean=1.0,
        ),
        queue=StatusPart(NOW, _QUEUE),
        lake=StatusPart(NOW, _LAKE),
        legacy=StatusPart(NOW, Imports(imports=(_IMPORT,))),
        schemas=StatusPart(
            NOW,
            Schemas(databases=(_DATABASE,)),
        ),
        tenants=StatusPart(NOW, _TENANTS),
        sessions=StatusPart(NOW, _SESSIONS),
        meters=meter_readings(meters),
    )
    return status if lake_away is None else replace(status, lake=StatusPart(NOW, unavailable=lake_away))
