"""Serve a lake, write to its queue and read it back through the ADBC driver for Flight SQL."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import adbc_driver_flightsql.dbapi as flight

ROWS = 200


@contextmanager
def served(home: Path) -> Iterator[str]:
    """A server on any free port, and where it is."""
    command = [str(Path(sys.executable).with_name("catchment")), "serve", "--home", str(home), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            ready, uri, *_ = server.stdout.readline().split()
            assert ready == "ready"
            yield uri
        finally:
            server.terminate()
            print("the server ended with", server.wait())


def main(home: Path) -> None:
    with served(home) as uri, flight.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (n BIGINT NOT NULL, state VARCHAR DEFAULT 'new')")
        for n in range(ROWS):
            # The statement is prepared once; every row is on the server's disk when this returns.
            cursor.execute("INSERT INTO duckling_queue.orders (n) VALUES (?)", (n,))
        with flight.connect(uri) as other, other.cursor() as undecided:
            undecided.execute("INSERT INTO duckling_queue.orders VALUES (-1, 'regretted')")
            other.rollback()
        cursor.execute("SELECT count(*), count(DISTINCT n), min(state) FROM catchment_fresh.orders")
        print("rows seen before any flush:", cursor.fetchall())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
