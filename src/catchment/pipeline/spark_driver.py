"""A Spark session: the only module that starts a JVM and imports Spark's client."""

import logging
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, Any, TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from catchment.errors import SparkFailedError
from catchment.foundation import events, files
from catchment.foundation.settings import Settings, environment
from catchment.pipeline import java, jvm, kernel
from catchment.pipeline.jvm import launch_gateway
from catchment.pipeline.spark_master import TASK_FAILURES, TASK_FAILURES_MAX, master_that_retries, parallelism
from catchment.pipeline.work import Task, TaskResult

T = TypeVar("T")

_LOOPBACK = "127.0.0.1"
_JVM_ENDED = "its JVM has ended"
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
# Errors of Spark, and of the connection to it.
_CONNECTION_ERRORS = (Py4JNetworkError, OSError, EOFError)
_SPARK_ERRORS = (Py4JError, PySparkException, OSError, EOFError)
# The line of an error in Python, or in Java with the errors that caused it.
_ERROR = re.compile(r"(?:: |Caused by: |Exception in thread \S+ )?([\w.$]+(?:Error|Exception)\b.*: .+)")


class SparkDriver:
    """Spark's context together with its JVM; tasks need nothing else of Spark.

    The JVM is started by this class, unless the program already runs in one, as with
    `spark-submit`.
    """

    def __init__(self, settings: Settings) -> None:
        java.find_java()
        if SparkContext._active_spark_context is not None:
            raise SparkFailedError(
                "This process already has a Spark session, and can have only one.", hint="Stop it first."
            )
        log_path = settings.home / "spark.log"
        files.make_folder(log_path.parent)
        events.emit("spark_starting", master=settings.spark_master, log=str(log_path))
        self._log, self._master = str(log_path), settings.spark_master
        self._spark: SparkSession | None = None
        self._stopped = False
        self._task_s_max = settings.spark_task_seconds_max
        self._parallelism = parallelism(settings)
        with log_path.open("wb") as log, environment(SPARK_LOCAL_IP=_LOOPBACK, PYSPARK_PYTHON=sys.executable):
            try:
                with _deferred_interrupts():
                    # The JVM writes to the log, not to the user's terminal.
                    self._start(_conf(settings), log, settings.spark_start_seconds_max)
            except KeyboardInterrupt:
                # The interrupt was deferred until Spark had started.
                self._abandon()
                raise
        self._caller = ThreadPoolExecutor(1, thread_name_prefix="catchment-spark")
        events.emit("spark_started", version=self.context.version)

    @property
    def has_jvm(self) -> bool:
        """Whether the JVM runs, without calling it; an external JVM is assumed to run."""
        return not self._stopped and (self._gateway.proc is None or self._gateway.proc.poll() is None)

    @property
    def is_alive(self) -> bool:
        """Whether it can still run jobs: a context stops by itself when it has lost its cluster."""
        return self._is_stopped() is False

    @property
    def spark(self) -> SparkSession:
        """The session for a caller's own code; starts Spark's SQL, which tasks do not need."""
        if self._spark is None:
            self._spark = SparkSession(self.context)
        return self._spark

    def run(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """Run all tasks. Raises SparkFailedError if one failed permanently, or the session is lost."""
        with self._translating_errors("Spark failed the job"):
            return self._uninterrupted(lambda: self._collect(tasks))

    def probe(self) -> str:
        """Run a trivial job on a worker and describe Spark."""
        with self._translating_errors("Spark does not run jobs"):
            total = self._uninterrupted(lambda: self.context.parallelize(range(100), 1).sum())
        return f"Spark {self.context.version} on {self._master} counts to {total}"

    def stop(self) -> None:
        """Stop the session, and its JVM if this class started it; safe if the JVM has ended."""
        self._stopped = True
        self._caller.shutdown()
        # Without a limit, this would wait forever for a JVM that does not answer.
        with jvm.killed_after(self._gateway.proc, jvm.STOP_S_MAX), suppress(Py4JError, OSError):
            if self._spark is not None:
                self._spark.stop()
            elif self.context._jsc is not None:
                self.context._jsc.stop()
        # PySpark's thread that receives accumulator updates from Java checks once a second whether
        # to end; it ends at once when Java has ended.
        forgetting = threading.Thread(target=jvm.forget)
        forgetting.start()
        jvm.end_gently(self._gateway)
        forgetting.join()

    def _start(self, conf: SparkConf, log: IO[bytes], seconds_max: float) -> None:
        # PySpark would use a gateway that it remembers instead of the launched one.
        jvm.forget()
        self._gateway = _launch(conf, log, self._log, seconds_max)
        try:
            with jvm.killed_after(self._gateway.proc, seconds_max) as overdue:
                self.context = SparkContext(conf=conf, gateway=self._gateway)
            # The accumulator server notices when Java ends, and would print that as an error.
            self.context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        except Exception as error:
            # The text of the error comes from Java: read it before Java ends.
            text = _reason(error)
            is_lost = overdue.is_set() or (isinstance(error, _CONNECTION_ERRORS) and jvm.is_gone(self._gateway.proc))
            reason = jvm.describe_exit(self._gateway.proc, overdue) if is_lost else text
            self._abandon()
            raise SparkFailedError(f"Spark does not start: {reason}", log=self._log) from error

    def _abandon(self) -> None:
        """End a session that has not run any job."""
        jvm.forget()
        jvm.end_gently(self._gateway)

    @contextmanager
    def _translating_errors(self, what: str) -> Iterator[None]:
        """Raise SparkFailedError for errors of Spark, of a lost JVM or of a stopped context."""
        try:
            yield
        except SparkFailedError:
            raise
        except Exception as error:
            # A broken connection raises many kinds of errors, depending on where in PySpark it was
            # used.
            if not isinstance(error, _SPARK_ERRORS) and self.is_alive:
                raise
            reason = _JVM_ENDED if self._is_stopped() is None else _reason(error)
            raise SparkFailedError(f"{what}: {reason}", log=self._log) from error

    def _is_stopped(self) -> bool | None:
        """Return whether Spark has stopped its context, or None if the JVM does not answer."""
        context = self.context._jsc
        try:
            return bool(context.sc().isStopped()) if self.has_jvm and context is not None else None
        except (Py4JError, OSError):
            return None

    def _collect(self, tasks: Sequence[Task]) -> list[TaskResult]:
        run_task = partial(kernel.run_in_worker, seconds_max=self._task_s_max)
        waves = -(-len(tasks) // self._parallelism)
        # One wave more than planned, for tasks that are repeated because their worker was lost.
        with self._cancelled_after((waves + 1) * (self._task_s_max + 2 * kernel.INTERRUPT_S_MAX)):
            return self.context.parallelize(tasks, len(tasks)).map(run_task).collect()

    @contextmanager
    def _cancelled_after(self, seconds: float) -> Iterator[None]:
        """Cancel the block's jobs if they take longer; end the JVM if it hangs too."""
        finished, overdue = threading.Event(), threading.Event()
        group = uuid4().hex

        def watch() -> None:
            if not finished.wait(seconds):
                overdue.set()
                with jvm.killed_after(self._gateway.proc, jvm.STOP_S_MAX), suppress(*_SPARK_ERRORS):
                    self.context.cancelJobGroup(group)
                    finished.wait(2 * jvm.STOP_S_MAX)

        watcher = threading.Thread(target=watch, name="catchment-job-deadline", daemon=True)
        self.context.setJobGroup(group, "catchment", interruptOnCancel=True)
        watcher.start()
        try:
            yield
        except _SPARK_ERRORS as error:
            if overdue.is_set():
                raise SparkFailedError(
                    f"Spark failed the job: it took longer than {seconds:g} s and was cancelled.",
                    hint="CATCHMENT_SPARK_TASK_SECONDS_MAX limits a task. Check whether a worker, or the disk that it "
                    "writes to, is stuck.",
                    log=self._log,
                ) from error
            raise
        finally:
            finished.set()

    def _uninterrupted(self, job: Callable[[], T]) -> T:
        """Run the job in a thread, because Ctrl-C would interrupt a call to Java, which logs it."""
        if threading.current_thread() is not threading.main_thread():
            return job()
        future = self._caller.submit(job)
        try:
            return future.result()
        except KeyboardInterrupt:
            with suppress(Py4JError, OSError):
                self.context.cancelAllJobs()
            with suppress(Py4JError, PySparkException, OSError):
                future.result()
            raise


def prepare(settings: Settings, archive: Path) -> None:
    """Archive the classes that a session needs, so that later sessions start in half the time."""
    files.make_folder(archive.parent)
    temporary = archive.with_suffix(f".{uuid4().hex}")
    options = f'{java.OPTIONS} "-XX:ArchiveClassesAtExit={temporary}"'
    conf = {**settings.spark_conf, _DRIVER_OPTIONS: options}
    session = SparkDriver(settings.model_copy(update={"spark_master": "local[1]", "spark_conf": conf}))
    try:
        try:
            session.context.parallelize([0], 1).map(abs).collect()
        finally:
            # Java writes the archive when it ends.
            session.stop()
        if session._gateway.proc.returncode != 0 or not temporary.exists():
            raise SparkFailedError("Java has not written an archive.", log=str(settings.home / "spark.log"))
        files.sync_file(temporary)
        files.move(temporary, archive)
        files.sync_folder(archive.parent)
    finally:
        files.remove(temporary)


@contextmanager
def _deferred_interrupts() -> Iterator[None]:
    """Defer Ctrl-C until the block ends, then handle it as before.

    A JVM whose start is interrupted would never end. Once it has started, PySpark's handler would
    cancel every job on Ctrl-C, even one that should finish.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deferred: list[FrameType | None] = []
    handler = signal.signal(signal.SIGINT, lambda _, frame: deferred.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
    if deferred and callable(handler):
        handler(signal.SIGINT, deferred[0])


def _launch(conf: SparkConf, log: IO[bytes], log_path: str, seconds_max: float) -> Any:
    try:
        return launch_gateway(conf, log, seconds_max=seconds_max)
    except SparkFailedError as error:
        if java.is_archived(conf.get(_DRIVER_OPTIONS)) and jvm.ended_by_itself(error):
            # A damaged archive ends Java before it can report an error.
            events.emit("spark_archive_unfit", level=logging.WARNING, archive=str(java.archive_path()))
            return _launch(conf.set(_DRIVER_OPTIONS, java.OPTIONS), log, log_path, seconds_max)
        text = Path(log_path).read_text(encoding="utf-8", errors="replace").strip()
        reason = f"{error.message}. {_first_cause(text)}" if text else error.message
        raise SparkFailedError(f"Spark's JVM does not start: {reason}", log=log_path) from error


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
        "spark.python.daemon.module": "catchment.spark_daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.reuse": "true",
        TASK_FAILURES: str(TASK_FAILURES_MAX),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **settings.spark_conf,
    }
    for key, value in values.items():
        conf.set(key, value)
    return conf


def _reason(error: BaseException) -> str:
    try:
        return _first_cause(str(error))
    except (Py4JError, OSError):
        # The texts of Java's errors are in Java.
        return _JVM_ENDED


def _first_cause(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [found[1] for line in lines if (found := _ERROR.match(line))]
    return (errors or lines or ["unknown"])[-1 if errors else 0][:500]
