-- How far the migrations of each schema are, by their records.
SELECT schema_name, count(*), max_by(filename, number), max_by(finished_at, number)
FROM {lake}._catchment._migrations
GROUP BY schema_name
ORDER BY schema_name
