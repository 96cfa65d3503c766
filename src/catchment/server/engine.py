"""What all sessions share: the lake, the queue, and connections behind the wall."""

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Protocol
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
from catchment.server.bulk import FileWriter, Registrar
from catchment.server.connections import Connection
from catchment.server.peers import PeerSession
from catchment.server.tenant_isolation import TenantScope
from catchment.server.touched_tenants import Views
from catchment.server.values import Principal
from catchment.tenants.model import ShardInfo, TenantId
from catchment.tenants.records import Residents


class TenantRouting(Protocol):
    """Where tenants' work goes through while they may live in several shards. Any thread may ask."""

    def write(self, tenant: TenantId, table: TableId, rows: pa.Table, session: str) -> int:
        """Take rows for the queue, wherever the tenant lives; how many they are, once they are durable."""

    def reading(self, tenant: TenantId) -> AbstractContextManager[None]:
        """Count a reader in until its result is closed, perhaps by another thread."""

    def changing(self, tenant: TenantId) -> AbstractContextManager[None]:
        """Let a change of the tenant's tables in this lake happen, or refuse it."""

    def residents(self) -> Residents:
        """The tenants that this shard knows, and those among them that live elsewhere."""

    def owner(self, schema: str) -> TenantId | None:
        """The tenant whose tables are in the schema; None where nobody has created one."""

    def elsewhere(self, tenant: TenantId, *, anew: bool = False) -> ShardInfo | None:
        """The shard that the tenant lives in, None where that is this one; with `anew`, as of now."""

    def peer(self, shard: ShardInfo, principal: Principal) -> PeerSession:
        """A session of a tenant's user on another shard's server."""
        ...


class Engine:
    """The lake, the queue, and links to DuckDB."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.settings: Settings = app.settings
        self.clock: Clock = app.clock
        self.queue: DqCoordinator | None = app.queue if app.settings.queue_enable else None
        # The queue's lake works while the catalog is away; it is opened when it is first used.
        self.lake: Lake = self.queue.lake if self.queue is not None else app.lake
        self.files = FileWriter(
            app.wall, self.lake.address, threads_max=self.lake.limits.threads_max, meters=app.meters
        )
        self.registrar = Registrar(self.lake)
        # Without one, tenants live here and nowhere else.
        self.tenants: TenantRouting | None = None
        self._links: WeakSet[Connection] = WeakSet()
        self._links_mutex = threading.Lock()
        self.views = Views(self.lake, self.clock)

    def island(self, tenant: TenantId | None) -> TenantScope | None:
        """The part of the lake that exists for a tenant's user; None where that is all of it."""
        return None if tenant is None else TenantScope(tenant, self.lake.name)

    def enqueue(self, tenant: TenantId | None, table: TableId, rows: pa.Table, *, session: str) -> int:
        """Hand rows to the queue, those for a tenant's tables by way of the desk; how many they are."""
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
        """Hold while a user without a tenant reads or changes tables of these; StateError if one lives elsewhere."""
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
            home = self.tenants.elsewhere(tenant, anew=True)
            if home is None:
                raise NotReadyError(f"{tenant} is on its way to this shard.", hint="Try again.") from None
            raise StateError(
                f"{tenant} lives in shard {home.id}, at {home.location}: its tables are read and changed there, "
                "and what this shard has of them is old or incomplete.",
                hint="Connect there. Users of the tenant (`catchment user add --tenant`) may connect to any shard.",
                shard=str(home.id),
                location=home.location,
            ) from None

    def changing(self, tenant: TenantId | None) -> AbstractContextManager[None]:
        """Hold while the lake is changed."""
        return nullcontext() if tenant is None or self.tenants is None else self.tenants.changing(tenant)

    def link(self, island: TenantScope | None = None) -> Connection:
        """A connection with the lake as its default catalog; without it while the lake is away.

        With an island, it is where unqualified names count.
        """
        origin, require_lake = self.lake.origin(), self.require_lake
        try:
            self.lake.open()
            connection = self.lake.cursor()
            if island is not None:
                self._confine(connection, island)
        except LakeUnavailableError as error:
            events.emit("lake_away", level=logging.WARNING, reason=error.message)
            # Rows for the queue can still be computed, and are taken.
            lakeless = Instance("lakeless", self._lakeless)
            origin, require_lake = lakeless.origin(), partial(_refuse, error.message)
            connection = lakeless.cursor()
        return self.wrap(connection, origin, require_lake=require_lake)

    def wrap(
        self,
        connection: duckdb.DuckDBPyConnection,
        origin: Origin,
        *,
        require_lake: Callable[[], None] | None = None,
    ) -> Connection:
        """A link to a connection; `origin` was asked for before the connection was."""
        link = Connection(
            connection,
            origin=origin,
            result_bytes_max=self.settings.server_result_bytes_max,
            require_lake=require_lake or self.require_lake,
        )
        with self._links_mutex:
            self._links.add(link)
        return link

    def is_current(self, link: Connection) -> bool:
        """Whether the link is of the DuckDB instance that has the lake now."""
        return link.origin == self.lake.origin()

    def end_lost(self) -> bool:
        """Close links to instances that failed inside, and end what still runs on them; whether all are closed."""
        with self._links_mutex:
            lost = [link for link in self._links if link.origin.is_lost]
        closed = [link for link in lost if link.close_if_idle()]
        with self._links_mutex:
            self._links.difference_update(closed)
        return len(closed) == len(lost)

    def _lakeless(self) -> duckdb.DuckDBPyConnection:
        connection = extensions.connect()
        self.app.wall.apply(connection)
        return connection

    def require_lake(self) -> None:
        """Ask the catalog for the little that shows that it is there; LakeUnavailableError where it is not."""
        self.lake.newest_snapshot()

    def _confine(self, connection: duckdb.DuckDBPyConnection, island: TenantScope) -> None:
        try:
            connection.execute(island.set_path)
        except duckdb.CatalogException:
            # The tenant is new here; where it does not live, nothing is made. An empty schema needs no log.
            with self.reading(island.tenant), self.lake.write() as writing:
                writing.execute(f"CREATE SCHEMA IF NOT EXISTS {sql.qualified(island.lake, island.schema)}")
            connection.execute(island.set_path)


def _refuse(reason: str) -> None:
    raise LakeUnavailableError(reason)
