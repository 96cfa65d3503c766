-- The current files of every table, with the size that DuckLake recorded.
SELECT t.table_uuid::VARCHAR,
       CASE WHEN NOT f.path_is_relative::BOOLEAN THEN f.path
            WHEN NOT t.path_is_relative::BOOLEAN THEN t.path || f.path
            ELSE s.path || t.path || f.path END,
       f.file_size_bytes
FROM {metadata}.ducklake_data_file f
JOIN {metadata}.ducklake_table t ON t.table_id = f.table_id AND t.end_snapshot IS NULL
JOIN {metadata}.ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
WHERE f.end_snapshot IS NULL
