-- The catalog's own tables with a schema's inlined rows, including dead versions.
SELECT i.table_name
FROM {metadata}.ducklake_inlined_data_tables i
JOIN {metadata}.ducklake_table t ON t.table_id = i.table_id AND t.end_snapshot IS NULL
JOIN {metadata}.ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
WHERE s.schema_name = ?
