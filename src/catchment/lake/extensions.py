"""DuckDB instances and their extensions, which are loaded from wheels and never from the network."""

import importlib.util
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import duckdb

from catchment.errors import ExtensionMissingError
from catchment.foundation import sql

# By package name of the extension's wheel: the extension's own name, which is DuckDB's entry point.
_ENTRY_POINTS = {"ducklake": "ducklake", "sqlite": "sqlite_scanner", "postgres": "postgres_scanner", "httpfs": "httpfs"}
KNOWN = tuple(_ENTRY_POINTS)
_ATTACHED = "attached"
_IDLE_MAX = 4
# Idle instances for `attached`; appending to a deque and popping from it are thread-safe.
_idle: deque[duckdb.DuckDBPyConnection] = deque()


def connect(*, check_signatures: bool = False, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Create a DuckDB instance in memory that never installs or loads an extension by itself.

    It has one thread per core, or `threads`. The number is set at creation: starting one thread per
    core and ending the surplus takes a third of the time to create the instance.

    Checking a signature reads the whole binary, which takes most of the time of opening a lake. The
    binaries come from installed packages: a process that could change them could change this code
    as well.
    """
    config = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        # An internal error of DuckDB must end one statement only. Without this, it also fails all
        # later statements of the instance, and ends the process when a connection with an open
        # transaction is closed. `instance` replaces the failed instance.
        "disable_database_invalidation": "true",
    }
    if threads is not None:
        config["threads"] = str(threads)
    return duckdb.connect(config={**config, "allow_unsigned_extensions": str(not check_signatures).lower()})


def scratch() -> duckdb.DuckDBPyConnection:
    """Return a connection for a small query without a lake; the caller closes it.

    All of them share one instance, because creating one takes 10 ms.
    """
    return _scratch().cursor()


@cache
def _scratch() -> duckdb.DuckDBPyConnection:
    connection = connect(threads=1)
    connection.execute("SET arrow_lossless_conversion = true")
    return connection


@contextmanager
def attached(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB file for reading, with its tables under their bare names.

    Connections of one process to one file must agree on settings, and an instance attaches a file
    only once. So the file is attached to an instance that no other caller uses at the time. The
    instance is kept for the next file unless an error occurred.
    """
    try:
        connection = _idle.popleft()
    except IndexError:
        connection = connect(threads=1)
        connection.execute("SET arrow_lossless_conversion = true")
    try:
        connection.execute(f"ATTACH {sql.literal(str(path))} AS {_ATTACHED} (READ_ONLY)")
        connection.execute(f"USE {_ATTACHED}")
        yield connection
        connection.execute("USE memory")
        connection.execute(f"DETACH {_ATTACHED}")
    except BaseException:
        connection.close()
        raise
    if len(_idle) < _IDLE_MAX:
        _idle.append(connection)
    else:
        connection.close()


def load(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Load one extension into the connection's instance."""
    binary = _binary(name)
    # DuckDB derives the entry point from the file's name, which the wheels have shortened; a link
    # corrects it without writing to a folder that other processes share.
    with tempfile.TemporaryDirectory(prefix="catchment-extension-") as folder:
        link = Path(folder) / f"{_ENTRY_POINTS[name]}.duckdb_extension"
        link.symlink_to(binary)
        try:
            connection.execute(f"LOAD {sql.literal(str(link))}")
        except duckdb.Error as error:
            raise ExtensionMissingError(f"DuckDB refuses its {name} extension: {error}") from error
    if name == "httpfs":
        # It copies keys from the environment into its settings, which any SQL in the instance could
        # read.
        for setting in ("s3_access_key_id", "s3_secret_access_key", "s3_session_token"):
            connection.execute(f"SET GLOBAL {setting} = ''")


def _binary(name: str) -> Path:
    package = f"duckdb_extension_{name}"
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ExtensionMissingError(f"The package {package} is not installed.")
    path = Path(spec.origin).parent / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
    if not path.exists():
        raise ExtensionMissingError(f"{package} contains no extension for DuckDB {duckdb.__version__}.")
    return path
