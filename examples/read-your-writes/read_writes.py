"""Read a table while it is written to and flushed: each read sees all that was acknowledged before
it, once.
"""

import sys
from concurrent.futures import ThreadPoolExecutor, wait

import pyarrow as pa

import catchment

VISITS = "shop.visits"
COUNT = "SELECT count(*) AS n FROM shop.visits"
WRITES, ROWS, PAUSE_S = 100, 10, 0.02


def main(home: str) -> None:
    acked = 0

    def write() -> None:
        nonlocal acked
        for first in range(0, WRITES * ROWS, ROWS):
            c.queue.enqueue(VISITS, pa.table({"n": range(first, first + ROWS)}), session="writer")
            acked = first + ROWS

    def check() -> int:
        """Read once, and return the number of rows seen."""
        promised = acked
        seen = c.queue.read(VISITS).column("n").to_pylist()
        # More rows may have arrived since; every acknowledged one is there, and none twice.
        assert set(range(promised)) <= set(seen), f"{promised} were acknowledged, {len(seen)} seen"
        assert len(set(seen)) == len(seen), "a row was seen twice"
        return len(seen)

    with catchment.open(home, queue_auto_create_tables=True) as c, ThreadPoolExecutor(2) as threads:
        c.queue.enqueue(VISITS, pa.table({"n": pa.array([], pa.int64())}), session="writer")
        writing = threads.submit(write)
        reads = 0
        while not wait([writing], timeout=PAUSE_S).done:
            check()
            reads += 1
        in_lake = c.lake.query(COUNT)["n"][0]
        print(f"before the flush: {check()} rows seen, {in_lake} of them in the lake")
        flushing = threads.submit(c.queue.flush)
        while not wait([flushing], timeout=PAUSE_S).done:
            check()
            reads += 1
        print(f"{reads} reads during writes and flush: none missed a row, none saw one twice")
        print("rows in the lake:", c.lake.query(COUNT)["n"][0])
        print("audit:", "clean" if c.audit().ok else "findings")


if __name__ == "__main__":
    main(sys.argv[1])
