-- The options that the lake has for all of it, and for a schema. DuckLake's own list of them loads every table first.
SELECT option.key, schema.schema_name, option.value
FROM {metadata}.ducklake_metadata option
LEFT JOIN {metadata}.ducklake_schema schema
       ON option.scope = 'schema' AND schema.schema_id = option.scope_id AND schema.end_snapshot IS NULL
WHERE option.scope IS NULL OR option.scope = '' OR schema.schema_id IS NOT NULL
