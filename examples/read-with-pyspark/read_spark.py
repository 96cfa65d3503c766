"""Deliver Parquet files, change the table, insert into it, and read it with Spark at the current
snapshot.
"""

import sys
from collections import defaultdict
from functools import reduce
from operator import itemgetter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

import catchment
from catchment import Catchment
from catchment.errors import NotSupportedError

ITEMS = "shop.items"


def read_table(c: Catchment, table: str) -> DataFrame:
    """Return the table at the lake's newest snapshot, read by Spark from the files in the catalog."""
    found = c.lake.snapshot(table)
    paths_by_names = defaultdict(list)
    for file in found.files:
        paths_by_names[tuple(names_in(file).items())].append(file.path)
    parts = [
        c.spark.read.parquet(*paths).select(*(column(field, dict(names).get(field.id)) for field in found.fields))
        for names, paths in paths_by_names.items()
    ]
    return reduce(DataFrame.unionAll, parts)


def names_in(file: Any) -> dict[int, str]:
    """Return the columns' names in the file, by field id, which a rename does not change."""
    if file.deletes or file.is_partial:
        raise NotSupportedError(f"{file.path} has rows that are deleted, or of later snapshots: read it with DuckDB.")
    if file.names is not None:
        # An adopted file: the catalog has its names.
        return {name.field_id: name.name for name in file.names}
    # Written by DuckLake, with field ids.
    return {int(field.metadata[b"PARQUET:field_id"]): field.name for field in pq.read_schema(file.path)}


def column(field: Any, name: str | None) -> Column:
    """Return a column of the file, or its initial value if the file is older than the column."""
    found = f.lit(field.initial) if name is None else f.col(f"`{name}`")
    return found.cast(spark_type(field)).alias(field.name)


def spark_type(field: Any) -> str:
    """Return Spark's name of the column's type."""
    words = {"BIGINT": "bigint", "INTEGER": "int", "VARCHAR": "string", "DOUBLE": "double", "DATE": "date"}
    return words[field.type or ""]


def main(home: Path) -> None:
    files = [home / "incoming" / f"{n}.parquet" for n in range(19)]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    for n, path in enumerate(files):
        duckdb.sql(f"SELECT {n} AS batch, i AS item FROM range(50) r(i)").write_parquet(str(path))

    with catchment.open(home) as c:
        if c.lake.deliver(ITEMS, files, create=True).delivered:
            with c.lake.write() as connection:
                connection.execute("ALTER TABLE shop.items RENAME COLUMN batch TO box")
                connection.execute("ALTER TABLE shop.items ADD COLUMN state VARCHAR DEFAULT 'new'")
                connection.execute("INSERT INTO shop.items SELECT 19, i, 'sold' FROM range(50) r(i)")

        read = read_table(c, ITEMS)
        by_spark = [row.asDict() for row in read.groupBy("box", "state").agg(f.sum("item").alias("sum")).collect()]
        query = "SELECT box, state, sum(item)::BIGINT AS sum FROM shop.items GROUP BY ALL ORDER BY box"
        print("the same as DuckDB reads:", sorted(by_spark, key=itemgetter("box")) == c.lake.query(query).to_pylist())
        print("columns:", ", ".join(read.columns))
        print("rows in the lake:", read.count())
        print("audit:", "clean" if c.audit().ok else "findings")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
