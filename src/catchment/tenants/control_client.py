"""The control database, as a shard asks it: rarely, and only where its own record does not say enough."""

from contextlib import suppress

from catchment.errors import ConflictError
from catchment.tenants.control_store import ControlStore, Placement
from catchment.tenants.model import ShardId, TenantId
from catchment.tenants.protocol import Returned, advance, duty
from catchment.tenants.shard_api import TenantRecord


def record_for(shard: ShardId, placement: Placement) -> TenantRecord | None:
    """What a shard is to a tenant; None where there is no such tenant."""
    tenant, move = placement.tenant, placement.move
    if tenant is None:
        return None
    other = None
    if move is not None and shard in (move.source, move.target):
        wanted = move.target if shard == move.source else move.source
        other = next(each for each in placement.shards if each.id == wanted)
    return duty(shard, tenant, move, other)


class ControlClient:
    """What a shard asks of the control plane."""

    def __init__(self, store: ControlStore) -> None:
        self._store = store

    def decided(self, tenant: TenantId, shard: ShardId) -> TenantRecord | None:
        """What the shard is to the tenant by now; None where there is no such tenant."""
        return record_for(shard, self._store.placement(tenant))

    def take_back(self, tenant: TenantId, move: str, version: int) -> int:
        """Change the move so that whoever knows this version of it cannot; which version it has then."""
        found = self._store.move(tenant)
        if found is not None and found.token == move and found.version == version:
            with suppress(ConflictError):
                # Where this is lost, somebody has decided.
                self._store.change_move(found, advance(found.state, Returned()).state)
        # Every change makes it at least one more, and a move that is over has no version that anybody could swap.
        return version + 1
