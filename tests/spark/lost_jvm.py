"""Programs whose Spark does not start, is killed, loses its JVM, or has tasks that hang.

python -m tests.spark.lost_jvm HOME SCENE
"""

import logging
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import pytest

from catchment.errors import FlushFailedError, SparkFailedError
from catchment.foundation.settings import Settings
from catchment.lake import Lake
from catchment.lake.types import Column
from catchment.pipeline import Deliverer, SparkRunner, spark_driver
from catchment.pipeline.flush import FlushPipeline
from catchment.pipeline.runner import RESTART_SECONDS_MAX
from catchment.pipeline.work import Input, Mode, OutputShape, Task, UnitPart
from catchment.queue import DqCoordinator, open_buffer
from catchment.testing import FakeClock
from tests.pipeline.slow_inputs import slow_unit
from tests.sample_events import EVENTS, create_table, rows_of
from tests.waiting import PATIENCE_S

KILLS = 6
START_S_MAX = 2.0
LOOK_S = 0.01
TASK_S_MAX = 2.0
# How long after it is seen a JVM is killed: from before it listens to after its first job.
KILLED_AFTER_S = (0.0, 2.5)


def _children() -> list[psutil.Process]:
    children: list[psutil.Process] = psutil.Process().children(recursive=True)
    return children


def _jvms() -> list[psutil.Process]:
    found = []
    for each in _children():
        # It may end while it is looked at.
        with suppress(psutil.NoSuchProcess):
            if each.name() == "java" and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def _task(settings: Settings) -> Task:
    return Task(
        number=1,
        mode=Mode.REWRITE,
        parts=(),
        shape=OutputShape(columns=()),
        folder=str(settings.home),
        memory_mb=64,
        digest=False,
    )


@contextmanager
def _launching(how: Callable[..., Any]) -> Iterator[None]:
    """Have JVMs launched by `how`, which gets the real way as its first argument."""
    launch = vars(spark_driver)["launch_gateway"]
    vars(spark_driver)["launch_gateway"] = lambda *given, **named: how(launch, *given, **named)
    try:
        yield
    finally:
        vars(spark_driver)["launch_gateway"] = launch


def _killed(launch: Callable[..., Any], *given: Any, **named: Any) -> Any:
    gateway = launch(*given, **named)
    gateway.proc.kill()
    gateway.proc.wait()
    return gateway


def refused(settings: Settings) -> None:
    wrong = settings.model_copy(update={"spark_conf": {"spark.driver.maxResultSize": "much"}})
    with SparkRunner(wrong) as runner, pytest.raises(SparkFailedError, match=r"Spark does not start: .*much"):
        runner.run([_task(settings)])
    assert not _jvms()


def interrupted(settings: Settings) -> None:
    def interrupt(launch: Callable[..., Any], *given: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return launch(*given, **named)

    with _launching(interrupt), SparkRunner(settings) as runner, pytest.raises(KeyboardInterrupt):
        runner.run([_task(settings)])
    assert not _jvms()


def lost(settings: Settings) -> None:
    task = _task(settings)
    with SparkRunner(settings) as runner:
        runner.run([task])
        (jvm,) = _jvms()
        jvm.kill()
        jvm.wait()
        # Found to be gone at the next use.
        assert len(runner.run([task])) == 1
        (jvm,) = _jvms()
        session_of_it = runner._started()
        jvm.kill()
        jvm.wait()
        with pytest.raises(SparkFailedError, match="its JVM has ended"):
            session_of_it.run([task])
        assert len(runner.run([task])) == 1
        # As it does by itself when its cluster does not answer any more.
        runner.context._jsc.stop()
        with pytest.raises(SparkFailedError, match="stopped SparkContext"):
            runner.run([task])
        assert len(runner.run([task])) == 1
    assert not _jvms()


def killed_while_it_starts(settings: Settings) -> None:
    task, clock = _task(settings), FakeClock()
    with SparkRunner(settings, clock) as runner:
        for _ in range(2):
            with _launching(_killed), pytest.raises(SparkFailedError, match="does not start: it was killed by SIGKILL"):
                runner.run([task])
            assert not _children()
            with pytest.raises(
                SparkFailedError, match=r"killed by SIGKILL\. The next attempt to start Spark is in [12] s"
            ):
                runner.run([task])
            assert not _children()
            clock.advance(RESTART_SECONDS_MAX)
        assert len(runner.run([task])) == 1
        assert len(_jvms()) == 1
    assert not _jvms()


def killed_at_random(settings: Settings) -> None:
    task, clock, luck = _task(settings), FakeClock(), random.Random(20)
    never = threading.Event()
    most = 0

    def kill() -> None:
        for _ in range(KILLS):
            while not _jvms():
                never.wait(LOOK_S)
            never.wait(luck.uniform(*KILLED_AFTER_S))
            for each in _jvms():
                with suppress(psutil.NoSuchProcess):
                    each.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with SparkRunner(settings, clock) as runner:
        while killer.is_alive():
            clock.advance(RESTART_SECONDS_MAX)
            with suppress(SparkFailedError):
                runner.run([task])
            most = max(most, len(_jvms()))
        # The last kill may be found out by a job.
        clock.advance(RESTART_SECONDS_MAX)
        with suppress(SparkFailedError):
            runner.run([task])
        clock.advance(RESTART_SECONDS_MAX)
        assert len(runner.run([task])) == 1
    assert not _jvms()
    assert most <= 1


def _java_that(does: str, home: Path) -> Path:
    """A folder for JAVA_HOME: its Java says its version, and does something else than to start."""
    real = shutil.which("java")
    java = home / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/bash\n[ "$1" = -version ] && exec {real} -version\n{does}\n')
    java.chmod(0o755)
    return java.parents[1]


def _fails_to_start(settings: Settings, does: str, match: str) -> None:
    quick = settings.model_copy(update={"spark_start_seconds_max": START_S_MAX})
    with pytest.MonkeyPatch.context() as patch, SparkRunner(quick, FakeClock()) as runner:
        patch.setenv("JAVA_HOME", str(_java_that(does, settings.home)))
        with pytest.raises(SparkFailedError, match=match):
            runner.run([_task(settings)])
        assert not _children()


def hangs(settings: Settings) -> None:
    _fails_to_start(settings, "exec sleep 600", "JVM does not start: it took too long")


def hangs_after_it_answered(settings: Settings) -> None:
    def stop_it(launch: Callable[..., Any], *given: Any, **named: Any) -> Any:
        # Only what follows must take too long: on a busy machine, Java alone would.
        gateway = launch(*given, **(named | {"seconds_max": PATIENCE_S}))
        gateway.proc.send_signal(signal.SIGSTOP)
        return gateway

    quick = settings.model_copy(update={"spark_start_seconds_max": START_S_MAX})
    with _launching(stop_it), SparkRunner(quick, FakeClock()) as runner:
        with pytest.raises(SparkFailedError, match="Spark does not start: it took too long"):
            runner.run([_task(settings)])
        assert not _children()


def ends_at_once(settings: Settings) -> None:
    _fails_to_start(settings, "echo Error: it is broken: badly >&2; exit 1", r"JVM does not start: .*is broken: badly")


def ends_as_if_all_were_well(settings: Settings) -> None:
    # What is run in the end is what the launcher prints.
    does = r"case $* in *launcher.Main*) printf '\ntrue\0%s\0' 0;; *) exit 0;; esac"
    _fails_to_start(settings, does, "JVM does not start: it ended with exit code 0")


def dies(settings: Settings) -> None:
    does = r"case $* in *launcher.Main*) printf '\nbash\0-c\0kill -9 $$\0%s\0' 0;; esac"
    _fails_to_start(settings, does, "JVM does not start: it was killed by SIGKILL")


def flush(settings: Settings) -> None:
    """The first start of Spark is killed: the table backs off, and the next flush delivers."""
    clock = FakeClock()
    with (
        Lake.from_settings(settings) as lake,
        closing(open_buffer(settings, clock=clock)) as buffer,
        SparkRunner(settings, clock) as runner,
    ):
        create_table(lake)
        flusher = FlushPipeline(Deliverer(lake, runner, settings), buffer)
        queue = DqCoordinator(buffer=buffer, lake=lake, flusher=flusher, settings=settings, clock=clock)
        queue.enqueue(EVENTS, pa.table({"id": [1], "kind": ["a"]}))
        clock.advance(settings.queue_rotate_interval_seconds)
        with _launching(_killed):
            queue.flush_stale_buffers()
        (table,) = queue.status().tables
        assert table.failure is not None
        assert "Spark does not start: it was killed by SIGKILL" in table.failure.reason
        assert queue.due_tables() == []
        with pytest.raises(FlushFailedError, match="The next attempt to start Spark is in"):
            queue.force_flush_all()
        clock.advance(RESTART_SECONDS_MAX)
        queue.flush_stale_buffers()
        assert queue.status().tables[0].failure is None
        assert rows_of(lake, "SELECT id FROM events") == [(1,)]


def hanging_tasks(settings: Settings) -> None:
    """Of three tasks two hang, one uninterruptibly: both fail alone, and the next ones work."""
    quick = settings.model_copy(update={"spark_task_seconds_max": TASK_S_MAX, "spark_master": "local[3]"})
    rows, stuck = settings.home / "rows.parquet", settings.home / "stuck.parquet"
    duckdb.execute(f"COPY (SELECT 1 AS id) TO '{rows}'")
    # DuckDB needs 2^40 steps to read that, and looks at no interrupt before it is done.
    duckdb.execute(f"COPY (SELECT {'[' * 40}1{']' * 40} AS c) TO '{stuck}'")
    plain = _rewriting(settings, 1, rows, Column(name="id", type="INTEGER"))
    slow = replace(plain, number=2, parts=slow_unit(settings.home, "u2"))
    uninterruptible = _rewriting(settings, 3, stuck, Column(name="c", type=f"INTEGER{'[]' * 40}"))
    with SparkRunner(quick) as runner:
        done, *failed = runner.run([plain, slow, uninterruptible])
        assert (len(done.units), done.failures) == (1, ())
        for task, result in zip((slow, uninterruptible), failed, strict=True):
            (failure,) = result.failures
            assert failure.transient
            assert failure.path == task.parts[0].input.uri
            assert failure.reason == (
                f"{failure.path}: the task took longer than 2 s (CATCHMENT_SPARK_TASK_SECONDS_MAX) and was stopped"
            )
        for _ in range(3):
            assert [len(each.units) for each in runner.run([plain] * 3)] == [1, 1, 1]


def _rewriting(settings: Settings, number: int, path: Path, *columns: Column) -> Task:
    return replace(
        _task(settings),
        number=number,
        parts=(UnitPart(unit_id=f"u{number}", input=Input(uri=str(path), bytes=1)),),
        shape=OutputShape(columns=columns),
    )


def hanging_job(settings: Settings) -> None:
    """Workers that ignore the deadline: the driver cancels the job, and the next one works."""
    with SparkRunner(settings) as runner:
        session_of_it = runner._started()

        def hang() -> None:
            with session_of_it._cancelled_after(TASK_S_MAX):
                runner.context.parallelize([1], 1).map(lambda _: threading.Event().wait()).collect()

        with pytest.raises(SparkFailedError, match="it took longer than 2 s and was cancelled"):
            hang()
        assert len(runner.run([_task(settings)])) == 1


if __name__ == "__main__":
    home = Path(sys.argv[1])
    # What Catchment warns of is expected; what PySpark or Python print by themselves is not.
    logging.getLogger("catchment").setLevel(logging.ERROR)
    vars()[sys.argv[2]](Settings(home=home, spark_master="local[1]"))
