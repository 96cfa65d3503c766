CREATE TABLE IF NOT EXISTS main._migrations (
    number INTEGER PRIMARY KEY,  -- 1, 2, 3...
    filename TEXT NOT NULL,      -- '001.create_users.sql'
    script TEXT NOT NULL,        -- full SQL content (newlines normalized)
    started_at TEXT NOT NULL,    -- ISO timestamp
    finished_at TEXT NOT NULL    -- ISO timestamp
)
