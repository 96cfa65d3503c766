"""Spark as a runner of tasks; what starts it, and Spark's client, are imported when there is something to run."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from catchment.errors import SparkFailedError
from catchment.pipeline import master
from catchment.pipeline.work import Task, TaskResult
from catchment.settings import Settings

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from catchment.pipeline.session import Session


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
    """Runs tasks on Spark; the session is started by the first task and stopped by `close`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: Session | None = None
        self._mutex = threading.Lock()

    def __enter__(self) -> "SparkRunner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def parallelism(self) -> int:
        return master.parallelism(self._settings)

    @property
    def context(self) -> "SparkContext":
        """Spark's context, started if need be: all that tasks need."""
        return self._started().context

    @property
    def spark(self) -> "SparkSession":
        """The session, started if need be: for Spark's SQL, whose first query costs more than all the rest."""
        return self._started().spark

    def run(self, tasks: Sequence[Task]) -> list[TaskResult]:
        if not tasks:
            return []
        session = self._started()
        try:
            return session.run(tasks)
        except SparkFailedError:
            if not session.is_alive:
                # Whoever runs the next tasks finds none, and starts another.
                self._let_go(session)
            raise

    def probe(self) -> str:
        """Have a worker do a little, and say who did it; SparkFailedError when it cannot."""
        return self._started().probe()

    def close(self) -> None:
        """Stop the session and its JVM."""
        if self._session is not None:
            self._let_go(self._session)

    def _let_go(self, session: "Session") -> None:
        with self._mutex:
            if self._session is session:
                self._session = None
                session.stop()

    def _started(self) -> "Session":
        from catchment.pipeline.session import Session

        with self._mutex:
            if self._session is None:
                self._session = Session(self._settings)
            return self._session


def spark_session(settings: Settings) -> "SparkSession":
    """A session as Catchment uses it, for work of your own; it ends with the process, which has room for one."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkRunner(settings).spark
