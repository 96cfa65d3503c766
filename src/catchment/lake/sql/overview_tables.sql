-- Every user table with its current files, and the number of small ones.
SELECT s.schema_name, t.table_name,
       count(f.data_file_id),
       coalesce(sum(f.file_size_bytes), 0),
       coalesce(sum(f.record_count), 0),
       count(f.data_file_id) FILTER (f.file_size_bytes < ?)
FROM {metadata}.ducklake_table t
JOIN {metadata}.ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
LEFT JOIN {metadata}.ducklake_data_file f ON f.table_id = t.table_id AND f.end_snapshot IS NULL
WHERE t.end_snapshot IS NULL AND s.schema_name <> ?
GROUP BY ALL
ORDER BY ALL
