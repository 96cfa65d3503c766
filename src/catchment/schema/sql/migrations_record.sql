INSERT INTO main._migrations (number, filename, script, started_at, finished_at)
VALUES (?, ?, ?, ?, ?)
