-- The column of each name in a registered file; `parent_column` is a name of the same mapping.
SELECT m.mapping_id, m.column_id, m.source_name, m.target_field_id, m.parent_column, m.is_partition::BOOLEAN
FROM {metadata}.ducklake_name_mapping m
JOIN {metadata}.ducklake_column_mapping c USING (mapping_id)
WHERE c.table_id = $table
ORDER BY m.mapping_id, m.column_id
