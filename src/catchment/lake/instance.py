"""A DuckDB instance that is made on first use, and replaced once it must not be used any more.

An INTERNAL or FATAL error says that an assertion of DuckDB's own failed. DuckDB would then refuse every later statement
of the instance, and would end the process when a connection is closed that has a transaction open. Instances are made
so that it does neither (`extensions.connect`): the error is that of one statement, and the instance is replaced here.

    cursor ──▶ generation 0 ── failed inside ──▶ generation 1, made on the next use
               │
               └─ connections of generation 0 are lost: nothing commits on them, their owners close them
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

# An error that DuckDB has while its rows are read comes through Arrow, which leaves only the text.
_FAILED = re.compile(r"(?:INTERNAL|FATAL) Error: ")


def has_failed_inside(error: BaseException) -> bool:
    """Whether the error says that DuckDB itself failed, and not a statement."""
    if isinstance(error, duckdb.InternalException | duckdb.FatalException):
        return True
    return isinstance(error, pa.ArrowException | OSError) and _FAILED.match(str(error)) is not None


class Instance:
    """Gives connections to one DuckDB instance at a time. Any thread may ask."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Connection],
        *,
        release: Callable[[Connection], None] | None = None,
        failures: Counter | None = None,
    ) -> None:
        """`release` takes from an instance that was given up what its successor needs; `failures` counts them."""
        self._name = name
        self._make = make
        self._release = release
        self._failures = failures
        # Counts the instances that were given up: a connection of an older one must not write any more.
        self.generation = 0
        # Those before this one failed inside: a connection of theirs must not be used at all.
        self._sound_from = 0
        # Set when one failed inside; whoever ends what is left on it clears it.
        self.failed = threading.Event()
        self._current: Connection | None = None
        self._mutex = threading.Lock()

    def cursor(self) -> Connection:
        """A connection; the caller closes it."""
        with self._mutex:
            if self._current is None:
                self._current = self._make()
            return self._current.cursor()

    def open_with(self, make: Callable[[], Connection]) -> None:
        """Make the instance in another way, if there is none."""
        with self._mutex:
            if self._current is None:
                self._current = make()

    def origin(self) -> "Origin":
        """What connections are of that are made from now on."""
        return Origin(self, self.generation)

    def is_lost(self, generation: int) -> bool:
        """Whether the instance of that generation failed inside."""
        return generation < self._sound_from

    def give_up(self) -> None:
        """Have the next connection be of a new instance; readers keep the old one until they are done."""
        with self._mutex:
            self._replace()

    def note(self, error: BaseException, generation: int) -> None:
        """Replace the instance of that generation, unless that is done, if the error says that it failed inside."""
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
        """Close it, and every connection that it gave."""
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
    """What a connection is of; two of one instance are equal as long as it was not replaced between them."""

    instance: Instance
    generation: int

    @property
    def is_lost(self) -> bool:
        """Whether it failed inside: nothing may be done with its connections but to close them."""
        return self.instance.is_lost(self.generation)

    def refuse_lost(self) -> None:
        """Raise EngineFailedError if it failed inside."""
        if self.is_lost:
            raise EngineFailedError

    def note(self, error: BaseException) -> None:
        """Have it replaced, if the error of one of its connections says that it failed inside."""
        self.instance.note(error, self.generation)
