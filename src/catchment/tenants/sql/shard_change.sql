UPDATE shards
SET region = ?, address = ?, home = ?, state = ?
WHERE name = ?
