"""What `Migrate` needs of a database: a protocol whose docstrings are the contract, and the values it deals in.

`Engine` keeps it for a SQLite file. Everything that is about scripts, states and models is above it, everything that
is about one kind of database is below.
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
    """Why a backup was made: before a script, because somebody asked, or because a restore replaced what was there."""

    PRE = "pre"
    MANUAL = "manual"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup that can be restored by its name; `number` is that of the script it precedes, or of the last applied."""

    name: str
    kind: BackupKind
    number: int
    made_at: datetime
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a database holds at one moment: its tables, the scripts that were applied to it, and to its reference."""

    structure: Structure
    history: tuple[AppliedScript, ...]
    reference: tuple[AppliedScript, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A script that was generated: what its name says after the number, and its text."""

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
    """One thing that a script did; `column` where it is about one. A COPY reads a column to insert it elsewhere.

    `to` is the new name of a table that is renamed, where it is known.
    """

    verb: AccessKind
    table: str
    column: str | None = None
    to: str | None = None
    line: int = 0


class Database(Protocol):
    """A database that is migrated by numbered scripts, and keeps the record of them itself.

    No method leaves a connection or a transaction open. What is busy for now is a `RetryableError` after a bounded
    number of attempts, and has changed nothing.
    """

    @property
    def name(self) -> str:
        """How the database is called in sentences."""
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
        """What the models are in this database's types. Touches nothing."""
        ...

    def observe(self) -> Observed:
        """Structure and history, read at one moment. Makes no file and no table; what is missing is empty.

        Neither `_migrations` nor the tables of the database's own are part of the structure.
        """
        ...

    def managed(self, observed: Observed, expected: Structure) -> Structure:
        """The tables that are compared with what is expected: those that a script may change or drop.

        All of a database that belongs to the models; else those that a model names, or that an applied script made.
        """
        ...

    def draft(self, expected: Structure) -> Draft | None:
        """A script that leads from what is there to what is expected; None where there is nothing to write.

        It keeps every row of tables that stay. What cannot be decided is written as commented options. A change that
        this kind of database cannot make is refused by an `InputError` that says so.
        """
        ...

    def row_counts(self) -> dict[str, int]:
        """The rows of every table in the structure, by its name."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Keep other appliers out, in this process and in others, for as long as the context lasts.

        The lock goes when its holder dies. It saves work and sentences; atomicity does not rest on it. Waiting is
        bounded: then a `LockTimeoutError` is raised. It is held while scripts are applied, written or edited, and while
        backups are made or restored; those who read do not take it.
        """
        ...

    def apply(self, script: Script) -> tuple[TableAccess, ...]:
        """Run the script and record it, in one transaction: after any failure or kill both are there, or neither is.

        Foreign keys are not enforced while it runs, and hold when it is committed. A script that would end the
        transaction, leave the database or touch the record is refused by a `ScriptError`, as is one that fails, breaks
        a foreign key, or does not keep the rows of a table that it says it keeps. Returns what the script did.
        """
        ...

    def backup(self, kind: BackupKind, number: int) -> Backup:
        """Make a backup that survives a power cut, and let go of the oldest of its kind beyond those to be kept.

        It never replaces another one. Where the newest of this kind and number holds the same, it is that one.
        """
        ...

    def backups(self) -> tuple[Backup, ...]:
        """The backups that there are, newest first."""
        ...

    def has_reference(self) -> bool:
        """Whether there is a reference to go back to."""
        ...

    def restore(self, backup: str | None = None) -> None:
        """Put the backup of that name back, or the reference; what was there is kept as a backup first.

        Atomic: a kill leaves the old content or the new one. Refused by a `BackupMissingError` where there is no such
        backup, and by a `CorruptInputError` where it is damaged; then nothing has changed.
        """
        ...

    def rehearsal(self) -> "AbstractContextManager[Database]":
        """A copy on which scripts can be tried: of the reference, or of the database where there is none.

        It is one of the database, too, where it can be told that the reference has every script already.

        It has the same folder of scripts. It goes with the context, and nothing that is done to it shows elsewhere.
        """
        ...


@runtime_checkable
class Replaceable(Protocol):
    """A database that is a file of its own: only such a one can be damaged, and replaced by a backup of all of it.

    A lake is none. Others deliver to it, and what they have committed is not to be taken back because a script failed.
    """

    def is_damaged(self) -> bool:
        """Whether the file is no sound database; False where that cannot be told now."""
        ...
