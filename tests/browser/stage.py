"""`Stage`: the web on a real port, with a status that the test chooses."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

from catchment.foundation.clock import SystemClock
from catchment.queue.dead_letter_actions import Retried
from catchment.status.model import Status, StatusPart
from catchment.web.dead_letter_pages import ShownDeadLetter
from catchment.web.live import LISTENERS_MAX, Live
from catchment.web.site import application
from catchment.web.web_server import WebServer
from tests.status.rich_status import rich_letters
from tests.web.text_browser import House

INTERVAL_S = 0.2
RETRY_MS = 200


@dataclass
class Desk:
    """Dead letters of a house, as of now."""

    retried: list[Sequence[str] | None] = field(default_factory=list)

    def letters(self) -> StatusPart[tuple[ShownDeadLetter, ...]]:
        now = SystemClock().now()
        return StatusPart(now, rich_letters(now))

    def retry(self, ids: Sequence[str] | None) -> Retried:
        self.retried.append(ids)
        return Retried(delivered=tuple(ids or ()), refused={})


@dataclass
class Stage:
    """Where it is, and what it shows."""

    address: str
    show: Callable[[datetime], Status]
    house: House

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0


@contextmanager
def staged(
    show: Callable[[datetime], Status], *, is_open: bool = True, port: int = 0, listeners_max: int = LISTENERS_MAX
) -> Iterator[Stage]:
    """Serve what `show` makes of the moment, to every client as an admin, or to users only."""
    clock = SystemClock()
    stage = Stage("", show, House(is_open=is_open))
    app = application(
        lambda: stage.show(clock.now()),
        stage.house,
        dead_letters=Desk(),
        hosts=("127.0.0.1",),
        live=Live(clock=clock, listeners_max=listeners_max, interval_s=INTERVAL_S, retry_ms=RETRY_MS),
    )
    web = WebServer(app, host="127.0.0.1", port=port)
    web.start()
    stage.address = web.address
    try:
        yield stage
    finally:
        web.stop()
