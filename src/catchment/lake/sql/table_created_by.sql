-- A table begins with the snapshot that created it; only that snapshot has the commit's provenance.
SELECT s.schema_name, t.table_name, t.table_uuid::VARCHAR
FROM {metadata}.ducklake_snapshot_changes c
JOIN {metadata}.ducklake_table t ON t.begin_snapshot = c.snapshot_id
JOIN {metadata}.ducklake_schema s USING (schema_id)
WHERE contains(c.commit_extra_info, ?)
