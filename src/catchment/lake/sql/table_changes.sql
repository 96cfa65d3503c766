-- Snapshots that changed a table: every change except its creation refers to it by its number.
SELECT count(*)
FROM {metadata}.ducklake_snapshot_changes c
JOIN {metadata}.ducklake_table t ON regexp_matches(c.changes_made, ':' || t.table_id || '($|,)')
WHERE t.table_uuid::VARCHAR = ? AND t.end_snapshot IS NULL AND c.snapshot_id > ?
