"""Queue reports as Arrow tables, and their conversion back for local commands."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.queue import FlushReport, QueueStatus, TableFlush, TableState, buffer_factory
from catchment.queue.coordinator import TableStatus
from catchment.queue.policy import FlushFailure, Trigger
from catchment.queue.stranded import Stranded

_INCARNATION = b"incarnation"
_BYTES = b"bytes"
FLUSHED = pa.schema(
    [
        ("table_schema", pa.string()),
        ("table_name", pa.string()),
        ("rows", pa.int64()),
        ("buried", pa.int64()),
        ("files", pa.int64()),
        ("bytes", pa.int64()),
        ("parcels", pa.int64()),
        ("stranded", pa.int64()),
    ]
)
STRANDED = pa.schema(
    [
        ("table_schema", pa.string()),
        ("table_name", pa.string()),
        ("rows", pa.int64()),
        ("buried", pa.int64()),
        ("files", pa.list_(pa.string())),
    ]
)
STATUS = pa.schema(
    [
        ("table_schema", pa.string()),
        ("table_name", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("oldest_at", pa.timestamp("us", tz="UTC")),
        ("seq_last", pa.int64()),
        ("seq_flushed", pa.int64()),
        ("due", pa.string()),
        ("flushing", pa.bool_()),
        ("failures", pa.int64()),
        ("error", pa.string()),
        ("retry_at", pa.timestamp("us", tz="UTC")),
    ]
)


def flushed(report: FlushReport) -> pa.Table:
    """Return the outcome of a flush, one row for each table that had rows."""
    rows = [
        {
            "table_schema": each.table.schema,
            "table_name": each.table.name,
            "rows": each.rows,
            "buried": each.buried,
            "files": each.files,
            "bytes": each.bytes,
            "parcels": each.parcels,
            "stranded": each.stranded,
        }
        for each in report.tables
    ]
    return pa.Table.from_pylist(rows, schema=FLUSHED)


def status(found: QueueStatus) -> pa.Table:
    """Return the contents of the queue, one row per table; values for the whole queue are in the
    schema's metadata.
    """
    rows = [
        {
            "table_schema": each.state.table.schema,
            "table_name": each.state.table.name,
            "rows": each.state.rows,
            "bytes": each.state.bytes,
            "oldest_at": each.state.oldest_at,
            "seq_last": each.state.seq_last,
            "seq_flushed": each.state.seq_flushed,
            "due": None if each.trigger is None else str(each.trigger),
            "flushing": each.flushing,
            "failures": 0 if each.failure is None else each.failure.failures,
            "error": None if each.failure is None else each.failure.reason,
            "retry_at": None if each.failure is None else each.failure.retry_at,
        }
        for each in found.tables
    ]
    whole = {_INCARNATION: found.generation, _BYTES: str(found.bytes)}
    return pa.Table.from_pylist(rows, schema=STATUS.with_metadata(whole))


def as_report(flushed: pa.Table, seconds: float) -> FlushReport:
    """Return the report that `flushed` was built from."""
    names = ("rows", "buried", "files", "bytes", "parcels", "stranded")
    done = [TableFlush(table=_table(row), **{name: row[name] for name in names}) for row in flushed.to_pylist()]
    return FlushReport(tables=tuple(done), seconds=seconds)


def stranded(found: Stranded) -> pa.Table:
    """Return stranded rows as one row."""
    facts = {"table_schema": found.table.schema, "table_name": found.table.name, "rows": found.rows}
    return pa.Table.from_pylist([{**facts, "buried": found.buried, "files": list(found.files)}], schema=STRANDED)


def as_stranded(found: pa.Table) -> Stranded:
    """Return the value that `stranded` was built from."""
    (row,) = found.to_pylist()
    return Stranded(table=_table(row), rows=row["rows"], buried=row["buried"], files=tuple(row["files"]))


def as_status(status: pa.Table, settings: Settings, at: datetime) -> QueueStatus:
    """Return the status that `status` was built from, by a server with these settings."""
    whole = status.schema.metadata
    return QueueStatus(
        layout=settings.queue_layout,
        root=str(settings.queue_path),
        generation=whole[_INCARNATION].decode(),
        bytes=int(whole[_BYTES]),
        bytes_max=settings.queue_max_db_bytes,
        tables=tuple(_status_of(row) for row in status.to_pylist()),
        quarantined=buffer_factory.quarantined(settings),
        at=at,
    )


def _status_of(row: Mapping[str, Any]) -> TableStatus:
    names = ("rows", "bytes", "oldest_at", "seq_last", "seq_flushed")
    failure = None
    if row["error"] is not None:
        failure = FlushFailure(failures=row["failures"], reason=row["error"], retry_at=row["retry_at"])
    return TableStatus(
        state=TableState(table=_table(row), ready_rows=row["rows"], **{name: row[name] for name in names}),
        trigger=None if row["due"] is None else Trigger(row["due"]),
        failure=failure,
        flushing=row["flushing"],
    )


def _table(row: Mapping[str, Any]) -> TableId:
    return TableId(row["table_schema"], row["table_name"])
