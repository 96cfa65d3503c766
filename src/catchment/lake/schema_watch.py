"""The lake's schema version as of a moment ago: how a process notices that another one has changed a table.

Asking takes a millisecond or two, and the lake may be away or hang. So an answer counts for a while, one thread asks on
behalf of all, and a caller waits for the answer no longer than a bound. Without an answer the caller goes on with what
it knows.
"""

import threading

from catchment.errors import CatchmentError
from catchment.foundation.clock import Clock
from catchment.lake import tables
from catchment.lake.lake import Lake

_WAIT_S_MAX = 1.0


class SchemaWatch:
    """Knows the version of the lake's schema. Any thread may ask."""

    def __init__(self, lake: Lake, clock: Clock, *, age_s_max: float) -> None:
        """An answer counts for `age_s_max` seconds, and no longer than until the next commit through `lake`."""
        self._lake = lake
        self._clock = clock
        self._age_s_max = age_s_max
        self._mutex = threading.Lock()
        # The question under way, and since when.
        self._asking: threading.Event | None = None
        self._asking_since_s = 0.0
        # The last answer: None if the lake could not be asked.
        self._version: int | None = None
        self._snapshot_id = 0
        self._commits = -1
        self._asked_s = float("-inf")

    def version(self) -> int | None:
        """The version, or None if the lake is away or does not answer in time."""
        commits, since_s = self._lake.commits, self._clock.monotonic_s() - self._age_s_max
        while True:
            with self._mutex:
                if self._commits >= commits and self._asked_s >= since_s:
                    return self._version
                asking = self._question()
            # The answer of a question that was under way before may be too old: then there is another one.
            if asking is None or not asking.wait(_WAIT_S_MAX):
                return None

    def _question(self) -> threading.Event | None:
        """A question whose answer is worth waiting for; None if one has been under way for too long."""
        now_s = self._clock.monotonic_s()
        if self._asking is None:
            self._asking, self._asking_since_s = threading.Event(), now_s
            # A thread of its own: a catalog that hangs must not hold up writers.
            threading.Thread(target=self._ask, args=(self._asking,), name="schema-watch", daemon=True).start()
        return self._asking if now_s - self._asking_since_s < _WAIT_S_MAX else None

    def _ask(self, asking: threading.Event) -> None:
        # Noted before asking: a commit that comes meanwhile may not be in the answer.
        commits, asked_s = self._lake.commits, self._clock.monotonic_s()
        version: int | None = None
        try:
            self._lake.open()
            with self._lake.snapshot() as connection:
                found = tables.newest_schema(connection, self._lake.name, since=self._snapshot_id)
            # Only one question is under way at a time.
            self._snapshot_id, version = found
        except CatchmentError:
            # The lake is away. Callers that need it say so themselves.
            version = None
        finally:
            with self._mutex:
                self._version, self._commits, self._asked_s, self._asking = version, commits, asked_s, None
            asking.set()
