"""Parquet options for a peer's INSERT: DuckDB's own, and the lighter ones that Catchment sets."""

import duckdb

from catchment.foundation import sql

ZSTD = {"parquet_compression": "zstd", "parquet_compression_level": "3", "parquet_version": "1"}
OURS = {"parquet_compression": "zstd", "parquet_compression_level": "1", "parquet_version": "2"}


def encode(connection: duckdb.DuckDBPyConnection, lake_name: str, options: dict[str, str]) -> None:
    """Set the options for every later INSERT into the lake; deliveries have their own."""
    for name, value in options.items():
        connection.execute(f"CALL {sql.identifier(lake_name)}.set_option(?, ?)", [name, value])
