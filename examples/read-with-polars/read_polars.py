"""Read a table with Polars: over ADBC from a server that has its rows buffered, and from the lake through DuckDB."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import adbc_driver_flightsql.dbapi as flight
import polars as pl
import pyarrow as pa

from catchment.foundation.settings import load_settings
from catchment.lake import Lake

ROWS = 1_000
BY_CITY = "SELECT city, count(*) AS n, avg(celsius) AS mean FROM {table} GROUP BY ALL ORDER BY city"


@contextmanager
def served(home: Path) -> Iterator[str]:
    """A server on any free port, and where it is."""
    command = [str(Path(sys.executable).with_name("catchment")), "serve", "--home", str(home), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[1]
        finally:
            server.terminate()


def from_server(uri: str) -> pl.DataFrame:
    """Write, and read it back at once."""
    with flight.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE weather (city VARCHAR, celsius DOUBLE)")
        cities = ["Berlin", "Quito", "Turku", "Varanasi"]
        rows = pa.table({"city": [cities[n % 4] for n in range(ROWS)], "celsius": [n % 40 / 2 for n in range(ROWS)]})
        cursor.adbc_ingest("weather", rows, mode="append", catalog_name="duckling_queue")
        cursor.execute(BY_CITY.format(table="catchment_fresh.weather"))
        return cursor.fetch_polars()


def main(home: Path) -> None:
    with served(home) as uri:
        buffered = from_server(uri)
    print("from the server, before any flush:")
    print(buffered)

    # The server has ended, and has flushed what was buffered.
    with Lake.from_settings(load_settings(home)) as lake:
        with lake.cursor() as cursor:
            flushed = cursor.execute(BY_CITY.format(table="weather")).pl()
        print("the lake says the same:", flushed.equals(buffered))
        print("rows in the lake:", flushed["n"].sum())
        print("audit:", "clean" if lake.audit().ok else "findings")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
