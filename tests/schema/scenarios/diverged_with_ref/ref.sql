CREATE TABLE users (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL
);
ALTER TABLE users ADD COLUMN email TEXT NOT NULL DEFAULT '';
CREATE TABLE _migrations (
    number INTEGER PRIMARY KEY,
    filename TEXT NOT NULL,
    script TEXT NOT NULL,
    started_at TEXT NOT NULL,
    finished_at TEXT NOT NULL
);
INSERT INTO _migrations VALUES (
    1, '001.create_users.sql',
    'CREATE TABLE users (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL
);
',
    '2026-01-01T00:00:00+00:00', '2026-01-01T00:00:01+00:00'
);
INSERT INTO _migrations VALUES (
    2, '002.add_email.sql',
    'ALTER TABLE users ADD COLUMN email TEXT NOT NULL DEFAULT '''';
',
    '2026-01-02T00:00:00+00:00', '2026-01-02T00:00:01+00:00'
);
INSERT INTO users (name, email) VALUES ('Ada', 'ada@example.org'), ('Grace', 'grace@example.org');
