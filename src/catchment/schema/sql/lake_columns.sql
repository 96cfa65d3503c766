-- DuckDB's list of tables makes DuckLake count the rows of each; its list of columns does not, but
-- includes those of views.
SELECT table_name, column_name, data_type, is_nullable, column_default
FROM duckdb_columns()
WHERE database_name = $lake AND schema_name = $schema
  AND table_name NOT IN (SELECT view_name FROM duckdb_views() WHERE database_name = $lake AND schema_name = $schema)
ORDER BY table_oid, column_index
