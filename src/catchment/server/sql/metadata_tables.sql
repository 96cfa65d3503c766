SELECT schema_name, table_name, table_type
FROM (
    SELECT schema_name, table_name, 'TABLE' AS table_type
    FROM duckdb_tables()
    WHERE database_name = $lake
    UNION ALL
    SELECT schema_name, view_name, 'VIEW'
    FROM duckdb_views()
    WHERE database_name = $lake AND NOT internal
)
WHERE
    schema_name <> $ledger
    AND ($own IS NULL OR schema_name = $own)
    AND ($schemas IS NULL OR schema_name ILIKE $schemas ESCAPE '\')
    AND ($tables IS NULL OR table_name ILIKE $tables ESCAPE '\')
    AND (len($types) = 0 OR list_contains($types, table_type))
ORDER BY schema_name, table_name, table_type
