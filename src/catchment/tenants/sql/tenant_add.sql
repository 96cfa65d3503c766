INSERT INTO tenants (number, name, shard, limits, created_at)
VALUES (?, ?, (SELECT id FROM shards WHERE name = ?), ?, ?)
ON CONFLICT DO NOTHING
