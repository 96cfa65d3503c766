SELECT e.expression, e.sort_direction, e.null_order
FROM {metadata}.ducklake_sort_info i
JOIN {metadata}.ducklake_sort_expression e USING (sort_id, table_id)
WHERE i.table_id = ? AND i.end_snapshot IS NULL
ORDER BY e.sort_key_index
