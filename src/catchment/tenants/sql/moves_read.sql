SELECT moves.id, moves.token, tenants.number, source.name, target.name, moves.state, moves.data, moves.version,
    moves.created_at, moves.updated_at, moves.finished_at, moves.outcome
FROM moves
JOIN tenants ON tenants.id = moves.tenant
JOIN shards AS source ON source.id = moves.source
JOIN shards AS target ON target.id = moves.target
