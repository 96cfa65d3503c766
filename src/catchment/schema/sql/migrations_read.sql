SELECT number, filename, script, started_at, finished_at
FROM main._migrations
ORDER BY number
