-- Columns and nested fields, with the value for files that lack them.
SELECT column_id, parent_column, column_name, initial_default
FROM {metadata}.ducklake_column
WHERE table_id = ? AND end_snapshot IS NULL
ORDER BY column_order
