-- Files below the target size; merging combines neighbours of one partition and schema.
SELECT CASE WHEN count(*) > 1 THEN count(*) ELSE 0 END
FROM {metadata}.ducklake_data_file f
JOIN {metadata}.ducklake_table t ON t.table_id = f.table_id AND t.end_snapshot IS NULL
JOIN {metadata}.ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
WHERE s.schema_name = ? AND t.table_name = ? AND f.end_snapshot IS NULL AND f.file_size_bytes < ?
