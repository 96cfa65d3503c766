"""DuckDB's own remote protocol: a server for a DuckDB file in a separate process, and clients."""

import importlib.util
import multiprocessing
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import duckdb

from catchment.foundation import sql

_START_S_MAX = 60


@contextmanager
def quack_server(path: Path, create: str) -> Iterator[str]:
    """Serve a new database file in which `create` was run; yield the address."""
    with duckdb.connect(str(path)) as connection:
        connection.execute(create)
    address = f"localhost:{_free_port()}/{secrets.token_hex(8)}"
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(path, address, there))
    process.start()
    there.close()
    try:
        assert here.poll(_START_S_MAX), "quack does not start"
        assert here.recv(), "quack does not start"
        yield address
    finally:
        here.close()
        process.join()


def connect(address: str) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB instance with the server's database attached as `remote`."""
    place, token = address.split("/")
    connection = _duckdb(":memory:")
    connection.execute(f"ATTACH 'quack:{place}' AS remote (TYPE quack, TOKEN '{token}')")
    return connection


def _serve(path: Path, address: str, parent: "Connection[Any, Any]") -> None:
    place, token = address.split("/")
    connection = _duckdb(str(path))
    connection.execute(f"CALL quack_serve('quack:{place}', token := '{token}')")
    parent.send(True)
    with suppress(EOFError):
        # Wait until the parent closes its end or dies.
        parent.recv()


def _duckdb(path: str) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(path, config={"autoinstall_known_extensions": False})
    for name in ("httpfs", "quack"):
        spec = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert spec is not None, f"the package duckdb_extension_{name} is not installed"
        binary = Path(spec.origin or "").parent / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
        connection.execute(f"LOAD {sql.literal(str(binary))}")
    connection.execute("SET enable_progress_bar = false")
    return connection


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])
