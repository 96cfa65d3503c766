"""Spark as a runner of tasks. Spark's client and the code that starts it are imported on first use."""

import random
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from catchment.errors import SparkFailedError
from catchment.foundation.backoff import Backoff
from catchment.foundation.clock import Clock, SystemClock
from catchment.foundation.settings import Settings
from catchment.pipeline import spark_master
from catchment.pipeline.work import Task, TaskResult

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from catchment.pipeline.spark_driver import SparkDriver

T = TypeVar("T")

_RESTART_FIRST_MS = 1_000
# Maximum wait before Spark is started again after a failed start.
RESTART_SECONDS_MAX = 60


class Runner(Protocol):
    """Runs tasks and returns their results; a task may have been tried more than once."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at the same time."""
        ...

    def run(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """Run all tasks. Raises SparkFailedError if one failed permanently."""
        ...


class SparkRunner:
    """Runs tasks on Spark; the first task starts the session, `close` stops it.

    A lost session is discarded, and the next use starts another. After a failed start, or a session
    that was lost before it finished a job, the next start is delayed; until then every use fails
    with the same reason.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._backoff = Backoff(attempts_max=1, first_ms=_RESTART_FIRST_MS, wait_ms_max=RESTART_SECONDS_MAX * 1_000)
        self._session: SparkDriver | None = None
        self._mutex = threading.Lock()
        self._failures = 0
        self._failure: SparkFailedError | None = None
        self._start_at_s = 0.0

    def __enter__(self) -> "SparkRunner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def parallelism(self) -> int:
        return spark_master.parallelism(self._settings)

    @property
    def context(self) -> "SparkContext":
        """Spark's context, started on first use; tasks need nothing else."""
        return self._started().context

    @property
    def spark(self) -> "SparkSession":
        """The session for Spark's SQL, started on first use; its first query is expensive."""
        return self._started().spark

    def run(self, tasks: Sequence[Task]) -> list[TaskResult]:
        return self._use(lambda session: session.run(tasks)) if tasks else []

    def probe(self) -> str:
        """Run a trivial job on a worker and describe Spark. Raises SparkFailedError if that fails."""
        return self._use(lambda session: session.probe())

    def close(self) -> None:
        """Stop the session and its JVM."""
        with self._mutex:
            session, self._session = self._session, None
            if session is not None:
                session.stop()

    def _use(self, job: Callable[["SparkDriver"], T]) -> T:
        session = self._started()
        try:
            result = job(session)
        except SparkFailedError as error:
            if not session.is_alive:
                self._discard(session, error)
            raise
        self._failures = 0
        return result

    def _discard(self, session: "SparkDriver", error: SparkFailedError) -> None:
        """Stop a lost session; the next use starts another."""
        with self._mutex:
            if self._session is session:
                self._session = None
                session.stop()
                if self._failures:
                    self._delay_next_start(error)

    def _started(self) -> "SparkDriver":
        from catchment.pipeline.spark_driver import SparkDriver

        with self._mutex:
            session = self._session
            if session is not None and not session.has_jvm:
                # Its JVM ended between two uses.
                self._session = None
                session.stop()
            if self._session is None:
                self._require_delay_over()
                try:
                    self._session = SparkDriver(self._settings)
                except SparkFailedError as error:
                    self._failures += 1
                    self._delay_next_start(error)
                    raise
                # Until it has finished a job, it counts as failed.
                self._failures += 1
            return self._session

    def _require_delay_over(self) -> None:
        wait_s = self._start_at_s - self._clock.monotonic_s()
        if self._failure is not None and wait_s > 0:
            failure = self._failure
            raise failure.rebuild(
                f"{failure.message.rstrip('.')}. The next attempt to start Spark is in {wait_s:.0f} s at the earliest.",
                failure.hint,
                failure.facts,
            )

    def _delay_next_start(self, error: SparkFailedError) -> None:
        wait_ms = self._backoff.wait_ms(self._failures, random.random())
        self._failure, self._start_at_s = error, self._clock.monotonic_s() + wait_ms / 1_000


def spark_session(settings: Settings) -> "SparkSession":
    """Return a Spark session with Catchment's configuration, for a caller's own code.

    A process can have only one. It ends with the process.
    """
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkRunner(settings).spark
