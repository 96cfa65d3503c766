"""DuckLake options that differ from its defaults; stored in the lake, for all its writers."""

import duckdb

from catchment.foundation import sql
from catchment.lake import tables
from catchment.lake.tables import LEDGER_SCHEMA


def are_set(connection: duckdb.DuckDBPyConnection, lake_name: str, *, file_bytes: int) -> bool:
    """Whether the lake has all options."""
    query = sql.statement(tables.PACKAGE, "options", metadata=tables.metadata_of(lake_name))
    found = {(name, schema): value for name, schema, value in connection.execute(query).fetchall()}
    return found.items() >= _wanted(file_bytes).items()


def set_all(connection: duckdb.DuckDBPyConnection, lake_name: str, *, file_bytes: int) -> None:
    """Set all options in the open transaction; the ledger must exist."""
    for (name, schema), kept in _wanted(file_bytes).items():
        scope = "" if schema is None else f", schema => {sql.literal(schema)}"
        value = sql.literal(_option_value(name, kept))
        connection.execute(f"CALL {sql.identifier(lake_name)}.set_option({sql.literal(name)}, {value}{scope})")


def _wanted(file_bytes: int) -> dict[tuple[str, str | None], str]:
    """Return the options by name and schema (None: the whole lake), as DuckLake stores them."""
    # User tables are never inlined: inlined structs come back damaged from SQLite and PostgreSQL,
    # and the queue does the same job better. The ledger's one-row updates are inlined, and only
    # Catchment's own maintenance may compact it. Parquet's version 2 and zstd's lowest level make
    # an INSERT a third cheaper, with files as small as before.
    return {
        ("data_inlining_row_limit", None): "0",
        ("data_inlining_row_limit", LEDGER_SCHEMA): "10",
        ("auto_compact", LEDGER_SCHEMA): "false",
        ("parquet_compression", None): "zstd",
        ("parquet_compression_level", None): "1",
        ("parquet_version", None): "V2",
        ("target_file_size", None): str(file_bytes),
    }


def _option_value(name: str, kept: str) -> str:
    """Convert a stored value to the form that `set_option` takes."""
    match name:
        case "target_file_size":
            return f"{kept} bytes"
        case "parquet_version":
            return kept.removeprefix("V")
        case _:
            return kept
