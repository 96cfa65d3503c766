"""Read a table while it is written to and flushed: each read sees all that was acknowledged before it, once."""

import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pyarrow as pa

from catchment.app import App
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings

VISITS = TableId("shop", "visits")
WRITES, ROWS, PAUSE_S = 100, 10, 0.02


def main(home: Path) -> None:
    acked = 0

    def write() -> None:
        nonlocal acked
        for first in range(0, WRITES * ROWS, ROWS):
            app.queue.enqueue(VISITS, pa.table({"n": range(first, first + ROWS)}), session="writer")
            acked = first + ROWS

    def check() -> int:
        """One read: how many rows it saw."""
        promised = acked
        with app.queue.fresh(VISITS) as fresh:
            seen = fresh.rows().column("n").to_pylist()
        # Others may have come meanwhile; what was promised is there, and nothing is there twice.
        assert set(range(promised)) <= set(seen), f"{promised} were acknowledged, {len(seen)} seen"
        assert len(set(seen)) == len(seen), "a row was seen twice"
        return len(seen)

    with App(Settings(home=home, queue_auto_create_tables=True)) as app, ThreadPoolExecutor(2) as threads:
        app.queue.enqueue(VISITS, pa.table({"n": pa.array([], pa.int64())}), session="writer")
        writing = threads.submit(write)
        reads = 0
        while not wait([writing], timeout=PAUSE_S).done:
            check()
            reads += 1
        with app.lake.cursor() as cursor:
            in_lake = cursor.execute("SELECT count(*) FROM shop.visits").fetchall()[0][0]
        print(f"before the flush: {check()} rows seen, {in_lake} of them in the lake")
        flushing = threads.submit(app.queue.force_flush_all)
        while not wait([flushing], timeout=PAUSE_S).done:
            check()
            reads += 1
        print(f"{reads} reads during writes and flush: none missed a row, none saw one twice")
        with app.lake.cursor() as cursor:
            print("rows in the lake:", cursor.execute("SELECT count(*) FROM shop.visits").fetchall()[0][0])
        print("audit:", "clean" if app.lake.audit().ok else "findings")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
