"""What a Spark task does, in Spark's Python worker: DuckDB, its connection kept between tasks.

Spark decides where and when, this decides what. A task writes into a folder of its own attempt, so a retried or
speculative twin never meets it; it returns facts about the files it finished, and nothing else of it is ever used.
A unit that cannot be delivered is a result, not an exception: the others of the task go on.
"""

import os
import secrets
import tempfile
import threading
from functools import cache
from pathlib import Path

import duckdb

from catchment import files
from catchment.absent import remember_absent
from catchment.pipeline import adopt, rewrite
from catchment.pipeline.work import Mode, Task, TaskResult

_NICENESS = 10
# One connection per thread: a connection serves one query at a time. Kept here, in an imported module, because Spark
# rebuilds __main__ for every task but keeps the worker process and its modules.
_kept = threading.local()


def run(task: Task) -> TaskResult:
    """Do the task."""
    folder = files.local_path(task.folder) / f"{task.number:05d}-{secrets.token_hex(6)}"
    files.make_folder(folder)
    connection = connection_of(task.memory_mb)
    connection.execute(f"SET threads = {task.threads}")
    work = adopt.adopt if task.mode is Mode.ADOPT else rewrite.rewrite
    return work(connection, task, folder)


def connection_of(memory_mb: int) -> duckdb.DuckDBPyConnection:
    """This thread's connection, made by its first task."""
    if getattr(_kept, "memory_mb", None) != memory_mb:
        _kept.connection, _kept.memory_mb = _connect(memory_mb), memory_mb
    kept: duckdb.DuckDBPyConnection = _kept.connection
    return kept


def run_in_worker(task: Task) -> TaskResult:
    """Do the task in a process of Spark's own, which gives way to whoever waits for an answer on the same machine."""
    _settle_in()
    return run(task)


@cache
def _settle_in() -> None:
    os.nice(_NICENESS)
    remember_absent()


def _connect(memory_mb: int) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        config={
            "memory_limit": f"{memory_mb}MiB",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "preserve_insertion_order": "true",
            # It is kept for later tasks, which an error inside DuckDB must not end.
            "disable_database_invalidation": "true",
            # Fixed for the life of the connection: DuckDB refuses another folder once it has spilled.
            "temp_directory": str(
                Path(tempfile.gettempdir()) / f"catchment-spill-{os.getpid()}-{threading.get_ident()}"
            ),
        }
    )
    # Footers are read to group files, to count rows and to scan them: once is enough.
    connection.execute("SET parquet_metadata_cache = true")
    connection.execute("SET prefetch_all_parquet_files = true")
    return connection
