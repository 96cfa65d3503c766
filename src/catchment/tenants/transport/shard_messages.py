"""Messages between shards as bytes: a JSON head, followed by Arrow streams.

message   length of the head │ head: values, and the length of each stream │ rows, as Arrow streams
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from catchment.errors import InputError
from catchment.foundation.ids import TableId
from catchment.lake.erase import Erased
from catchment.lake.types import Column
from catchment.queue.buffer import Ack
from catchment.queue.replication import LogRows
from catchment.tenants.model import Positions
from catchment.tenants.shard_api import Lag, RetainedHistory, TableDigest

PREFIX = "catchment.shard."
_LENGTH = struct.Struct("<I")
# Errors that malformed bytes can cause.
_UNREADABLE = (
    *(struct.error, ValueError, TypeError, LookupError, AttributeError, OSError, pa.ArrowException),
    # A value in a value in a value …
    RecursionError,
)


def pack(values: Mapping[str, Any], tables: Sequence[pa.Table] = ()) -> bytes:
    """Encode a message."""
    streams = [_stream(table) for table in tables]
    head = json.dumps({**values, "streams": [stream.size for stream in streams]}).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *streams])


def unpack(message: bytes) -> tuple[dict[str, Any], list[pa.Table]]:
    """Decode a message. Raises InputError if it is malformed."""
    try:
        start = _LENGTH.size + _LENGTH.unpack_from(message)[0]
        values = json.loads(message[_LENGTH.size : start])
        tables: list[pa.Table] = []
        for size in values.pop("streams"):
            table = pa.ipc.open_stream(pa.py_buffer(message[start : start + size])).read_all()
            table.validate()
            tables.append(table)
            start += size
    except _UNREADABLE:
        raise malformed() from None
    return values, tables


def malformed() -> InputError:
    """Return the error for a malformed message."""
    return InputError("This is not a message between shards.")


def _stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def pack_shipments(shipments: Sequence[LogRows]) -> tuple[list[dict[str, Any]], list[pa.Table]]:
    """Encode log rows as values and tables."""
    heads = [
        {
            "table": [part.table.schema, part.table.name],
            "columns": [_named(column) for column in part.columns],
            "seq_first": part.seq_first,
        }
        for part in shipments
    ]
    return heads, [part.rows for part in shipments]


def _named(column: Column) -> dict[str, Any]:
    """Encode a column without the identifiers that are valid only in its own lake."""
    return {key: value for key, value in asdict(column.unbound).items() if key not in ("table_uuid", "lake_field")}


def unpack_shipments(heads: Sequence[Mapping[str, Any]], tables: Sequence[pa.Table]) -> list[LogRows]:
    """Decode log rows."""
    return [
        LogRows(
            table=TableId(*head["table"]),
            columns=tuple(map(Column.from_json, head["columns"])),
            seq_first=head["seq_first"],
            rows=rows,
        )
        for head, rows in zip(heads, tables, strict=True)
    ]


def pack_positions(positions: Positions) -> list[list[Any]]:
    """Encode positions."""
    return [[table.schema, table.name, seq] for table, seq in positions.by_table.items()]


def unpack_positions(kept: Sequence[Sequence[Any]]) -> Positions:
    """Decode positions."""
    return Positions({TableId(schema, name): int(seq) for schema, name, seq in kept})


def pack_ack(ack: Ack) -> dict[str, Any]:
    """Encode an acknowledgement."""
    return {"table": [ack.table.schema, ack.table.name], "source": ack.source, "seqs": [ack.seq_first, ack.seq_last]}


def unpack_ack(kept: Mapping[str, Any]) -> Ack:
    """Decode an acknowledgement."""
    first, last = kept["seqs"]
    return Ack(table=TableId(*kept["table"]), source=kept["source"], seq_first=first, seq_last=last)


def pack_retained(retained: RetainedHistory) -> dict[str, Any]:
    """Encode retained history."""
    return {"snapshot": retained.snapshot, "watermarks": pack_positions(retained.watermarks)}


def unpack_retained(kept: Mapping[str, Any]) -> RetainedHistory:
    """Decode retained history."""
    return RetainedHistory(snapshot=kept["snapshot"], watermarks=unpack_positions(kept["watermarks"]))


def pack_lag(lag: Lag) -> dict[str, Any]:
    """Encode a lag."""
    return {
        "home": pack_positions(lag.primary),
        "copy": pack_positions(lag.replica),
        "is_sync": lag.is_sync,
        "seconds": lag.seconds,
        "error": lag.error,
    }


def unpack_lag(kept: Mapping[str, Any]) -> Lag:
    """Decode a lag."""
    return Lag(
        primary=unpack_positions(kept["home"]),
        replica=unpack_positions(kept["copy"]),
        is_sync=kept["is_sync"],
        seconds=kept["seconds"],
        error=kept["error"],
    )


def unpack_erased(kept: Mapping[str, Any] | None) -> Erased:
    """Decode the summary of deleted data; a shard of an older version does not report it."""
    return Erased(**(kept or {}))


def pack_digests(digests: Mapping[TableId, TableDigest]) -> list[list[Any]]:
    """Encode digests."""
    return [[table.schema, table.name, each.rows, each.digest] for table, each in digests.items()]


def unpack_digests(kept: Sequence[Sequence[Any]]) -> dict[TableId, TableDigest]:
    """Decode digests."""
    return {TableId(schema, name): TableDigest(rows=rows, digest=text) for schema, name, rows, text in kept}
