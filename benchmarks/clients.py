"""Load generator: clients of a server, each in a separate process, and their ways of writing.

A way opens a connection and returns a function; its n-th call writes the n-th of `batches`.
"""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import pyarrow as pa
from adbc_driver_flightsql import dbapi

from benchmarks.quack import connect
from benchmarks.rates import Rate, rows_of
from catchment.foundation import sql

Write = Callable[[int], object]
Way = Callable[[str, str, Sequence[pa.Table]], Write]

_WARM_UP_S = 0.7
_WAIT_S_MAX = 600.0
_DISTINCT_MAX = 500
_INGEST_BATCH_ROWS = 20_000


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load of each client: `writes` writes of `rows` rows, or as many as `seconds` allow."""

    way: Way
    address: str
    table: str
    rows: int
    seconds: float = 0.0
    writes: int = 0


def drive(load: Load, clients: int) -> Rate:
    """Start that many clients; each writes as soon as its last write is acknowledged."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(clients)
    pipes = [context.Pipe(duplex=False) for _ in range(clients)]
    processes = [context.Process(target=_client, args=(load, barrier, sender)) for _, sender in pipes]
    for process in processes:
        process.start()
    for _, sender in pipes:
        # Close the client's end, so that `recv` fails if the client dies.
        sender.close()
    try:
        reports = [receiver.recv() for receiver, _ in pipes]
    finally:
        for process in processes:
            # After a failure, which the client has printed, the others would wait for it.
            process.terminate()
            process.join()
    started, ended = min(began for began, _, _ in reports), max(end for _, end, _ in reports)
    return Rate.of([each for _, _, mine in reports for each in mine], load.rows, ended - started)


def _client(load: Load, barrier: Barrier, answer: "Connection[Any, Any]") -> None:
    batches = _batches(load.rows, 1 if load.writes else _DISTINCT_MAX // load.rows or 1)
    write = load.way(load.address, load.table, batches)
    if not load.writes:
        _repeat(write, seconds=_WARM_UP_S)
    barrier.wait(_WAIT_S_MAX)
    started = time.monotonic()
    latencies = _repeat(write, seconds=load.seconds, writes=load.writes)
    answer.send((started, time.monotonic(), latencies))
    # Ending an interpreter takes more than 0.1 s of CPU, which other clients still need.
    barrier.wait(_WAIT_S_MAX)


def _repeat(write: Write, *, seconds: float, writes: int = 0) -> list[float]:
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    while len(latencies) < writes or time.perf_counter() < end:
        started = time.perf_counter()
        write(len(latencies))
        latencies.append(time.perf_counter() - started)
    return latencies


def _batches(rows: int, count: int) -> list[pa.Table]:
    every = rows_of(rows * count)
    return [every.slice(start, rows) for start in range(0, rows * count, rows)]


def flight_text(address: str, table: str, batches: Sequence[pa.Table]) -> Write:
    """SQL text through the DBAPI, which prepares every text that differs from the previous one."""
    cursor, texts = _flight(address), _texts(table, batches)
    return lambda n: cursor.execute(texts[n % len(texts)])


def flight_update(address: str, table: str, batches: Sequence[pa.Table]) -> Write:
    """SQL text through ADBC's own update: one call, nothing prepared."""
    cursor, texts = _flight(address), _texts(table, batches)

    def write(n: int) -> None:
        cursor.adbc_statement.set_sql_query(texts[n % len(texts)])
        cursor.adbc_statement.execute_update()

    return write


def flight_prepared(address: str, table: str, batches: Sequence[pa.Table]) -> Write:
    """One prepared statement, with the values of a row as its parameters."""
    cursor, text, values = _flight(address), _prepared(table, batches[0]), _values(batches)
    return lambda n: cursor.execute(text, values[n % len(values)][0])


def flight_many(address: str, table: str, batches: Sequence[pa.Table]) -> Write:
    """One prepared statement, with an Arrow batch as the parameters of all its rows."""
    cursor, text = _flight(address), _prepared(table, batches[0])
    return lambda n: cursor.executemany(text, batches[n % len(batches)])


def flight_ingest(address: str, table: str, batches: Sequence[pa.Table]) -> Write:
    """Bulk ingest."""
    cursor = _flight(address)
    schema, name = table.split(".")
    # The driver sends no message of more than 16 MiB. With messages of 5 MiB the server starts to
    # work sooner than with 12.
    cut = [pa.Table.from_batches(each.to_batches(max_chunksize=_INGEST_BATCH_ROWS)) for each in batches]

    def write(n: int) -> None:
        rows = cut[n % len(cut)]
        taken = cursor.adbc_ingest(name, rows, mode="append", db_schema_name=schema)
        assert taken == rows.num_rows, f"{taken} of {rows.num_rows} rows were taken"

    return write


def quack_attached_text(address: str, table: str, batches: Sequence[pa.Table]) -> Write:
    """SQL text against the attached table."""
    connection, texts = connect(address), _texts(f"remote.{table}", batches)
    return lambda n: connection.execute(texts[n % len(texts)])


def quack_query(address: str, table: str, batches: Sequence[pa.Table]) -> Write:
    """SQL text that the server runs."""
    connection = connect(address)
    texts = [f"FROM quack_query_by_name('remote', {sql.literal(text)})" for text in _texts(table, batches)]
    return lambda n: connection.execute(texts[n % len(texts)]).fetchall()


def quack_prepared(address: str, table: str, batches: Sequence[pa.Table]) -> Write:
    """An INSERT into the attached table with the values of a row as its parameters."""
    connection, text, values = connect(address), _prepared(f"remote.{table}", batches[0]), _values(batches)
    return lambda n: connection.execute(text, values[n % len(values)][0])


def quack_arrow(address: str, table: str, batches: Sequence[pa.Table]) -> Write:
    """An INSERT of Arrow rows into the attached table."""
    connection = connect(address)

    def write(n: int) -> None:
        connection.register("arrived", batches[n % len(batches)].__arrow_c_stream__())
        connection.execute(f"INSERT INTO remote.{table} FROM arrived")

    return write


def _flight(address: str) -> dbapi.Cursor:
    return dbapi.connect(address, autocommit=True).cursor()


def _texts(table: str, batches: Sequence[pa.Table]) -> list[str]:
    return [f"INSERT INTO {table} VALUES {', '.join(map(_literals, rows))}" for rows in _values(batches)]


def _prepared(table: str, rows: pa.Table) -> str:
    return f"INSERT INTO {table} VALUES ({', '.join('?' * rows.num_columns)})"


def _values(batches: Sequence[pa.Table]) -> list[list[tuple[object, ...]]]:
    return [[tuple(row.values()) for row in batch.to_pylist()] for batch in batches]


def _literals(row: tuple[object, ...]) -> str:
    return f"({', '.join(_literal(value) for value in row)})"


def _literal(value: object) -> str:
    return str(value) if isinstance(value, bool | int | float) else sql.literal(str(value))
