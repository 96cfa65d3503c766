"""Import a tree of hive folders, verify it, and find nothing to do when importing again."""

import sys
from pathlib import Path

import duckdb

import catchment


def make_tree(tree: Path) -> None:
    """Write a thousand rows of two regions and five days, one file for each region and day."""
    rows = "SELECT ['eu', 'us'][1 + i % 2] AS region, DATE '2026-01-01' + (i % 5)::INT AS day, i AS item"
    tree.parent.mkdir(parents=True, exist_ok=True)
    duckdb.execute(
        f"COPY ({rows} FROM range(1000) r(i)) TO '{tree}' (FORMAT parquet, PARTITION_BY (region, day))",
    )


def main(home: Path) -> None:
    tree = home / "legacy" / "sales"
    if not tree.parent.exists():
        make_tree(tree)
    with catchment.open(home) as c:
        job = c.legacy.job(tree=tree, keys="region,day:DATE")
        print(*job.plan().explain(), sep="\n")
        for attempt in ("first", "again"):
            report = job.run()
            print(f"{attempt}: {report.leaves} leaves and {report.rows} rows imported; the import is {report.phase}")
        proof = job.verify()
        print(f"proof: {proof.leaves} leaves, {proof.rows} rows,", "the same" if proof.ok else proof.mismatches)
        print("rows in the lake:", c.lake.query("SELECT count(*) AS n FROM sales")["n"][0])
        print("audit:", "clean" if c.audit().ok else "findings")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
