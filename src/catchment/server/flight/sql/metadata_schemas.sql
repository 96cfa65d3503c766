SELECT schema_name
FROM duckdb_schemas()
WHERE
    database_name = $lake
    AND schema_name <> $ledger
    AND ($own IS NULL OR schema_name = $own)
    AND ($pattern IS NULL OR schema_name ILIKE $pattern ESCAPE '\')
ORDER BY schema_name
