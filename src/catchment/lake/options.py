"""What a lake of ours has DuckLake do otherwise than by itself: options that it keeps, for all who write to it."""

import duckdb

from catchment.foundation import sql
from catchment.lake import tables
from catchment.lake.tables import LEDGER_SCHEMA


def are_set(connection: duckdb.DuckDBPyConnection, lake_name: str, *, file_bytes: int) -> bool:
    """Whether the lake has them."""
    query = sql.statement(tables.PACKAGE, "options", metadata=tables.metadata_of(lake_name))
    found = {(name, schema): value for name, schema, value in connection.execute(query).fetchall()}
    return found.items() >= _wanted(file_bytes).items()


def set_all(connection: duckdb.DuckDBPyConnection, lake_name: str, *, file_bytes: int) -> None:
    """Set them, in the transaction that is open; the ledger is there by then."""
    for (name, schema), kept in _wanted(file_bytes).items():
        scope = "" if schema is None else f", schema => {sql.literal(schema)}"
        value = sql.literal(_told(name, kept))
        connection.execute(f"CALL {sql.identifier(lake_name)}.set_option({sql.literal(name)}, {value}{scope})")


def _wanted(file_bytes: int) -> dict[tuple[str, str | None], str]:
    """By name, and by schema where they are not for all of the lake; in the form in which DuckLake keeps them."""
    # User tables are never inlined: inlined structs come back damaged from SQLite and PostgreSQL, and the queue does
    # the same job better. The ledger's one-row updates are, and nobody but our own upkeep may compact it. Parquet's
    # version 2 and zstd's lightest level take a third off what an INSERT costs, for files as small as before.
    return {
        ("data_inlining_row_limit", None): "0",
        ("data_inlining_row_limit", LEDGER_SCHEMA): "10",
        ("auto_compact", LEDGER_SCHEMA): "false",
        ("parquet_compression", None): "zstd",
        ("parquet_compression_level", None): "1",
        ("parquet_version", None): "V2",
        ("target_file_size", None): str(file_bytes),
    }


def _told(name: str, kept: str) -> str:
    """How DuckLake is told the value of an option that it keeps in another form."""
    match name:
        case "target_file_size":
            return f"{kept} bytes"
        case "parquet_version":
            return kept.removeprefix("V")
        case _:
            return kept
