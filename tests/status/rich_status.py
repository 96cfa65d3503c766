"""A realistic status: a busy server, some failures, long names and large numbers."""

import math
from dataclasses import replace
from datetime import datetime, timedelta

from catchment.foundation.meters import Meters
from catchment.status.model import (
    Audit,
    Delivered,
    FinishedMove,
    Flush,
    Health,
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
    Status,
    StatusPart,
    TenantFacts,
    Tenants,
    Totals,
    Trend,
)
from catchment.status.reader import meter_readings
from catchment.web.dead_letter_pages import ShownDeadLetter

MIB = 1024 * 1024
_STEPS = 180
_LONG = "analytics.web_checkout_funnel_events_with_attribution_v2"
# Table, buffered rows, acked and flushed through, age of the oldest, trigger, failures in a row.
_TABLES = (
    ("main.payments", 18_204, 9_412_877, 9_394_673, 214.0, "age", 4),
    ("main.clickstream", 412_906, 1_204_551_310, 1_204_138_404, 41.2, "rows", 0),
    (_LONG, 96_411, 88_120_944, 88_024_533, 38.0, None, 0),
    ("main.sensor_readings", 51_277, 640_018_221, 639_966_944, 12.4, None, 0),
    ("main.orders", 1_904, 22_871_650, 22_869_746, 8.1, None, 0),
    ("t7.invoices", 311, 1_204_810, 1_204_499, 3.3, None, 0),
    ("t12.device_logs", 0, 77_201_004, 77_201_004, None, None, 0),
    ("main.audit_trail", 0, 410_226, 410_226, None, None, 0),
)
_LEAF = "tp_table=web_events/tp_partition=eu-central-1/tp_index=checkout/tp_date=2024-0"


def rich_status(now: datetime) -> Status:
    """How everything stands in that house at that moment."""
    return Status(
        at=now,
        version="0.1.0",
        home="/srv/catchment/production",
        shard="eu-1",
        serving=True,
        health=Health(
            ok=False,
            reasons=("Flushes of main.payments fail: 4 in a row.", "Rows of main.payments have waited for 214 s."),
        ),
        totals=Totals(
            acked_rows=48_220_117,
            acked_bytes=9_812 * MIB,
            window_s=60.0,
            acked_rows_per_s=18_420.3,
            ack_p50_s=0.0021,
            ack_p99_s=0.0138,
            group_writes_mean=6.4,
        ),
        queue=StatusPart(now, _queue(now)),
        lake=StatusPart(now - timedelta(seconds=7), _lake(now)),
        legacy=StatusPart(now, _imports()),
        schemas=StatusPart(now, _schemas()),
        tenants=StatusPart(now, _tenants(now)),
        sessions=StatusPart(now, _sessions(now)),
        meters=meter_readings(_meters()),
        trend=_trend(),
    )


def lost_lake(status: Status, reason: str = "Cannot open the lake's catalog: connection refused.") -> Status:
    """The same house while its catalog is away."""
    reasons = (*status.health.reasons, "The lake is unavailable.")
    return replace(
        status, lake=StatusPart(status.at, unavailable=reason), health=replace(status.health, ok=False, reasons=reasons)
    )


def rich_letters(now: datetime) -> tuple[ShownDeadLetter, ...]:
    """Rows that were refused, for reasons of several lengths."""
    reasons = (
        "column amount: 'twelve' cannot be read as DECIMAL(18,2)",
        "column customer_id may not be NULL",
        "column payload: a text of 70,212 letters does not fit the VARCHAR(65535) the table has had since May",
    )
    return tuple(
        ShownDeadLetter(
            id=f"letter-{number}",
            table="main.payments" if number % 2 else _LONG,
            seq=9_394_673 + 17 * number,
            reason=reasons[number % len(reasons)],
            buried_at=now - timedelta(minutes=3 + 31 * number),
        )
        for number in range(6)
    )


def _flushes(now: datetime, at: int, table: str) -> tuple[Flush, ...]:
    if table in ("main.audit_trail", "main.payments"):
        return ()
    return tuple(
        Flush(
            at=now - timedelta(seconds=22 + 7 * at + 61 * number),
            rows=1_000_000 // (at + 1) - 7_919 * number,
            files=1 + (at + number) % 2,
            bytes=int(92.4 * MIB / (at + 1)) - 51_201 * number,
            seconds=1.92 / (at + 1) + 0.113 * number,
        )
        for number in range(5)
    )


def _queue(now: datetime) -> Queue:
    tables = tuple(
        QueueTable(
            table=table,
            rows=rows,
            bytes=rows * 204,
            oldest_age_s=oldest_age_s,
            trigger=trigger,
            flushing=table == "main.clickstream",
            seq_last=seq_last,
            seq_flushed=seq_flushed,
            failures=failures,
            reason="The table main.payments has no column 'settled_at' any more." if failures else None,
            retry_at=now + timedelta(seconds=16) if failures else None,
            dead_letters={"main.payments": 3, _LONG: 3}.get(table, 0),
            last_flushes=_flushes(now, at, table),
        )
        for at, (table, rows, seq_last, seq_flushed, oldest_age_s, trigger, failures) in enumerate(_TABLES)
    )
    return Queue(
        layout="shared",
        root="/srv/catchment/production/queue",
        rows=sum(each.rows for each in tables),
        bytes=611 * MIB,
        bytes_max=2_048 * MIB,
        oldest_age_s=214.0,
        tables_total=len(tables),
        tables=tables,
        set_aside=(
            QuarantinedFileStatus(
                path="/srv/catchment/production/queue/aside/2026-11-14T03-12-44.buffer.duckdb",
                reason="The file is not a DuckDB database: its header is damaged.",
            ),
        ),
    )


def _lake(now: datetime) -> LakePart:
    sizes = (912, 41_201, 3_118, 20_544, 2_044, 118, 4_801, 96)
    tables = tuple(
        LakeTable(
            table=table,
            files=mib // 64 + 3 * at + 1,
            bytes=mib * MIB + 31_337 * at,
            rows=seq_flushed,
            small_files=(4 * at + 1) if at % 3 else 0,
            dead_letters={"main.payments": 3, _LONG: 3}.get(table, 0),
        )
        for at, (mib, (table, _, _, seq_flushed, _, _, _)) in enumerate(zip(sizes, _TABLES, strict=True))
    )
    files, small = sum(each.files for each in tables), sum(each.small_files for each in tables)
    return LakePart(
        tables_total=len(tables),
        files=files,
        bytes=sum(each.bytes for each in tables),
        rows=sum(each.rows for each in tables),
        small_files=small,
        small_file_share=small / files,
        snapshots=412,
        snapshot_newest=88_213,
        snapshot_at=now - timedelta(seconds=22),
        dead_letters=6,
        tables=tables,
        last_deliveries=tuple(
            Delivered(
                at=now - timedelta(seconds=22 + 34 * number),
                table=_TABLES[1 + number % 5][0],
                unit=f"queue:5f2c9e1ab04d77e3:{1_204_138_404 - 1_000_000 * number}",
                producer=f"queue:5f2c9e1ab04d77e3:{_TABLES[1 + number % 5][0]}",
                rows=1_000_000 - 7_919 * number,
                bytes=92 * MIB - 51_201 * number,
                snapshot=88_213 - number,
            )
            for number in range(12)
        ),
        last_audit=Audit(at=now - timedelta(hours=5, minutes=12), ok=True, findings=0, notes=2),
    )


def _imports() -> Imports:
    going = Import(
        id="0a1b2c3d",
        data="/mnt/archive/tailpipe/production-eu/2019-2024/data",
        phase="importing",
        running=True,
        progress=0.7231,
        leaves_left=1_404,
        leaves_imported=3_668,
        leaves_failed=3,
        files_quarantined=2,
        files_left_out=0,
        bytes_left=48_112 * MIB,
        problems=(
            LeafProblem(leaf=f"{_LEAF}1-17", reason="data_1.parquet: the footer is cut off after 1,204 bytes"),
            LeafProblem(leaf=f"{_LEAF}3-02", reason="column status_code is VARCHAR here and BIGINT in 61 other leaves"),
            LeafProblem(leaf=f"{_LEAF}9-30", reason="Permission denied"),
        ),
    )
    done = replace(
        going,
        id="77aa01fe",
        data="/mnt/archive/tailpipe/staging/data",
        phase="done",
        running=False,
        progress=1.0,
        leaves_left=0,
        leaves_imported=212,
        leaves_failed=0,
        files_quarantined=0,
        files_left_out=0,
        bytes_left=0,
        problems=(),
    )
    return Imports(imports=(going, done))


def _schemas() -> Schemas:
    control = SchemaDatabase(
        name="control",
        state="CURRENT",
        applied=3,
        pending=(),
        last="003.shards_report_routes_have_epochs_and_moves_tokens.sql",
        differences=(),
    )
    elsewhere = SchemaDatabase(
        name="lake:t7", state="APPLIED", applied=4, pending=None, last="004.invoices.sql", differences=None
    )
    return Schemas(databases=(control, _pending_database(), _diverged_database(), elsewhere))


def _pending_database() -> SchemaDatabase:
    return SchemaDatabase(
        name="lake:main",
        state="PENDING",
        applied=17,
        pending=("018.payments_get_settled_at.sql", "019.drop_legacy_flags_and_rename_customer_reference.sql"),
        last="017.orders_by_region.sql",
        differences=(
            "payments.settled_at: the column is missing",
            "orders.customer_ref: the column may have become customer_reference",
            "orders.flags: the column is in no model",
            "refunds: the table is missing",
        ),
        scripts=(
            ScriptFacts(
                script="018.payments_get_settled_at.sql",
                kind="pending",
                summary="Payments know when they were settled; refunds get a table of their own.",
                statements=2,
                text="-- Payments know when they were settled; refunds get a table of their own.\n\n"
                "ALTER TABLE payments ADD COLUMN settled_at TIMESTAMP;\n\n"
                "CREATE TABLE refunds (\n    id BIGINT NOT NULL,\n    payment BIGINT NOT NULL,\n"
                "    amount DECIMAL(18, 2) NOT NULL\n);\n",
            ),
            ScriptFacts(
                script="019.drop_legacy_flags_and_rename_customer_reference.sql",
                kind="pending",
                summary="",
                statements=2,
                text="ALTER TABLE orders RENAME COLUMN customer_ref TO customer_reference;\n"
                "ALTER TABLE orders DROP COLUMN flags;\n",
            ),
        ),
        next="apply 018.payments_get_settled_at.sql next; rehearse shows its effects",
    )


def _diverged_database() -> SchemaDatabase:
    return SchemaDatabase(
        name="billing.sqlite",
        state="DIVERGED",
        applied=6,
        pending=(),
        last="006.invoices_have_numbers.sql",
        differences=(),
        scripts=(
            ScriptFacts(
                script="004.index_invoices.sql",
                kind="diverged",
                summary="Invoices are found by customer.",
                statements=1,
                text="--- 004.index_invoices.sql (applied 2026-10-02T08:11:09+00:00)\n"
                "+++ 004.index_invoices.sql (on the disk)\n@@ -1,2 +1,2 @@\n -- Invoices are found by customer.\n"
                "-CREATE INDEX invoices_by_customer ON invoices (customer);\n"
                "+CREATE INDEX invoices_by_customer ON invoices (customer, due_at);\n",
            ),
        ),
        next="restore the file, or delete it, and check writes it back as it was applied",
    )


def _tenants(now: datetime) -> Tenants:
    names = ("Northwind Traders", "Contoso", "Fabrikam Energy", "Wide World Importers", "Adventure Works", "Tailspin")
    shards = ("eu-1", "eu-2", "us-1")
    return Tenants(
        tenants_total=214,
        shards=(
            ShardFacts(shard="eu-1", region="eu-central-1", draining=False, tenants=121, seen_age_s=1.4, lag_s=0.21),
            ShardFacts(shard="eu-2", region="eu-central-1", draining=False, tenants=64, seen_age_s=2.1, lag_s=0.0),
            ShardFacts(shard="us-1", region="us-east-1", draining=True, tenants=29, seen_age_s=94.0, lag_s=12.4),
        ),
        tenants=tuple(
            TenantFacts(
                tenant=f"t{number}",
                name=names[number % len(names)]
                if number != 9
                else "The Very Long Company Name of Somewhere, Ltd. & Sons",
                shard=shards[number % 3],
                epoch=1 + number % 4,
            )
            for number in range(1, 13)
        ),
        moves=(
            MoveFacts(
                tenant="t7",
                move="9f21c0d2a8b4e611",
                source="eu-1",
                target="eu-2",
                phase="DualWrite",
                phase_age_s=312.0,
                lag_s=0.21,
                pause_ms=None,
            ),
            MoveFacts(
                tenant="t12",
                move="04be77109ac3d5f2",
                source="us-1",
                target="eu-1",
                phase="Finalizing",
                phase_age_s=44.0,
                lag_s=12.4,
                pause_ms=31.2,
            ),
        ),
        finished=_finished(now),
    )


def _finished(now: datetime) -> tuple[FinishedMove, ...]:
    return tuple(
        FinishedMove(
            tenant=f"t{tenant}",
            move=f"{tenant:016x}",
            source=source,
            target=target,
            outcome=outcome,
            at=now - timedelta(hours=hours),
            seconds=seconds,
            pause_ms=pause_ms,
        )
        for tenant, source, target, outcome, hours, seconds, pause_ms in (
            (31, "us-1", "eu-2", "complete", 1.4, 1_912.0, 27.9),
            (18, "eu-1", "eu-2", "aborted", 5.0, 204.0, None),
            (4, "eu-2", "eu-1", "reversed", 26.0, 3_711.0, None),
            (3, "eu-1", "us-1", "complete", 74.0, 845.0, 19.3),
        )
    )


def _sessions(now: datetime) -> Sessions:
    report = (
        "SELECT date_trunc('hour', occurred_at) AS hour, country, count(*) AS clicks, count(DISTINCT visitor_id) AS "
        "visitors\nFROM clickstream\nWHERE occurred_at >= now() - INTERVAL 30 DAY\nGROUP BY ALL\nORDER BY hour"
    )
    texts = (
        report,
        "COPY (SELECT * FROM orders WHERE region = 'eu') TO 'orders.parquet'",
        "CALL duckling_queue_flush()",
    )
    people = ("grafana", "ann", "etl-nightly", "rob")
    statements = tuple(
        StatementStatus(
            at=now - timedelta(seconds=9 + 311 * number),
            session=f"{(number * 7_919 + 1_048_583):08x}"[:8],
            user=people[number % 4],
            seconds=(41.2, 3.61, 1.92, 12.04, 1.1)[number],
            text=texts[number % 3],
        )
        for number in range(5)
    )
    return Sessions(
        sessions_total=14,
        sessions_max=100,
        statements_running=2,
        slow_seconds=1.0,
        sessions=tuple(
            SessionFacts(
                session=f"{(number * 104_729 + 15_485_863):08x}"[:8],
                user=people[number % 4],
                role=("reader", "admin", "writer", "reader")[number % 4],
                tenant="t7" if number == 3 else None,
                idle_s=(0.0, 4.2, 0.1, 612.0, 88.0, 0.0, 2_411.0)[number],
                busy=number in (0, 5),
            )
            for number in range(7)
        ),
        running=statements[:2],
        slow=statements,
    )


def _trend() -> Trend:
    rates = tuple(
        round(
            max(0.0, 15_000 + 5_200 * math.sin(at / 17) + 2_900 * math.sin(at / 3.1) + (9_000 if at == 140 else 0)), 1
        )
        for at in range(_STEPS)
    )
    return Trend(
        span_s=900.0,
        acked_rows_per_s=rates,
        ack_p99_s=tuple(
            None if 60 <= at < 66 else 0.009 + 0.004 * math.sin(at / 9) ** 2 + (0.021 if at == 141 else 0)
            for at in range(_STEPS)
        ),
        delivered_rows_per_s=tuple(200_000.0 if at % 12 == 5 else 0.0 for at in range(_STEPS)),
        buffered_rows=tuple(80_000 + 61_000 * (at % 12) for at in range(_STEPS)),
    )


def _meters() -> Meters:
    meters = Meters()
    for number in range(4_000):
        meters.acked(rows=12_055, size=2_400_000, seconds=0.0009 * math.exp(2.6 * ((number * 0.6180339) % 1) ** 2))
    for seconds in (0.034, 0.034, 0.061, 0.12):
        meters.acked(rows=1, size=200, seconds=seconds)
    return meters
