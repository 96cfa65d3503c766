"""Deliver a folder of Parquet files twice; the second time changes nothing."""

import sys
from pathlib import Path

import duckdb

import catchment


def main(home: Path) -> None:
    files = [home / "incoming" / f"{n}.parquet" for n in range(20)]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    for n, path in enumerate(files):
        duckdb.sql(f"SELECT {n} AS batch, i AS item FROM range(50) r(i)").write_parquet(str(path))

    with catchment.open(home) as c:
        for attempt in ("first", "again"):
            report = c.lake.deliver("shop.items", files, create=True)
            print(f"{attempt}: {report.delivered} delivered, {report.skipped} there already, {report.rows} rows")
        print("rows in the lake:", c.lake.query("SELECT count(*) AS n FROM shop.items")["n"][0])
        print("audit:", "clean" if c.audit().ok else "findings")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
