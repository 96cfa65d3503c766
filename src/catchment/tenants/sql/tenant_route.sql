-- Only an epoch that grows: whoever comes with an older one has been overtaken.
UPDATE tenants
SET shard = (SELECT id FROM shards WHERE name = ?), epoch = ?
WHERE number = ? AND epoch < ?
