"""A `catchment serve` process with a new lake."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
from adbc_driver_flightsql import dbapi

from catchment.foundation import sql
from catchment.queue.incoming import columns_of

_NEVER = "1000000000000"
_END_S_MAX = 120


@dataclass
class Server:
    """A running server."""

    address: str
    pid: int
    _tables: Iterator[int] = field(default_factory=lambda: iter(range(1, 1_000_000)))

    def new_table(self, rows: pa.Table) -> str:
        """Create an empty table for such rows and return its name."""
        name = f"t{next(self._tables)}"
        columns = ", ".join(f"{sql.identifier(column.name)} {column.type}" for column in columns_of(rows.schema))
        self.run(f"CREATE TABLE main.{name} ({columns})")
        return name

    def flush(self) -> None:
        """Empty the queue, so that nothing runs in the background."""
        self.run("CALL duckling_queue_flush()")

    def count(self, table: str) -> int:
        """Return the number of rows of the lake's table."""
        return int(str(self.run(f"SELECT count(*) FROM main.{table}")[0][0]))

    def run(self, text: str) -> list[tuple[object, ...]]:
        """Run a statement and return its rows."""
        with dbapi.connect(self.address, autocommit=True) as connection, connection.cursor() as cursor:
            return list(cursor.execute(text).fetchall())

    def rss_mib(self) -> float:
        """Return the RSS of the server's own process, without Spark."""
        return float(psutil.Process(self.pid).memory_info().rss) / 1024**2


@contextmanager
def catchment_server(home: Path, *, flushes: bool = True, **given: str) -> Iterator[Server]:
    """Start a server with a new home, a SQLite catalog and the given environment variables.

    Without `flushes` it only accepts rows, as its peers do; the cost of flushing is measured
    elsewhere.
    """
    home.mkdir(parents=True)
    command = [str(Path(sys.executable).parent / "catchment"), "serve", "--port", "0", "--home", str(home)]
    environment = {**os.environ, **given}
    if not flushes:
        environment |= {"DUCKLING_QUEUE_BUFFER_MAX_ROWS": _NEVER, "DUCKLING_QUEUE_ROTATE_SIZE_BYTES": _NEVER}
        environment |= {"CATCHMENT_SERVER_SHUTDOWN_SECONDS": "0"}
    with (home / "server.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        try:
            ready = next((line for line in process.stdout if line.startswith("ready ")), None)
            assert ready, f"the server does not start: {(home / 'server.log').read_text()}"
            yield Server(ready.split()[1], process.pid)
        finally:
            process.terminate()
            process.wait(_END_S_MAX)
