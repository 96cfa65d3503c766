"""A program whose Spark does not start, is stopped while it starts, and loses its JVM while it works.

python -m tests.spark.lost_jvm HOME
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from catchment.errors import SparkFailedError
from catchment.pipeline import SparkRunner, session
from catchment.pipeline.work import Mode, Shape, Task
from catchment.settings import Settings


def _jvms() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if each.name() == "java"]


def _refused(settings: Settings, task: Task) -> None:
    wrong = settings.model_copy(update={"spark_conf": {"spark.driver.maxResultSize": "much"}})
    with SparkRunner(wrong) as runner, pytest.raises(SparkFailedError, match=r"Spark does not start: .*much"):
        runner.run([task])
    assert not _jvms()


def _interrupted(settings: Settings, task: Task) -> None:
    launch = vars(session)["launch_gateway"]

    def interrupted(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return launch(*given)

    vars(session)["launch_gateway"] = interrupted
    with SparkRunner(settings) as runner, pytest.raises(KeyboardInterrupt):
        runner.run([task])
    vars(session)["launch_gateway"] = launch
    assert not _jvms()


def _lost(settings: Settings, task: Task) -> None:
    with SparkRunner(settings) as runner:
        runner.run([task])
        (jvm,) = _jvms()
        jvm.kill()
        jvm.wait()
        with pytest.raises(SparkFailedError, match="its JVM has gone"):
            runner.run([task])
        assert len(runner.run([task])) == 1
        # As it does by itself when its cluster does not answer any more.
        runner.context._jsc.stop()
        with pytest.raises(SparkFailedError, match="stopped SparkContext"):
            runner.run([task])
        assert len(runner.run([task])) == 1
    assert not _jvms()


if __name__ == "__main__":
    home = Path(sys.argv[1])
    nothing = Task(
        number=1, mode=Mode.REWRITE, parts=(), shape=Shape(columns=()), folder=str(home), memory_mb=64, digest=False
    )
    for scene in (_refused, _interrupted, _lost):
        scene(Settings(home=home, spark_master="local[1]"), nothing)
