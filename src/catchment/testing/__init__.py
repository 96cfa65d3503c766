"""Tools for testing programs built on Catchment: real engines, a fake clock, injected faults."""

from catchment.testing.buffer import ModelBuffer, ModelDisk
from catchment.testing.clock import FakeClock
from catchment.testing.postgres import EmbeddedPostgres
from catchment.testing.runner import InlineRunner

__all__ = ["EmbeddedPostgres", "FakeClock", "InlineRunner", "ModelBuffer", "ModelDisk"]
