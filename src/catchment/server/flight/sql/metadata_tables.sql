-- DuckDB's list of tables makes DuckLake count the rows of each; its list of columns does not, but
-- includes those of views.
WITH views AS (
    SELECT schema_name, view_name, internal
    FROM duckdb_views()
    WHERE database_name = $lake
)
SELECT schema_name, table_name, table_type
FROM (
    SELECT DISTINCT schema_name, table_name, 'TABLE' AS table_type
    FROM duckdb_columns()
    WHERE database_name = $lake AND (schema_name, table_name) NOT IN (SELECT (schema_name, view_name) FROM views)
    UNION ALL
    SELECT schema_name, view_name, 'VIEW'
    FROM views
    WHERE NOT internal
)
WHERE
    schema_name <> $ledger
    AND ($own IS NULL OR schema_name = $own)
    AND ($schemas IS NULL OR schema_name ILIKE $schemas ESCAPE '\')
    AND ($tables IS NULL OR table_name ILIKE $tables ESCAPE '\')
    AND (len($types) = 0 OR list_contains($types, table_type))
ORDER BY schema_name, table_name, table_type
