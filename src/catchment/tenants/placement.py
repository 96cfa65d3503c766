"""Where a tenant goes that nobody has placed: the same on every machine, and little changes when a shard comes. Pure.

Every shard draws a number for every tenant, and the highest wins. A shard that comes takes only the tenants for which
it draws the highest; one that goes leaves only its own.
"""

import hashlib
from collections.abc import Iterable

from catchment.tenants.model import ShardInfo, TenantConfig, TenantId


def place(tenant: TenantId, config: TenantConfig, shards: Iterable[ShardInfo]) -> ShardInfo | None:
    """The shard for the tenant, of those in its regions that are not being drained; None where there is none."""
    fit = [shard for shard in shards if config.allows(shard.region) and not shard.is_draining]
    # Draws of 64 bits do not meet; if they do, the name decides, everywhere alike.
    return max(fit, key=lambda shard: (_draw(tenant, shard), shard.id), default=None)


def _draw(tenant: TenantId, shard: ShardInfo) -> int:
    text = f"{tenant.number}/{shard.id.name}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
