-- Options of the whole lake and of schemas. DuckLake's own list of options loads every table first.
SELECT option.key, schema.schema_name, option.value
FROM {metadata}.ducklake_metadata option
LEFT JOIN {metadata}.ducklake_schema schema
       ON option.scope = 'schema' AND schema.schema_id = option.scope_id AND schema.end_snapshot IS NULL
WHERE option.scope IS NULL OR option.scope = '' OR schema.schema_id IS NOT NULL
