-- Progress of each schema's migrations, by their records.
SELECT schema_name, count(*), max_by(filename, number), max_by(finished_at, number)
FROM {lake}._catchment._migrations
GROUP BY schema_name
ORDER BY schema_name
