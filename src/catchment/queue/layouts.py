"""The layouts of the buffer, by name."""

from catchment.clock import Clock
from catchment.meters import Meters
from catchment.queue.buffer import Buffer
from catchment.queue.segments import SessionsBuffer
from catchment.queue.shared import SharedBuffer
from catchment.settings import Settings


def open_buffer(settings: Settings, *, clock: Clock, meters: Meters | None = None) -> Buffer:
    """The buffer that the settings name, opened; `meters` count the writes of each commit."""
    if settings.queue_layout == "sessions":
        return SessionsBuffer.from_settings(settings, clock=clock, meters=meters)
    return SharedBuffer.from_settings(settings, clock=clock, meters=meters)
