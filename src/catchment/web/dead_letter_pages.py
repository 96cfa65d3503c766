"""Dead letters as pages show them, and what a button does about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from catchment.app import App
from catchment.errors import LakeMissingError
from catchment.queue import dead_letter_actions
from catchment.queue.dead_letter_actions import Retried
from catchment.status.background import BackgroundPart, BackgroundReader
from catchment.status.model import StatusPart

LETTERS_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDeadLetter:
    """A row that its table refused, without the row."""

    id: str
    table: str
    seq: int
    reason: str
    buried_at: datetime


class DeadLetterService(Protocol):
    """Where dead letters are looked at and sent again."""

    def letters(self) -> StatusPart[tuple[ShownDeadLetter, ...]]:
        """The oldest ones."""
        ...

    def retry(self, ids: Sequence[str] | None) -> Retried:
        """Put rows into their tables after all; all of them where none is named."""
        ...


class LakeDeadLetterService:
    """The dead letters of an app's lake, asked for by a thread of the desk's own, and kept for a while."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._askers = BackgroundReader("catchment-letters")
        self._kept = self._cached()

    def letters(self) -> StatusPart[tuple[ShownDeadLetter, ...]]:
        """The oldest ones."""
        return self._kept.read()

    def retry(self, ids: Sequence[str] | None) -> Retried:
        """Put rows into their tables after all; all of them where none is named."""
        try:
            return dead_letter_actions.retry(self._app.existing_lake, ids)
        finally:
            # What is known is old from now on, also of those that were not named.
            self._kept = self._cached()

    def close(self) -> None:
        """Ask no more; a lake that hangs is not waited for."""
        self._askers.close()

    def _cached(self) -> BackgroundPart[tuple[ShownDeadLetter, ...]]:
        seconds_max = self._app.settings.status_seconds_max
        return BackgroundPart("letters", self._ask, seconds_max=seconds_max, askers=self._askers, clock=self._app.clock)

    def _ask(self) -> tuple[ShownDeadLetter, ...]:
        try:
            found = self._app.existing_lake.dead_letters(letters_max=LETTERS_SHOWN_MAX)
        except LakeMissingError:
            return ()
        return tuple(
            ShownDeadLetter(
                id=each.id, table=str(each.table), seq=each.seq, reason=each.reason, buried_at=each.buried_at
            )
            for each in found
        )
