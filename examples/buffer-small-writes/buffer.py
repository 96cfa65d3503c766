"""Write small batches from several threads, read them at once, and flush them into the lake as one
file.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

import catchment

ORDERS = "shop.orders"
WRITERS, WRITES, ROWS = 4, 25, 10


def main(home: str) -> None:
    # The table is created from the first rows that are written to it.
    with catchment.open(home, queue_auto_create_tables=True) as c:

        def write(writer: int) -> int:
            batches = [
                pa.table({"writer": [writer] * ROWS, "n": range(at, at + ROWS)}) for at in range(0, WRITES * ROWS, ROWS)
            ]
            return sum(c.queue.enqueue(ORDERS, batch, session=f"writer-{writer}").rows for batch in batches)

        with ThreadPoolExecutor(WRITERS) as threads:
            print("rows acknowledged:", sum(threads.map(write, range(WRITERS))))
        print("rows seen before the flush:", c.queue.read(ORDERS).num_rows)
        report = c.queue.flush()
        print(f"flushed: {report.rows} rows in {report.files} file")
        print("rows in the lake:", c.lake.query("SELECT count(*) AS n FROM shop.orders")["n"][0])
        print("audit:", "clean" if c.audit().ok else "findings")


if __name__ == "__main__":
    main(sys.argv[1])
