SELECT k.column_id, k.transform
FROM {metadata}.ducklake_partition_info i
JOIN {metadata}.ducklake_partition_column k USING (partition_id, table_id)
WHERE i.table_id = ? AND i.end_snapshot IS NULL
ORDER BY k.partition_key_index
