"""A process that buffers rows, flushes them and is killed; started by the queue's crash tests.

    python -m tests.crash.queue_child {write|flush|granted|paused|discard} SETTINGS TABLE POINT NTH

`write`: two clients write, each in a session of its own; once both have rows acknowledged,
everything is flushed while they go on, with a commit for each unit, and the process kills itself
when it comes to the point for the NTH time. `paused` stops there instead, and waits to be killed.
Both say on stdout what was acknowledged, after it was: `ack CLIENT FIRST LAST`.

`flush` and `granted`: for every line on stdin everything that is sealed is flushed; the answer is
how many rows this process brought to the lake. With `granted`, every process gets every lease, and
the process says `staged` and waits for another line at the point.

`discard`: the rows of a table that was dropped are discarded, and the process kills itself at the
point.

SETTINGS is a JSON object, with secrets in the clear.
"""

import json
import math
import os
import sys
import threading
from collections.abc import Callable
from datetime import timedelta

from catchment.errors import FlushFailedError
from catchment.foundation import faults
from catchment.foundation.clock import SystemClock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake import lake as lake_module
from catchment.pipeline import deliver
from catchment.queue import DqCoordinator
from catchment.queue.sessions.leases import Lease
from catchment.queue.sessions.sessions_buffer import SessionsBuffer
from tests.queue.queues import FACTS, coordinator, event_rows, open_queue
from tests.sample_events import EVENTS

CLIENTS = 2
CLIENT_IDS = 1_000_000
BATCH = 3
BATCHES_BEFORE = 6
# How far clients go by themselves: without a bound they would leave a flush no time to come to its
# point.
_BATCHES_ALONE_MAX = 3 * BATCHES_BEFORE
# The writer itself comes to these, so they are armed while a flush stands still in the middle of
# its work.
_WRITERS_POINTS = ("queue.before_ack", "queue.after_ack")
_FLUSH_MIDDLE = "deliver.after_place"


class Granted:
    """Leases that every process gets, as if each had lost its own without noticing."""

    def take(self, name: str) -> Lease | None:
        return self

    def forget(self, name: str) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""

    def is_held(self) -> bool:
        return True

    def release(self) -> None:
        """Every process still has it."""


def say(line: str) -> None:
    """Write one line at once: a kill does not split it, and threads do not mix lines."""
    os.write(1, f"{line}\n".encode())


def hear() -> None:
    """Wait for a line."""
    if not sys.stdin.readline():
        sys.exit("the parent is gone")


class Clients:
    """Threads that write batches of rows: so many at first, and then more on request."""

    def __init__(self, queue: DqCoordinator, table: TableId) -> None:
        self._queue = queue
        self._table = table
        self._acked = threading.Condition()
        self._batches = [0] * CLIENTS
        self._batches_max: float = _BATCHES_ALONE_MAX

    def start(self) -> None:
        for number in range(CLIENTS):
            threading.Thread(target=self._write, args=(number,), daemon=True).start()

    def wait_for_each(self, batches: int) -> None:
        """Wait until every client has that many batches acknowledged."""
        with self._acked:
            assert self._acked.wait_for(lambda: min(self._batches) >= batches, timeout=30)

    def wait_for_more(self) -> None:
        """Wait until some batch is acknowledged that was not yet."""
        self.go_on()
        with self._acked:
            before = sum(self._batches)
            assert self._acked.wait_for(lambda: sum(self._batches) > before, timeout=30)

    def go_on(self) -> None:
        """Have them write until the process ends."""
        with self._acked:
            self._batches_max = math.inf
            self._acked.notify_all()

    def _write(self, number: int) -> None:
        while True:
            with self._acked:
                self._acked.wait_for(lambda: self._batches[number] < self._batches_max)
            first = number * CLIENT_IDS + self._batches[number] * BATCH
            try:
                self._queue.enqueue(self._table, event_rows(range(first, first + BATCH)), session=f"client {number}")
            except BaseException as error:
                say(f"failed {error!r}")
                raise
            say(f"ack {number} {first} {first + BATCH - 1}")
            with self._acked:
                self._batches[number] += 1
                self._acked.notify_all()


def main(act: str, values: str, table: str, point: str, nth: str) -> None:
    settings = Settings(**json.loads(values))
    if act in ("flush", "granted"):
        # Several of these processes commit at once.
        lake_module.COMMIT_ATTEMPTS_MAX = 100
        _serve(settings, point if act == "granted" else None)
    elif act == "discard":
        faults.arm(point, faults.kill)
        with open_queue(settings) as queue, queue.stranded(TableId.parse(table)) as rows:
            rows.discard()
    else:
        if act == "write":
            deliver.UNITS_PER_COMMIT_MAX = 1
        _write_and_flush(settings, TableId.parse(table), point, int(nth), pause=act == "paused")


def _write_and_flush(settings: Settings, table: TableId, point: str, nth: int, *, pause: bool) -> None:
    times = [0]

    def end(before: Callable[[], None] = lambda: None) -> None:
        times[0] += 1
        if times[0] == nth:
            before()
            say(f"at {point}")
            if pause:
                threading.Event().wait()
            faults.kill()

    facts = FACTS[settings.queue_layout]
    by_writers = (*_WRITERS_POINTS, *(each.name for each in facts.own_points if each.by_writer))
    at_opening = point == "queue.between_aside" and facts.opens_at_start
    if at_opening:
        faults.arm(point, end)
    with open_queue(settings) as queue:
        clients = Clients(queue, table)
        clients.start()
        clients.wait_for_each(BATCHES_BEFORE)
        if point in by_writers:

            def stand() -> None:
                faults.arm(point, end)
                clients.go_on()
                threading.Event().wait()

            faults.arm(_FLUSH_MIDDLE, stand)
        elif not at_opening:
            # The clients are still at it while the flush is at the point.
            faults.arm(point, lambda: end(clients.wait_for_more))
        queue.force_flush_all()
    say("done")


def _serve(settings: Settings, point: str | None) -> None:
    if point is None:
        with open_queue(settings) as queue:
            say("ready")
            _flush_on_demand(queue)
        return

    def meet() -> None:
        say("staged")
        hear()

    faults.arm(point, meet)
    clock = SystemClock()
    with Lake.from_settings(settings) as lake:
        buffer = SessionsBuffer(
            settings.queue_path,
            rotate_size_bytes=settings.queue_rotate_size_bytes,
            rotate_interval=timedelta(seconds=settings.queue_rotate_interval_seconds),
            keep_flushed=timedelta(hours=settings.queue_flushed_keep_hours),
            leases=Granted(),
            clock=clock,
        )
        say("ready")
        _flush_on_demand(coordinator(settings, lake, buffer))


def _flush_on_demand(queue: DqCoordinator) -> None:
    for _ in sys.stdin:
        try:
            say(f"flushed {queue.force_flush_all().rows}")
        except FlushFailedError as error:
            say(f"flushed {error.facts['rows']} {error.message}")


def command(act: str, settings: Settings, point: str = "", *, table: TableId = EVENTS, nth: int = 1) -> list[str]:
    """How to start this process."""
    values = settings.model_dump(mode="json", exclude_unset=True)
    for name in ("lake_catalog", "queue_lease_postgres"):
        secret = getattr(settings, name)
        if secret is not None:
            values[name] = secret.get_secret_value()
    return [sys.executable, "-m", "tests.crash.queue_child", act, json.dumps(values), str(table), point, str(nth)]


if __name__ == "__main__":
    main(*sys.argv[1:])
