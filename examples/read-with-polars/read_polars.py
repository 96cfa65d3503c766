"""Read a table with Polars: over ADBC from a server that has its rows buffered, and from the lake
through DuckDB.
"""

import sys

import adbc_driver_flightsql.dbapi as flight
import polars as pl
import pyarrow as pa

import catchment

ROWS = 1_000
BY_CITY = "SELECT city, count(*) AS n, avg(celsius) AS mean FROM {table} GROUP BY ALL ORDER BY city"


def from_server(uri: str) -> pl.DataFrame:
    """Write rows, and read them back at once."""
    with flight.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE weather (city VARCHAR, celsius DOUBLE)")
        cities = ["Berlin", "Quito", "Turku", "Varanasi"]
        rows = pa.table({"city": [cities[n % 4] for n in range(ROWS)], "celsius": [n % 40 / 2 for n in range(ROWS)]})
        cursor.adbc_ingest("weather", rows, mode="append", catalog_name="duckling_queue")
        cursor.execute(BY_CITY.format(table="catchment_fresh.weather"))
        return cursor.fetch_polars()


def main(home: str) -> None:
    with catchment.open(home, server_port=0, server_web_port="off") as c:
        with c.serve() as server:
            buffered = from_server(server.uri)
        print("from the server, before any flush:")
        print(buffered)

        # The server has stopped, and has flushed the buffered rows.
        flushed = pl.DataFrame(c.lake.query(BY_CITY.format(table="weather")))
        print("the lake says the same:", flushed.equals(buffered))
        print("rows in the lake:", flushed["n"].sum())
        print("audit:", "clean" if c.audit().ok else "findings")


if __name__ == "__main__":
    main(sys.argv[1])
