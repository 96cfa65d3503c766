"""What the lake's tables take: asked when rows arrive that do not fit what is known, not for every write.

fits what the buffer keeps            ──▶ go on
fits the table as the lake has it now ──▶ a new version of the buffered table starts, the old one drains by itself
fits neither                          ──▶ refused, nothing is dropped
"""

import threading

import pyarrow as pa

from catchment import events
from catchment.errors import ConflictError, InputError, TableMissingError
from catchment.ids import TableId
from catchment.lake import Commit, Lake, types
from catchment.lake.commit import CreateTable, refuse_ledger
from catchment.lake.types import Column
from catchment.queue import arrivals


class Targets:
    """The columns that rows for a table are kept with."""

    def __init__(self, lake: Lake, *, auto_create: bool) -> None:
        self._lake = lake
        self._auto_create = auto_create
        self._known: dict[TableId, tuple[Column, ...]] = {}
        self._mutex = threading.Lock()

    def columns(self, table: TableId, schema: pa.Schema, kept: tuple[Column, ...] | None) -> tuple[Column, ...]:
        """What such rows are to be kept with; `kept` is what the buffer keeps the table's rows with now."""
        known = kept or self._known.get(table)
        if known is not None and arrivals.misfit(schema, known) is None:
            return known
        # One asks, the others wait for the answer: a changed table is not asked for by every writer at once.
        with self._mutex:
            columns = self._ask(table, schema)
            self._known[table] = columns
        arrivals.require_fit(schema, columns, table=str(table))
        return columns

    def _ask(self, table: TableId, schema: pa.Schema) -> tuple[Column, ...]:
        refuse_ledger(table)
        self._lake.open()
        found = self._lake.find_table(table)
        if found is None:
            if not self._auto_create:
                raise TableMissingError(
                    f"The lake has no table {table}.",
                    hint="Create it first, or set DUCKLING_QUEUE_AUTO_CREATE_TABLES=true.",
                )
            self._create(table, arrivals.columns_of(schema))
            found = self._lake.table(table)
        arrivals.refuse_reserved(found.columns)
        for column in found.columns:
            types.require_deliverable(column)
        return found.columns

    def _create(self, table: TableId, columns: tuple[Column, ...]) -> None:
        arrivals.refuse_reserved(columns)
        change = CreateTable(table=table, columns=columns)
        try:
            self._lake.commit(Commit(message=f"create {table} for the queue", changes=(change,)))
        except (ConflictError, InputError):
            # Another process may have been faster; if not, the reason counts.
            if self._lake.find_table(table) is None:
                raise
        else:
            events.emit("table_created", table=str(table))
