"""A Spark session: the one place that starts a JVM, and that imports Spark's client."""

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
from catchment.pipeline.spark_master import master_that_retries, parallelism
from catchment.pipeline.work import Task, TaskResult

T = TypeVar("T")

_LOOPBACK = "127.0.0.1"
_GONE = "its JVM has gone"
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
# How Spark and the connection to it fail.
_OF_CONNECTION = (Py4JNetworkError, OSError, EOFError)
_OF_SPARK = (Py4JError, PySparkException, OSError, EOFError)
# What Python says of an error, or Java of it and of what it came from.
_ERROR = re.compile(r"(?:: |Caused by: |Exception in thread \S+ )?([\w.$]+(?:Error|Exception)\b.*: .+)")


class SparkDriver:
    """Spark's context together with its JVM; tasks need no more of Spark than that.

    The JVM is started for it, unless the program runs in one already, as `spark-submit` has it.
    """

    def __init__(self, settings: Settings) -> None:
        java.find_java()
        if SparkContext._active_spark_context is not None:
            raise SparkFailedError(
                "This process has a Spark session of its own, and there is room for one.", hint="Stop it first."
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
                with _holding_interrupts():
                    # The JVM writes to the log, not to the user's terminal.
                    self._start(_conf(settings), log, settings.spark_start_seconds_max)
            except KeyboardInterrupt:
                # It was held until Spark had started.
                self._give_up()
                raise
        self._caller = ThreadPoolExecutor(1, thread_name_prefix="catchment-spark")
        events.emit("spark_started", version=self.context.version)

    @property
    def has_jvm(self) -> bool:
        """Whether its JVM runs, as far as that is known without asking it: one from elsewhere is taken to run."""
        return not self._stopped and (self._gateway.proc is None or self._gateway.proc.poll() is None)

    @property
    def is_alive(self) -> bool:
        """Whether it can still do anything: a context stops by itself when its cluster is gone for good."""
        return self._is_stopped() is False

    @property
    def spark(self) -> SparkSession:
        """The session for work of one's own. Spark's SQL, which tasks need nothing of, is there when asked for."""
        if self._spark is None:
            self._spark = SparkSession(self.context)
        return self._spark

    def run(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """Run all tasks; SparkFailedError when one failed for good, or when the session is lost."""
        with self._naming_failures("Spark failed the job"):
            return self._undisturbed(lambda: self._collect(tasks))

    def probe(self) -> str:
        """Have a worker do a little, and say who did it."""
        with self._naming_failures("Spark does no work"):
            total = self._undisturbed(lambda: self.context.parallelize(range(100), 1).sum())
        return f"Spark {self.context.version} on {self._master} counts to {total}"

    def stop(self) -> None:
        """Stop the session, and its JVM if it has started one; also one that has gone."""
        self._stopped = True
        self._caller.shutdown()
        # A JVM that does not answer would be waited for without end.
        with jvm.killed_after(self._gateway.proc, jvm.STOP_S_MAX), suppress(Py4JError, OSError):
            if self._spark is not None:
                self._spark.stop()
            elif self.context._jsc is not None:
                self.context._jsc.stop()
        # What PySpark has here to hear of accumulators from Java looks once a second whether it is to end; it ends at
        # once when Java has gone.
        ending = threading.Thread(target=jvm.forget)
        ending.start()
        jvm.end_gently(self._gateway)
        ending.join()

    def _start(self, conf: SparkConf, log: IO[bytes], seconds_max: float) -> None:
        # A gateway that PySpark remembers would be taken instead of the one that is launched.
        jvm.forget()
        self._gateway = _launch(conf, log, self._log, seconds_max)
        try:
            with jvm.killed_after(self._gateway.proc, seconds_max) as overdue:
                self.context = SparkContext(conf=conf, gateway=self._gateway)
            # It hears when Java has gone, and would print that as an error of its own.
            self.context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        except Exception as error:
            # Java is asked what the error says, so before it ends.
            said = _reason(error)
            is_lost = overdue.is_set() or (isinstance(error, _OF_CONNECTION) and jvm.is_gone(self._gateway.proc))
            reason = jvm.account_of(self._gateway.proc, overdue) if is_lost else said
            self._give_up()
            raise SparkFailedError(f"Spark does not start: {reason}", log=self._log) from error

    def _give_up(self) -> None:
        """End a session that did not get as far as to have jobs."""
        jvm.forget()
        jvm.end_gently(self._gateway)

    @contextmanager
    def _naming_failures(self, what: str) -> Iterator[None]:
        """Raise SparkFailedError for what Spark says, and for anything that comes of a JVM or context that has gone."""
        try:
            yield
        except SparkFailedError:
            raise
        except Exception as error:
            # A connection that breaks shows as many kinds of errors, as deep in PySpark as it was used.
            if not isinstance(error, _OF_SPARK) and self.is_alive:
                raise
            reason = _GONE if self._is_stopped() is None else _reason(error)
            raise SparkFailedError(f"{what}: {reason}", log=self._log) from error

    def _is_stopped(self) -> bool | None:
        """Whether Spark has stopped its context; None if nothing answers that could tell."""
        context = self.context._jsc
        try:
            return bool(context.sc().isStopped()) if self.has_jvm and context is not None else None
        except (Py4JError, OSError):
            return None

    def _collect(self, tasks: Sequence[Task]) -> list[TaskResult]:
        do = partial(kernel.run_in_worker, seconds_max=self._task_s_max)
        waves = -(-len(tasks) // self._parallelism)
        # One wave more than there are, for tasks that are done again because their worker was lost.
        with self._cancelled_after((waves + 1) * (self._task_s_max + 2 * kernel.INTERRUPT_S_MAX)):
            return self.context.parallelize(tasks, len(tasks)).map(do).collect()

    @contextmanager
    def _cancelled_after(self, seconds: float) -> Iterator[None]:
        """Cancel the jobs of the block if they take longer, which tasks that hang do; end the JVM if it hangs too."""
        over, overdue = threading.Event(), threading.Event()
        group = uuid4().hex

        def watch() -> None:
            if not over.wait(seconds):
                overdue.set()
                with jvm.killed_after(self._gateway.proc, jvm.STOP_S_MAX), suppress(*_OF_SPARK):
                    self.context.cancelJobGroup(group)
                    over.wait(2 * jvm.STOP_S_MAX)

        watching = threading.Thread(target=watch, name="catchment-job-deadline", daemon=True)
        self.context.setJobGroup(group, "catchment", interruptOnCancel=True)
        watching.start()
        try:
            yield
        except _OF_SPARK as error:
            if overdue.is_set():
                raise SparkFailedError(
                    f"Spark failed the job: it took longer than {seconds:g} s and was cancelled.",
                    hint="CATCHMENT_SPARK_TASK_SECONDS_MAX is how long a task may take. Is a worker, or the disk that "
                    "it writes to, stuck?",
                    log=self._log,
                ) from error
            raise
        finally:
            over.set()

    def _undisturbed(self, job: Callable[[], T]) -> T:
        """Do the job where Ctrl-C does not come: it would break off what is being said to Java, and be logged there."""
        if threading.current_thread() is not threading.main_thread():
            return job()
        doing = self._caller.submit(job)
        try:
            return doing.result()
        except KeyboardInterrupt:
            with suppress(Py4JError, OSError):
                self.context.cancelAllJobs()
            with suppress(Py4JError, PySparkException, OSError):
                doing.result()
            raise


def prepare(settings: Settings, archive: Path) -> None:
    """Have later sessions start in half the time: keep the classes that one needs in an archive for Java."""
    files.make_folder(archive.parent)
    making = archive.with_suffix(f".{uuid4().hex}")
    options = f'{java.OPTIONS} "-XX:ArchiveClassesAtExit={making}"'
    conf = {**settings.spark_conf, _DRIVER_OPTIONS: options}
    session = SparkDriver(settings.model_copy(update={"spark_master": "local[1]", "spark_conf": conf}))
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
def _holding_interrupts() -> Iterator[None]:
    """Have Ctrl-C wait until the block ends, and do what it did before.

    A JVM whose start nobody waits for any more never ends. And once it has started, PySpark would have Ctrl-C cancel
    every job, also one that is to finish.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[FrameType | None] = []
    handler = signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
    if came and callable(handler):
        handler(signal.SIGINT, came[0])


def _launch(conf: SparkConf, log: IO[bytes], log_path: str, seconds_max: float) -> Any:
    try:
        return launch_gateway(conf, log, seconds_max=seconds_max)
    except SparkFailedError as error:
        if java.is_archived(conf.get(_DRIVER_OPTIONS)) and jvm.ended_by_itself(error):
            # A damaged archive ends Java before it can say so.
            events.emit("spark_archive_unfit", level=logging.WARNING, archive=str(java.archive_path()))
            return _launch(conf.set(_DRIVER_OPTIONS, java.OPTIONS), log, log_path, seconds_max)
        said = Path(log_path).read_text(encoding="utf-8", errors="replace").strip()
        reason = f"{error.message}. {_first_cause(said)}" if said else error.message
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
        "spark.task.maxFailures": str(settings.spark_task_failures_max),
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
        # Java knows what its errors say.
        return _GONE


def _first_cause(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [found[1] for line in lines if (found := _ERROR.match(line))]
    return (errors or lines or ["unknown"])[-1 if errors else 0][:500]
