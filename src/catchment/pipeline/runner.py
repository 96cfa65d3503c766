"""Spark as a runner of tasks; what starts it, and Spark's client, are imported when there is something to run."""

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


class Runner(Protocol):
    """Runs tasks somewhere and gives their results back; a task may have been tried more than once."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at the same time."""
        ...

    def run(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """Run all tasks; SparkFailedError when one failed for good."""
        ...


class SparkRunner:
    """Runs tasks on Spark; the session is started by the first task and stopped by `close`.

    A session that is lost is given up, and the next use starts another. After a start that failed, or a session that
    was lost before it finished a job, the next start has to wait; until then every use fails with the same reason.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._backoff = Backoff(
            attempts_max=1, first_ms=_RESTART_FIRST_MS, wait_ms_max=settings.spark_restart_seconds_max * 1_000
        )
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
        """Spark's context, started if need be: all that tasks need."""
        return self._started().context

    @property
    def spark(self) -> "SparkSession":
        """The session, started if need be: for Spark's SQL, whose first query costs more than all the rest."""
        return self._started().spark

    def run(self, tasks: Sequence[Task]) -> list[TaskResult]:
        return self._use(lambda session: session.run(tasks)) if tasks else []

    def probe(self) -> str:
        """Have a worker do a little, and say who did it; SparkFailedError when it cannot."""
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
                self._give_up(session, error)
            raise
        self._failures = 0
        return result

    def _give_up(self, session: "SparkDriver", error: SparkFailedError) -> None:
        """Stop a session that is lost; the next use starts another."""
        with self._mutex:
            if self._session is session:
                self._session = None
                session.stop()
                if self._failures:
                    self._wait_after(error)

    def _started(self) -> "SparkDriver":
        from catchment.pipeline.spark_driver import SparkDriver

        with self._mutex:
            session = self._session
            if session is not None and not session.has_jvm:
                # It went between two uses.
                self._session = None
                session.stop()
            if self._session is None:
                self._require_turn()
                try:
                    self._session = SparkDriver(self._settings)
                except SparkFailedError as error:
                    self._failures += 1
                    self._wait_after(error)
                    raise
                # Until it has finished a job, it counts as one that failed.
                self._failures += 1
            return self._session

    def _require_turn(self) -> None:
        wait_s = self._start_at_s - self._clock.monotonic_s()
        if self._failure is not None and wait_s > 0:
            failure = self._failure
            raise failure.rebuild(
                f"{failure.message.rstrip('.')}. Spark is started again in {wait_s:.0f} s at the earliest.",
                failure.hint,
                failure.facts,
            )

    def _wait_after(self, error: SparkFailedError) -> None:
        wait_ms = self._backoff.wait_ms(self._failures, random.random())
        self._failure, self._start_at_s = error, self._clock.monotonic_s() + wait_ms / 1_000


def spark_session(settings: Settings) -> "SparkSession":
    """A session as Catchment uses it, for work of your own; it ends with the process, which has room for one."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkRunner(settings).spark
