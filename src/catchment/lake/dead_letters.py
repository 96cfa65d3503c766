"""Dead letters: undeliverable rows, kept in the lake with the reason until an operator decides.

They are in a table next to the ledger and are written by the transaction that delivers the rest of
their unit: a row is either in its table or here, never in both and never in neither. Retrying and
dropping are one transaction each. A row is stored as an Arrow stream in base64, which preserves
every value exactly and is plain text for every kind of catalog.
"""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa

from catchment.foundation import sql
from catchment.foundation.ids import ProducerId, TableId
from catchment.lake.placeholders import without_tokens
from catchment.lake.tables import LEDGER_SCHEMA, PACKAGE, has_table

TABLE = "dead_letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One row that its table refuses. `id` is stable: a row of a unit always has the same id."""

    id: str
    unit_id: str
    producer: ProducerId
    seq: int
    table: TableId
    reason: str
    row: str
    buried_at: datetime

    def content(self) -> pa.Table:
        """Return the row as it was sent."""
        return pa.ipc.open_stream(base64.b64decode(self.row)).read_all()


def packed(row: pa.Table) -> str:
    """Return the row as text."""
    sink = pa.BufferOutputStream()
    # Copied by `take`: a slice would carry its neighbours along.
    alone = row.take(pa.array(range(row.num_rows), pa.int64()))
    with pa.ipc.new_stream(sink, alone.schema) as writer:
        writer.write_table(alone)
    return base64.b64encode(sink.getvalue()).decode("ascii")


class DeadLetters:
    """Statements on the dead letters; each method runs in its connection's transaction."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, lake_name: str) -> None:
        self._connection = connection
        self._lake = lake_name

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Quarantine rows."""
        self._connection.execute(sql.statement(PACKAGE, "dead_letters_create", lake=self._lake))
        rows = pa.Table.from_pylist([_row(each) for each in letters], schema=_SCHEMA)
        name = "catchment_letters"
        self._connection.register(name, rows)
        try:
            self._connection.execute(f"INSERT INTO {self._name()} BY NAME FROM {name}")
        finally:
            self._connection.unregister(name)

    def find(
        self, ids: Sequence[str] | None = None, *, table: TableId | None = None, letters_max: int | None = None
    ) -> list[DeadLetter]:
        """Return the letters, or those of these ids or of a table, oldest first."""
        if not self._exists():
            return []
        where = ["true"]
        if ids is not None:
            where.append(f"id IN ({', '.join(map(sql.literal, ids))})" if ids else "false")
        if table is not None:
            where.append(f"table_schema = {sql.literal(table.schema)} AND table_name = {sql.literal(table.name)}")
        text = sql.statement(PACKAGE, "dead_letters_read", lake=self._lake)
        limit = "" if letters_max is None else f" LIMIT {letters_max:d}"
        found = f"{text} WHERE {' AND '.join(where)} ORDER BY buried_at, seq{limit}"
        rows = self._connection.execute(found).fetchall()
        return [_letter(row) for row in rows]

    def counts(self) -> dict[TableId, int]:
        """Return the number of letters by table."""
        if not self._exists():
            return {}
        text = f"SELECT table_schema, table_name, count(*) FROM {self._name()} GROUP BY ALL ORDER BY ALL"
        return {TableId(schema, name): count for schema, name, count in self._connection.execute(text).fetchall()}

    def remove(self, ids: Sequence[str]) -> int:
        """Remove letters and return how many there were."""
        if not ids or not self._exists():
            return 0
        listed = ", ".join(map(sql.literal, ids))
        row = self._connection.execute(f"DELETE FROM {self._name()} WHERE id IN ({listed})").fetchone()
        return int(row[0]) if row else 0

    def remove_of(self, schema: str) -> None:
        """Remove all letters of a schema's tables."""
        if self._exists():
            self._connection.execute(f"DELETE FROM {self._name()} WHERE table_schema = ?", [schema])

    def _exists(self) -> bool:
        # Created with the first letter: older lakes, and lakes that never had one, lack the table.
        return has_table(self._connection, self._lake, TableId(LEDGER_SCHEMA, TABLE))

    def _name(self) -> str:
        return sql.qualified(self._lake, LEDGER_SCHEMA, TABLE)


_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("unit_id", pa.string()),
        ("producer", pa.string()),
        ("seq", pa.int64()),
        ("table_schema", pa.string()),
        ("table_name", pa.string()),
        ("reason", pa.string()),
        ("row", pa.string()),
        ("buried_at", pa.timestamp("us")),
    ]
)


def _row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "unit_id": letter.unit_id,
        "producer": str(letter.producer),
        "seq": letter.seq,
        "table_schema": letter.table.schema,
        "table_name": letter.table.name,
        "reason": without_tokens(letter.reason),
        "row": letter.row,
        "buried_at": letter.buried_at.astimezone(UTC).replace(tzinfo=None),
    }


def _letter(row: tuple[Any, ...]) -> DeadLetter:
    letter_id, unit, producer, seq, schema, table, reason, content, at = row
    return DeadLetter(
        id=letter_id,
        unit_id=unit,
        producer=ProducerId.parse(producer),
        seq=seq,
        table=TableId(schema, table),
        reason=reason,
        row=content,
        buried_at=at.replace(tzinfo=UTC),
    )
