"""A DuckDB instance that is created on first use, and replaced when it must not be used any more.

An INTERNAL or FATAL error means that one of DuckDB's own assertions failed. By default, DuckDB then
refuses every later statement of the instance, and ends the process when a connection with an open
transaction is closed. `extensions.connect` disables both: the error ends one statement, and the
instance is replaced here.

    cursor ──▶ generation 0 ── failed internally ──▶ generation 1, created on the next use
               │
               └─ connections of generation 0 are lost: they cannot commit, their owners close them
"""

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from catchment.errors import EngineFailedError
from catchment.foundation import events
from catchment.foundation.meters import Counter

Connection = duckdb.DuckDBPyConnection

# DuckDB's errors while rows are read come through Arrow, which keeps only the text.
_FAILED = re.compile(r"(?:INTERNAL|FATAL) Error: ")


def has_failed_inside(error: BaseException) -> bool:
    """Return whether the error is an internal failure of DuckDB, not of a statement."""
    if isinstance(error, duckdb.InternalException | duckdb.FatalException):
        return True
    return isinstance(error, pa.ArrowException | OSError) and _FAILED.match(str(error)) is not None


class Instance:
    """Provides connections to one DuckDB instance at a time. Thread-safe."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Connection],
        *,
        release: Callable[[Connection], None] | None = None,
        failures: Counter | None = None,
    ) -> None:
        """Store the parameters; the first use creates the instance.

        `release` frees resources of a replaced instance that its successor needs. `failures` counts
        internal failures.
        """
        self._name = name
        self._make = make
        self._release = release
        self._failures = failures
        # Number of replaced instances: a connection of an older one must not write any more.
        self.generation = 0
        # Generations before this one failed internally: their connections must not be used at all.
        self._sound_from = 0
        # Set when an instance failed internally; cleared by the component that closes its remaining
        # sessions.
        self.failed = threading.Event()
        self._current: Connection | None = None
        self._mutex = threading.Lock()

    def cursor(self) -> Connection:
        """Return a connection; the caller closes it."""
        with self._mutex:
            if self._current is None:
                self._current = self._make()
            return self._current.cursor()

    def open_with(self, make: Callable[[], Connection]) -> None:
        """Create the instance by `make`, if there is none."""
        with self._mutex:
            if self._current is None:
                self._current = make()

    def origin(self) -> "Origin":
        """Return the origin of connections that are created from now on."""
        return Origin(self, self.generation)

    def is_lost(self, generation: int) -> bool:
        """Whether the instance of that generation failed internally."""
        return generation < self._sound_from

    def give_up(self) -> None:
        """Use a new instance for later connections; readers keep the old one until they finish."""
        with self._mutex:
            self._replace()

    def note(self, error: BaseException, generation: int) -> None:
        """Replace that generation's instance if the error is internal, unless already replaced."""
        if not has_failed_inside(error):
            return
        with self._mutex:
            if generation != self.generation:
                return
            self._replace()
            self._sound_from = self.generation
        self.failed.set()
        if self._failures is not None:
            self._failures.add()
        reason = str(error).partition("\n")[0]
        events.emit("engine_replaced", level=logging.ERROR, engine=self._name, reason=reason)

    def close(self) -> None:
        """Close the instance and all of its connections."""
        with self._mutex:
            if self._current is not None:
                self._current.close()
                self._current = None

    def _replace(self) -> None:
        old, self._current = self._current, None
        self.generation += 1
        if old is not None and self._release is not None:
            self._release(old)


@dataclass(frozen=True, slots=True)
class Origin:
    """Instance and generation of a connection; equal for all connections of one generation."""

    instance: Instance
    generation: int

    @property
    def is_lost(self) -> bool:
        """Whether the instance failed internally: its connections may only be closed."""
        return self.instance.is_lost(self.generation)

    def refuse_lost(self) -> None:
        """Raise EngineFailedError if the instance failed internally."""
        if self.is_lost:
            raise EngineFailedError

    def note(self, error: BaseException) -> None:
        """Replace the instance if the error of one of its connections is an internal failure."""
        self.instance.note(error, self.generation)
