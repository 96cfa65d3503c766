-- Columns, and fields in them, of which DuckLake keeps bounds for the whole table.
SELECT column_id FROM {metadata}.ducklake_table_column_stats WHERE table_id = ?
