"""Cached schema version of the lake: how a process notices that another one changed a table.

A query takes one to two milliseconds, and the lake may be unavailable or hang. So a result is valid
for a while, one thread queries on behalf of all, and a caller waits for a bounded time. Without a
result the caller continues with the columns it knows.
"""

import threading

from catchment.errors import CatchmentError
from catchment.foundation.clock import Clock
from catchment.lake import tables
from catchment.lake.lake import Lake

_WAIT_S_MAX = 1.0


class SchemaWatch:
    """Caches the version of the lake's schema. Thread-safe."""

    def __init__(self, lake: Lake, clock: Clock, *, age_s_max: float) -> None:
        """A version is valid for `age_s_max` seconds, or until the next commit through `lake`."""
        self._lake = lake
        self._clock = clock
        self._age_s_max = age_s_max
        self._mutex = threading.Lock()
        # The query in progress, and its start.
        self._query: threading.Event | None = None
        self._query_started_s = 0.0
        # The last result: None if the lake was unavailable.
        self._version: int | None = None
        self._snapshot_id = 0
        self._commits = -1
        self._queried_s = float("-inf")

    def version(self) -> int | None:
        """Return the version, or None if the lake is unavailable or does not answer in time."""
        commits, since_s = self._lake.commits, self._clock.monotonic_s() - self._age_s_max
        while True:
            with self._mutex:
                if self._commits >= commits and self._queried_s >= since_s:
                    return self._version
                query = self._current_query()
            # The result of a query that started before this call may be too old: then start another
            # one.
            if query is None or not query.wait(_WAIT_S_MAX):
                return None

    def _current_query(self) -> threading.Event | None:
        """Return a query that is worth waiting for; None if one has been in progress for too long."""
        now_s = self._clock.monotonic_s()
        if self._query is None:
            self._query, self._query_started_s = threading.Event(), now_s
            # In a separate thread: a catalog that hangs must not block writers.
            threading.Thread(target=self._run_query, args=(self._query,), name="schema-watch", daemon=True).start()
        return self._query if now_s - self._query_started_s < _WAIT_S_MAX else None

    def _run_query(self, query: threading.Event) -> None:
        # Read before the query: a commit during the query may not be in the result.
        commits, queried_s = self._lake.commits, self._clock.monotonic_s()
        version: int | None = None
        try:
            self._lake.open()
            with self._lake.snapshot() as connection:
                found = tables.newest_schema(connection, self._lake.name, since=self._snapshot_id)
            # Only one query is in progress at a time.
            self._snapshot_id, version = found
        except CatchmentError:
            # The lake is unavailable. Callers that need it raise errors themselves.
            version = None
        finally:
            with self._mutex:
                self._version, self._commits, self._queried_s, self._query = version, commits, queried_s, None
            query.set()
