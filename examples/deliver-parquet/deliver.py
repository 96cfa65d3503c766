"""Deliver a folder of Parquet files twice; the second time changes nothing."""

import sys
from pathlib import Path

import duckdb

from catchment.foundation.ids import TableId
from catchment.foundation.settings import load_settings
from catchment.lake import Commit, Lake
from catchment.lake.commit import CreateTable
from catchment.pipeline import Deliverer, ParquetFiles, SparkRunner


def main(home: Path) -> None:
    files = [home / "incoming" / f"{n}.parquet" for n in range(20)]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    for n, path in enumerate(files):
        duckdb.sql(f"SELECT {n} AS batch, i AS item FROM range(50) r(i)").write_parquet(str(path))

    settings = load_settings(home)
    source = ParquetFiles(files, TableId("shop", "items"))
    with Lake.from_settings(settings) as lake, SparkRunner(settings) as runner:
        if lake.find_table(source.table) is None:
            table = CreateTable(table=source.table, columns=source.columns())
            lake.commit(Commit(message="create shop.items", changes=(table,)))
        deliverer = Deliverer(lake, runner, settings)
        for attempt in ("first", "again"):
            report = deliverer.run(source)
            print(f"{attempt}: {report.delivered} delivered, {report.skipped} there already, {report.rows} rows")
        with lake.cursor() as cursor:
            print("rows in the lake:", cursor.execute("SELECT count(*) FROM shop.items").fetchall()[0][0])
        print("audit:", "clean" if lake.audit().ok else "findings")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
