"""Spark: the one place that starts a session, and the runner that hands tasks to it."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from catchment import events, files
from catchment.errors import SparkFailedError
from catchment.pipeline import java, kernel
from catchment.pipeline.work import Task, TaskResult
from catchment.settings import Settings, cpu_count, environment

_LOOPBACK = "127.0.0.1"
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*(\d+))?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_CLUSTER_PARALLELISM = 16
_STOP_S_MAX = 30
_LOG_TAIL_LINES = 5
# The JVM only schedules, and mostly for a short time: a compiler that optimises costs more than it gains. Measured, a
# session starts with 7 s of CPU instead of 12, and a small job takes 50 ms instead of 85.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


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
        self._session: _Session | None = None
        self._mutex = threading.Lock()

    def __enter__(self) -> "SparkRunner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def parallelism(self) -> int:
        return parallelism(self._settings)

    @property
    def spark(self) -> SparkSession:
        """The session itself, started if need be."""
        with self._mutex:
            if self._session is None:
                self._session = _Session(self._settings)
            return self._session.spark

    def run(self, tasks: Sequence[Task]) -> list[TaskResult]:
        if not tasks:
            return []
        context = self.spark.sparkContext
        try:
            return context.parallelize(tasks, len(tasks)).map(kernel.run_in_worker).collect()
        except (Py4JError, PySparkException) as error:
            raise SparkFailedError(f"Spark failed the job: {_first_cause(str(error))}") from error

    def close(self) -> None:
        """Stop the session and its JVM."""
        with self._mutex:
            if self._session is not None:
                self._session.stop()
                self._session = None


def spark_session(settings: Settings) -> SparkSession:
    """A session as Catchment uses it, for work of your own; it ends with the process, which has room for one."""
    return SparkSession.getActiveSession() or SparkRunner(settings).spark


def parallelism(settings: Settings) -> int:
    """How many tasks run at the same time, by the master's name alone, so that planning needs no session."""
    local, cluster = _LOCAL.fullmatch(settings.spark_master), _LOCAL_CLUSTER.fullmatch(settings.spark_master)
    if local:
        return cpu_count() if local[1] == "*" else int(local[1] or 1)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    return int(settings.spark_conf.get("spark.default.parallelism", _CLUSTER_PARALLELISM))


class _Session:
    """A SparkSession together with the JVM that it brought."""

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
                    self.spark = SparkSession(SparkContext(conf=_conf(settings), gateway=self._gateway))
            except (Py4JError, PySparkException) as error:
                self._end_jvm()
                raise SparkFailedError(
                    f"Spark does not start: {_first_cause(str(error))}", log=str(log_path)
                ) from error
        events.emit("spark_started", version=self.spark.version)

    def stop(self) -> None:
        self.spark.stop()
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
        "spark.master": _master(settings),
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


def _master(settings: Settings) -> str:
    # Local Spark ignores spark.task.maxFailures: it gives up at the first lost worker unless the master says otherwise.
    local = _LOCAL.fullmatch(settings.spark_master)
    if local and not local[2]:
        return f"local[{local[1] or 1},{settings.spark_task_failures_max}]"
    return settings.spark_master


def _first_cause(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b.*: .+", line)]
    return (errors or lines or ["unknown"])[-1 if errors else 0][:500]
