"""Import a tree of hive folders, prove it, and find nothing to do when importing again."""

import sys
from pathlib import Path

import duckdb

from catchment.app import App
from catchment.foundation.settings import load_settings
from catchment.lake.types import Column
from catchment.pipeline.legacy.folders import ImportFolders, ImportPhase
from catchment.pipeline.legacy.import_plan import ImportOptions

KEYS = (Column(name="region", type="VARCHAR"), Column(name="day", type="DATE"))


def make_tree(tree: Path) -> None:
    """A thousand rows of two regions and five days, a file for each region and day."""
    rows = "SELECT ['eu', 'us'][1 + i % 2] AS region, DATE '2026-01-01' + (i % 5)::INT AS day, i AS item"
    tree.parent.mkdir(parents=True, exist_ok=True)
    duckdb.execute(
        f"COPY ({rows} FROM range(1000) r(i)) TO '{tree}' (FORMAT parquet, PARTITION_BY (region, day))",
    )


def main(home: Path) -> None:
    place = ImportFolders.tree(home / "legacy" / "sales")
    if place.phase() is ImportPhase.NOTHING:
        make_tree(place.data)
    with App(load_settings(home)) as app:
        job = app.legacy_import(place, ImportOptions(keys=KEYS, table="sales"))
        print(*job.plan().explain(), sep="\n")
        for attempt in ("first", "again"):
            report = job.run()
            print(f"{attempt}: {report.leaves} leaves and {report.rows} rows imported; the import is {report.phase}")
        proof = job.verify()
        print(f"proof: {proof.leaves} leaves, {proof.rows} rows,", "the same" if proof.ok else proof.mismatches)
        with app.lake.cursor() as cursor:
            print("rows in the lake:", cursor.execute("SELECT count(*) FROM sales").fetchall()[0][0])
        print("audit:", "clean" if app.lake.audit().ok else "findings")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
