"""The work of a Spark task, in Spark's Python worker: DuckDB, with one connection for many tasks.

Spark decides where and when tasks run. Each attempt of a task writes into its own folder, so that a
retried or speculative duplicate never collides with it. A task returns facts about its finished
files, and no other files of it are used. A unit that cannot be delivered is a result, not an
exception: the other units of the task continue.
"""

import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import duckdb

from catchment.foundation import files
from catchment.foundation.pandas_probe import skip_pandas_probe
from catchment.pipeline import adopt, failure_cause, inputs, rewrite
from catchment.pipeline.work import Mode, Task, TaskResult, UnitFailure

# For tasks that run in this process, without Spark.
TASK_S_MAX = 600.0
# How long a task may continue after it was interrupted.
INTERRUPT_S_MAX = 5.0
_INTERRUPT_EVERY_S = 0.05
# Long enough for Spark to receive the result.
_END_AFTER_S = 1.0
_NICENESS = 10
# One connection per thread: a connection serves one query at a time. Kept here, in an imported
# module, because Spark rebuilds __main__ for every task but keeps the worker process and its
# modules.
_kept = threading.local()


def run(task: Task, *, seconds_max: float = TASK_S_MAX) -> TaskResult:
    """Run the task. After `seconds_max`, DuckDB is interrupted and the units fail as transient."""
    folder = files.local_path(task.folder) / f"{task.number:05d}-{secrets.token_hex(6)}"
    files.make_folder(folder)
    connection = connection_of(task.memory_mb)
    work = adopt.adopt if task.mode is Mode.ADOPT else rewrite.rewrite
    with _interrupted_after(connection, seconds_max) as overdue:
        try:
            connection.execute(f"SET threads = {task.threads}")
            result = work(connection, task, folder)
        except Exception as error:
            # After an interrupt, every later failure is a consequence of it.
            if not overdue.is_set() and not failure_cause.is_of_the_machine(error):
                raise
            result = _unfinished(task, _resource_reason(task, error))
    if not any(failure.transient for failure in result.failures):
        return result
    # DuckDB may have invalidated its instance: the next task gets a new one.
    _kept.memory_mb = None
    return _unfinished(task, _overdue(seconds_max)) if overdue.is_set() else result


def connection_of(memory_mb: int) -> duckdb.DuckDBPyConnection:
    """Return this thread's connection, which its first task opens."""
    if getattr(_kept, "memory_mb", None) != memory_mb:
        _kept.connection, _kept.memory_mb = _connect(memory_mb), memory_mb
    kept: duckdb.DuckDBPyConnection = _kept.connection
    return kept


def run_in_worker(task: Task, *, seconds_max: float) -> TaskResult:
    """Run the task in a Spark worker process, at low priority.

    Not everything in DuckDB can be interrupted. If a task continues after the interrupt, its result
    is not awaited; the process ends, and Spark starts another.
    """
    _prepare_process()
    future = _task_thread().submit(run, task, seconds_max=seconds_max)
    done, _ = wait([future], timeout=seconds_max + INTERRUPT_S_MAX)
    if done:
        return future.result()
    timer = threading.Timer(_END_AFTER_S, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
    return _unfinished(task, _overdue(seconds_max))


@contextmanager
def _interrupted_after(connection: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[threading.Event]:
    """Set the event after `seconds`, and keep interrupting the connection until the block ends."""
    finished, overdue = threading.Event(), threading.Event()

    def watch() -> None:
        if not finished.wait(seconds):
            overdue.set()
            # A task runs more than one query, and an interrupt ends only the current one.
            while not finished.wait(_INTERRUPT_EVERY_S):
                connection.interrupt()

    watcher = threading.Thread(target=watch, name="catchment-deadline", daemon=True)
    watcher.start()
    try:
        yield overdue
    finally:
        finished.set()
        # No interrupt may arrive once another task has the connection.
        watcher.join()


def _unfinished(task: Task, reason: str) -> TaskResult:
    by_unit = {part.unit_id: part.input.uri for part in reversed(task.parts)}
    failures = tuple(
        UnitFailure(unit_id=unit_id, path=uri, reason=f"{uri}: {reason}", transient=True)
        for unit_id, uri in by_unit.items()
    )
    return TaskResult(number=task.number, files=(), units=(), failures=failures)


def _overdue(seconds_max: float) -> str:
    return f"the task took longer than {seconds_max:g} s (CATCHMENT_SPARK_TASK_SECONDS_MAX) and was stopped"


def _resource_reason(task: Task, error: Exception) -> str:
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"the task needs more memory than {task.memory_mb} MiB (CATCHMENT_DELIVER_TASK_MEMORY_MB)"
    return inputs.one_line(error)


@cache
def _task_thread() -> ThreadPoolExecutor:
    """Return the one thread that runs the tasks of this process and keeps their connection."""
    return ThreadPoolExecutor(1, thread_name_prefix="catchment-task")


@cache
def _prepare_process() -> None:
    os.nice(_NICENESS)
    skip_pandas_probe()


def _connect(memory_mb: int) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        config={
            "memory_limit": f"{memory_mb}MiB",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "preserve_insertion_order": "true",
            # The connection is kept for later tasks, which an error inside DuckDB must not end.
            "disable_database_invalidation": "true",
            # Fixed for the life of the connection: DuckDB rejects another folder once it has
            # spilled.
            "temp_directory": str(
                Path(tempfile.gettempdir()) / f"catchment-spill-{os.getpid()}-{threading.get_ident()}"
            ),
        }
    )
    # Footers are read to group files, to count rows and to scan them: reading them once is enough.
    connection.execute("SET parquet_metadata_cache = true")
    connection.execute("SET prefetch_all_parquet_files = true")
    return connection
