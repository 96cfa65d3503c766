"""A Spark session: the one place that starts a JVM, and that imports Spark's client."""

import logging
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

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
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"


class Session:
    """Spark's context together with its JVM; tasks need no more of Spark than that.

    The JVM is started for it, unless the program runs in one already, as `spark-submit` has it.
    """

    def __init__(self, settings: Settings) -> None:
        java.find_java()
        log_path = settings.home / "spark.log"
        files.make_folder(log_path.parent)
        events.emit("spark_starting", master=settings.spark_master, log=str(log_path))
        with log_path.open("wb") as log, environment(SPARK_LOCAL_IP=_LOOPBACK, PYSPARK_PYTHON=sys.executable):
            # The JVM writes to the log, not to the user's terminal.
            conf = _conf(settings)
            self._gateway = _launch(conf, log, log_path)
            try:
                with _keeping_interrupts():
                    self.context = SparkContext(conf=conf, gateway=self._gateway)
            except (Py4JError, PySparkException) as error:
                self._end_jvm()
                raise SparkFailedError(
                    f"Spark does not start: {_first_cause(str(error))}", log=str(log_path)
                ) from error
        self._spark: SparkSession | None = None
        events.emit("spark_started", version=self.context.version)

    @property
    def spark(self) -> SparkSession:
        """The session for work of one's own. Spark's SQL, which tasks need nothing of, is there when asked for."""
        if self._spark is None:
            self._spark = SparkSession(self.context)
        return self._spark

    def run(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """Run all tasks; SparkFailedError when one failed for good."""
        try:
            return self.context.parallelize(tasks, len(tasks)).map(kernel.run_in_worker).collect()
        except (Py4JError, PySparkException) as error:
            raise SparkFailedError(f"Spark failed the job: {_first_cause(str(error))}") from error

    def stop(self) -> None:
        """Stop the session, and its JVM if it has started one."""
        if self._spark is not None:
            self._spark.stop()
            self._end_jvm()
            return
        with suppress(Py4JError):
            # Where Java has died, there is nothing to stop.
            self.context._jsc.stop()
        self.context._jsc = None
        # What PySpark has here to hear of accumulators from Java looks once a second whether it is to end. It ends at
        # once when Java has gone, and says so as an error, which it is not.
        self.context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        ending = threading.Thread(target=self.context.stop)
        ending.start()
        self._end_jvm()
        ending.join()

    def _end_jvm(self) -> None:
        process = self._gateway.proc
        if process is None:
            # It was there before: whoever runs this program by `spark-submit` has it end with the program.
            self._gateway.close()
        else:
            self._gateway.shutdown()
            process.stdin.close()
            try:
                process.wait(timeout=_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # PySpark remembers the gateway for the life of the process; a later session must launch its own.
        SparkContext._gateway = None
        SparkContext._jvm = None


def prepare(settings: Settings, archive: Path) -> None:
    """Have later sessions start in half the time: keep the classes that one needs in an archive for Java."""
    files.make_folder(archive.parent)
    making = archive.with_suffix(f".{uuid4().hex}")
    options = f'{java.OPTIONS} "-XX:ArchiveClassesAtExit={making}"'
    conf = {**settings.spark_conf, _DRIVER_OPTIONS: options}
    session = Session(settings.model_copy(update={"spark_master": "local[1]", "spark_conf": conf}))
    try:
        try:
            session.context.parallelize([0], 1).map(abs).collect()
        finally:
            # Java writes the archive when it ends.
            session.stop()
        if session._gateway.proc.returncode != 0 or not making.exists():
            raise SparkFailedError("Java has made no archive.", log=str(settings.home / "spark.log"))
        files.sync_file(making)
        files.move(making, archive)
        files.sync_folder(archive.parent)
    finally:
        files.remove(making)


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
        if java.is_archived(conf.get(_DRIVER_OPTIONS)):
            # A damaged archive ends Java before it can say so.
            events.emit("spark_archive_unfit", level=logging.WARNING, archive=str(java.archive_path()))
            return _launch(conf.set(_DRIVER_OPTIONS, java.OPTIONS), log, log_path)
        tail = log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        raise SparkFailedError(f"Spark's JVM does not start: {' '.join(tail)}", log=str(log_path)) from error


def _conf(settings: Settings) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    values = {
        "spark.app.name": "catchment",
        "spark.master": master_that_retries(settings),
        "spark.driver.memory": f"{settings.spark_driver_memory_mb}m",
        _DRIVER_OPTIONS: java.driver_options(),
        "spark.executor.extraJavaOptions": java.OPTIONS,
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.log.level": "WARN",
        "spark.python.daemon.module": "catchment.daemon",
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
