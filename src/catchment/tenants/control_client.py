"""Client of a shard for the control database; used only if the shard's record is not enough."""

from contextlib import suppress

from catchment.errors import ConflictError
from catchment.tenants.control_store import ControlStore, Placement
from catchment.tenants.model import ShardId, TenantId
from catchment.tenants.protocol import Returned, advance, duty
from catchment.tenants.shard_api import TenantRecord


def record_for(shard: ShardId, placement: Placement) -> TenantRecord | None:
    """Return the role of a shard for a tenant; None if there is no such tenant."""
    tenant, move = placement.tenant, placement.move
    if tenant is None:
        return None
    other = None
    if move is not None and shard in (move.source, move.target):
        wanted = move.target if shard == move.source else move.source
        other = next(each for each in placement.shards if each.id == wanted)
    return duty(shard, tenant, move, other)


class ControlClient:
    """Decisions of the control plane, for a shard."""

    def __init__(self, store: ControlStore) -> None:
        self._store = store

    def decided(self, tenant: TenantId, shard: ShardId) -> TenantRecord | None:
        """Return the shard's current role for the tenant; None if there is no such tenant."""
        return record_for(shard, self._store.placement(tenant))

    def take_back(self, tenant: TenantId, move: str, version: int) -> int:
        """Change the move so that a swap from this version fails; return a version after it."""
        found = self._store.move(tenant)
        if found is not None and found.token == move and found.version == version:
            with suppress(ConflictError):
                # If this fails, another process has decided.
                self._store.change_move(found, advance(found.state, Returned()).state)
        # Every change increases the version by at least one, and a finished move cannot be swapped.
        return version + 1
