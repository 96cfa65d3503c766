-- The number of tables of a schema, and the bytes of their current files.
SELECT count(DISTINCT t.table_id), coalesce(sum(f.file_size_bytes), 0)
FROM {metadata}.ducklake_schema s
JOIN {metadata}.ducklake_table t ON t.schema_id = s.schema_id AND t.end_snapshot IS NULL
LEFT JOIN {metadata}.ducklake_data_file f ON f.table_id = t.table_id AND f.end_snapshot IS NULL
WHERE s.schema_name = ? AND s.end_snapshot IS NULL
