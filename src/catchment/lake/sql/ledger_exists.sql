-- Asked of the catalog: DuckDB's own list of tables goes through those of every database that is attached.
SELECT count(*)
FROM {metadata}.ducklake_table t
JOIN {metadata}.ducklake_schema s USING (schema_id)
WHERE s.schema_name = '_catchment' AND t.table_name IN ('producers', 'deliveries') AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL
