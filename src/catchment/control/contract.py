"""Protocol for the storage of a control database, in SQLite or PostgreSQL, and its values."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Rows(Protocol):
    """Result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class ControlTransaction(Protocol):
    """An open transaction. `?` is the placeholder for values, and must not be used otherwise."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Rows: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlStatus:
    """Status of a control database before it is opened; `place` contains no secret."""

    place: str
    exists: bool
    applied: tuple[str, ...]
    pending: tuple[str, ...]
    is_backed_up: bool

    def __str__(self) -> str:
        if not self.exists:
            return f"none yet; it will be created at {self.place}"
        if self.pending:
            step = "backs it up and upgrades it" if self.is_backed_up else "upgrades it"
            return f"{self.place}: {', '.join(self.pending)} pending; the next start {step}"
        return f"{self.place}: current, {len(self.applied)} script{'' if len(self.applied) == 1 else 's'} applied"


class ControlEngine(Protocol):
    """Access to a control database. Safe to use from any thread.

    Raises StateError for a database of a newer program, one with scripts that differ from this
    program's, and one that is not Catchment's. Raises ControlUnavailableError for conditions that
    may be temporary.
    """

    @property
    def place(self) -> str:
        """Location of the database, without secrets."""
        ...

    @property
    def path(self) -> Path | None:
        """The database file, if it has one."""
        ...

    def upgrade(self) -> tuple[str, ...]:
        """Bring the database up to date; return the scripts that this call applied."""
        ...

    def examine(self) -> ControlStatus:
        """Return the status of the database, without side effects."""
        ...

    def transaction(self) -> AbstractContextManager[ControlTransaction]:
        """Open an exclusive write transaction: committed at the end, rolled back on an error."""
        ...

    def reading(self) -> AbstractContextManager[ControlTransaction]:
        """Open a transaction that reads a single point in time and changes nothing."""
        ...
