"""`LakeEngine`: a schema of a lake as a database with migrations.

    <folder>/<name>.migrations/  scripts
    <folder>/<name>.ref          the reference: names a snapshot of the lake
    <folder>/<name>.bak/         backups: small files that name a snapshot each
    <folder>/<name>.lock         held by the process that applies, restores or backs up

A backup of a lake is the number of a snapshot, not a copy: it costs nothing, and is lost when the
snapshot expires, which maintenance causes after some days. Restoring it is refused then. A restore
also discards rows that other processes wrote after the backup: it restores the schema's tables, and
does not merely undo a script.

Records are rows of `_catchment._migrations`, next to the ledger, each with its schema: the schemas
of one lake are migrated independently. A script and its record are in one DuckLake transaction,
under the lake's commit lock. As DuckLake has no keys, applying or restoring also writes a row of
the ledger that always exists, on which two such transactions conflict even without the lock.

DuckLake has no primary keys, no foreign keys and no indexes. See `lake_plan` for the changes it
supports, `lake_restore` for the effects of a restore on a table, and `lake_execute` for the
restrictions of scripts.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import duckdb

from catchment.errors import (
    BackupMissingError,
    CommitUnknownError,
    ConflictError,
    InputError,
    LakeMissingError,
    ScriptError,
)
from catchment.foundation import events, faults, files, sql
from catchment.foundation.backoff import retry
from catchment.foundation.ids import TableId
from catchment.lake.attach import DuckDbCatalog, LakeAddress
from catchment.lake.lake import Lake
from catchment.lake.ledger import Ledger
from catchment.lake.placeholders import without_tokens
from catchment.lake.tables import LEDGER_SCHEMA, has_table
from catchment.schema import ddl, lake_plan, lake_restore
from catchment.schema.applied_scripts import TABLE, AppliedScript
from catchment.schema.backups import KEEP, Backups
from catchment.schema.diff import ModelDiff, diff
from catchment.schema.generate import script_name, script_text
from catchment.schema.lake_execute import ScriptScope, execute
from catchment.schema.lake_inspect import count_rows, described, inspect, lake_structure
from catchment.schema.lake_restore import DivergedDeliveries, Moment, SnapshotMark
from catchment.schema.migratable import Backup, BackupKind, Draft, Observed, TableAccess
from catchment.schema.models import TableRow
from catchment.schema.ops import Op
from catchment.schema.scripts import Script, tables_made
from catchment.schema.structure import Structure

T = TypeVar("T")

_LOCK_TIMEOUT_S = 60.0
_SAMPLE_ROWS = 200
_REHEARSAL_ROWS_MAX = 1_000_000
_UNDONE = "They were delivered after the restored snapshot: their rows are lost, but they count as delivered."
_AGAIN = "The table was created again: their rows are there, and files that still exist can be delivered again."


class LakeEngine:
    """The tables of one schema of a lake. The lake need not exist, and is opened on first use."""

    def __init__(
        self,
        lake: Lake,
        *,
        schema: str = "main",
        folder: Path,
        name: str | None = None,
        scripts: Path | None = None,
        backups_keep: int = KEEP,
    ) -> None:
        """`name` is the base name of files in `folder`; by default, lake and schema.

        `scripts` is their folder if it is not in `folder`.
        """
        if sql.fold(schema) == LEDGER_SCHEMA:
            raise InputError(f"{schema} belongs to Catchment, and cannot be migrated.", hint="Choose another schema.")
        self._lake = lake
        self._schema = schema
        self._scope = ScriptScope(lake=lake.name, schema=schema)
        self._file = folder / (name or f"{lake.name}.{schema}")
        self._scripts = scripts or self._sibling("migrations")
        self._backups = Backups(self._file, keep=backups_keep)
        self._lock = files.FileLock(self._sibling("lock"), clock=lake.clock)

    @property
    def name(self) -> str:
        return f"{self._lake.name}.{self._schema}"

    @property
    def scripts(self) -> Path:
        return self._scripts

    @property
    def reference(self) -> Path:
        """The file that names the snapshot to which `restore` returns, if it exists."""
        return self._sibling("ref")

    def mark_reference(self) -> int:
        """Make the lake's current snapshot the reference, and return its number.

        The file is valid for this lake only: a snapshot is not a copy.
        """
        with self.locked():
            with self._reading() as connection:
                mark = lake_restore.newest(connection, self._lake.name)
            files.make_folder(self._file.parent)
            files.replace_text(self.reference, mark.text())
        return mark.snapshot

    def expected(self, models: Sequence[type[TableRow]]) -> Structure:
        return lake_structure(models)

    def observe(self) -> Observed:
        def look() -> Observed:
            with self._reading() as connection:
                return Observed(
                    structure=inspect(connection, self._lake.name, self._schema), history=self._history(connection)
                )

        try:
            return self._with_retries(look)
        except LakeMissingError:
            return Observed(structure=Structure(), history=())

    def managed(self, observed: Observed, expected: Structure) -> Structure:
        """Exclude tables of deliveries, imports and clients: migrations must not drop them."""
        ours = tables_made(record.script for record in observed.history)
        found = (t for t in observed.structure.tables if expected.find(t.name) or sql.fold(t.name) in ours)
        return Structure(tables=tuple(found))

    def draft(self, expected: Structure) -> Draft | None:
        actual = self.managed(self.observe(), expected)
        difference = diff(expected, actual)
        if difference.is_empty:
            return None
        if not actual.tables:
            # There may be no lake to query.
            ops = lake_plan.plan(difference, expected, actual, lake=_NOTHING)
        else:
            ops = self._with_retries(lambda: self._planned(difference, expected, actual))
        return Draft(slug=script_name(ops), text=script_text(ops)) if ops else None

    def row_counts(self) -> dict[str, int]:
        tables = [table.name for table in self.observe().structure.tables]

        def count() -> dict[str, int]:
            with self._reading() as connection:
                return {table: count_rows(connection, self._qualified(table)) for table in tables}

        return self._with_retries(count) if tables else {}

    def locked(self) -> AbstractContextManager[None]:
        return self._lock.held(timeout_s=_LOCK_TIMEOUT_S)

    def apply(self, script: Script) -> tuple[TableAccess, ...]:
        self._lake.open()
        acts = self._with_retries(lambda: self._apply_or_find(script))
        faults.reach("schema.after_commit")
        return acts

    def backup(self, kind: BackupKind, number: int) -> Backup:
        """Record the lake's current snapshot; `bytes` is the size of that record."""
        self._lake.open()

        def make() -> Backup:
            with self._reading() as connection:
                mark = lake_restore.newest(connection, self._lake.name)
            return self._backups.make(kind, number, write=mark.write)

        made = self._with_retries(make)
        self._backups.prune()
        return made

    def backups(self) -> tuple[Backup, ...]:
        return self._backups.all()

    def has_reference(self) -> bool:
        return self.reference.exists()

    def restore(self, backup: str | None = None) -> None:
        """Restore the schema's tables, with columns and rows, and the records at the snapshot.

        Raises BackupMissingError if the snapshot has expired. See `lake_restore` for the
        consequences for deliveries; an event warns of those that are affected.
        """
        source = self.reference if backup is None else self._backups.find(backup)
        mark = self._mark(source)
        self._lake.open()
        for each in self._with_retries(lambda: self._restore_once(mark, source)):
            reason = _AGAIN if each.again else _UNDONE
            facts = {"table": each.table, "units": each.units, "rows": each.rows, "reason": reason}
            events.emit("deliveries_parted", level=logging.WARNING, database=self.name, **facts)
        self._backups.prune()

    @contextmanager
    def rehearsal(self) -> Iterator["LakeEngine"]:
        """Yield a temporary lake with the schema's tables, their layout and the records.

        Unlike a transaction that is rolled back at the end, it blocks no other process. It costs
        half a second, and about 1.5 s more for a million rows of three columns. Only a part of a
        large table is copied.
        """
        with TemporaryDirectory(prefix="catchment-rehearsal-") as temporary:
            folder = Path(temporary)
            address = LakeAddress(
                catalog=DuckDbCatalog(folder / "catalog.duckdb"), data_path=str(folder / "data"), name=self._lake.name
            )
            with Lake(address, limits=self._lake.limits, clock=self._lake.clock) as scratch:
                trial = LakeEngine(
                    scratch, schema=self._schema, folder=folder, name=self._file.name, scripts=self.scripts
                )
                self._copy_to(trial, folder)
                yield trial

    def _sibling(self, what: str) -> Path:
        return self._file.with_name(f"{self._file.name}.{what}")

    def _qualified(self, table: str) -> str:
        return sql.qualified(self._lake.name, self._schema, table)

    def _with_retries(self, operation: Callable[[], T]) -> T:
        return retry(operation, policy=self._lake.redo(), clock=self._lake.clock, on=ConflictError)

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a connection that sees the lake as of one moment. Does not create a missing lake."""
        self._lake.open(create=False)
        with self._lake.snapshot() as connection:
            yield connection

    @contextmanager
    def _writing(self, message: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """Run one transaction of the lake, with the schema in use."""
        started_s = self._lake.clock.monotonic_s()
        folder = files.local_path(self._lake.address.data_path) / self._schema
        with self._lake.write(into=folder, purpose="a schema change") as connection:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {sql.qualified(self._lake.name, self._schema)}")
            connection.execute(f"USE {sql.qualified(self._lake.name, self._schema)}")
            yield connection
            connection.execute(
                f"CALL {sql.identifier(self._lake.name)}.set_commit_message('catchment', ?)", [without_tokens(message)]
            )
            elapsed_s = self._lake.clock.monotonic_s() - started_s
            if elapsed_s > self._lake.limits.transaction_s_max:
                # The lake would report a conflict, and retries would fail in the same way.
                raise ScriptError(
                    f"{message}: it took {elapsed_s:.0f} s, longer than the limit for a transaction of the lake.",
                    hint="Raise CATCHMENT_LAKE_TRANSACTION_SECONDS_MAX, or split it into several scripts.",
                )

    def _history(
        self, connection: duckdb.DuckDBPyConnection, *, snapshot: int | None = None
    ) -> tuple[AppliedScript, ...]:
        """Return the schema's records, now or at a snapshot, by number."""
        if not self._has_history(connection, snapshot):
            return ()
        table = sql.qualified(self._lake.name, LEDGER_SCHEMA, TABLE)
        at = "" if snapshot is None else f" AT (VERSION => {snapshot})"
        fields = ("number", "filename", "script", "started_at", "finished_at")
        rows = connection.execute(
            # Rows are compared for the reason that `Ledger` explains.
            f"SELECT {', '.join(fields)} FROM {table}{at} WHERE row(schema_name) = row(?) ORDER BY number",
            [self._schema],
        ).fetchall()
        return tuple(AppliedScript(**dict(zip(fields, row, strict=True))) for row in rows)

    def _has_history(self, connection: duckdb.DuckDBPyConnection, snapshot: int | None) -> bool:
        """Return whether a script was ever applied, to any schema."""
        if snapshot is None:
            return has_table(connection, self._lake.name, TableId(LEDGER_SCHEMA, TABLE))
        moment = Moment(connection=connection, lake=self._lake.name, schema=LEDGER_SCHEMA, snapshot=snapshot)
        return any(table.name == TABLE for table in moment.tables())

    def _record(self, connection: duckdb.DuckDBPyConnection, entry: AppliedScript) -> None:
        table = sql.qualified(self._lake.name, LEDGER_SCHEMA, TABLE)
        connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?)", [self._schema, *astuple(entry)])

    def _apply_or_find(self, script: Script) -> tuple[TableAccess, ...]:
        try:
            return self._apply_once(script)
        except CommitUnknownError as error:
            if any(record.number == script.number for record in self.observe().history):
                return ()
            raise ConflictError(f"{error.message} The script is not recorded: it had no effect.") from error

    def _apply_once(self, script: Script) -> tuple[TableAccess, ...]:
        started_at = self._lake.clock.now().isoformat()
        with self._writing(f"Applied {script.filename}") as connection:
            self._fence(connection, script)
            acts = execute(connection, script, self._scope)
            entry = AppliedScript(
                number=script.number,
                filename=script.filename,
                script=script.text,
                started_at=started_at,
                finished_at=self._lake.clock.now().isoformat(),
            )
            self._record(connection, entry)
            faults.reach("schema.before_commit")
        return acts

    def _fence(self, connection: duckdb.DuckDBPyConnection, script: Script) -> None:
        """Require that the script is not applied yet; of two concurrent processes, one commits."""
        Ledger(connection, self._lake.name).fence(self._lake.clock.now())
        connection.execute(sql.statement("catchment.schema", "lake_migrations_create", lake=self._lake.name))
        if any(record.number == script.number for record in self._history(connection)):
            raise ScriptError(
                f"{script.filename} has just been applied by another process.", hint="Check the state again."
            )

    def _mark(self, source: Path) -> SnapshotMark:
        if not source.exists():
            raise BackupMissingError(
                f"There is no reference {source} to restore.",
                hint="`catchment schema backup lake --reference` creates one.",
            )
        mark = SnapshotMark.read(source)
        with self._reading() as connection:
            lake_restore.refuse_expired(connection, self._lake.name, mark, named_by=str(source))
        return mark

    def _restore_once(self, mark: SnapshotMark, source: Path) -> tuple[DivergedDeliveries, ...]:
        with self._writing(f"Restored {source.name}") as connection:
            Ledger(connection, self._lake.name).fence(self._lake.clock.now())
            lake_restore.refuse_expired(connection, self._lake.name, mark, named_by=str(source))
            applied = self._history(connection)
            # Under the commit lock, so that nothing is committed between the two.
            replaced = lake_restore.newest(connection, self._lake.name)
            self._backups.make(BackupKind.REPLACED, applied[-1].number if applied else 0, write=replaced.write)
            recorded = self._history(connection, snapshot=mark.snapshot)
            inconsistent = lake_restore.restore(self._moment(connection, mark))
            faults.reach("schema.between_restore")
            if applied:
                table = sql.qualified(self._lake.name, LEDGER_SCHEMA, TABLE)
                connection.execute(f"DELETE FROM {table} WHERE schema_name = ?", [self._schema])
            elif recorded:
                connection.execute(sql.statement("catchment.schema", "lake_migrations_create", lake=self._lake.name))
            for entry in recorded:
                self._record(connection, entry)
        return inconsistent

    def _moment(self, connection: duckdb.DuckDBPyConnection, mark: SnapshotMark) -> Moment:
        return Moment(connection=connection, lake=self._lake.name, schema=self._schema, snapshot=mark.snapshot)

    def _planned(self, difference: ModelDiff, expected: Structure, actual: Structure) -> tuple[Op, ...]:
        with self._reading() as connection, self._lake.cursor() as trial_cursor:
            trial_cursor.execute(f"USE {sql.qualified(self._lake.name, self._schema)}")
            moment = self._moment(connection, lake_restore.newest(connection, self._lake.name))
            tables = {table.name: table for table in moment.tables()}
            # Again, with values: they help to score possible renames.
            difference = diff(expected, actual, samples=self._samples(connection, difference))
            probe = lake_plan.LakeProbe(
                refusal=lake_plan.refusal_in(trial_cursor),
                rows=lambda table: count_rows(connection, self._qualified(table)),
                nulls=lambda table, column: count_rows(
                    connection, f"{self._qualified(table)} WHERE {sql.identifier(column)} IS NULL"
                ),
                layout=lambda table, new: lake_restore.layout(tables[table], sql.identifier(new)),
            )
            return lake_plan.plan(difference, expected, actual, lake=probe)

    def _samples(
        self, connection: duckdb.DuckDBPyConnection, difference: ModelDiff
    ) -> dict[tuple[str, str], list[object]]:
        """Return some values of every column that may have been renamed."""
        found: dict[tuple[str, str], list[object]] = {}
        for table in difference.tables:
            for column in table.dropped if table.renames else ():
                query = f"SELECT {sql.identifier(column.name)} FROM {self._qualified(table.table)} LIMIT {_SAMPLE_ROWS}"
                found[table.table, column.name] = [value for (value,) in connection.execute(query).fetchall()]
        return found

    def _copy_to(self, trial: "LakeEngine", folder: Path) -> None:
        """Copy tables and records of the reference, or else of the lake, to the trial."""
        try:
            mark = self._mark(self.reference) if self.has_reference() else None
            with self._reading() as connection:
                moment = self._moment(connection, mark or lake_restore.newest(connection, self._lake.name))
                tables = moment.tables()
                for number, table in enumerate(tables):
                    rows = count_rows(connection, moment.source(table.name))
                    if rows > _REHEARSAL_ROWS_MAX:
                        copied = _REHEARSAL_ROWS_MAX
                        events.emit("rehearsal_cut", database=self.name, table=table.name, rows=rows, copied=copied)
                    query = f"FROM {moment.source(table.name)} LIMIT {_REHEARSAL_ROWS_MAX}"
                    target = sql.literal(str(folder / f"{number}.parquet"))
                    connection.execute(f"COPY ({query}) TO {target} (FORMAT parquet)")
                shapes = [
                    described(connection, self._lake.name, self._schema, table.name, snapshot=moment.snapshot)
                    for table in tables
                ]
                history = self._history(connection, snapshot=moment.snapshot)
        except LakeMissingError:
            return
        with trial._writing("Copied for a rehearsal") as connection:
            connection.execute(sql.statement("catchment.schema", "lake_migrations_create", lake=trial._lake.name))
            for number, (table, shape) in enumerate(zip(tables, shapes, strict=True)):
                connection.execute(ddl.create_sql(shape))
                for statement in lake_restore.layout(table, sql.identifier(table.name)):
                    connection.execute(statement)
                source = sql.literal(str(folder / f"{number}.parquet"))
                connection.execute(f"INSERT INTO {sql.identifier(table.name)} BY NAME FROM read_parquet({source})")
            for entry in history:
                trial._record(connection, entry)


_NOTHING = lake_plan.LakeProbe(
    refusal=lambda _: None, rows=lambda _: 0, nulls=lambda _table, _column: 0, layout=lambda _table, _new: ()
)
