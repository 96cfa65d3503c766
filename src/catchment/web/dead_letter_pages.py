"""Dead letters on the dashboard: listing them and retrying them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from catchment.app import App
from catchment.errors import LakeMissingError
from catchment.queue import dead_letter_actions
from catchment.queue.dead_letter_actions import Retried
from catchment.status import background
from catchment.status.background import BackgroundPart, BackgroundReader
from catchment.status.model import StatusPart

LETTERS_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDeadLetter:
    """A dead letter without its row."""

    id: str
    table: str
    seq: int
    reason: str
    buried_at: datetime


class DeadLetterService(Protocol):
    """Lists and retries dead letters."""

    def letters(self) -> StatusPart[tuple[ShownDeadLetter, ...]]:
        """Return the oldest ones."""
        ...

    def retry(self, ids: Sequence[str] | None) -> Retried:
        """Deliver rows to their tables again; all of them if no id is given."""
        ...


class LakeDeadLetterService:
    """Dead letters of an app's lake, read by a background thread and cached."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._reader = BackgroundReader("catchment-letters")
        self._part = self._cached()

    def letters(self) -> StatusPart[tuple[ShownDeadLetter, ...]]:
        """Return the oldest ones."""
        return self._part.read()

    def retry(self, ids: Sequence[str] | None) -> Retried:
        """Deliver rows to their tables again; all of them if no id is given."""
        try:
            return dead_letter_actions.retry(self._app.existing_lake, ids)
        finally:
            # The cached list is outdated now, also for rows that were not named.
            self._part = self._cached()

    def close(self) -> None:
        """Stop reading; does not wait for a lake that hangs."""
        self._reader.close()

    def _cached(self) -> BackgroundPart[tuple[ShownDeadLetter, ...]]:
        seconds_max = background.AGE_SECONDS_MAX
        return BackgroundPart(
            "letters", self._read, seconds_max=seconds_max, reader=self._reader, clock=self._app.clock
        )

    def _read(self) -> tuple[ShownDeadLetter, ...]:
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
