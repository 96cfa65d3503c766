"""Two servers in one process, each a shard; tenant `t7` is on the first, and has its own users."""

import base64
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from catchment.control import ControlDatabase
from catchment.foundation.clock import SystemClock
from catchment.foundation.settings import Settings
from catchment.pipeline.tenant_history import ShardBackfill
from catchment.server.access.users import Users
from catchment.server.flight_server import FlightServer
from catchment.server.shards import tenancy
from catchment.server.shards.tenancy import Tenancy
from catchment.server.values import Role
from catchment.tenants.control_store import ControlStore
from catchment.tenants.migration import TenantMigration
from catchment.tenants.model import ShardId, ShardInfo, TenantConfig
from catchment.tenants.router import TenantRouter
from catchment.tenants.run_move import run_move
from catchment.tenants.transport.remote_shard import Remotes
from catchment.testing import InlineRunner
from tests.server.raw_client import Client
from tests.shortcuts.made_lakes import put_lake
from tests.tenants.two_shards import T7, A, B

PASSWORD = "correct horse battery"
SECRET = "a secret of all the shards"


@dataclass
class Place:
    """Servers `a` and `b`; tenant `t7` lives in `a`, and has a table."""

    folder: Path
    store: ControlStore
    servers: dict[ShardId, FlightServer] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)

    def settings(self, shard: ShardId, secret: str | None = SECRET) -> Settings:
        return Settings(
            home=self.folder / shard.name,
            shard_name=shard.name,
            shard_secret=None if secret is None else SecretStr(secret),
            control_db=SecretStr(f"sqlite:{self.folder / 'control.sqlite'}"),
            server_users_file=self.folder / "users.json",
            server_port=0,
            server_statements_max=2,
        )

    def start(self, shard: ShardId, secret: str | None = SECRET) -> FlightServer:
        settings = self.settings(shard, secret)
        if not settings.home.exists():
            put_lake(settings)
        server = FlightServer(settings)
        server.app._runner = InlineRunner()  # type: ignore[assignment]
        with pytest.MonkeyPatch.context() as patch:
            # A server learns of a move only by being refused.
            patch.setattr(tenancy, "TenantRouter", partial(TenantRouter, route_seconds_max=3600))
            server.start()
        self.servers[shard] = server
        return server

    def stop(self, shard: ShardId) -> None:
        """Stop the server that is there by now: a test may have started another."""
        self.servers[shard].stop()

    def client(self, shard: ShardId, user: str = "eve") -> Client:
        """A session of a user."""
        client = Client(self.servers[shard].uri)
        client.authorization = f"Basic {base64.b64encode(f'{user}:{PASSWORD}'.encode()).decode()}"
        client.authorization = f"Bearer {client.handshake()}"
        self.clients.append(client)
        return client

    def hang_up(self) -> None:
        for client in self.clients:
            client.close()

    def tenancy(self, shard: ShardId) -> Tenancy:
        registry = self.servers[shard]._sessions
        assert registry is not None
        assert isinstance(registry.backend.tenants, Tenancy)
        return registry.backend.tenants

    def move(self, source: ShardId = A, target: ShardId = B) -> None:
        """Move the tenant, to the end: the source has collected it."""
        with self.migration(source, target) as migration:
            run_move(migration, clock=SystemClock(), gc_window_s=0.0)

    @contextmanager
    def migration(self, source: ShardId = A, target: ShardId = B) -> Iterator[TenantMigration]:
        """The tenant's move, to be driven step by step."""
        clock, remotes = SystemClock(), Remotes(self.settings(source))
        try:
            yield TenantMigration(
                T7,
                source,
                target,
                control=self.store,
                connect=remotes.connect,
                backfill=ShardBackfill(InlineRunner(), clock=clock),
                clock=clock,
                gate_s=2.0,
            )
        finally:
            remotes.close()

    def relocate(self, shard: ShardId, location: str) -> None:
        """Register another address for a shard's server."""
        self.store.change_shard(replace(self.store.shard(shard), location=location))


@contextmanager
def two_servers(folder: Path) -> Iterator[Place]:
    """Both servers; `eve` writes and `rita` reads for the tenant, `admin` has none."""
    clock = SystemClock()
    place = Place(folder, None)  # type: ignore[arg-type]
    place.store = ControlStore(ControlDatabase.open(place.settings(A), clock=clock), clock=clock)
    users = Users(folder / "users.json")
    users.add("eve", Role.WRITER, PASSWORD, tenant=T7)
    users.add("rita", Role.READER, PASSWORD, tenant=T7)
    users.add("admin", Role.ADMIN, PASSWORD)
    with ExitStack() as opened:
        for shard in (A, B):
            server = place.start(shard)
            opened.callback(place.stop, shard)
            place.store.add_shard(ShardInfo(id=shard, region="eu", location=server.uri, home=str(folder / shard.name)))
        opened.callback(place.hang_up)
        place.store.create_tenant(T7, "seven", TenantConfig(), A)
        place.client(A).update("CREATE TABLE events (id BIGINT, kind VARCHAR)")
        yield place
