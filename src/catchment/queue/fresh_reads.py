"""Fresh reads: what the lake has and what is still buffered, each row once.

The buffer is looked at first and the lake second, so that no row is missed between them; the ledger, read in the same
snapshot as the table, tells which buffered rows the lake has by then, so that none is seen twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """An open read. `queries` give the rows by table; `complete_through` says, by source, up to which number.

    `own` give, by table, the buffered rows of one session alone.
    """

    connection: duckdb.DuckDBPyConnection
    queries: Mapping[TableId, str]
    complete_through: Mapping[TableId, Mapping[str, int]]
    own: Mapping[TableId, str]

    def rows(self, table: TableId | None = None) -> pa.Table:
        """All rows of one of the tables; it need not be said which where there is only one."""
        query = next(iter(self.queries.values())) if table is None else self.queries[table]
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
) -> Iterator[Fresh]:
    """Read tables with their buffered rows, and of `own` the rows that the session has in the buffer, as of one moment.

    With `through`, rows behind that number are left out; NotReadyError where the lake has some of them already.
    """
    names = {table: {table} for table in (*tables, *own)}
    while True:
        # In this order: what is acknowledged by now is in the buffer or in the lake when each is looked at.
        bound = {state.table: state.uuids for state in buffer.tables()}
        complete = {table: buffer.complete_through(table) for table in tables}
        held = {table: _held(buffer, names[table]) for table in tables}
        held_own = {table: _held(buffer, names[table], session) for table in own}
        with lake.snapshot() as connection, ExitStack() as cleanup:
            targets = {table: lake.table_in(connection, table) for table in names}
            under = {
                table: names[table] | {name for name, uuids in bound.items() if target.uuid in uuids}
                for table, target in targets.items()
            }
            if under == names:
                reading = _Reading(connection, lake, buffer, cleanup)
                yield Fresh(
                    connection=connection,
                    queries={table: reading.query(targets[table], held[table], through) for table in tables},
                    complete_through=complete,
                    own={table: reading.own_query(targets[table], held_own[table]) for table in own},
                )
                return
        # Rows of a table that was renamed are buffered under the name that it had.
        names = under


def _held(buffer: Buffer, names: Iterable[TableId], session: str | None = None) -> list[BufferedRows]:
    return [each for name in sorted(names) for each in buffer.held(name, session)]


class _Reading:
    """What the queries of a fresh read are made from: one snapshot of the lake, and rows registered beside it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, lake: Lake, buffer: Buffer, cleanup: ExitStack) -> None:
        self._connection = connection
        self._lake = lake
        self._buffer = buffer
        self._cleanup = cleanup
        self._names = (f"catchment_buffered_{number}" for number in count())

    def query(self, target: Table, held: Sequence[BufferedRows], through: Mapping[TableId, int] | None) -> str:
        """All rows of one table, with those of the held rows that the lake does not have."""
        last = None if through is None else through.get(target.id, 0)
        if last is not None:
            _refuse_further(self._connection, self._lake.name, self._buffer, target.id, last)
        return " UNION ALL ".join([self._stored(target), *self._missing(target, held, last)])

    def own_query(self, target: Table, held: Sequence[BufferedRows]) -> str:
        """Those of the held rows that the lake does not have, in the table's columns also if there are none."""
        return " UNION ALL ".join([f"{self._stored(target)} WHERE false", *self._missing(target, held, None)])

    def _stored(self, target: Table) -> str:
        place = sql.qualified(self._lake.name, target.id.schema, target.id.name)
        return f"SELECT {sql.identifiers(c.name for c in target.columns)} FROM {place}"

    def _missing(self, target: Table, held: Sequence[BufferedRows], last: int | None) -> Iterator[str]:
        """Queries for the held rows that the lake does not have, none after number `last`."""
        mine = [each for each in held if types.table_of(each.parcel.columns) in (None, target.uuid)]
        for each in _undelivered(self._connection, self._lake.name, mine, target):
            name = next(self._names)
            self._connection.register(name, each.rows)
            self._cleanup.callback(self._connection.unregister, name)
            covered = _covered(self._connection, self._lake.name, self._buffer, each)
            yield _buffered(name, each, target, covered, last)


def _undelivered(
    connection: duckdb.DuckDBPyConnection, lake_name: str, held: Sequence[BufferedRows], target: Table
) -> list[BufferedRows]:
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


def _covered(connection: duckdb.DuckDBPyConnection, lake_name: str, buffer: Buffer, held: BufferedRows) -> int:
    """Up to which number the lake has the held rows."""
    if not held.parcel.positioned:
        return 0
    return buffer.covered(held.parcel.table, Ledger(connection, lake_name).join(held.parcel.producer).seq)


def _buffered(name: str, held: BufferedRows, target: Table, covered: int, last: int | None) -> str:
    """The held rows that the lake does not have, in the table's columns."""
    if reshape.are_bound(held.parcel.columns, target.columns):
        chosen = ", ".join(reshape.select_bound(held.parcel.columns, target.columns))
    else:
        chosen = _by_name(held, target)
    cut = "" if last is None else f" AND {SEQ} <= {last}"
    return f"SELECT {chosen} FROM {sql.qualified('temp', 'main', name)} WHERE {SEQ} > {covered}{cut}"


def _by_name(held: BufferedRows, target: Table) -> str:
    """For rows that were bound to no table."""
    columns = incoming.columns_of(held.rows.drop_columns([SEQ]).schema)
    reason = reshape.misfit(columns, target.columns)
    if reason is not None:
        raise TypeConflictError(
            f"Buffered rows of {target.id} do not fit it any more: {reason}.",
            hint="`catchment queue flush` delivers those that fit and sets the others aside.",
        )
    return ", ".join(reshape.select_list(columns, target.columns))
