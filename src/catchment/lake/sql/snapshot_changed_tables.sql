-- Tables whose rows have changed since a snapshot. A merged file begins with the oldest of its rows;
-- `partial_max` is the snapshot of the newest. The same holds for deletions from one file, which
-- DuckLake merges by itself.
SELECT f.table_id
FROM {metadata}.ducklake_data_file f
WHERE f.begin_snapshot > $snapshot OR f.end_snapshot > $snapshot OR f.partial_max > $snapshot
UNION
SELECT f.table_id
FROM {metadata}.ducklake_delete_file f
WHERE f.begin_snapshot > $snapshot OR f.end_snapshot > $snapshot OR f.partial_max > $snapshot
UNION
-- Rows that are stored in the catalog itself are assumed to have changed.
SELECT i.table_id
FROM {metadata}.ducklake_inlined_data_tables i
