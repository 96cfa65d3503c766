-- Who may connect, where tenants live, and how they move.

CREATE TABLE users (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    password_hash TEXT NOT NULL,
    created_at DATETIME NOT NULL
);

CREATE TABLE shards (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    region TEXT NOT NULL,
    address TEXT NOT NULL,
    state TEXT NOT NULL,
    created_at DATETIME NOT NULL
);

CREATE TABLE tenants (
    id INTEGER PRIMARY KEY,
    number INTEGER NOT NULL UNIQUE,
    name TEXT NOT NULL,
    shard Shard_ID NOT NULL REFERENCES shards (id),
    limits JSON NOT NULL DEFAULT '{}',
    created_at DATETIME NOT NULL
);

CREATE TABLE moves (
    id INTEGER PRIMARY KEY,
    tenant Tenant_ID NOT NULL REFERENCES tenants (id),
    source Shard_ID NOT NULL REFERENCES shards (id),
    target Shard_ID NOT NULL REFERENCES shards (id),
    state TEXT NOT NULL,
    data JSON NOT NULL DEFAULT '{}',
    version INTEGER NOT NULL DEFAULT 0,
    created_at DATETIME NOT NULL,
    updated_at DATETIME NOT NULL
);

CREATE INDEX tenants_by_shard ON tenants (shard);
