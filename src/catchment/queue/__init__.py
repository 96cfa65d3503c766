"""The Duckling Queue: durable small writes, delivered exactly once as large Parquet files."""

from catchment.queue.background_flush import QueueRuntime
from catchment.queue.buffer import Ack, Buffer, FlushPayload, FlushReport, TableFlush, TableState
from catchment.queue.buffer_factory import buffer_exists, open_buffer
from catchment.queue.coordinator import DqCoordinator, QueueStatus
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
    "buffer_exists",
    "open_buffer",
]
