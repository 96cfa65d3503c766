"""How a peer's INSERT encodes what it writes: a lake of ours has lighter settings than DuckDB's own."""

import duckdb

from catchment.foundation import sql

ZSTD = {"parquet_compression": "zstd", "parquet_compression_level": "3", "parquet_version": "1"}
OURS = {"parquet_compression": "zstd", "parquet_compression_level": "1", "parquet_version": "2"}


def encode(connection: duckdb.DuckDBPyConnection, lake_name: str, options: dict[str, str]) -> None:
    """Have every INSERT into the lake write so, until it is told otherwise; deliveries have their own way."""
    for name, value in options.items():
        connection.execute(f"CALL {sql.identifier(lake_name)}.set_option(?, ?)", [name, value])
