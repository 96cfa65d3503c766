"""Write small batches from several threads, read them at once, and flush them into the lake as one file."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from catchment.app import App
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings

ORDERS = TableId("shop", "orders")
WRITERS, WRITES, ROWS = 4, 25, 10


def main(home: Path) -> None:
    # The table is made from the first rows that are written to it.
    settings = Settings(home=home, queue_auto_create_tables=True)
    with App(settings) as app:

        def write(writer: int) -> int:
            batches = [
                pa.table({"writer": [writer] * ROWS, "n": range(at, at + ROWS)}) for at in range(0, WRITES * ROWS, ROWS)
            ]
            return sum(app.queue.enqueue(ORDERS, batch, session=f"writer-{writer}").rows for batch in batches)

        with ThreadPoolExecutor(WRITERS) as threads:
            print("rows acknowledged:", sum(threads.map(write, range(WRITERS))))
        with app.queue.fresh(ORDERS) as fresh:
            print("rows seen before the flush:", fresh.rows().num_rows)
        report = app.queue.force_flush_all()
        print(f"flushed: {report.rows} rows in {report.files} file")
        with app.lake.cursor() as cursor:
            print("rows in the lake:", cursor.execute("SELECT count(*) FROM shop.orders").fetchall()[0][0])
        print("audit:", "clean" if app.lake.audit().ok else "findings")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
