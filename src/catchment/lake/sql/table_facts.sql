-- Which table it is, where DuckLake expects its files (a file elsewhere is registered by its absolute path), and what
-- they are split and ordered by, and what files that lack a column would come to. One statement: each costs a round trip to the catalog.
SELECT t.table_uuid::VARCHAR,
       CASE WHEN NOT t.path_is_relative THEN t.path ELSE s.path || t.path END,
       (
         SELECT list((c.column_name, k.transform) ORDER BY k.partition_key_index)
         FROM {metadata}.ducklake_partition_info i
         JOIN {metadata}.ducklake_partition_column k USING (partition_id, table_id)
         JOIN {metadata}.ducklake_column c USING (table_id, column_id)
         WHERE i.table_id = t.table_id AND i.end_snapshot IS NULL AND c.end_snapshot IS NULL
       ),
       (
         SELECT list((e.expression, e.sort_direction, e.null_order) ORDER BY e.sort_key_index)
         FROM {metadata}.ducklake_sort_info i
         JOIN {metadata}.ducklake_sort_expression e USING (sort_id, table_id)
         WHERE i.table_id = t.table_id AND i.end_snapshot IS NULL
       ),
       (
         SELECT list((c.column_id, c.parent_column, c.column_name, c.initial_default, b.column_id IS NOT NULL))
         FROM {metadata}.ducklake_column c
         LEFT JOIN {metadata}.ducklake_table_column_stats b USING (table_id, column_id)
         WHERE c.table_id = t.table_id AND c.end_snapshot IS NULL
       ),
       EXISTS (SELECT 1 FROM {metadata}.ducklake_data_file f WHERE f.table_id = t.table_id AND f.end_snapshot IS NULL)
FROM {metadata}.ducklake_table t
JOIN {metadata}.ducklake_schema s USING (schema_id)
WHERE s.schema_name = ? AND t.table_name = ? AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL
