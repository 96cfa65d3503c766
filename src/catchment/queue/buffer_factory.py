"""The layouts of the buffer, by name."""

from catchment.foundation.clock import Clock
from catchment.foundation.meters import Meters
from catchment.foundation.settings import Settings
from catchment.queue.buffer import Buffer
from catchment.queue.sessions_buffer import SessionsBuffer
from catchment.queue.shared_buffer import SharedBuffer


def open_buffer(settings: Settings, *, clock: Clock, meters: Meters | None = None) -> Buffer:
    """The buffer that the settings name, opened; `meters` count the writes of each commit."""
    if settings.queue_layout == "sessions":
        return SessionsBuffer.from_settings(settings, clock=clock, meters=meters)
    return SharedBuffer.from_settings(settings, clock=clock, meters=meters)
