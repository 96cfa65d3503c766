SELECT
    schema_name,
    table_name,
    column_name,
    data_type,
    is_nullable,
    -- For integers DuckDB returns bits, while clients expect digits.
    CASE WHEN numeric_precision_radix = 10 THEN numeric_precision END,
    CASE WHEN numeric_precision_radix = 10 THEN numeric_scale END,
    comment
FROM duckdb_columns()
WHERE
    database_name = $lake
    AND schema_name <> $ledger
    AND ($own IS NULL OR schema_name = $own)
    AND ($schemas IS NULL OR schema_name ILIKE $schemas ESCAPE '\')
    AND ($tables IS NULL OR table_name ILIKE $tables ESCAPE '\')
ORDER BY schema_name, table_name, column_index
