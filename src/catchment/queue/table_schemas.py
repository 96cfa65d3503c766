"""Columns of the lake's tables, and the table that a write is bound to.

    known as of the lake's present schema version, and the rows fit ──▶ bound to that
    the schema has changed, or the rows do not fit                  ──▶ the lake is read, then bound or refused
    the lake is unavailable                                         ──▶ bound to the last known columns

A write is bound to columns by DuckLake's identities, not by name: see `lake.types.Column`. A change
by this process applies to its next write, a change by another process within the age that
`SchemaWatch` allows.

Columns read from the lake are saved in a file next to the buffer: a process that starts while the
lake is unavailable uses them for tables that it does not buffer yet.
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
class _KnownColumns:
    """A table's columns as of a schema version of the lake; None if the version was unknown."""

    columns: tuple[Column, ...]
    version: int | None


class TableSchemas:
    """The columns that rows for a table are bound to."""

    def __init__(self, lake: Lake, watch: SchemaWatch, *, auto_create: bool, root: Path) -> None:
        self._lake = lake
        self._watch = watch
        self._path = root / NOTES_NAME
        self._auto_create = auto_create
        # Columns read from the lake, by one thread at a time per table: a later answer is a newer
        # one.
        self._known: dict[TableId, _KnownColumns] = {}
        # Locks of tables that are being read, with the number of threads that want each. Creating a
        # table waits for other commits.
        self._locks: dict[TableId, tuple[threading.Lock, int]] = {}
        # Guards the locks and the saved file; held for moments only.
        self._mutex = threading.Lock()

    def columns(self, table: TableId, schema: pa.Schema, buffered: tuple[Column, ...] | None) -> tuple[Column, ...]:
        """Return the columns that such rows are bound to; `buffered` are those of buffered rows."""
        before = self._current(table, buffered)
        if before is not None and incoming.schema_mismatch(schema, before) is None:
            return before
        # One thread reads, the others wait for its result: not every writer reads a changed table.
        with self._exclusive(table):
            answer = self._current(table, buffered)
            if answer is not None and answer is not before and incoming.schema_mismatch(schema, answer) is None:
                return answer
            columns = self._resolve(table, schema, buffered)
        incoming.require_fit(schema, columns, table=str(table))
        return columns

    def known(self, table: TableId, buffered: tuple[Column, ...] | None, *, ask: bool) -> tuple[Column, ...]:
        """Return the columns of an existing table; with `ask`, as the lake has them now."""
        known = None if ask else self._current(table, buffered)
        if known is not None:
            return known
        with self._exclusive(table):
            return self._resolve(table, None, buffered)

    def _current(self, table: TableId, buffered: tuple[Column, ...] | None) -> tuple[Column, ...] | None:
        """Return the columns in force: of the present schema version, or the last known."""
        version, known = self._watch.version(), self._known.get(table)
        if version is None:
            return known.columns if known is not None else buffered
        return known.columns if known is not None and known.version == version else None

    def _resolve(
        self, table: TableId, schema: pa.Schema | None, buffered: tuple[Column, ...] | None
    ) -> tuple[Column, ...]:
        """Read the columns from the lake, or use the last known; the caller holds the table's lock."""
        # Read before the table: the next write learns of a change in between.
        version, before = self._watch.version(), self._known.get(table)
        try:
            columns = self._read_from_lake(table, schema)
        except LakeUnavailableError as error:
            last = before.columns if before is not None else buffered or self._saved().get(table)
            if last is None or (schema is not None and incoming.schema_mismatch(schema, last) is not None):
                raise
            if before is None:
                events.emit("table_remembered", level=logging.WARNING, table=str(table), reason=error.message)
            columns, version = last, None
        except TableMissingError:
            self._known.pop(table, None)
            raise
        else:
            self._save(table, columns)
        if before is not None and before.columns == columns:
            # Keep the same object: results cached for these columns are found by its identity.
            columns = before.columns
        self._known[table] = _KnownColumns(columns, version)
        return columns

    def ensure(self, table: TableId, columns: tuple[Column, ...]) -> None:
        """Ensure that the lake has the table; create it with these columns if it is missing."""
        with self._exclusive(table):
            self._lake.open()
            if self._lake.find_table(table) is None:
                refuse_ledger(table)
                self._create(table, tuple(column.unbound for column in columns))
            self._resolve(table, None, None)

    def forget(self, schema: str) -> None:
        """Forget the schema's tables, so that the lake is read when they are used again."""
        for table in list(self._known):
            if sql.fold(table.schema) == sql.fold(schema):
                self._known.pop(table, None)

    @contextmanager
    def _exclusive(self, table: TableId) -> Iterator[None]:
        """Lock the table for reading it from the lake; other tables are not blocked."""
        with self._mutex:
            lock, wanted = self._locks.get(table, (threading.Lock(), 0))
            self._locks[table] = (lock, wanted + 1)
        try:
            with lock:
                yield
        finally:
            with self._mutex:
                wanted = self._locks[table][1] - 1
                if wanted:
                    self._locks[table] = (lock, wanted)
                else:
                    del self._locks[table]

    def _read_from_lake(self, table: TableId, schema: pa.Schema | None) -> tuple[Column, ...]:
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
        if found.insert_reason is not None:
            found.require_computable()
        return found.columns

    def _saved(self) -> dict[TableId, tuple[Column, ...]]:
        with self._mutex:
            return self._read_saved()

    def _read_saved(self) -> dict[TableId, tuple[Column, ...]]:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            # Missing or incomplete: the lake has to be read.
            return {}
        return {TableId(*each["table"]): tuple(map(Column.from_json, each["columns"])) for each in content}

    def _save(self, table: TableId, columns: tuple[Column, ...]) -> None:
        with self._mutex:
            saved = self._read_saved()
            if saved.get(table) != columns:
                content = [
                    {"table": [each.schema, each.name], "columns": [asdict(column) for column in buffered]}
                    for each, buffered in {**saved, table: columns}.items()
                ]
                with suppress(StorageFailedError):
                    # Losing the file is harmless: the next read writes it again.
                    files.write_text(self._path, json.dumps(content))

    def _create(self, table: TableId, columns: tuple[Column, ...]) -> None:
        incoming.refuse_reserved(columns)
        types.require_bounded(columns)
        change = CreateTable(table=table, columns=columns)
        try:
            self._lake.commit(Commit(message=f"create {table} for the queue", changes=(change,)))
        except (ConflictError, InputError):
            # Another process may have been faster; if not, raise.
            if self._lake.find_table(table) is None:
                raise
        else:
            events.emit("table_created", table=str(table))
