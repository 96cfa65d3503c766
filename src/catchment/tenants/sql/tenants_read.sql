SELECT tenants.number, tenants.name, tenants.limits, shards.name, tenants.epoch, tenants.created_at
FROM tenants JOIN shards ON shards.id = tenants.shard
