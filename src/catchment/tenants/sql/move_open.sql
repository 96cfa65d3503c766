INSERT INTO moves (tenant, source, target, state, data, token, created_at, updated_at)
VALUES (
    (SELECT id FROM tenants WHERE number = ?),
    (SELECT id FROM shards WHERE name = ?),
    (SELECT id FROM shards WHERE name = ?),
    ?, ?, ?, ?, ?
)
