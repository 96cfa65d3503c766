-- Rows that each snapshot brought into the table and that are still there. DuckLake keeps a row's snapshot through
-- merging, expiry and cleaning.
SELECT snapshot_id, count(*) FROM {lake}.{schema}.{table} GROUP BY snapshot_id
