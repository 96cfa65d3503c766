-- The epoch must increase: a process with an older one has been overtaken.
UPDATE tenants
SET shard = (SELECT id FROM shards WHERE name = ?), epoch = ?
WHERE number = ? AND epoch < ?
