SELECT name, region, address, home, state, stats, seen_at
FROM shards
ORDER BY name
