"""The state that all sessions share: the lake, the queue, and connections to sandboxed DuckDB."""

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
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
from catchment.lake import Lake, extensions, failures
from catchment.lake.attach import DuckDbCatalog
from catchment.lake.instance import Instance, Origin
from catchment.queue import DqCoordinator
from catchment.server.encoding import wire
from catchment.server.engine.engine_process import EngineStatement
from catchment.server.engine.engines import BARE, FILES, LAKE, Engine, Engines
from catchment.server.engine.parsing import LocalParser
from catchment.server.sessions.connections import Connection
from catchment.server.sessions.stream_files import FileWriter, Registrar
from catchment.server.sessions.touched_tenants import Views
from catchment.server.shards.routing import TenantRouting
from catchment.server.sql.tenant_isolation import TenantScope
from catchment.tenants.model import TenantId


class Backend:
    """The lake, the queue, and connections to DuckDB.

    Clients' statements run in engine processes. A DuckDB catalog admits one process only: with it,
    they run in this process, in the lake's own instance.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self.settings: Settings = app.settings
        self.clock: Clock = app.clock
        self.queue: DqCoordinator | None = app.queue if app.settings.queue_enable else None
        # The queue's lake works while the catalog is unavailable; it is opened at its first use.
        self.lake: Lake = self.queue.lake if self.queue is not None else app.lake
        # Set when connections were lost, for the component that closes them.
        self.failed = self.lake.failed
        self.engines = self._make_engines()
        self.files = FileWriter(
            app.sandbox, self.lake.address, threads_max=self.lake.limits.threads_max, meters=app.meters
        )
        self.registrar = Registrar(self.lake)
        # Without it, every tenant has its primary here.
        self.tenants: TenantRouting | None = None
        self._connections: WeakSet[Connection] = WeakSet()
        self._connections_mutex = threading.Lock()
        self.views = Views(self.lake.name, self.clock, is_current=self.is_current)

    def _make_engines(self) -> Engines | None:
        if isinstance(self.lake.address.catalog, DuckDbCatalog):
            return None
        return Engines(self.app, self.lake.address, threads_max=self.lake.limits.threads_max, failed=self.lake.failed)

    def engine(self) -> Engine | None:
        """Return the engine for a new session; None if clients' statements run in this process."""
        return None if self.engines is None else self.engines.pick()

    def refuse_suspect(self, text: str) -> None:
        """Refuse a client's text that has ended its engine process again and again."""
        if self.engines is not None:
            self.engines.suspects.refuse(EngineStatement.current(text))

    def clear_suspect(self, text: str) -> None:
        """Note that a client's text has run to its end."""
        if self.engines is not None:
            self.engines.suspects.clear(EngineStatement.current(text))

    def close(self) -> None:
        """End the engine processes."""
        if self.engines is not None:
            self.engines.close()

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

    def connect(self, engine: Engine | None, scope: TenantScope | None = None) -> Connection:
        """Return a connection with the lake as its default catalog, unless the lake is unavailable.

        With a scope, unqualified names are looked up in the tenant's schema.
        """
        origin, require_lake = self._lake_origin(engine), self.require_lake
        try:
            self.lake.open()
            raw = self._lake_cursor(engine)
            if scope is not None:
                self._set_search_path(raw, scope)
        except LakeUnavailableError as error:
            events.emit("lake_away", level=logging.WARNING, reason=error.message)
            # Rows for the queue can still be computed and accepted.
            lakeless = Instance("lakeless", self._lakeless) if engine is None else engine.instances[BARE]
            origin, require_lake = lakeless.origin(), partial(_refuse, error.message)
            raw = lakeless.cursor()
        return self.wrap(raw, origin, engine, require_lake=require_lake)

    @contextmanager
    def snapshot(self, engine: Engine | None) -> Iterator[tuple[duckdb.DuckDBPyConnection, Origin]]:
        """Open a connection that sees one snapshot, with the lake as its default catalog."""
        origin = self._lake_origin(engine)
        if engine is None:
            with self.lake.snapshot() as connection:
                yield connection, origin
            return
        self.lake.open()
        with closing(self._lake_cursor(engine)) as connection:
            try:
                connection.execute("BEGIN")
                yield connection, origin
            except duckdb.Error as error:
                origin.note(error)
                raise failures.before_commit(error, self.lake.address) from None

    def file_writer(self, engine: Engine | None) -> Instance:
        """Return the DuckDB instance that writes the files of long ingest streams."""
        return self.files.instance if engine is None else engine.instances[FILES]

    def _lake_origin(self, engine: Engine | None) -> Origin:
        return self.lake.origin() if engine is None else engine.instances[LAKE].origin()

    def _lake_cursor(self, engine: Engine | None) -> duckdb.DuckDBPyConnection:
        if engine is None:
            return self.lake.cursor()
        instance = engine.instances[LAKE]
        origin, raw = instance.origin(), instance.cursor()
        try:
            raw.execute(f"USE {sql.identifier(self.lake.name)}")
        except BaseException as error:
            raw.close()
            if isinstance(error, duckdb.Error):
                origin.note(error)
                raise failures.before_commit(error, self.lake.address) from None
            raise
        return raw

    def wrap(
        self,
        raw: duckdb.DuckDBPyConnection,
        origin: Origin,
        engine: Engine | None,
        *,
        require_lake: Callable[[], None] | None = None,
    ) -> Connection:
        """Wrap a DuckDB connection; `origin` must have been read before it was opened."""
        connection = Connection(
            raw,
            origin=origin,
            parser=LocalParser() if engine is None else engine.parser,
            require_lake=require_lake or self.require_lake,
            clock=self.clock,
            bytes_max=max(self.settings.server_write_bytes_max, wire.RESULT_BYTES_MAX),
            suspects=None if self.engines is None else self.engines.suspects,
        )
        with self._connections_mutex:
            self._connections.add(connection)
        return connection

    def is_current(self, connection: Connection) -> bool:
        """Whether the connection belongs to a DuckDB instance that has the lake open now."""
        origins = () if self.engines is None else self.engines.lake_origins()
        return connection.origin in (self.lake.origin(), *origins) and not connection.is_broken

    def expire_results(self, before_s: float) -> None:
        """Discard open results that were last read before that time."""
        with self._connections_mutex:
            found = list(self._connections)
        for connection in found:
            connection.expire_result(before_s)

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
