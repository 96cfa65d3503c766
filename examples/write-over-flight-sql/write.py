"""Serve a lake, write to its queue and read it back through the ADBC driver for Flight SQL."""

import sys

import adbc_driver_flightsql.dbapi as flight

import catchment

ROWS = 200


def main(home: str) -> None:
    with catchment.open(home, server_port=0, server_web_port="off") as c:
        with c.serve() as server:
            write(server.uri)
        # The server has stopped, and has flushed the buffered rows.
        print("rows in the lake:", c.lake.query("SELECT count(*) AS n FROM orders")["n"][0])


def write(uri: str) -> None:
    with flight.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
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
    main(sys.argv[1])
