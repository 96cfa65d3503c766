-- Columns and nested fields for which DuckLake keeps bounds of the whole table.
SELECT column_id FROM {metadata}.ducklake_table_column_stats WHERE table_id = ?
