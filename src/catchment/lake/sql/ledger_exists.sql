-- Queries the catalog: DuckDB's own list of tables covers every attached database.
SELECT count(*)
FROM {metadata}.ducklake_table t
JOIN {metadata}.ducklake_schema s USING (schema_id)
WHERE s.schema_name = '_catchment' AND t.table_name IN ('producers', 'deliveries') AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL
