"""What the lake's tables take: asked when rows arrive that do not fit what is known, not for every write.

    fits what is known                    ──▶ go on
    fits the table as the lake has it now ──▶ a new version of the buffered table starts, the old one drains by itself
    fits neither                          ──▶ refused, nothing is dropped

Known is what the lake answered last, or what the buffer keeps where it was not asked since the process started. The
buffer's columns never come before the answer: writers who each took what they found would take turns at new versions.

What the lake answered is noted in a file beside the buffer: a process that starts while the lake is away takes rows by
that, for tables that it does not buffer yet.
"""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from catchment import events, files, sql
from catchment.errors import ConflictError, InputError, LakeUnavailableError, StorageFailedError, TableMissingError
from catchment.ids import TableId
from catchment.lake import Commit, Lake, types
from catchment.lake.commit import CreateTable, refuse_ledger
from catchment.lake.types import Column
from catchment.queue import arrivals

NOTES_NAME = "tables.json"


class Targets:
    """The columns that rows for a table are kept with."""

    def __init__(self, lake: Lake, *, auto_create: bool, root: Path) -> None:
        self._lake = lake
        self._notes = root / NOTES_NAME
        self._auto_create = auto_create
        # What the lake answered, for each table by one question at a time: a later answer is a newer one.
        self._known: dict[TableId, tuple[Column, ...]] = {}
        # Locks of the tables that are being asked for, and how many want each. Making a table waits for other commits.
        self._asking: dict[TableId, tuple[threading.Lock, int]] = {}
        # Guards the locks and the notes; held for moments only.
        self._mutex = threading.Lock()

    def columns(self, table: TableId, schema: pa.Schema, kept: tuple[Column, ...] | None) -> tuple[Column, ...]:
        """What such rows are to be kept with; `kept` is what the buffer keeps the table's rows with now."""
        before = self._known.get(table)
        known = before or kept
        if known is not None and arrivals.misfit(schema, known) is None:
            return known
        # One asks, the others wait for the answer: a changed table is not asked for by every writer at once.
        with self._alone(table):
            answer = self._known.get(table)
            if answer is not None and answer is not before and arrivals.misfit(schema, answer) is None:
                return answer
            try:
                columns = self._ask(table, schema)
            except LakeUnavailableError as error:
                remembered = self._remembered().get(table)
                if remembered is None or arrivals.misfit(schema, remembered) is not None:
                    raise
                events.emit("table_remembered", level=logging.WARNING, table=str(table), reason=error.message)
                columns = remembered
            else:
                self._remember(table, columns)
            self._known[table] = columns
        arrivals.require_fit(schema, columns, table=str(table))
        return columns

    def known(self, table: TableId, kept: tuple[Column, ...] | None, *, ask: bool) -> tuple[Column, ...]:
        """The columns of a table that exists; the lake is asked where they are not known, or where it must be."""
        known = None if ask else self._known.get(table) or kept
        if known is not None:
            return known
        with self._alone(table):
            try:
                columns = self._ask(table, None)
            except LakeUnavailableError:
                remembered = self._remembered().get(table)
                if remembered is None:
                    raise
                return remembered
            self._remember(table, columns)
            self._known[table] = columns
        return columns

    def have(self, table: TableId, columns: tuple[Column, ...]) -> None:
        """See that the lake has the table; one that is missing is made with these columns."""
        if table in self._known:
            return
        with self._alone(table):
            self._lake.open()
            if self._lake.find_table(table) is None:
                refuse_ledger(table)
                self._create(table, columns)
            answer = self._ask(table, None)
            self._remember(table, answer)
            self._known[table] = answer

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
                    hint="Create it first, or set DUCKLING_QUEUE_AUTO_CREATE_TABLES=true.",
                )
            self._create(table, arrivals.columns_of(schema))
            found = self._lake.table(table)
        arrivals.refuse_reserved(found.columns)
        for column in found.columns:
            types.require_deliverable(column)
        arrivals.refuse_unknown(found.columns)
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
        return {TableId(*each["table"]): tuple(Column(**column) for column in each["columns"]) for each in noted}

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
