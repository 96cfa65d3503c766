"""The settings of a session, kept so that they outlive its connection."""

import threading
from contextlib import suppress

import duckdb

from catchment.errors import LakeUnavailableError
from catchment.foundation.ids import DEFAULT_SCHEMA
from catchment.server.sessions.connections import Connection
from catchment.server.values import Call


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
            self._search_path = connection.search_path

    def apply(self, connection: Connection) -> None:
        """Set everything again, on a new connection."""
        with self._mutex:
            statements, search_path = list(self._statements.values()), self._search_path
        with connection.lock:
            for statement in statements:
                # A schema may have been dropped, and while the lake is unavailable there is none.
                with suppress(duckdb.Error, LakeUnavailableError):
                    connection.run(statement, Call())
            connection.search_path = search_path
