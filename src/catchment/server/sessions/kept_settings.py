"""The settings of a session, kept so that they outlive its connection."""

import threading

import duckdb

from catchment.errors import StateError
from catchment.foundation.ids import DEFAULT_SCHEMA
from catchment.server.sessions.connections import Connection
from catchment.server.values import Call

# The setting that USE and SET schema change.
PATH = "search_path"


class KeptSettings:
    """Statements that have set settings, by setting. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._statements: dict[str, str] = {}
        self._search_path: tuple[str, ...] = (DEFAULT_SCHEMA,)

    def keep(self, name: str, statement: str, connection: Connection) -> None:
        """Remember a statement that has changed a setting of the connection."""
        with self._mutex:
            # In the order in which they were last set.
            self._statements.pop(name, None)
            self._statements[name] = statement
            if name == PATH:
                self._search_path = connection.search_path

    def apply(self, connection: Connection, *, has_lake: bool) -> None:
        """Set everything again, on a new connection; without a lake, there is no path to set.

        A setting that cannot be set any more is forgotten, and StateError raised for it, so that no
        statement silently runs without it. The caller must not use the connection after any error.
        """
        with self._mutex:
            statements, search_path = dict(self._statements), self._search_path
        if not has_lake:
            statements.pop(PATH, None)
        with connection.lock:
            for name, statement in statements.items():
                try:
                    connection.run(statement, Call())
                except duckdb.CatalogException as error:
                    self._forget(name, statement)
                    raise StateError(
                        f"`{statement}` cannot be repeated on a new connection of the session: {error}",
                        hint="A schema may have been dropped. Set the path again before you use names without schema.",
                    ) from None
                if name == PATH:
                    connection.search_path = search_path

    def _forget(self, name: str, statement: str) -> None:
        with self._mutex:
            if self._statements.get(name) == statement:
                del self._statements[name]
