"""The runtime: a sweeper that looks what is due, and a few flushers that do it."""

import logging
import threading
from datetime import datetime

from catchment import events
from catchment.clock import Clock
from catchment.errors import CatchmentError, FlushFailedError
from catchment.queue.coordinator import DqCoordinator
from catchment.queue.flushing import FlushReport
from catchment.settings import Settings

_STOP_S_MAX = 60.0


class QueueRuntime:
    """Flushes in the background, from `start` to `stop`."""

    def __init__(self, coordinator: DqCoordinator, settings: Settings, clock: Clock) -> None:
        self._coordinator = coordinator
        self._interval_s = settings.queue_flush_interval_seconds
        self._clock = clock
        self._stopping = threading.Event()
        # At most one order waits: a flusher that takes it sees everything that is due by then.
        self._orders = threading.Semaphore(0)
        self._ordered = threading.Event()
        self._threads = [
            threading.Thread(target=self._sweep, name="catchment-sweeper", daemon=True),
            *(
                threading.Thread(target=self._flush, name=f"catchment-flusher-{number}", daemon=True)
                for number in range(settings.queue_max_parallel_flushes)
            ),
        ]

    def start(self) -> None:
        """Begin to sweep and flush."""
        for thread in self._threads:
            thread.start()

    def stop(self, *, flush: bool = False) -> FlushReport | None:
        """End the threads, once the flushes under way are done; with `flush`, flush what is left."""
        self._stopping.set()
        self._coordinator.due.set()
        for _ in self._threads:
            self._orders.release()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_STOP_S_MAX)
        if not flush:
            return None
        try:
            return self._coordinator.force_flush_all()
        except FlushFailedError as error:
            # The rows are durable, and the next start goes on with them.
            events.emit("left_buffered", level=logging.WARNING, reason=error.message)
            return None

    def _sweep(self) -> None:
        while not self._stopping.is_set():
            self._coordinator.due.wait(self._pause_s(self._clock.now()))
            self._coordinator.due.clear()
            if not self._ordered.is_set():
                self._ordered.set()
                self._orders.release()

    def _pause_s(self, now: datetime) -> float:
        retry_at = self._coordinator.next_retry_at()
        pause_s = self._interval_s if retry_at is None else (retry_at - now).total_seconds()
        return max(0.05, min(self._interval_s, pause_s))

    def _flush(self) -> None:
        while True:
            self._orders.acquire()
            self._ordered.clear()
            if self._stopping.is_set():
                return
            try:
                self._coordinator.flush_stale_buffers()
            except CatchmentError as error:
                events.emit("sweep_failed", level=logging.ERROR, reason=error.message)
            except Exception as error:  # noqa: BLE001 - a bug in one flush must not end all flushing
                events.emit("sweep_failed", level=logging.ERROR, reason=f"{type(error).__name__}: {error}")
