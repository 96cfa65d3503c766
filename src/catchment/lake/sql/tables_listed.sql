-- Every user table. DuckDB's own list of tables has DuckLake count the rows of each; its list of columns does not, but has
-- those of views.
SELECT DISTINCT schema_name, table_name
FROM duckdb_columns()
WHERE database_name = $lake AND schema_name <> $ledger
  AND (schema_name, table_name) NOT IN (SELECT (schema_name, view_name) FROM duckdb_views() WHERE database_name = $lake)
ORDER BY ALL
