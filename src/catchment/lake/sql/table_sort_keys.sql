SELECT e.expression, e.sort_direction, e.null_order
FROM {metadata}.ducklake_sort_info i
JOIN {metadata}.ducklake_sort_expression e USING (sort_id, table_id)
JOIN {metadata}.ducklake_table t ON t.table_id = i.table_id AND t.end_snapshot IS NULL
JOIN {metadata}.ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
WHERE s.schema_name = ? AND t.table_name = ? AND i.end_snapshot IS NULL
ORDER BY e.sort_key_index
