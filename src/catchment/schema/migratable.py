"""What `Migrate` needs of a database: a protocol whose docstrings are the contract, and its values.

Everything about scripts, states and models is above it; everything about one kind of database is
below.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from catchment.schema.applied_scripts import AppliedScript
from catchment.schema.models import TableRow
from catchment.schema.scripts import Script
from catchment.schema.structure import Structure


class BackupKind(StrEnum):
    """Why a backup was made: before a script, on request, or because a restore replaced the
    content.
    """

    PRE = "pre"
    MANUAL = "manual"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup that can be restored by its name; `number` is that of the script it precedes, or of
    the last applied one.
    """

    name: str
    kind: BackupKind
    number: int
    made_at: datetime
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """State of a database at one moment: its tables, and the scripts that were applied to it and to
    its reference.
    """

    structure: Structure
    history: tuple[AppliedScript, ...]
    reference: tuple[AppliedScript, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A generated script: the part of its name after the number, and its text."""

    slug: str
    text: str


class AccessKind(StrEnum):
    """What a statement does to a table."""

    CREATE_TABLE = "create table"
    DROP_TABLE = "drop table"
    ALTER_TABLE = "alter table"
    DROP_COLUMN = "drop column"
    RENAME_TABLE = "rename table"
    CREATE_INDEX = "create index"
    INSERT = "insert"
    REPLACE = "replace"
    UPDATE = "update"
    DELETE = "delete"
    COPY = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAccess:
    """One act of a script; `column` is set if it concerns one. A COPY reads a column to insert it
    elsewhere.

    `to` is the new name of a renamed table, if it is known.
    """

    verb: AccessKind
    table: str
    column: str | None = None
    to: str | None = None
    line: int = 0


class Database(Protocol):
    """A database that is migrated by numbered scripts, and keeps the record of them itself.

    No method leaves a connection or a transaction open. If the database is busy, methods raise a
    `RetryableError` after a bounded number of attempts, and have changed nothing.
    """

    @property
    def name(self) -> str:
        """The name of the database in messages."""
        ...

    @property
    def scripts(self) -> Path:
        """The folder of its scripts; it need not exist."""
        ...

    @property
    def reference(self) -> Path:
        """The file that is, or names, the state that `restore` returns to by default."""
        ...

    def mark_reference(self) -> int:
        """Make the current state the reference and return its snapshot; InputError if unsupported."""
        ...

    def expected(self, models: Sequence[type[TableRow]]) -> Structure:
        """Return the models in this database's types. No side effects."""
        ...

    def observe(self) -> Observed:
        """Return structure and history, read at one moment. Creates no file and no table; a missing
        one is empty.

        Neither `_migrations` nor internal tables of the database are part of the structure.
        """
        ...

    def managed(self, observed: Observed, expected: Structure) -> Structure:
        """Return the tables that are compared with the expected ones: those that a script may
        change or drop.

        These are all tables of a database that belongs to the models; otherwise those that a model
        names, or that an applied script created.
        """
        ...

    def draft(self, expected: Structure) -> Draft | None:
        """Return a script that leads from the current structure to the expected one, or None if
        there is nothing to do.

        It keeps every row of tables that stay. Open decisions are written as commented options.
        Raises InputError for a change that this kind of database cannot make.
        """
        ...

    def row_counts(self) -> dict[str, int]:
        """Return the number of rows of every table in the structure, by its name."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Exclude other appliers, in this process and in others, for the duration of the context.

        The lock is released when its holder dies. It saves work and gives better messages;
        atomicity does not depend on it. Waiting is bounded: then a `LockTimeoutError` is raised. It
        is held while scripts are applied, written or edited, and while backups are made or
        restored; readers do not take it.
        """
        ...

    def apply(self, script: Script) -> tuple[TableAccess, ...]:
        """Run the script and record it, in one transaction: after any failure or kill both are
        there, or neither is.

        Foreign keys are not enforced while it runs, and hold when it is committed. Raises
        ScriptError for a script that would end the transaction, leave the database or touch the
        record, that fails, breaks a foreign key, or does not keep the rows of a table that it
        states it keeps. Returns the script's acts.
        """
        ...

    def backup(self, kind: BackupKind, number: int) -> Backup:
        """Make a backup that survives a power cut, and remove the oldest of its kind beyond those
        to keep.

        It never replaces another one. If the newest of this kind and number has the same content,
        that one is returned.
        """
        ...

    def backups(self) -> tuple[Backup, ...]:
        """Return the backups, newest first."""
        ...

    def has_reference(self) -> bool:
        """Return whether there is a reference to restore."""
        ...

    def restore(self, backup: str | None = None) -> None:
        """Restore the backup of that name, or the reference; the current content is kept as a
        backup first.

        Atomic: a kill leaves the old content or the new one. Raises BackupMissingError if there is
        no such backup, and CorruptInputError if it is damaged; then nothing has changed.
        """
        ...

    def rehearsal(self) -> "AbstractContextManager[Database]":
        """Yield a copy on which scripts can be tried: of the reference, or of the database if there
        is none.

        It is also a copy of the database if the reference is known to have every script already.

        It has the same folder of scripts. It is removed with the context, and no change to it is
        visible elsewhere.
        """
        ...


@runtime_checkable
class Replaceable(Protocol):
    """A database that is a file of its own: only such a database can be damaged, and replaced as a
    whole by a backup.

    A lake is not one. Other processes deliver to it, and their commits must not be undone because a
    script failed.
    """

    def is_damaged(self) -> bool:
        """Return whether the file is not a sound database; False if that cannot be determined now."""
        ...
