INSERT INTO shards (name, region, address, home, state, created_at)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
