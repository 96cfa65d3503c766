"""DuckDB instances, and their extensions, loaded from the wheels that carry them and never from the network."""

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

# The wheel of an extension is named after its package, DuckDB's entry point after the extension itself.
_ENTRY_POINTS = {"ducklake": "ducklake", "sqlite": "sqlite_scanner", "postgres": "postgres_scanner", "httpfs": "httpfs"}
KNOWN = tuple(_ENTRY_POINTS)
_ATTACHED = "attached"
_IDLE_MAX = 4
# Instances that are kept for `attached`; a deque is safe to take from and to add to by several threads.
_idle: deque[duckdb.DuckDBPyConnection] = deque()


def connect(*, check_signatures: bool = False, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB instance in memory that never looks for an extension by itself.

    It has a thread for each core, or `threads` from the start: those that are started first and ended then cost a third
    of its making.

    Checking a signature reads the whole binary, which takes most of the time of opening a lake. The binaries come from
    installed packages: whoever could change them could change this code as well.
    """
    config = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        # An error inside DuckDB is to end one statement. Without this it ends all later ones of the instance, and the
        # process when a connection with an open transaction is closed. What is to be replaced then, `instance` does.
        "disable_database_invalidation": "true",
    }
    if threads is not None:
        config["threads"] = str(threads)
    return duckdb.connect(config={**config, "allow_unsigned_extensions": str(not check_signatures).lower()})


def scratch() -> duckdb.DuckDBPyConnection:
    """A connection for a small question that needs no lake; the caller closes it. Making an instance takes 10 ms."""
    return _scratch().cursor()


@cache
def _scratch() -> duckdb.DuckDBPyConnection:
    connection = connect(threads=1)
    connection.execute("SET arrow_lossless_conversion = true")
    return connection


@contextmanager
def attached(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection for reading a DuckDB file, whose tables it has by their bare names.

    Connections of one process to one file would have to agree on settings, and an instance attaches a file once: so it
    is attached to an instance that nobody else has meanwhile. That is kept for the next file, unless something failed.
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
    """Load one extension into the instance behind `connection`."""
    binary = _binary(name)
    # DuckDB derives the entry point from the file's name, which the wheels have shortened; a link puts it right
    # without writing to a folder that other processes share.
    with tempfile.TemporaryDirectory(prefix="catchment-extension-") as folder:
        link = Path(folder) / f"{_ENTRY_POINTS[name]}.duckdb_extension"
        link.symlink_to(binary)
        try:
            connection.execute(f"LOAD {sql.literal(str(link))}")
        except duckdb.Error as error:
            raise ExtensionMissingError(f"DuckDB refuses its {name} extension: {error}") from error
    if name == "httpfs":
        # It takes keys from the process's environment, and any SQL in the instance could read them from its settings.
        for setting in ("s3_access_key_id", "s3_secret_access_key", "s3_session_token"):
            connection.execute(f"SET GLOBAL {setting} = ''")


def _binary(name: str) -> Path:
    package = f"duckdb_extension_{name}"
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ExtensionMissingError(f"The package {package} is not installed.")
    path = Path(spec.origin).parent / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
    if not path.exists():
        raise ExtensionMissingError(f"{package} holds no extension for DuckDB {duckdb.__version__}.")
    return path
