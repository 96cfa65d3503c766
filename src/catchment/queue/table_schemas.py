"""What the lake's tables take, and which table a write is bound to.

    known as of the lake's present schema version, and the rows fit ──▶ bound to that
    the schema has changed, or the rows do not fit                  ──▶ the lake is asked, then bound or refused
    the lake is away                                                ──▶ bound to what was known last

A write is bound to columns by what DuckLake knows them by, not by their names: see `lake.types.Column`. A change that
this process makes counts for the next write, one that another process makes within the age that `SchemaWatch` allows.

What the lake answered is noted in a file beside the buffer: a process that starts while the lake is away takes rows by
that, for tables that it does not buffer yet.
"""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from catchment.errors import ConflictError, InputError, LakeUnavailableError, StorageFailedError, TableMissingError
from catchment.foundation import events, files, sql
from catchment.foundation.ids import TableId
from catchment.lake import Commit, Lake, types
from catchment.lake.commit import CreateTable, refuse_ledger
from catchment.lake.schema_watch import SchemaWatch
from catchment.lake.types import Column
from catchment.queue import incoming

NOTES_NAME = "tables.json"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the lake said of a table, when its schema had that version; None if nothing was known of the version."""

    columns: tuple[Column, ...]
    version: int | None


class TableSchemas:
    """The columns that rows for a table are bound to."""

    def __init__(self, lake: Lake, watch: SchemaWatch, *, auto_create: bool, root: Path) -> None:
        self._lake = lake
        self._watch = watch
        self._notes = root / NOTES_NAME
        self._auto_create = auto_create
        # What the lake answered, for each table by one question at a time: a later answer is a newer one.
        self._known: dict[TableId, _Answer] = {}
        # Locks of the tables that are being asked for, and how many want each. Making a table waits for other commits.
        self._asking: dict[TableId, tuple[threading.Lock, int]] = {}
        # Guards the locks and the notes; held for moments only.
        self._mutex = threading.Lock()

    def columns(self, table: TableId, schema: pa.Schema, kept: tuple[Column, ...] | None) -> tuple[Column, ...]:
        """What such rows are bound to; `kept` is what the buffer keeps the table's rows with now."""
        before = self._current(table, kept)
        if before is not None and incoming.schema_mismatch(schema, before) is None:
            return before
        # One asks, the others wait for the answer: a changed table is not asked for by every writer at once.
        with self._alone(table):
            answer = self._current(table, kept)
            if answer is not None and answer is not before and incoming.schema_mismatch(schema, answer) is None:
                return answer
            columns = self._asked(table, schema, kept)
        incoming.require_fit(schema, columns, table=str(table))
        return columns

    def known(self, table: TableId, kept: tuple[Column, ...] | None, *, ask: bool) -> tuple[Column, ...]:
        """The columns of a table that exists; with `ask` as the lake has them at this moment."""
        known = None if ask else self._current(table, kept)
        if known is not None:
            return known
        with self._alone(table):
            return self._asked(table, None, kept)

    def _current(self, table: TableId, kept: tuple[Column, ...] | None) -> tuple[Column, ...] | None:
        """What is known of the table and in force: as of the present schema version, or while the lake is away."""
        version, known = self._watch.version(), self._known.get(table)
        if version is None:
            return known.columns if known is not None else kept
        return known.columns if known is not None and known.version == version else None

    def _asked(self, table: TableId, schema: pa.Schema | None, kept: tuple[Column, ...] | None) -> tuple[Column, ...]:
        """What the lake says, or what was known last if it is away; the caller is the only one who asks."""
        # Asked before the table: of a change in between, the next write learns.
        version, before = self._watch.version(), self._known.get(table)
        try:
            columns = self._ask(table, schema)
        except LakeUnavailableError as error:
            last = before.columns if before is not None else kept or self._remembered().get(table)
            if last is None or (schema is not None and incoming.schema_mismatch(schema, last) is not None):
                raise
            if before is None:
                events.emit("table_remembered", level=logging.WARNING, table=str(table), reason=error.message)
            columns, version = last, None
        except TableMissingError:
            self._known.pop(table, None)
            raise
        else:
            self._remember(table, columns)
        if before is not None and before.columns == columns:
            # The same object: what was found out about rows that fit it is remembered by that.
            columns = before.columns
        self._known[table] = _Answer(columns, version)
        return columns

    def have(self, table: TableId, columns: tuple[Column, ...]) -> None:
        """See that the lake has the table; one that is missing is made with these columns."""
        with self._alone(table):
            self._lake.open()
            if self._lake.find_table(table) is None:
                refuse_ledger(table)
                self._create(table, tuple(column.unbound for column in columns))
            self._asked(table, None, None)

    def forget(self, schema: str) -> None:
        """The lake is asked for the schema's tables when they are wanted again."""
        for table in list(self._known):
            if sql.fold(table.schema) == sql.fold(schema):
                self._known.pop(table, None)

    @contextmanager
    def _alone(self, table: TableId) -> Iterator[None]:
        """Be the only one who asks for this table; those who ask for others do not wait."""
        with self._mutex:
            lock, wanted = self._asking.get(table, (threading.Lock(), 0))
            self._asking[table] = (lock, wanted + 1)
        try:
            with lock:
                yield
        finally:
            with self._mutex:
                wanted = self._asking[table][1] - 1
                if wanted:
                    self._asking[table] = (lock, wanted)
                else:
                    del self._asking[table]

    def _ask(self, table: TableId, schema: pa.Schema | None) -> tuple[Column, ...]:
        refuse_ledger(table)
        self._lake.open()
        found = self._lake.find_table(table)
        if found is None:
            if schema is None or not self._auto_create:
                raise TableMissingError(
                    f"The lake has no table {table}.",
                    hint="Name the columns in the INSERT, and the table is created; or create it first."
                    if self._auto_create
                    else "Create it first, or set DUCKLING_QUEUE_AUTO_CREATE_TABLES=true.",
                )
            self._create(table, incoming.columns_of(schema))
            found = self._lake.table(table)
        incoming.require_queueable(found.columns)
        return found.columns

    def _remembered(self) -> dict[TableId, tuple[Column, ...]]:
        with self._mutex:
            return self._noted()

    def _noted(self) -> dict[TableId, tuple[Column, ...]]:
        try:
            noted = json.loads(self._notes.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            # None yet, or half of one: then the lake has to be asked.
            return {}
        return {TableId(*each["table"]): tuple(map(Column.from_json, each["columns"])) for each in noted}

    def _remember(self, table: TableId, columns: tuple[Column, ...]) -> None:
        with self._mutex:
            remembered = self._noted()
            if remembered.get(table) != columns:
                noted = [
                    {"table": [each.schema, each.name], "columns": [asdict(column) for column in kept]}
                    for each, kept in {**remembered, table: columns}.items()
                ]
                with suppress(StorageFailedError):
                    # Only a note, which the next question makes again.
                    files.write_text(self._notes, json.dumps(noted))

    def _create(self, table: TableId, columns: tuple[Column, ...]) -> None:
        incoming.refuse_reserved(columns)
        types.require_bounded(columns)
        change = CreateTable(table=table, columns=columns)
        try:
            self._lake.commit(Commit(message=f"create {table} for the queue", changes=(change,)))
        except (ConflictError, InputError):
            # Another process may have been faster; if not, the reason counts.
            if self._lake.find_table(table) is None:
                raise
        else:
            events.emit("table_created", table=str(table))
