"""The JVM of a Spark session: a child process with a limited start time, never left running.

PySpark's own launcher returns no process before its JVM answers, so a start that hangs or fails
leaves the JVM running. Here the process is known from the start, is the leader of a process group,
and is killed and reaped with the group when anything goes wrong.
"""

import logging
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.serializers import UTF8Deserializer, read_int

from catchment.errors import SparkFailedError
from catchment.foundation import settings

STOP_S_MAX = 30.0
_LOOK_S = 0.02
_ENDING_S_MAX = 0.5


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


# Py4j logs every broken connection with a traceback through the root logger, and PySpark warns
# about a JVM that has ended. The raised error describes the outcome.
logging.getLogger().addFilter(_is_not_of_py4j)
warnings.filterwarnings("ignore", message="Unable to cleanly shutdown Spark JVM process", category=RuntimeWarning)


def launch_gateway(conf: SparkConf, log: IO[bytes], *, seconds_max: float, cwd: Path | None = None) -> Any:
    """Start a JVM and return py4j's gateway to it, with its process as `proc`.

    A program started by `spark-submit` already has a JVM: that one is used, and `proc` is None.
    Raises SparkFailedError if Java ends or does not answer within `seconds_max`; then no process of
    the start is left.
    """
    if settings.spark_gateway_given():
        return java_gateway.launch_gateway(conf)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "gateway"
        process = _start(conf, log, answer, cwd)
        try:
            with killed_after(process, seconds_max) as overdue:
                gateway = _connect(conf, process, answer, overdue)
        except BaseException:
            end(process)
            raise
    gateway.proc = process
    return gateway


@contextmanager
def killed_after(process: "subprocess.Popen[bytes] | None", seconds: float) -> Iterator[threading.Event]:
    """Kill the process and set the event if the block takes longer; that ends every wait for it."""
    overdue = threading.Event()

    def kill() -> None:
        overdue.set()
        if process is not None:
            _kill_group(process)

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield overdue
    finally:
        timer.cancel()


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a JVM with its process group, and reap it."""
    _kill_group(process)
    process.wait()
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


def end_gently(gateway: Any) -> None:
    """End the JVM of a gateway; a JVM that existed before (`spark-submit`) is left running."""
    process = gateway.proc
    if process is None:
        gateway.close()
        return
    if process.returncode is None:
        with killed_after(process, STOP_S_MAX):
            with suppress(Py4JError, OSError):
                gateway.shutdown()
            # Java ends when its stdin is closed.
            process.stdin.close()
            process.wait()
    end(process)


def forget() -> None:
    """Make PySpark forget its context and gateway, which it keeps for the life of the process.

    It would use a gateway whose JVM has ended for every later session, and never start another.
    """
    unfinished = SparkContext._active_spark_context
    if unfinished is not None:
        # No more calls to Java. Only the thread that receives accumulator updates is left to stop.
        unfinished._jsc = None
        with suppress(Py4JError, OSError):
            unfinished.stop()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None


def describe_exit(process: "subprocess.Popen[bytes]", overdue: threading.Event) -> str:
    """Describe why a JVM did not start."""
    if overdue.is_set():
        return "it took too long (CATCHMENT_SPARK_START_SECONDS_MAX) and was stopped"
    exit_code = _exit_code(process)
    if exit_code is None:
        return "the connection to it failed"
    return (
        f"it was killed by {signal.Signals(-exit_code).name}"
        if exit_code < 0
        else f"it ended with exit code {exit_code}"
    )


def ended_by_itself(error: SparkFailedError) -> bool:
    """Return whether a start failed because Java ended: not by timeout, not killed from outside."""
    return error.facts.get("exit_code") not in (None, -signal.SIGKILL, -signal.SIGTERM)


def is_gone(process: "subprocess.Popen[bytes] | None") -> bool:
    """Return whether the process has ended; waits briefly, as connections break earlier."""
    return process is not None and _exit_code(process) is not None


def _exit_code(process: "subprocess.Popen[bytes]") -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(timeout=_ENDING_S_MAX)
    return None


def _start(conf: SparkConf, log: IO[bytes], answer: Path, cwd: Path | None) -> "subprocess.Popen[bytes]":
    command = [str(Path(_find_spark_home()) / "bin" / "spark-submit")]
    for key, value in conf.getAll():
        command += ["--conf", f"{key}={value}"]
    command += shlex.split(settings.spark_submit_arguments())
    with settings.environment(_PYSPARK_DRIVER_CONN_INFO_PATH=str(answer), SPARK_CONNECT_MODE="0"):
        # A separate process group: Ctrl-C in the terminal does not reach it, and the start's helper
        # processes end with it.
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=cwd, process_group=0)


def _connect(conf: SparkConf, process: "subprocess.Popen[bytes]", answer: Path, overdue: threading.Event) -> Any:
    while not answer.is_file():
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_LOOK_S)
            raise _failure(process, overdue)
    try:
        with answer.open("rb") as stream:
            port = read_int(stream)  # type: ignore[no-untyped-call]
            secret = UTF8Deserializer().loads(stream)  # type: ignore[no-untyped-call]
        with settings.environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
            return java_gateway.launch_gateway(conf)  # type: ignore[no-untyped-call]
    except (Py4JError, PySparkException, OSError, EOFError) as error:
        raise _failure(process, overdue) from error


def _failure(process: "subprocess.Popen[bytes]", overdue: threading.Event) -> SparkFailedError:
    reason = describe_exit(process, overdue)
    return SparkFailedError(reason, exit_code=None if overdue.is_set() else process.returncode)


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    # Only before the process is reaped: until then no other process can get its id.
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
