"""Default placement of tenants: the same on every machine, and stable when shards are added. Pure.

Rendezvous hashing: every shard draws a number for every tenant, and the highest wins. A new shard
gets only the tenants for which it draws the highest; a removed one releases only its own.
"""

import hashlib
from collections.abc import Iterable

from catchment.tenants.model import ShardInfo, TenantConfig, TenantId


def place(tenant: TenantId, config: TenantConfig, shards: Iterable[ShardInfo]) -> ShardInfo | None:
    """Return the tenant's shard, in its regions and not being drained; None if there is none."""
    fit = [shard for shard in shards if config.allows(shard.region) and not shard.is_draining]
    # 64-bit draws do not collide in practice; if they do, the name decides, the same everywhere.
    return max(fit, key=lambda shard: (_draw(tenant, shard), shard.id), default=None)


def _draw(tenant: TenantId, shard: ShardInfo) -> int:
    text = f"{tenant.number}/{shard.id.name}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
