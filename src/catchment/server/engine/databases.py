"""What an engine process opens: sandboxed DuckDB instances, described by values that it is sent."""

from dataclasses import dataclass
from typing import Protocol

import duckdb

from catchment.foundation import sql
from catchment.foundation.clock import SystemClock
from catchment.lake import extensions
from catchment.lake.attach import CONNECTION_SETTINGS, LakeAddress, open_connection
from catchment.lake.sandbox import Sandbox


class EngineDatabase(Protocol):
    """A description of a DuckDB instance; it is sent to the process that opens it."""

    def open(self) -> duckdb.DuckDBPyConnection:
        """Create the instance."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeDatabase:
    """An instance with the lake attached; the lake must exist."""

    address: LakeAddress
    sandbox: Sandbox
    threads_max: int

    def open(self) -> duckdb.DuckDBPyConnection:
        """Attach the lake; LakeUnavailableError if it cannot be reached."""
        connection = open_connection(
            self.address,
            clock=SystemClock(),
            settings=CONNECTION_SETTINGS,
            threads=self.threads_max or None,
            create=False,
        )
        self.sandbox.apply(connection, self.address)
        return connection


@dataclass(frozen=True, slots=True, kw_only=True)
class BareDatabase:
    """An instance without a lake; with an address, it may write files below the lake's data path."""

    sandbox: Sandbox
    address: LakeAddress | None = None
    threads_max: int = 0

    def open(self) -> duckdb.DuckDBPyConnection:
        """Create the instance."""
        connection = extensions.connect(threads=self.threads_max or None)
        self.sandbox.apply(connection, self.address)
        return connection


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserDatabase:
    """An instance that only parses."""

    def open(self) -> duckdb.DuckDBPyConnection:
        """Create the instance."""
        connection = extensions.connect(threads=1)
        for name, value in {"enable_external_access": False, "lock_configuration": True}.items():
            connection.execute(f"SET {name} = {sql.literal(value)}")
        return connection
