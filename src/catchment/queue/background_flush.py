"""Background flushing: a sweeper finds due tables, and a few threads flush them."""

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime

from catchment.errors import CatchmentError
from catchment.foundation import events
from catchment.foundation.clock import Clock
from catchment.foundation.lasting_thread import LastingThread
from catchment.foundation.settings import Settings
from catchment.queue.buffer import FlushReport
from catchment.queue.coordinator import DqCoordinator

_PAUSE_S_MIN = 0.05


class QueueRuntime:
    """Flushes in the background, from `start` to `stop`."""

    def __init__(self, coordinator: DqCoordinator, settings: Settings, clock: Clock) -> None:
        self._coordinator = coordinator
        self._interval_s = settings.queue_flush_interval_seconds
        self._clock = clock
        self._stopping = threading.Event()
        # At most one flush request is pending: the thread that serves it flushes every table due by
        # then.
        self._requested = threading.Event()
        self._flushers = ThreadPoolExecutor(settings.queue_max_parallel_flushes, thread_name_prefix="catchment-flusher")
        self._sweeper = LastingThread(self._sweep, name="catchment-sweeper")

    def start(self) -> None:
        """Start sweeping and flushing."""
        self._sweeper.start()

    def stop(self, *, flush: bool = False) -> FlushReport | None:
        """Stop once the flushes under way are done; with `flush`, flush the remaining rows."""
        self._stopping.set()
        self._coordinator.due.set()
        self._sweeper.join()
        self._flushers.shutdown()
        if not flush:
            return None
        try:
            return self._coordinator.force_flush_all()
        except CatchmentError as error:
            # The rows are durable, and the next start continues with them.
            events.emit("left_buffered", level=logging.WARNING, reason=error.message)
            return None

    def _sweep(self) -> None:
        while True:
            self._coordinator.due.wait(self._pause_s(self._clock.now()))
            self._coordinator.due.clear()
            if self._stopping.is_set():
                return
            if not self._requested.is_set():
                self._requested.set()
                self._flushers.submit(self._flush).add_done_callback(_report_failure)

    def _pause_s(self, now: datetime) -> float:
        retry_at = self._coordinator.next_retry_at()
        # A retry time in the past does not shorten the pause: this sweep flushes the table, or the
        # table has no trigger yet.
        pause_s = self._interval_s if retry_at is None or retry_at <= now else (retry_at - now).total_seconds()
        return max(_PAUSE_S_MIN, min(self._interval_s, pause_s))

    def _flush(self) -> None:
        self._requested.clear()
        self._coordinator.flush_stale_buffers()


def _report_failure(flush: "Future[None]") -> None:
    # The coordinator handles tables that cannot be flushed; this is a failure of the flush itself,
    # such as a bug. The next sweep runs nevertheless.
    error = flush.exception()
    if error is not None:
        events.emit("sweep_failed", level=logging.ERROR, reason=f"{type(error).__name__}: {error}")
