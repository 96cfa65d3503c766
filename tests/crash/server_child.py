"""A client in its own process; started by the crash tests of the server.

    python -m tests.crash.server_child

For every line on stdin, `URI TABLE FIRST BATCH LOG`, it writes rows to the queue until the server
is gone: ids from FIRST on, BATCH in a statement. What was acknowledged is appended to LOG, after it
was. Then it says `gone`.
"""

import os
import sys
from pathlib import Path

import adbc_driver_flightsql.dbapi as flight
import adbc_driver_manager


def write(uri: str, table: str, first: int, batch: int, log: Path) -> None:
    """Write until the server is gone."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    statement = f"INSERT INTO duckling_queue.{table} VALUES (?)"
    try:
        with flight.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
            while True:
                ids = range(first, first + batch)
                if batch == 1:
                    cursor.execute(f"INSERT INTO duckling_queue.{table} VALUES ({first})")
                else:
                    cursor.executemany(statement, [(each,) for each in ids])
                os.write(descriptor, "".join(f"{each}\n" for each in ids).encode())
                first += batch
    except (adbc_driver_manager.Error, RuntimeError):
        # Gone. The driver also stumbles over handles of its own that it cannot close there.
        return
    finally:
        os.close(descriptor)


def main() -> None:
    # It stumbles again when they are collected.
    sys.unraisablehook = lambda _: None
    for line in sys.stdin:
        uri, table, first, batch, log = line.split(maxsplit=4)
        write(uri, table, int(first), int(batch), Path(log.rstrip("\n")))
        os.write(1, b"gone\n")


if __name__ == "__main__":
    main()
