"""The layouts of the buffer, by name."""

from catchment.clock import Clock
from catchment.queue.buffer import Buffer
from catchment.queue.segments import SessionsBuffer
from catchment.queue.shared import SharedBuffer
from catchment.settings import Settings


def open_buffer(settings: Settings, *, clock: Clock) -> Buffer:
    """The buffer that the settings name, opened."""
    if settings.queue_layout == "sessions":
        return SessionsBuffer.from_settings(settings, clock=clock)
    return SharedBuffer.from_settings(settings, clock=clock)
