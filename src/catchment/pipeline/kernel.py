"""What a Spark task does, in Spark's Python worker: DuckDB on one thread, its connection kept between tasks.

Spark decides where and when, this decides what. A task writes into a folder of its own attempt, so a retried or
speculative twin never meets it; it returns facts about the files it finished, and nothing else of it is ever used.
A unit that cannot be delivered is a result, not an exception: the others of the task go on.
"""

import os
import secrets
import tempfile
from functools import cache
from pathlib import Path

import duckdb

from catchment import files
from catchment.pipeline import adopt, rewrite
from catchment.pipeline.work import Mode, Task, TaskResult


def run(task: Task) -> TaskResult:
    """Do the task; called by Spark."""
    folder = files.local_path(task.folder) / f"{task.number:05d}-{secrets.token_hex(6)}"
    files.make_folder(folder)
    connection = _connection(task.memory_mb)
    connection.execute(f"SET threads = {task.threads}")
    work = adopt.adopt if task.mode is Mode.ADOPT else rewrite.rewrite
    return work(connection, task, folder)


@cache
def _connection(memory_mb: int) -> duckdb.DuckDBPyConnection:
    # Cached here, in an imported module, because Spark rebuilds __main__ for
    # every task but keeps the worker process and its modules.
    connection = duckdb.connect(
        config={
            "memory_limit": f"{memory_mb}MiB",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "preserve_insertion_order": "true",
            # Fixed for the life of the connection: DuckDB refuses another folder once it has spilled.
            "temp_directory": str(Path(tempfile.gettempdir()) / f"catchment-spill-{os.getpid()}"),
        }
    )
    # Footers are read to group files, to count rows and to scan them: once is enough.
    connection.execute("SET parquet_metadata_cache = true")
    connection.execute("SET prefetch_all_parquet_files = true")
    return connection
