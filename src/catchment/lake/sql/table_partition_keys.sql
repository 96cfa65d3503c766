SELECT c.column_name, k.transform
FROM {metadata}.ducklake_partition_info i
JOIN {metadata}.ducklake_partition_column k USING (partition_id, table_id)
JOIN {metadata}.ducklake_column c ON c.table_id = i.table_id AND c.column_id = k.column_id AND c.end_snapshot IS NULL
JOIN {metadata}.ducklake_table t ON t.table_id = i.table_id AND t.end_snapshot IS NULL
JOIN {metadata}.ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
WHERE s.schema_name = ? AND t.table_name = ? AND i.end_snapshot IS NULL
ORDER BY k.partition_key_index
