-- Snapshots that still have a dropped table of the schema: their number, the first and the last.
SELECT count(*), min(x.snapshot_id), max(x.snapshot_id)
FROM {metadata}.ducklake_snapshot x
WHERE EXISTS (
    SELECT 1
    FROM {metadata}.ducklake_table t
    JOIN {metadata}.ducklake_schema s ON s.schema_id = t.schema_id
    WHERE s.schema_name = $schema AND t.begin_snapshot <= x.snapshot_id AND t.end_snapshot > x.snapshot_id
)
