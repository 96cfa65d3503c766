"""The Duckling Queue: small writes in, durable at once; large Parquet out, exactly once."""

from catchment.queue.buffer import Ack, Buffer, Parcel, TableState
from catchment.queue.coordinator import DqCoordinator, QueueStatus
from catchment.queue.flushing import FlushReport, TableFlush
from catchment.queue.fresh import Fresh
from catchment.queue.layouts import open_buffer
from catchment.queue.runtime import QueueRuntime

__all__ = [
    "Ack",
    "Buffer",
    "DqCoordinator",
    "FlushReport",
    "Fresh",
    "Parcel",
    "QueueRuntime",
    "QueueStatus",
    "TableFlush",
    "TableState",
    "open_buffer",
]
