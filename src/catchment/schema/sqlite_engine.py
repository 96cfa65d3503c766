"""`SqliteEngine`: a SQLite file as a database with migrations.

mydb.sqlite              the database
mydb.sqlite.ref          the reference: a copy of production, which no process writes to
mydb.sqlite.migrations/  scripts
mydb.sqlite.bak/         backups
mydb.sqlite.lock         held by the process that applies, restores or backs up
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from catchment.errors import BackupMissingError, CorruptInputError, InputError, RetryableError
from catchment.foundation import faults, files, sql
from catchment.foundation.backoff import Backoff
from catchment.foundation.clock import Clock, SystemClock
from catchment.schema import applied_scripts
from catchment.schema.backups import KEEP, Backups, copy, refuse_damaged
from catchment.schema.diff import ModelDiff, diff
from catchment.schema.execute import count_rows, execute
from catchment.schema.generate import script_name, script_text
from catchment.schema.inspect import all_dependents, inspect
from catchment.schema.migratable import Backup, BackupKind, Draft, Observed, TableAccess
from catchment.schema.models import TableRow, sqlite_structure
from catchment.schema.ops import plan
from catchment.schema.scripts import Script, read_folder
from catchment.schema.sqlite_files import BUSY, reading, retry_busy, writing
from catchment.schema.structure import Structure

_LOCK_TIMEOUT_S = 60.0
_COMMIT_WAIT_MS = 5_000
_SAMPLE_ROWS = 200


class SqliteEngine:
    """A SQLite database by its path. It is opened on first use, and the file need not exist."""

    def __init__(
        self,
        path: str | Path,
        *,
        scripts: Path | None = None,
        backups_keep: int = KEEP,
        lock_timeout_s: float = _LOCK_TIMEOUT_S,
        busy: Backoff = BUSY,
        clock: Clock | None = None,
    ) -> None:
        """`scripts` is by default next to the database; `backups_keep` applies to each kind."""
        self.path = Path(path)
        self._scripts = scripts or self.path.with_name(f"{self.path.name}.migrations")
        self._backups = Backups(self.path, keep=backups_keep)
        self._lock_timeout_s = lock_timeout_s
        self._busy = busy
        self._clock = clock or SystemClock()
        self._lock = files.FileLock(self.path.with_name(f"{self.path.name}.lock"), clock=self._clock)
        self._connection: sqlite3.Connection | None = None

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def scripts(self) -> Path:
        return self._scripts

    @property
    def reference(self) -> Path:
        """The file that `restore` returns to, if it exists."""
        return self.path.with_name(f"{self.path.name}.ref")

    @property
    def connection(self) -> sqlite3.Connection:
        """A connection for the program's queries, with foreign keys enforced; opened on first use.

        `restore` closes it; the next use opens another one.
        """
        if self._connection is None:
            files.make_folder(self.path.parent)
            self._connection = sqlite3.connect(self.path)
            self._connection.execute("PRAGMA foreign_keys = ON")
        return self._connection

    def close(self) -> None:
        """Close the program's connection, if it is open."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expected(self, models: Sequence[type[TableRow]]) -> Structure:
        return sqlite_structure(models)

    def observe(self) -> Observed:
        def look() -> Observed:
            with reading(self.path) as connection:
                found = Observed(structure=inspect(connection), history=applied_scripts.read(connection))
            return replace(found, reference=self._reference_history())

        return retry_busy(look, policy=self._busy, clock=self._clock)

    def managed(self, observed: Observed, expected: Structure) -> Structure:
        return observed.structure

    def draft(self, expected: Structure) -> Draft | None:
        def write() -> Draft | None:
            with reading(self.path) as connection:
                return _draft(connection, expected)

        return retry_busy(write, policy=self._busy, clock=self._clock)

    def row_counts(self) -> dict[str, int]:
        def count() -> dict[str, int]:
            with reading(self.path) as connection:
                tables = [table.name for table in inspect(connection).tables]
                return dict(zip(tables, count_rows(connection, tables), strict=True))

        return retry_busy(count, policy=self._busy, clock=self._clock)

    def locked(self) -> AbstractContextManager[None]:
        return self._lock.held(timeout_s=self._lock_timeout_s)

    def apply(self, script: Script) -> tuple[TableAccess, ...]:
        acts = retry_busy(lambda: self._apply_once(script), policy=self._busy, clock=self._clock)
        faults.reach("schema.after_commit")
        return acts

    def backup(self, kind: BackupKind, number: int) -> Backup:
        made = retry_busy(lambda: self._backups.make(kind, number), policy=self._busy, clock=self._clock)
        self._backups.prune()
        return made

    def backups(self) -> tuple[Backup, ...]:
        return self._backups.all()

    def is_damaged(self) -> bool:
        try:
            retry_busy(lambda: refuse_damaged(self.path, is_frozen=False), policy=self._busy, clock=self._clock)
        except CorruptInputError:
            return True
        except RetryableError:
            return False
        return False

    def mark_reference(self) -> int:
        raise InputError(
            "The reference of a SQLite file is a copy of the production database.",
            hint=f"Copy it to {self.reference}.",
        )

    def has_reference(self) -> bool:
        return self.reference.exists()

    def restore(self, backup: str | None = None) -> None:
        source = self.reference if backup is None else self._backups.find(backup)
        if not source.exists():
            raise BackupMissingError(
                f"There is no reference {source} to restore.", hint="Copy the production database there."
            )
        refuse_damaged(source)
        self.close()
        retry_busy(lambda: self._replace_by(source), policy=self._busy, clock=self._clock)
        self._backups.prune()

    @contextmanager
    def rehearsal(self) -> Iterator["SqliteEngine"]:
        is_reference = self._is_behind(self.reference)
        source = self.reference if is_reference else self.path
        with TemporaryDirectory(prefix="catchment-rehearsal-") as folder:
            trial = Path(folder) / self.path.name
            retry_busy(lambda: copy(source, trial, is_frozen=is_reference), policy=self._busy, clock=self._clock)
            with SqliteEngine(trial, scripts=self.scripts, busy=self._busy, clock=self._clock) as engine:
                yield engine

    def _reference_history(self) -> tuple[applied_scripts.AppliedScript, ...]:
        """Return the reference's scripts; none if it cannot be read, which a restore reports."""
        if not self.reference.exists():
            return ()
        try:
            with reading(self.reference, is_frozen=True) as connection:
                return applied_scripts.read(connection)
        except CorruptInputError:
            return ()

    def _is_behind(self, reference: Path) -> bool:
        """Return whether there is a reference that lacks a script, to rehearse it there."""
        if not reference.exists():
            return False
        with reading(reference, is_frozen=True) as connection:
            applied = {record.number for record in applied_scripts.read(connection)}
        return not applied.issuperset(read_folder(self.scripts).numbers)

    def _apply_once(self, script: Script) -> tuple[TableAccess, ...]:
        started_at = self._clock.now().isoformat()
        files.make_folder(self.path.parent)
        # Closing the connection rolls back uncommitted changes.
        with writing(self.path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            acts = execute(connection, script)
            entry = applied_scripts.AppliedScript(
                number=script.number,
                filename=script.filename,
                script=script.text,
                started_at=started_at,
                finished_at=self._clock.now().isoformat(),
            )
            applied_scripts.record(connection, entry)
            faults.reach("schema.before_commit")
            # Readers delay the commit; waiting for them is cheaper than running the script again.
            connection.execute(f"PRAGMA busy_timeout = {_COMMIT_WAIT_MS}")
            connection.execute("COMMIT")
        return acts

    def _replace_by(self, source: Path) -> None:
        try:
            applied = self.observe().history
            if files.size_of(self.path):
                self._backups.make(BackupKind.REPLACED, applied[-1].number if applied else 0)
        except CorruptInputError:
            self._backups.quarantine(stamp=self._clock.now().strftime("%Y%m%dT%H%M%S.%fZ"))
        files.make_folder(self.path.parent)
        copy(source, self.path, is_frozen=True, on_step=lambda: faults.reach("schema.between_restore"))


def _draft(connection: sqlite3.Connection, expected: Structure) -> Draft | None:
    actual = inspect(connection)
    difference = diff(expected, actual)
    if difference.is_empty:
        return None
    # Again, with values: they help to score possible renames.
    dependents = all_dependents(connection, actual)
    difference = diff(expected, actual, samples=_samples(connection, difference))
    ops = plan(difference, expected, actual, dependents=dependents)
    return Draft(slug=script_name(ops), text=script_text(ops)) if ops else None


def _samples(connection: sqlite3.Connection, difference: ModelDiff) -> dict[tuple[str, str], list[object]]:
    """Return some values of every column that may have been renamed."""
    found: dict[tuple[str, str], list[object]] = {}
    # SQLite stores any bytes as text; their meaning does not matter here.
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    for table in difference.tables:
        for column in table.dropped if table.renames else ():
            query = f"SELECT {sql.identifier(column.name)} FROM {sql.identifier(table.table)} LIMIT {_SAMPLE_ROWS}"
            found[table.table, column.name] = [value for (value,) in connection.execute(query)]
    return found
