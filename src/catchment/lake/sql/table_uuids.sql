SELECT s.schema_name, t.table_name, t.table_uuid::VARCHAR
FROM {metadata}.ducklake_table t
JOIN {metadata}.ducklake_schema s USING (schema_id)
WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NULL
