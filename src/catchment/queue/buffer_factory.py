"""The layouts of the buffer, by name: each is registered here and nowhere else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from catchment.foundation.clock import Clock
from catchment.foundation.meters import Meters
from catchment.foundation.settings import Settings
from catchment.queue.buffer import Buffer, QuarantinedFile
from catchment.queue.sessions.sessions_buffer import SessionsBuffer
from catchment.queue.shared.shared_buffer import SharedBuffer
from catchment.queue.store import file_failures


class Layout(Protocol):
    """A layout of the buffer: how to open one, and how to detect one."""

    def from_settings(self, settings: Settings, *, clock: Clock, meters: Meters | None = None) -> Buffer:
        """Open the buffer, or create it; `meters` observes the number of writes per commit."""
        ...

    def exists(self, root: Path) -> bool:
        """Return whether there is a buffer of this layout under the root."""
        ...

    def leftover(self, root: Path) -> str | None:
        """Return a note on rows of this layout for a process that uses another one, or None."""
        ...


LAYOUTS: Mapping[str, Layout] = {"shared": SharedBuffer, "sessions": SessionsBuffer}


def open_buffer(settings: Settings, *, clock: Clock, meters: Meters | None = None) -> Buffer:
    """Open the buffer that the settings name; `meters` observes the number of writes per commit."""
    return LAYOUTS[settings.queue_layout].from_settings(settings, clock=clock, meters=meters)


def buffer_exists(settings: Settings) -> bool:
    """Return whether the buffer that the settings name exists; creates nothing."""
    return LAYOUTS[settings.queue_layout].exists(settings.queue_path)


def leftovers(settings: Settings) -> tuple[str, ...]:
    """Return notes on rows that other layouts have left under the queue's folder."""
    others = (layout for name, layout in LAYOUTS.items() if name != settings.queue_layout)
    return tuple(note for layout in others if (note := layout.leftover(settings.queue_path)) is not None)


def quarantined(settings: Settings) -> tuple[QuarantinedFile, ...]:
    """Return the quarantined files of the queue, without opening the buffer."""
    return file_failures.quarantined(settings.queue_path)
