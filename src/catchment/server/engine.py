"""What all sessions share: the lake, the queue, and connections behind the wall."""

import logging

from catchment import events
from catchment.app import App
from catchment.clock import Clock
from catchment.errors import LakeUnavailableError
from catchment.lake import Lake, extensions
from catchment.queue import DqCoordinator
from catchment.server.links import Link
from catchment.settings import Settings

# The generation of connections that were made while the lake was away.
LAKELESS = -1


class Engine:
    """The lake, the queue, and links to DuckDB."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.settings: Settings = app.settings
        self.clock: Clock = app.clock
        self.queue: DqCoordinator | None = app.queue if app.settings.queue_enable else None
        # The queue's lake works while the catalog is away; it is opened when it is first used.
        self.lake: Lake = self.queue.lake if self.queue is not None else app.lake

    @property
    def generation(self) -> int:
        """Which of the lake's DuckDB instances is the one to use."""
        return self.lake.generation

    def link(self) -> Link:
        """A connection with the lake as its default catalog; without it while the lake is away."""
        generation = self.lake.generation
        try:
            self.lake.open()
            connection = self.lake.cursor()
        except LakeUnavailableError as error:
            events.emit("lake_away", level=logging.WARNING, reason=error.message)
            # Rows for the queue can still be computed, and are taken.
            connection = extensions.connect()
            self.app.wall.raise_around(connection)
            generation = LAKELESS
        return Link(connection, generation=generation, result_bytes_max=self.settings.server_result_bytes_max)
