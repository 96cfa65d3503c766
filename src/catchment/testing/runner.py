"""A runner without Spark, for tests of the code around tasks; the tasks themselves are real."""

from collections.abc import Callable, Sequence

from catchment.pipeline import kernel
from catchment.pipeline.work import Task, TaskResult


class InlineRunner:
    """Runs tasks one after the other in this process."""

    parallelism = 2

    def __init__(self, *, after_task: Callable[[Task], object] | None = None) -> None:
        self._after_task = after_task

    def run(self, tasks: Sequence[Task]) -> list[TaskResult]:
        results = []
        for task in tasks:
            results.append(kernel.run(task))
            if self._after_task is not None:
                self._after_task(task)
        return results

    def close(self) -> None:
        """Do nothing: no process to stop."""
