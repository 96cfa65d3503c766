-- Whether rows of the table were deleted or rewritten after their delivery.
SELECT (
    EXISTS (SELECT 1 FROM {metadata}.ducklake_delete_file d WHERE d.table_id = t.table_id)
    OR EXISTS (
        SELECT 1 FROM {metadata}.ducklake_snapshot_changes c
        WHERE regexp_matches(c.changes_made, '(deleted_from_table|inlined_delete):' || t.table_id || '($|,)')
    )
)
FROM {metadata}.ducklake_table t
JOIN {metadata}.ducklake_schema s USING (schema_id)
WHERE s.schema_name = ? AND t.table_name = ? AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL
