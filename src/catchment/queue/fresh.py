"""Fresh reads: what the lake has and what is still buffered, each row once.

The buffer is looked at first and the lake second, so that no row is missed between them; the ledger, read in the same
snapshot as the table, tells which buffered rows the lake has by then, so that none is seen twice.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from catchment import sql
from catchment.errors import TypeConflictError
from catchment.ids import TableId
from catchment.lake import Lake, Table, reshape
from catchment.lake.ledger import Ledger
from catchment.queue import arrivals
from catchment.queue.buffer import SEQ, Buffer, Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """An open read. `query` gives the rows; `complete_through` says, by source, up to which number all are there."""

    connection: duckdb.DuckDBPyConnection
    query: str
    complete_through: Mapping[str, int]

    def rows(self) -> pa.Table:
        """All rows."""
        return self.connection.execute(self.query).to_arrow_table()


@contextmanager
def fresh(lake: Lake, buffer: Buffer, table: TableId) -> Iterator[Fresh]:
    """Read a table with its buffered rows, as of one moment."""
    # In this order: what is acknowledged by now is in the buffer or in the lake when each is looked at.
    through = buffer.complete_through(table)
    held = buffer.held(table)
    with lake.snapshot() as connection:
        target = lake.table_in(connection, table)
        waiting = [each for each in held if not _is_delivered(connection, lake.name, each, target)]
        names = [f"catchment_buffered_{at}" for at in range(len(waiting))]
        for name, each in zip(names, waiting, strict=True):
            connection.register(name, each.rows)
        try:
            parts = [f"SELECT {sql.identifiers(c.name for c in target.columns)} FROM {_lake_name(lake, table)}"]
            parts += [
                _buffered(connection, lake.name, name, each, target) for name, each in zip(names, waiting, strict=True)
            ]
            yield Fresh(connection=connection, query=" UNION ALL ".join(parts), complete_through=through)
        finally:
            for name in names:
                connection.unregister(name)


def _is_delivered(connection: duckdb.DuckDBPyConnection, lake_name: str, held: Held, target: Table) -> bool:
    if held.parcel.positioned:
        return False
    return bool(Ledger(connection, lake_name).delivered([held.parcel.id], target.uuid))


def _buffered(connection: duckdb.DuckDBPyConnection, lake_name: str, name: str, held: Held, target: Table) -> str:
    """The held rows that the lake does not have, in the table's columns."""
    columns = arrivals.columns_of(held.rows.drop_columns([SEQ]).schema)
    reason = reshape.misfit(columns, target.columns)
    if reason is not None:
        raise TypeConflictError(
            f"Buffered rows of {target.id} do not fit it any more: {reason}.",
            hint="`catchment queue flush` delivers those that fit and sets the others aside.",
        )
    covered = Ledger(connection, lake_name).join(held.parcel.producer).seq if held.parcel.positioned else 0
    chosen = ", ".join(reshape.select_list(columns, target.columns))
    return f"SELECT {chosen} FROM {sql.qualified('temp', 'main', name)} WHERE {SEQ} > {covered}"


def _lake_name(lake: Lake, table: TableId) -> str:
    return sql.qualified(lake.name, table.schema, table.name)
