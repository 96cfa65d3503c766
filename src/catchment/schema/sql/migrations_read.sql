SELECT number, filename, script, started_at, finished_at
FROM _migrations
ORDER BY number
