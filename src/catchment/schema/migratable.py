"""The contract between `Migrate` and a database: a protocol, and its values.

Callers of the protocol handle scripts, states and models; implementations handle one kind of
database each.
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
    """Why a backup was made: before a script, on request, or before a restore."""

    PRE = "pre"
    MANUAL = "manual"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup; `number` is that of the script that it precedes, or of the last applied one."""

    name: str
    kind: BackupKind
    number: int
    made_at: datetime
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """State of a database at one moment: its tables, its applied scripts, and its reference's."""

    structure: Structure
    history: tuple[AppliedScript, ...]
    reference: tuple[AppliedScript, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A generated script: the part of its name after the number, and its text."""

    slug: str
    text: str


class AccessKind(StrEnum):
    """Kinds of effects of a statement on a table."""

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
    """One effect of a script; `column` if it concerns one. A COPY reads it to insert it elsewhere.

    `to` is the new name of a renamed table, if it is known.
    """

    verb: AccessKind
    table: str
    column: str | None = None
    to: str | None = None
    line: int = 0


class Database(Protocol):
    """A database that is migrated by numbered scripts and stores the record of applied ones.

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
        """Return structure and history, as of one moment, without side effects.

        A missing database is empty. Neither `_migrations` nor internal tables are part of the
        structure.
        """
        ...

    def managed(self, observed: Observed, expected: Structure) -> Structure:
        """Return the tables that are compared with the expected ones and may be changed or dropped.

        These are all tables of a database that belongs to the models; otherwise those that a model
        names, or that an applied script created.
        """
        ...

    def draft(self, expected: Structure) -> Draft | None:
        """Return a script from the current structure to the expected one; None if they are equal.

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
        atomicity does not depend on it. Waiting is bounded, and ends with a `LockTimeoutError`. It
        is held while scripts are applied, written or edited, and while backups are made or
        restored; readers do not take it.
        """
        ...

    def apply(self, script: Script) -> tuple[TableAccess, ...]:
        """Run the script and record it, in one transaction.

        Foreign keys are not enforced while it runs, but checked before the commit. Returns the
        script's effects. Raises ScriptError if the script fails, would end the transaction, access
        another database or change the record, breaks a foreign key, or does not keep rows that it
        declares to keep.
        """
        ...

    def backup(self, kind: BackupKind, number: int) -> Backup:
        """Make a durable backup, and remove the oldest of its kind beyond the number to keep.

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
        """Restore the backup of that name, or the reference, after a backup of the current content.

        Atomic: a kill leaves the old content or the new one. Raises BackupMissingError if there is
        no such backup, and CorruptInputError if it is damaged; then nothing has changed.
        """
        ...

    def rehearsal(self) -> "AbstractContextManager[Database]":
        """Yield a copy to try scripts on: of the reference, or of the database if there is none.

        It is also a copy of the database if the reference is known to have all scripts.

        It has the same folder of scripts. It is removed with the context, and no change to it is
        visible elsewhere.
        """
        ...


@runtime_checkable
class Replaceable(Protocol):
    """A database that is one file, which can be damaged, and replaced as a whole by a backup.

    A lake is not: other processes deliver to it, and their commits must not be undone because a
    script failed.
    """

    def is_damaged(self) -> bool:
        """Return whether the file is not a sound database; False if that cannot be determined now."""
        ...
