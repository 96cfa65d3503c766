-- The tables of a schema at a snapshot: which they are, their columns (also those inside of others), what their files are
-- split and ordered by, and whether their rows have changed since.
SELECT t.table_name, t.table_uuid::VARCHAR,
       (
         SELECT list((c.column_id, c.column_name, c.column_type, c.nulls_allowed::BOOLEAN,
                      coalesce(c.default_value_type, '') || ':' || coalesce(c.default_value, 'NULL'), c.parent_column)
                     ORDER BY c.column_order)
         FROM {metadata}.ducklake_column c
         WHERE c.table_id = t.table_id
           AND c.begin_snapshot <= $snapshot AND coalesce(c.end_snapshot > $snapshot, true)
       ),
       (
         SELECT list((c.column_name, k.transform) ORDER BY k.partition_key_index)
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
       ),
       EXISTS (
         -- A file that was merged begins with the oldest of its rows; `partial_max` is the snapshot of the newest. So it is
         -- with deletions from one file, which DuckLake merges by itself.
         FROM {metadata}.ducklake_data_file f
         WHERE f.table_id = t.table_id
           AND (f.begin_snapshot > $snapshot OR f.end_snapshot > $snapshot OR f.partial_max > $snapshot)
       ) OR EXISTS (
         FROM {metadata}.ducklake_delete_file f
         WHERE f.table_id = t.table_id
           AND (f.begin_snapshot > $snapshot OR f.end_snapshot > $snapshot OR f.partial_max > $snapshot)
       ) OR EXISTS (
         -- What is kept in the catalog itself is taken for changed.
         FROM {metadata}.ducklake_inlined_data_tables i WHERE i.table_id = t.table_id
       )
FROM {metadata}.ducklake_table t
JOIN {metadata}.ducklake_schema s USING (schema_id)
WHERE s.schema_name = $schema
  AND t.begin_snapshot <= $snapshot AND coalesce(t.end_snapshot > $snapshot, true)
  AND s.begin_snapshot <= $snapshot AND coalesce(s.end_snapshot > $snapshot, true)
ORDER BY t.table_id
