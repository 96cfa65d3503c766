"""A Spark session: the one place that starts a JVM, and that imports Spark's client."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from catchment import events, files
from catchment.errors import SparkFailedError
from catchment.pipeline import java, kernel
from catchment.pipeline.master import master_that_retries
from catchment.pipeline.work import Task, TaskResult
from catchment.settings import Settings, environment

_LOOPBACK = "127.0.0.1"
_STOP_S_MAX = 30
_LOG_TAIL_LINES = 5
# The JVM only schedules, and mostly for a short time: a compiler that optimises costs more than it gains. Measured, a
# session starts with 7 s of CPU instead of 12, and a small job takes 50 ms instead of 85.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Session:
    """Spark's context together with the JVM that it brought; tasks need no more of Spark than that."""

    def __init__(self, settings: Settings) -> None:
        java.find_java()
        log_path = settings.home / "spark.log"
        files.make_folder(log_path.parent)
        events.emit("spark_starting", master=settings.spark_master, log=str(log_path))
        with log_path.open("wb") as log, environment(SPARK_LOCAL_IP=_LOOPBACK, PYSPARK_PYTHON=sys.executable):
            # The JVM writes to the log, not to the user's terminal.
            self._gateway = _launch(_conf(settings), log, log_path)
            try:
                with _keeping_interrupts():
                    self._context = SparkContext(conf=_conf(settings), gateway=self._gateway)
            except (Py4JError, PySparkException) as error:
                self._end_jvm()
                raise SparkFailedError(
                    f"Spark does not start: {_first_cause(str(error))}", log=str(log_path)
                ) from error
        self._spark: SparkSession | None = None
        events.emit("spark_started", version=self._context.version)

    @property
    def spark(self) -> SparkSession:
        """The session for work of one's own; Spark's SQL takes a third of its start, and is there when asked for."""
        if self._spark is None:
            self._spark = SparkSession(self._context)
        return self._spark

    def run(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """Run all tasks; SparkFailedError when one failed for good."""
        try:
            return self._context.parallelize(tasks, len(tasks)).map(kernel.run_in_worker).collect()
        except (Py4JError, PySparkException) as error:
            raise SparkFailedError(f"Spark failed the job: {_first_cause(str(error))}") from error

    def stop(self) -> None:
        """Stop the session and its JVM."""
        if self._spark is not None:
            self._spark.stop()
        self._context.stop()
        self._end_jvm()

    def _end_jvm(self) -> None:
        self._gateway.shutdown()
        process = self._gateway.proc
        process.stdin.close()
        try:
            process.wait(timeout=_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # PySpark remembers the gateway for the life of the process; a later session must launch its own.
        SparkContext._gateway = None
        SparkContext._jvm = None


@contextmanager
def _keeping_interrupts() -> Iterator[None]:
    """Keep PySpark from deciding what Ctrl-C does: its own handler cancels every job, also one that is to finish."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _launch(conf: SparkConf, log: IO[bytes], log_path: Path) -> Any:
    try:
        return launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    except PySparkException as error:
        tail = log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        raise SparkFailedError(f"Spark's JVM does not start: {' '.join(tail)}", log=str(log_path)) from error


def _conf(settings: Settings) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    values = {
        "spark.app.name": "catchment",
        "spark.master": master_that_retries(settings),
        "spark.driver.memory": f"{settings.spark_driver_memory_mb}m",
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.log.level": "WARN",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.reuse": "true",
        "spark.task.maxFailures": str(settings.spark_task_failures_max),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **settings.spark_conf,
    }
    for key, value in values.items():
        conf.set(key, value)
    return conf


def _first_cause(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b.*: .+", line)]
    return (errors or lines or ["unknown"])[-1 if errors else 0][:500]
