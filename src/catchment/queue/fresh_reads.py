"""Fresh reads: rows of the lake and rows that are still buffered, each row once.

The buffer is read first and the lake second, so that no row is missed between them. The ledger,
read in the same snapshot as the table, tells which buffered rows the lake has by then, so that none
is seen twice.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count

import duckdb
import pyarrow as pa

from catchment.errors import NotReadyError, TypeConflictError
from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.lake import Lake, Table, reshape, types
from catchment.lake.ledger import Ledger
from catchment.queue import incoming
from catchment.queue.buffer import SEQ, Buffer, BufferedRows

# Opens a connection that sees one snapshot of the lake.
Snapshot = Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """An open read. `queries` are by table, `complete_through` by source.

    All acknowledged rows up to the numbers in `complete_through` are included. `own` has, by table,
    a query for the buffered rows of one session alone.
    """

    connection: duckdb.DuckDBPyConnection
    queries: Mapping[TableId, str]
    complete_through: Mapping[TableId, Mapping[str, int]]
    own: Mapping[TableId, str]

    def rows(self, table: str | TableId | None = None) -> pa.Table:
        """Return all rows of one of the tables; `table` may be omitted if there is only one."""
        query = next(iter(self.queries.values())) if table is None else self.queries[TableId.of(table)]
        return self.connection.execute(query).to_arrow_table()


@contextmanager
def fresh(
    lake: Lake,
    buffer: Buffer,
    tables: Sequence[TableId],
    through: Mapping[TableId, int] | None = None,
    *,
    own: Sequence[TableId] = (),
    session: str | None = None,
    snapshot: Snapshot | None = None,
) -> Iterator[Fresh]:
    """Read tables with their buffered rows; for `own`, only the session's buffered rows.

    All are read as of one moment. With `through`, rows after that number are left out;
    NotReadyError if the lake has some of them already.
    """
    names = {table: {table} for table in (*tables, *own)}
    while True:
        # The buffer first, then the lake: a row acknowledged by now is in the buffer when that is
        # read, or has reached the lake by the time that is read.
        bound = {state.table: state.uuids for state in buffer.tables()}
        complete = {table: buffer.complete_through(table) for table in tables}
        buffered = {table: _buffered_rows(buffer, names[table]) for table in tables}
        own_buffered = {table: _buffered_rows(buffer, names[table], session) for table in own}
        with (snapshot or lake.snapshot)() as connection, ExitStack() as cleanup:
            targets = {table: lake.table_in(connection, table) for table in names}
            under = {
                table: names[table] | {name for name, uuids in bound.items() if target.uuid in uuids}
                for table, target in targets.items()
            }
            if under == names:
                reading = _Reading(connection, lake, buffer, cleanup)
                yield Fresh(
                    connection=connection,
                    queries={table: reading.query(targets[table], buffered[table], through) for table in tables},
                    complete_through=complete,
                    own={table: reading.own_query(targets[table], own_buffered[table]) for table in own},
                )
                return
        # Rows of a renamed table are buffered under its former name.
        names = under


def _buffered_rows(buffer: Buffer, names: Iterable[TableId], session: str | None = None) -> list[BufferedRows]:
    return [each for name in sorted(names) for each in buffer.buffered_rows(name, session)]


class _Reading:
    """Builds queries from one snapshot of the lake and rows registered next to it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, lake: Lake, buffer: Buffer, cleanup: ExitStack) -> None:
        self._connection = connection
        self._lake = lake
        self._buffer = buffer
        self._cleanup = cleanup
        self._names = (f"catchment_buffered_{number}" for number in count())

    def query(self, target: Table, buffered: Sequence[BufferedRows], through: Mapping[TableId, int] | None) -> str:
        """Return a query for all rows of one table, with the buffered rows that the lake lacks."""
        last = None if through is None else through.get(target.id, 0)
        if last is not None:
            _refuse_beyond(self._connection, self._lake.name, self._buffer, target.id, last)
        return " UNION ALL ".join([self._stored(target), *self._missing(target, buffered, last)])

    def own_query(self, target: Table, buffered: Sequence[BufferedRows]) -> str:
        """Return a query for the buffered rows that the lake lacks, in the table's columns."""
        return " UNION ALL ".join([f"{self._stored(target)} WHERE false", *self._missing(target, buffered, None)])

    def _stored(self, target: Table) -> str:
        place = sql.qualified(self._lake.name, target.id.schema, target.id.name)
        return f"SELECT {sql.identifiers(c.name for c in target.columns)} FROM {place}"

    def _missing(self, target: Table, buffered: Sequence[BufferedRows], last: int | None) -> Iterator[str]:
        """Yield queries for the buffered rows that the lake lacks, none after number `last`."""
        mine = [each for each in buffered if types.table_of(each.payload.columns) in (None, target.uuid)]
        for each in _undelivered(self._connection, self._lake.name, mine, target):
            name = next(self._names)
            self._connection.register(name, each.rows)
            self._cleanup.callback(self._connection.unregister, name)
            watermark = _watermark(self._connection, self._lake.name, self._buffer, each)
            yield _buffered_query(name, each, target, watermark, last)


def _undelivered(
    connection: duckdb.DuckDBPyConnection, lake_name: str, buffered: Sequence[BufferedRows], target: Table
) -> list[BufferedRows]:
    """Return rows that the lake may lack; the ledger is read once for all."""
    ids = [each.payload.id for each in buffered if each.payload.seqs is None]
    delivered = Ledger(connection, lake_name).delivered_ids(ids, target.uuid) if ids else ()
    return [each for each in buffered if each.payload.id not in delivered]


def _refuse_beyond(
    connection: duckdb.DuckDBPyConnection, lake_name: str, buffer: Buffer, table: TableId, last: int
) -> None:
    """Raise if the lake has rows after `last`: rows in the lake have no numbers to filter by."""
    watermark = buffer.check_watermark(table, Ledger(connection, lake_name).join(buffer.producer(table)).seq)
    if watermark > last:
        raise NotReadyError(f"The lake has {table} up to {watermark:,} already, but {last:,} was requested.")


def _watermark(connection: duckdb.DuckDBPyConnection, lake_name: str, buffer: Buffer, buffered: BufferedRows) -> int:
    """Return the number up to which the lake has the buffered rows."""
    if buffered.payload.seqs is None:
        return 0
    return buffer.check_watermark(
        buffered.payload.table, Ledger(connection, lake_name).join(buffered.payload.producer).seq
    )


def _buffered_query(name: str, buffered: BufferedRows, target: Table, watermark: int, last: int | None) -> str:
    """Return a query for the buffered rows that the lake lacks, in the table's columns."""
    if reshape.are_bound(buffered.payload.columns, target.columns):
        chosen = ", ".join(reshape.select_bound(buffered.payload.columns, target.columns))
    else:
        chosen = _by_name(buffered, target)
    cut = "" if last is None else f" AND {SEQ} <= {last}"
    return f"SELECT {chosen} FROM {sql.qualified('temp', 'main', name)} WHERE {SEQ} > {watermark}{cut}"


def _by_name(buffered: BufferedRows, target: Table) -> str:
    """Return expressions for rows that are not bound to a table."""
    columns = incoming.columns_of(buffered.rows.drop_columns([SEQ]).schema)
    reason = reshape.misfit(columns, target.columns)
    if reason is not None:
        raise TypeConflictError(
            f"Buffered rows of {target.id} no longer fit it: {reason}.",
            hint="`catchment queue flush` delivers the rows that fit and makes the others dead letters.",
        )
    return ", ".join(reshape.select_list(columns, target.columns))
