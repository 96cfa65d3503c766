"""DuckLake without Catchment: in this process as the oracle, in another one to change a lake.

python -m tests.queue.plain_ducklake: each line of stdin is a JSON list of statements, which are
executed in order; the answer is a line with the error of the first that failed, or `null`.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import duckdb

# The names under which the extensions enter DuckDB; their packages' names are shorter.
_EXTENSIONS = {"ducklake": "ducklake", "sqlite": "sqlite_scanner", "postgres": "postgres_scanner"}


def connect() -> duckdb.DuckDBPyConnection:
    """DuckDB with DuckLake, and nothing else."""
    connection = duckdb.connect(config={"threads": 1, "arrow_lossless_conversion": "true"})
    for package, name in _EXTENSIONS.items():
        spec = importlib.util.find_spec(f"duckdb_extension_{package}")
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent / "extensions" / f"v{duckdb.__version__}"
        with tempfile.TemporaryDirectory() as links:
            link = Path(links) / f"{name}.duckdb_extension"
            link.symlink_to(folder / f"{package}.duckdb_extension")
            connection.execute(f"LOAD '{link}'")
    return connection


class PlainProcess:
    """Another process, which has lakes open through plain DuckLake."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.queue.plain_ducklake"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, *statements: str) -> str | None:
        """Execute the statements, and return the error of the first that failed."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(statements) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, f"the process has ended: {process.poll()}"
        error: str | None = json.loads(answer)
        return error

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


def main() -> None:
    connection = connect()
    for line in sys.stdin:
        error = None
        try:
            for statement in json.loads(line):
                connection.execute(statement)
        except duckdb.Error as failed:
            error = str(failed)
            with suppress(duckdb.TransactionException):
                # Some of DuckLake's errors leave the transaction open that the statement was on its
                # own in.
                connection.execute("ROLLBACK")
        sys.stdout.write(json.dumps(error) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
