"""Deliver Parquet files, change the table, insert into it, and read it with Spark at the current snapshot."""

import sys
from collections import defaultdict
from functools import reduce
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from catchment.app import App
from catchment.errors import NotSupportedError
from catchment.foundation.ids import TableId
from catchment.foundation.settings import load_settings
from catchment.lake import Commit, Lake
from catchment.lake.commit import CreateTable
from catchment.lake.snapshot_schema import SnapshotField, SnapshotFile, schema_at
from catchment.pipeline import ParquetFiles

ITEMS = TableId("shop", "items")


def read_table(spark: SparkSession, lake: Lake, table: TableId) -> DataFrame:
    """The table at the lake's newest snapshot, read by Spark from the files that the catalog names."""
    (found,) = (each for each in schema_at(lake, table.schema, lake.newest_snapshot()) if each.table.id == table)
    paths_by_names = defaultdict(list)
    for file in found.files:
        paths_by_names[tuple(names_in(file).items())].append(file.path)
    parts = [
        spark.read.parquet(*paths).select(*(column(field, dict(names).get(field.id)) for field in found.fields))
        for names, paths in paths_by_names.items()
    ]
    return reduce(DataFrame.unionAll, parts)


def names_in(file: SnapshotFile) -> dict[int, str]:
    """What the columns are called in the file, by the number that stays when one is renamed."""
    if file.deletes or file.is_partial:
        raise NotSupportedError(f"{file.path} has rows that are deleted, or of later snapshots: read it with DuckDB.")
    if file.names is not None:
        # It was registered as it is; the catalog keeps its names.
        return {name.field_id: name.name for name in file.names}
    # DuckLake wrote it, with the numbers.
    return {int(field.metadata[b"PARQUET:field_id"]): field.name for field in pq.read_schema(file.path)}


def column(field: SnapshotField, name: str | None) -> Column:
    """A column from the file; where the file is older than the column, what such rows read."""
    found = f.lit(field.initial) if name is None else f.col(f"`{name}`")
    return found.cast(spark_type(field)).alias(field.name)


def spark_type(field: SnapshotField) -> str:
    """Spark's word for the column's type."""
    words = {"BIGINT": "bigint", "INTEGER": "int", "VARCHAR": "string", "DOUBLE": "double", "DATE": "date"}
    return words[field.type or ""]


def main(home: Path) -> None:
    files = [home / "incoming" / f"{n}.parquet" for n in range(19)]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    for n, path in enumerate(files):
        duckdb.sql(f"SELECT {n} AS batch, i AS item FROM range(50) r(i)").write_parquet(str(path))

    with App(load_settings(home)) as app:
        source = ParquetFiles(files, ITEMS)
        if app.lake.find_table(ITEMS) is None:
            table = CreateTable(table=ITEMS, columns=source.columns())
            app.lake.commit(Commit(message="create shop.items", changes=(table,)))
            app.deliverer().run(source)
            with app.lake.write() as connection:
                connection.execute("ALTER TABLE shop.items RENAME COLUMN batch TO box")
                connection.execute("ALTER TABLE shop.items ADD COLUMN state VARCHAR DEFAULT 'new'")
                connection.execute("INSERT INTO shop.items SELECT 19, i, 'sold' FROM range(50) r(i)")

        # Spark as Catchment has started it; in a job of yours it is the session that you have.
        read = read_table(app.runner.spark, app.lake, ITEMS)
        by_spark = [tuple(row) for row in read.groupBy("box", "state").agg(f.sum("item")).orderBy("box").collect()]
        with app.lake.cursor() as cursor:
            query = "SELECT box, state, sum(item)::BIGINT FROM shop.items GROUP BY ALL ORDER BY box"
            print("the same as DuckDB reads:", by_spark == cursor.execute(query).fetchall())
        print("columns:", ", ".join(read.columns))
        print("rows in the lake:", read.count())
        print("audit:", "clean" if app.lake.audit().ok else "findings")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
