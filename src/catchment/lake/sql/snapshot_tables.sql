-- The tables of a schema at a snapshot: identity, folder, columns (also nested ones) with the value
-- for rows that are older than the column, partition keys and sort keys.
SELECT t.table_id, t.table_uuid::VARCHAR, t.table_name,
       CASE WHEN NOT t.path_is_relative THEN t.path ELSE s.path || t.path END,
       (
         SELECT list((c.column_id, c.column_name, c.column_type, c.nulls_allowed::BOOLEAN,
                      coalesce(c.default_value_type, '') || ':' || coalesce(c.default_value, 'NULL'), c.parent_column,
                      c.initial_default)
                     ORDER BY c.column_order)
         FROM {metadata}.ducklake_column c
         WHERE c.table_id = t.table_id
           AND c.begin_snapshot <= $snapshot AND coalesce(c.end_snapshot > $snapshot, true)
       ),
       (
         SELECT list((c.column_name, k.transform, i.partition_id) ORDER BY k.partition_key_index)
         FROM {metadata}.ducklake_partition_info i
         JOIN {metadata}.ducklake_partition_column k USING (partition_id, table_id)
         JOIN {metadata}.ducklake_column c USING (table_id, column_id)
         WHERE i.table_id = t.table_id
           AND i.begin_snapshot <= $snapshot AND coalesce(i.end_snapshot > $snapshot, true)
           AND c.begin_snapshot <= $snapshot AND coalesce(c.end_snapshot > $snapshot, true)
       ),
       (
         SELECT list((e.expression, e.sort_direction, e.null_order) ORDER BY e.sort_key_index)
         FROM {metadata}.ducklake_sort_info i
         JOIN {metadata}.ducklake_sort_expression e USING (sort_id, table_id)
         WHERE i.table_id = t.table_id
           AND i.begin_snapshot <= $snapshot AND coalesce(i.end_snapshot > $snapshot, true)
       )
FROM {metadata}.ducklake_table t
JOIN {metadata}.ducklake_schema s USING (schema_id)
WHERE s.schema_name = $schema
  AND t.begin_snapshot <= $snapshot AND coalesce(t.end_snapshot > $snapshot, true)
  AND s.begin_snapshot <= $snapshot AND coalesce(s.end_snapshot > $snapshot, true)
ORDER BY t.table_id
