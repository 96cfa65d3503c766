"""Fresh reads: what the lake has and what is still buffered, each row once.

The buffer is looked at first and the lake second, so that no row is missed between them; the ledger, read in the same
snapshot as the table, tells which buffered rows the lake has by then, so that none is seen twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count

import duckdb
import pyarrow as pa

from catchment import sql
from catchment.errors import NotReadyError, TypeConflictError
from catchment.ids import TableId
from catchment.lake import Lake, Table, reshape
from catchment.lake.ledger import Ledger
from catchment.queue import arrivals
from catchment.queue.buffer import SEQ, Buffer, Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """An open read. `queries` give the rows by table; `complete_through` says, by source, up to which number."""

    connection: duckdb.DuckDBPyConnection
    queries: Mapping[TableId, str]
    complete_through: Mapping[TableId, Mapping[str, int]]

    def rows(self, table: TableId | None = None) -> pa.Table:
        """All rows of one of the tables; it need not be said which where there is only one."""
        query = next(iter(self.queries.values())) if table is None else self.queries[table]
        return self.connection.execute(query).to_arrow_table()


@contextmanager
def fresh(
    lake: Lake, buffer: Buffer, tables: Sequence[TableId], through: Mapping[TableId, int] | None = None
) -> Iterator[Fresh]:
    """Read tables with their buffered rows, as of one moment.

    With `through`, rows behind that number are left out; NotReadyError where the lake has some of them already.
    """
    # In this order: what is acknowledged by now is in the buffer or in the lake when each is looked at.
    complete = {table: buffer.complete_through(table) for table in tables}
    held = {table: buffer.held(table) for table in tables}
    with lake.snapshot() as connection, ExitStack() as cleanup:
        names = (f"catchment_buffered_{number}" for number in count())
        queries = {}
        for table in tables:
            target = lake.table_in(connection, table)
            parts = [f"SELECT {sql.identifiers(c.name for c in target.columns)} FROM {_lake_name(lake, target.id)}"]
            last = None if through is None else through.get(table, 0)
            if last is not None:
                _refuse_further(connection, lake.name, buffer, table, last)
            for each in _undelivered(connection, lake.name, held[table], target):
                name = next(names)
                connection.register(name, each.rows)
                cleanup.callback(connection.unregister, name)
                covered = _covered(connection, lake.name, buffer, each)
                parts.append(_buffered(name, each, target, covered, last))
            queries[table] = " UNION ALL ".join(parts)
        yield Fresh(connection=connection, queries=queries, complete_through=complete)


def _undelivered(
    connection: duckdb.DuckDBPyConnection, lake_name: str, held: Sequence[Held], target: Table
) -> list[Held]:
    """Those of which the lake may lack rows; the ledger is asked once for all."""
    ids = [each.parcel.id for each in held if not each.parcel.positioned]
    delivered = Ledger(connection, lake_name).delivered_ids(ids, target.uuid) if ids else ()
    return [each for each in held if each.parcel.id not in delivered]


def _refuse_further(
    connection: duckdb.DuckDBPyConnection, lake_name: str, buffer: Buffer, table: TableId, last: int
) -> None:
    """Rows of the lake have no numbers: those behind the last one cannot be left out any more."""
    covered = buffer.covered(table, Ledger(connection, lake_name).join(buffer.producer(table)).seq)
    if covered > last:
        raise NotReadyError(f"The lake has {table} up to {covered:,} already, and {last:,} was asked for.")


def _covered(connection: duckdb.DuckDBPyConnection, lake_name: str, buffer: Buffer, held: Held) -> int:
    """Up to which number the lake has the held rows."""
    if not held.parcel.positioned:
        return 0
    return buffer.covered(held.parcel.table, Ledger(connection, lake_name).join(held.parcel.producer).seq)


def _buffered(name: str, held: Held, target: Table, covered: int, last: int | None) -> str:
    """The held rows that the lake does not have, in the table's columns."""
    columns = arrivals.columns_of(held.rows.drop_columns([SEQ]).schema)
    reason = reshape.misfit(columns, target.columns)
    if reason is not None:
        raise TypeConflictError(
            f"Buffered rows of {target.id} do not fit it any more: {reason}.",
            hint="`catchment queue flush` delivers those that fit and sets the others aside.",
        )
    chosen = ", ".join(reshape.select_list(columns, target.columns))
    cut = "" if last is None else f" AND {SEQ} <= {last}"
    return f"SELECT {chosen} FROM {sql.qualified('temp', 'main', name)} WHERE {SEQ} > {covered}{cut}"


def _lake_name(lake: Lake, table: TableId) -> str:
    return sql.qualified(lake.name, table.schema, table.name)
