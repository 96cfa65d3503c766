"""Writes Parquet files: their encoding, and the facts about each written file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from catchment.errors import InvariantError
from catchment.foundation import sql
from catchment.lake import digest, types
from catchment.lake.placeholders import has_token
from catchment.lake.types import Column
from catchment.pipeline import footer, inputs
from catchment.pipeline.work import Input, UnitPart

# Measured on log-like rows against DuckDB's defaults: zstd at level 1 instead of 3 is an eighth
# faster and no larger, the encodings of Parquet's version 2 another tenth faster and an eighth
# smaller; abandoning a dictionary at 5,000 values instead of 24,576 per row group saves another
# twentieth, and costs nothing: such columns are as small with delta encoding.
_PARQUET: dict[str, sql.Value] = {
    "FORMAT": "parquet",
    "COMPRESSION": "zstd",
    "COMPRESSION_LEVEL": 1,
    "PARQUET_VERSION": "v2",
    "DICTIONARY_SIZE_LIMIT": 5_000,
}
# With a Bloom filter on a column, DuckDB does not find bytes that are not text, nor -0.0 in a query
# for 0.0.
_UNFILTERABLE = frozenset({"blob", "float", "double"})
_HASH_BATCH_ROWS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """A file that was written."""

    path: str
    rows: int
    bytes: int
    statistics: dict[str, dict[str, str]]
    partition: dict[str, str | None]


def copy(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    columns: Sequence[Column],
    place: Path,
    *,
    partition_by: Sequence[str] = (),
    with_keys: bool = True,
    file_bytes: int | None = None,
    group_rows: int | None = None,
) -> list[OutputFile]:
    """Write the result of a query with these columns; return the files with rows.

    The files are in row order if one thread wrote them. `place` is a folder if the rows are split,
    by `partition_by` or into files of about `file_bytes`; otherwise a file. With `with_keys` the
    partition columns are also in the files, otherwise only in the folder names.
    """
    options = dict(_PARQUET)
    if any(types.holds(column.type, _UNFILTERABLE) for column in columns):
        options["WRITE_BLOOM_FILTER"] = False
    extra = ["RETURN_STATS"]
    if partition_by:
        extra += [f"PARTITION_BY ({sql.identifiers(partition_by)})", f"WRITE_PARTITION_COLUMNS {with_keys}"]
    elif file_bytes is not None:
        options["FILE_SIZE_BYTES"] = file_bytes
    if group_rows is not None:
        options["ROW_GROUP_SIZE"] = group_rows
    listed = ", ".join([sql.options(options)[1:-1], *extra])
    rows = connection.execute(f"COPY ({query}) TO {sql.literal(str(place))} ({listed})").fetchall()
    outputs = [_output(connection, row, columns) for row in rows]
    # DuckDB numbers the files it splits into, so sorting by that number restores the order of the
    # rows.
    return sorted((output for output in outputs if output.rows), key=lambda output: _natural(output.path))


def wrongly_null(
    connection: duckdb.DuckDBPyConnection, outputs: Sequence[OutputFile], columns: Sequence[Column]
) -> str | None:
    """Return a column that must not be NULL but is, in some row of the files."""
    required = [column.name for column in columns if not column.nullable]
    return next((name for output in outputs for name in required if _nulls(connection, output, name)), None)


def hashes(
    connection: duckdb.DuckDBPyConnection, paths: Sequence[str], columns: Sequence[Column]
) -> Iterator[pa.Array]:
    """Yield a hash of each row in the files, file by file."""
    if not paths:
        return
    written = tuple(UnitPart(unit_id="", input=Input(uri=path, bytes=0)) for path in paths)
    groups, failures = inputs.inspect(connection, written)
    if failures:
        raise InvariantError(f"A file that was just written cannot be read: {failures[0].reason}")
    with inputs.relation(connection, groups, columns) as query:
        reader = connection.execute(f"SELECT {digest.row_hash(columns)} AS h FROM ({query})").to_arrow_reader(
            _HASH_BATCH_ROWS
        )
        for batch in reader:
            yield batch.column(0)


def _output(connection: duckdb.DuckDBPyConnection, row: tuple[Any, ...], columns: Sequence[Column]) -> OutputFile:
    path, rows, size, _, statistics, partition = row
    extremes = (facts.get(end, "") for facts in (statistics or {}).values() for end in ("min", "max"))
    if any(has_token(extreme) for extreme in extremes):
        before = _digest_of(connection, path, columns)
        footer.blur(Path(path))
        if _digest_of(connection, path, columns) != before:
            raise InvariantError(f"{path} changed its rows when its statistics were blurred.")
    return OutputFile(path=path, rows=rows, bytes=size, statistics=statistics or {}, partition=partition or {})


def _digest_of(connection: duckdb.DuckDBPyConnection, path: str, columns: Sequence[Column]) -> str:
    return digest.text(sum(each.sum().as_py() for each in hashes(connection, [path], columns)))


def _natural(path: str) -> tuple[str, int, str]:
    name = Path(path).stem
    number = name.rpartition("_")[2]
    return str(Path(path).parent), int(number) if number.isdigit() else 0, name


def _nulls(connection: duckdb.DuckDBPyConnection, output: OutputFile, name: str) -> int:
    known = output.statistics.get(sql.identifier(name), {}).get("null_count")
    if known is not None:
        return int(known)
    # Nested columns have statistics for their leaves only.
    source = f"read_parquet({sql.literal(output.path)}, hive_partitioning = false)"
    row = connection.execute(f"SELECT count(*) FROM {source} WHERE {sql.identifier(name)} IS NULL").fetchone()
    return int(row[0]) if row else 0
