-- The data files of a table at a snapshot, each with its deletions and partition values. A merged
-- file begins at the snapshot of its oldest row, and `partial_max` is that of its newest; deletions
-- likewise.
SELECT f.path, f.path_is_relative::BOOLEAN, f.file_size_bytes, f.record_count, f.partial_max IS NOT NULL, f.mapping_id,
       f.partition_id,
       (
         SELECT list(v.partition_value ORDER BY v.partition_key_index)
         FROM {metadata}.ducklake_file_partition_value v
         WHERE v.data_file_id = f.data_file_id AND v.table_id = f.table_id
       ),
       f.encryption_key IS NOT NULL OR d.encryption_key IS NOT NULL,
       f.file_format, d.format,
       d.path, d.path_is_relative::BOOLEAN, d.partial_max IS NOT NULL
FROM {metadata}.ducklake_data_file f
LEFT JOIN {metadata}.ducklake_delete_file d
  ON d.data_file_id = f.data_file_id AND d.table_id = f.table_id
 AND d.begin_snapshot <= $snapshot AND coalesce(d.end_snapshot > $snapshot, true)
WHERE f.table_id = $table
  AND f.begin_snapshot <= $snapshot AND coalesce(f.end_snapshot > $snapshot, true)
ORDER BY f.data_file_id
