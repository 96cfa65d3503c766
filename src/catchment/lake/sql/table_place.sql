-- Which table it is, and where DuckLake expects its files: one elsewhere is registered by its absolute path. The
-- schema's version grows with whatever is changed about any table but its rows. Whether
-- files are encrypted is the lake's choice, for all of its tables and for good.
SELECT t.table_id, t.table_uuid::VARCHAR, CASE WHEN NOT t.path_is_relative THEN t.path ELSE s.path || t.path END,
       (SELECT max(schema_version) FROM {metadata}.ducklake_snapshot),
       (SELECT count(*) FROM {metadata}.ducklake_metadata WHERE key = 'encrypted' AND value = 'true') > 0
FROM {metadata}.ducklake_table t
JOIN {metadata}.ducklake_schema s USING (schema_id)
WHERE s.schema_name = ? AND t.table_name = ? AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL
