"""Makes a server a shard: its tenants, its connections to other shards, its reports to the control
database.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pyarrow as pa

from catchment.app import App
from catchment.errors import CatchmentError, InputError, SettingsError, StaleRouteError, StateError
from catchment.foundation import events, sql
from catchment.foundation.ids import DEFAULT_SCHEMA, TableId
from catchment.foundation.lasting_thread import LastingThread
from catchment.server.shards.peers import Peers, PeerSession
from catchment.server.values import Principal
from catchment.tenants.control_client import ControlClient
from catchment.tenants.gateway import TenantGateway
from catchment.tenants.model import DEFAULT_TENANT, ShardId, ShardInfo, TenantId
from catchment.tenants.quota import Quotas, Usage
from catchment.tenants.records import Residents
from catchment.tenants.router import EPOCH_UNASSIGNED, Access, TenantRouter
from catchment.tenants.shard import TenantShard
from catchment.tenants.transport.remote_shard import Remotes

# A shard counts as offline after 30 s without a report.
REPORT_SECONDS = 5


class Tenancy:
    """The tenants of a server, from `start` to `close`. Implements the server's `TenantRouting`."""

    def __init__(self, app: App, shard: ShardId) -> None:
        settings, clock = app.settings, app.clock
        if not settings.queue_enable or app.queue.buffer.replication is None:
            raise SettingsError(
                "A shard needs the queue, in a layout that supports replication: `shared`.",
                hint="Set DUCKLING_QUEUE_ENABLE=true and DUCKLING_QUEUE_LAYOUT=shared, or leave both out.",
            )
        self._app = app
        self._store = app.control_store
        self._remotes = Remotes(settings)
        self._peers = Peers(settings, clock)
        self._control = ControlClient(self._store)
        self._router = TenantRouter(self._store, clock=clock)
        self._gateway = TenantGateway(self._router, self._remotes.connect, clock=clock)
        self._quotas = Quotas(self._usage, clock=clock)
        self.shard = TenantShard(
            shard,
            app.queue,
            home=settings.home,
            decisions=self._control,
            connect=self._remotes.connect,
            clock=clock,
            admission=self,
        )
        self._remotes.add(self.shard)
        self._stopping = threading.Event()
        self._reporter = LastingThread(self._report, name="catchment-report")

    def start(self) -> None:
        """Resume the shard's unfinished work, and start reporting."""
        self.shard.open()
        self._reporter.start()

    def close(self) -> None:
        """Stop replication and reporting."""
        self._stopping.set()
        self._reporter.join()
        self.shard.close()
        self._remotes.close()
        self._peers.close()

    # `TenantRouting`, for the server's sessions.

    def write(self, tenant: TenantId, table: TableId, rows: pa.Table, session: str) -> int:
        """Write rows to the tenant's queue, on its primary; return their number once durable."""
        return self._gateway.signal_for_tenant(tenant, table.name, rows, session=session).rows

    @contextmanager
    def reading(self, tenant: TenantId) -> Iterator[None]:
        """Hold while a result is read; StaleRouteError if the tenant's primary is elsewhere."""
        with self._at_primary(self.shard.reading, tenant):
            record = self.shard.record(tenant)
            is_closed = record is not None and record.closed_for is not None
            # If the write barrier is closed, another shard may already be the primary, and have
            # rows that are not here.
            if is_closed and self._router.refresh(tenant).primary.id != self.shard.id:
                raise StaleRouteError(f"{tenant} no longer has its primary on {self.shard.id}.")
            yield

    @contextmanager
    def changing(self, tenant: TenantId) -> Iterator[None]:
        """Hold while the tenant's tables here change; StaleRouteError if its primary is elsewhere."""
        with self._at_primary(self.shard.changing, tenant):
            yield

    def residents(self) -> Residents:
        """Return the schemas of the shard's tenants, and of those whose primary is elsewhere."""
        return self.shard.residents()

    def owner(self, schema: str) -> TenantId | None:
        """Return the tenant whose tables are in the schema; None if it belongs to no tenant."""
        folded = sql.fold(schema)
        try:
            tenant = DEFAULT_TENANT if folded == DEFAULT_SCHEMA else TenantId.parse(folded)
        except InputError:
            return None
        if tenant.schema != folded:
            return None
        try:
            is_known = self._router.routed(tenant, Access.WRITE).route.epoch != EPOCH_UNASSIGNED
        except StateError:
            # No shard is available for a new tenant; the write itself refuses one that was created.
            is_known = self._store.placement(tenant).tenant is not None
        return tenant if is_known else None

    def remote_primary(self, tenant: TenantId, *, refresh: bool = False) -> ShardInfo | None:
        """Return the shard of the tenant's primary, None if it is this one; `refresh` skips caches."""
        # A cached route is enough while the control database is unavailable: a shard that is not
        # the primary refuses the call.
        routed = self._router.refresh(tenant) if refresh else self._router.routed(tenant, Access.WRITE)
        if routed.route.epoch == EPOCH_UNASSIGNED:
            routed = self._router.refresh(tenant)
        if routed.route.epoch == EPOCH_UNASSIGNED:
            raise StateError(f"The tenant {tenant} does not exist.", hint="Create it with `catchment tenant create`.")
        return None if routed.primary.id == self.shard.id else routed.primary

    def peer(self, shard: ShardInfo, principal: Principal) -> PeerSession:
        """Return a session of a tenant's user on another shard's server."""
        return self._peers.session(shard, principal)

    @contextmanager
    def _at_primary(self, hold: Callable[[TenantId], AbstractContextManager[None]], tenant: TenantId) -> Iterator[None]:
        """Call `hold` for a tenant with its primary here, even if the shard does not know it yet."""
        with ExitStack() as held:
            try:
                held.enter_context(hold(tenant))
            except StaleRouteError:
                if not self._learn_primary(tenant):
                    raise
                held.enter_context(hold(tenant))
            yield

    def _learn_primary(self, tenant: TenantId) -> bool:
        """Check with the control database whether this shard has become the tenant's primary: the
        process that decided so may have died before it reported.
        """
        if self._router.refresh(tenant).primary.id != self.shard.id:
            return False
        decided = self._control.decided(tenant, self.shard.id)
        if decided is None:
            return False
        self.shard.settle(decided)
        return True

    # Admission, for the shard.

    def admit(self, tenant: TenantId, table: TableId, rows: pa.Table) -> None:
        """Raise QuotaExceededError if the rows exceed one of the tenant's limits."""
        config = self._router.routed(tenant, Access.WRITE).config
        is_new = config.tables_max is not None and self._app.queue.buffer.state(table) is None
        self._quotas.admit(tenant, config, rows=rows.num_rows, tables_new=int(is_new and self._is_new(table)))

    def _is_new(self, table: TableId) -> bool:
        return self._app.lake.find_table(table) is None

    def _usage(self, tenant: TenantId) -> Usage:
        tables, stored = self._app.lake.usage(tenant.schema)
        buffered = sum(each.bytes for each in self._app.queue.buffer.tables() if each.table.schema == tenant.schema)
        return Usage(tables=tables, storage_bytes=stored + buffered)

    def _report(self) -> None:
        while True:
            try:
                self._store.report(self.shard.id, self.shard.facts())
            except CatchmentError as error:
                events.emit("report_failed", level=logging.WARNING, reason=error.message)
            if self._stopping.wait(REPORT_SECONDS):
                return
