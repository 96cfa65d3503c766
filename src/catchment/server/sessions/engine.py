"""The state that all sessions share: the lake, the queue, and sandboxed DuckDB connections."""

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from weakref import WeakSet

import duckdb
import pyarrow as pa

from catchment.app import App
from catchment.errors import LakeUnavailableError, NotReadyError, NotSupportedError, StaleRouteError, StateError
from catchment.foundation import events, sql
from catchment.foundation.clock import Clock
from catchment.foundation.ids import TableId
from catchment.foundation.settings import Settings
from catchment.lake import Lake, extensions
from catchment.lake.instance import Instance, Origin
from catchment.queue import DqCoordinator
from catchment.server.sessions.bulk import FileWriter, Registrar
from catchment.server.sessions.connections import Connection
from catchment.server.sessions.touched_tenants import Views
from catchment.server.shards.routing import TenantRouting
from catchment.server.sql.tenant_isolation import TenantScope
from catchment.tenants.model import TenantId


class Engine:
    """The lake, the queue, and connections to DuckDB."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.settings: Settings = app.settings
        self.clock: Clock = app.clock
        self.queue: DqCoordinator | None = app.queue if app.settings.queue_enable else None
        # The queue's lake works while the catalog is unavailable; it is opened at its first use.
        self.lake: Lake = self.queue.lake if self.queue is not None else app.lake
        self.files = FileWriter(
            app.sandbox, self.lake.address, threads_max=self.lake.limits.threads_max, meters=app.meters
        )
        self.registrar = Registrar(self.lake)
        # Without it, every tenant has its primary here.
        self.tenants: TenantRouting | None = None
        self._connections: WeakSet[Connection] = WeakSet()
        self._connections_mutex = threading.Lock()
        self.views = Views(self.lake, self.clock)

    def scope(self, tenant: TenantId | None) -> TenantScope | None:
        """Return the part of the lake that a tenant's user may see; None without a tenant."""
        return None if tenant is None else TenantScope(tenant, self.lake.name)

    def enqueue(self, tenant: TenantId | None, table: TableId, rows: pa.Table, *, session: str) -> int:
        """Write rows to the queue, a tenant's through the routing; return their number."""
        if self.tenants is not None:
            owner = tenant if tenant is not None else self.tenants.owner(table.schema)
            if owner is not None:
                return self.tenants.write(owner, table, rows, session)
        if self.queue is None:
            raise NotSupportedError("The queue is switched off.", hint="DUCKLING_QUEUE_ENABLE=true switches it on.")
        return self.queue.enqueue(table, rows, session=session).rows

    def reading(self, tenant: TenantId | None) -> AbstractContextManager[None]:
        """Hold while rows of the lake are read."""
        return nullcontext() if tenant is None or self.tenants is None else self.tenants.reading(tenant)

    @contextmanager
    def touching(self, tenants: Collection[TenantId]) -> Iterator[None]:
        """Hold while a user without a tenant reads or changes tables of these tenants.

        StateError if one of them has its primary on another shard.
        """
        with ExitStack() as held:
            for tenant in sorted(tenants):
                self._touch(held, tenant)
            yield

    def _touch(self, held: ExitStack, tenant: TenantId) -> None:
        if self.tenants is None:
            return
        try:
            held.enter_context(self.tenants.reading(tenant))
        except StaleRouteError:
            primary = self.tenants.remote_primary(tenant, refresh=True)
            if primary is None:
                raise NotReadyError(f"{tenant} is moving to this shard.", hint="Try again.") from None
            raise StateError(
                f"{tenant} has its primary on shard {primary.id}, at {primary.location}. Read and change its tables "
                "there; this shard's copy is outdated or incomplete.",
                hint="Connect there. Users of the tenant (`catchment user add --tenant`) can connect to any shard.",
                shard=str(primary.id),
                location=primary.location,
            ) from None

    def changing(self, tenant: TenantId | None) -> AbstractContextManager[None]:
        """Hold while the lake is changed."""
        return nullcontext() if tenant is None or self.tenants is None else self.tenants.changing(tenant)

    def connect(self, scope: TenantScope | None = None) -> Connection:
        """Return a connection with the lake as its default catalog, unless the lake is unavailable.

        With a scope, unqualified names are looked up in the tenant's schema.
        """
        origin, require_lake = self.lake.origin(), self.require_lake
        try:
            self.lake.open()
            raw = self.lake.cursor()
            if scope is not None:
                self._set_search_path(raw, scope)
        except LakeUnavailableError as error:
            events.emit("lake_away", level=logging.WARNING, reason=error.message)
            # Rows for the queue can still be computed and accepted.
            lakeless = Instance("lakeless", self._lakeless)
            origin, require_lake = lakeless.origin(), partial(_refuse, error.message)
            raw = lakeless.cursor()
        return self.wrap(raw, origin, require_lake=require_lake)

    def wrap(
        self,
        raw: duckdb.DuckDBPyConnection,
        origin: Origin,
        *,
        require_lake: Callable[[], None] | None = None,
    ) -> Connection:
        """Wrap a DuckDB connection; `origin` must have been read before it was opened."""
        connection = Connection(
            raw,
            origin=origin,
            require_lake=require_lake or self.require_lake,
        )
        with self._connections_mutex:
            self._connections.add(connection)
        return connection

    def is_current(self, connection: Connection) -> bool:
        """Whether the connection belongs to the DuckDB instance that has the lake open now."""
        return connection.origin == self.lake.origin()

    def close_lost(self) -> bool:
        """Close connections to instances that failed internally, and interrupt their statements.

        Returns whether all of them are closed.
        """
        with self._connections_mutex:
            lost = [connection for connection in self._connections if connection.origin.is_lost]
        closed = [connection for connection in lost if connection.close_if_idle()]
        with self._connections_mutex:
            self._connections.difference_update(closed)
        return len(closed) == len(lost)

    def _lakeless(self) -> duckdb.DuckDBPyConnection:
        raw = extensions.connect()
        self.app.sandbox.apply(raw)
        return raw

    def require_lake(self) -> None:
        """Run a minimal query on the catalog; LakeUnavailableError if it fails."""
        self.lake.newest_snapshot()

    def _set_search_path(self, raw: duckdb.DuckDBPyConnection, scope: TenantScope) -> None:
        try:
            raw.execute(scope.set_path)
        except duckdb.CatalogException:
            # The tenant has no schema here yet. Nothing is created if its primary is elsewhere. An
            # empty schema needs no log entry.
            with self.reading(scope.tenant), self.lake.write() as writing:
                writing.execute(f"CREATE SCHEMA IF NOT EXISTS {sql.qualified(scope.lake, scope.schema)}")
            raw.execute(scope.set_path)


def _refuse(reason: str) -> None:
    raise LakeUnavailableError(reason)
