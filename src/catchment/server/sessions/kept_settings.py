"""The settings of a session, kept so that they outlive its connection."""

import threading

import duckdb

from catchment.errors import StateError
from catchment.foundation.ids import DEFAULT_SCHEMA
from catchment.server.sessions.connections import Connection
from catchment.server.values import running_call

# The setting that USE and SET schema change.
PATH = "search_path"


class KeptSettings:
    """Statements that have set settings, by setting. Thread-safe.

    A setting applies to the connection on which it was set, and to what the session begins later.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._statements: dict[str, str] = {}
        self._search_path: tuple[str, ...] = (DEFAULT_SCHEMA,)
        # Counts the changes; a connection knows how many of them it has.
        self._changes = 0

    def keep(self, name: str, statement: str, connection: Connection) -> None:
        """Remember a statement that has changed a setting of the connection."""
        with self._mutex:
            # In the order in which they were last set.
            self._statements.pop(name, None)
            self._statements[name] = statement
            if name == PATH:
                self._search_path = connection.search_path
            self._changes += 1
            if connection.settings_changes == self._changes - 1:
                connection.settings_changes = self._changes

    def apply(self, connection: Connection, *, has_lake: bool, forgets: bool = False) -> None:
        """Set everything on a connection that lacks some of it; without a lake, there is no path.

        StateError for a setting that cannot be set any more, so that no statement silently runs
        without it: each time, or once if `forgets`. A new connection must not be used after it.
        """
        with self._mutex:
            statements, search_path, changes = dict(self._statements), self._search_path, self._changes
        if connection.settings_changes == changes:
            return
        if not has_lake:
            statements.pop(PATH, None)
        with connection.lock:
            for name, statement in statements.items():
                try:
                    connection.run(statement, running_call())
                except duckdb.CatalogException as error:
                    if forgets:
                        self._forget(name, statement)
                    raise StateError(
                        f"`{statement}` cannot be repeated on another connection of the session: {error}",
                        hint="Set the path again before you use names without a schema.",
                    ) from None
                if name == PATH:
                    connection.search_path = search_path
            connection.settings_changes = changes

    def _forget(self, name: str, statement: str) -> None:
        with self._mutex:
            if self._statements.get(name) == statement:
                del self._statements[name]
