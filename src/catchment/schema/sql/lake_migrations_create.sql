CREATE TABLE IF NOT EXISTS {lake}._catchment._migrations (
    schema_name VARCHAR NOT NULL,  -- which schema of the lake; each is migrated by itself
    number BIGINT NOT NULL,        -- 1, 2, 3...
    filename VARCHAR NOT NULL,     -- '001.create_users.sql'
    script VARCHAR NOT NULL,       -- full SQL content (newlines normalized)
    started_at VARCHAR NOT NULL,   -- ISO timestamp
    finished_at VARCHAR NOT NULL   -- ISO timestamp
)
