"""What a control database is kept in: a protocol that SQLite and PostgreSQL fill, and its values."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Rows(Protocol):
    """What a statement gave."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class ControlTransaction(Protocol):
    """A transaction that is open. Values stand for `?`, in both engines, so `?` stands for nothing else."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Rows: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlStatus:
    """How a control database stands, before anybody has opened it; `place` shows no secret."""

    place: str
    exists: bool
    applied: tuple[str, ...]
    pending: tuple[str, ...]
    is_backed_up: bool

    def __str__(self) -> str:
        if not self.exists:
            return f"none yet; it will be made at {self.place}"
        if self.pending:
            step = "backs it up and upgrades it" if self.is_backed_up else "upgrades it"
            return f"{self.place}: {', '.join(self.pending)} pending; the next start {step}"
        return f"{self.place}: current, {len(self.applied)} script{'' if len(self.applied) == 1 else 's'} applied"


class ControlEngine(Protocol):
    """Where a control database is. Any thread may use it.

    What is refused is a StateError: a database that a newer program has written, one whose scripts are not those of
    this program, and one that is not Catchment's. What may pass is a ControlUnavailableError.
    """

    @property
    def place(self) -> str:
        """Where it is, without secrets."""
        ...

    @property
    def path(self) -> Path | None:
        """Its file, where it has one."""
        ...

    def upgrade(self) -> tuple[str, ...]:
        """Bring it up to date; returns the scripts that this call has applied."""
        ...

    def examine(self) -> ControlStatus:
        """How it stands, without any effect."""
        ...

    def transaction(self) -> AbstractContextManager[ControlTransaction]:
        """One that may write, alone: committed at the end, rolled back by an error."""
        ...

    def reading(self) -> AbstractContextManager[ControlTransaction]:
        """One that sees a single moment of it, and changes nothing."""
        ...
