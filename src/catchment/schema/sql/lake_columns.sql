-- Views have columns too; a table is what the first of the two lists.
SELECT c.table_name, c.column_name, c.data_type, c.is_nullable, c.column_default
FROM duckdb_tables() t
JOIN duckdb_columns() c USING (database_name, schema_name, table_name)
WHERE database_name = ? AND schema_name = ?
ORDER BY t.table_oid, c.column_index
