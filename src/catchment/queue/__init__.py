"""The Duckling Queue: small writes in, durable at once; large Parquet out, exactly once."""

from catchment.queue.background_flush import QueueRuntime
from catchment.queue.buffer import Ack, Buffer, FlushPayload, TableState
from catchment.queue.buffer_factory import open_buffer
from catchment.queue.coordinator import DqCoordinator, QueueStatus
from catchment.queue.flushing import FlushReport, TableFlush
from catchment.queue.fresh_reads import Fresh

__all__ = [
    "Ack",
    "Buffer",
    "DqCoordinator",
    "FlushPayload",
    "FlushReport",
    "Fresh",
    "QueueRuntime",
    "QueueStatus",
    "TableFlush",
    "TableState",
    "open_buffer",
]
