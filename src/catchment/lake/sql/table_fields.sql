-- Columns and the fields in them, with what files that lack one would come to.
SELECT column_id, parent_column, column_name, initial_default
FROM {metadata}.ducklake_column
WHERE table_id = ? AND end_snapshot IS NULL
ORDER BY column_order
