"""Digest of a set of rows: independent of their order, and additive over disjoint sets.

Each value is hashed with its column's name, the hashes of a row are mixed and hashed again, and the
rows are summed modulo 2^64. A NULL contributes nothing, so a column that an older file lacks
changes nothing. It guards against mistakes and damage, not against forgery. The hash is DuckDB's
own and may change with its version: the prefix names it.
"""

from collections.abc import Iterable

import duckdb

from catchment.foundation import sql
from catchment.foundation.ids import TableId
from catchment.lake.types import Column

_MODULUS = 1 << 64
_PREFIX = "duckdb1.5:"


def row_hash(columns: Iterable[Column]) -> str:
    """Return an SQL expression for the hash of one row, as UBIGINT."""
    terms = ["1::UBIGINT", "0::UBIGINT"]
    for column in columns:
        # The name is mixed in before the second hash: two columns with equal values must not cancel
        # each other out.
        name = f"hash({sql.literal(sql.fold(column.name))})"
        terms.append(f"hash(xor(hash({sql.identifier(column.name)}), {name}))")
        terms.append(f"hash(xor(hash(NULL), {name}))")
    return f"hash({_xor(terms)})"


def _xor(terms: list[str]) -> str:
    """Return the terms' exclusive or as a balanced tree.

    DuckDB's planner needs time with the cube of an expression's depth, and refuses one that is
    1,000 deep: as a chain, 400 columns took 4 s, 950 took two minutes, and 990 failed. As a tree,
    5,000 take 1.2 s. The value is the same.
    """
    while len(terms) > 1:
        pairs = [f"xor({left}, {right})" for left, right in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(terms) - len(terms) % 2 :]
    return terms[0]


def rows_digest(columns: Iterable[Column]) -> str:
    """Return an SQL aggregate for the digest of many rows, as a number below 2^64."""
    return f"(coalesce(sum({row_hash(columns)}), 0) % {_MODULUS}::HUGEINT)::UBIGINT"


def text(number: int) -> str:
    """Return the digest as it is recorded."""
    return f"{_PREFIX}{number % _MODULUS:016x}"


def number(recorded: str) -> int:
    """Return the number of a recorded digest."""
    return int(recorded.removeprefix(_PREFIX), 16)


def add(digests: Iterable[str | None]) -> str | None:
    """Return the digest of the union of disjoint sets of rows; None if one of them is unknown."""
    known = list(digests)
    numbers = [number(each) for each in known if each is not None]
    return text(sum(numbers)) if len(numbers) == len(known) else None


def table_digest(
    connection: duckdb.DuckDBPyConnection,
    lake_name: str,
    table: TableId,
    columns: Iterable[Column],
    *,
    snapshot: int | None = None,
) -> tuple[int, str]:
    """Return a table's row count, now or at a snapshot, and the rows' digest as it is recorded."""
    at = "" if snapshot is None else f" AT (VERSION => {snapshot})"
    source = f"{sql.qualified(lake_name, table.schema, table.name)}{at}"
    row = connection.execute(f"SELECT count(*), {rows_digest(columns)} FROM {source}").fetchone()
    return (int(row[0]), text(int(row[1]))) if row else (0, text(0))
