-- Identity of a table, and the folder where DuckLake expects its files: a file elsewhere is
-- registered by its absolute path. The schema's version grows with every change to a table, except
-- to its rows. Whether files are encrypted is a permanent property of the whole lake.
SELECT t.table_id, t.table_uuid::VARCHAR, CASE WHEN NOT t.path_is_relative THEN t.path ELSE s.path || t.path END,
       (SELECT max(schema_version) FROM {metadata}.ducklake_snapshot),
       (SELECT count(*) FROM {metadata}.ducklake_metadata WHERE key = 'encrypted' AND value = 'true') > 0
FROM {metadata}.ducklake_table t
JOIN {metadata}.ducklake_schema s USING (schema_id)
WHERE s.schema_name = ? AND t.table_name = ? AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL
