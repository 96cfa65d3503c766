-- Rows that each snapshot added to the table and that still exist. DuckLake keeps a row's snapshot
-- through merging, expiry and cleaning.
SELECT snapshot_id, count(*) FROM {lake}.{schema}.{table} GROUP BY snapshot_id
