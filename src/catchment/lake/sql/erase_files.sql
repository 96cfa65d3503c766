-- The files of a schema's dropped tables: those that older snapshots list, and those scheduled for
-- deletion. A renamed table has several rows, and is dropped only if none of them is current.
WITH dropped AS (
    SELECT DISTINCT t.table_id,
           CASE WHEN NOT t.path_is_relative::BOOLEAN THEN t.path ELSE s.path || t.path END AS folder
    FROM {metadata}.ducklake_table t
    JOIN {metadata}.ducklake_schema s ON s.schema_id = t.schema_id
    WHERE s.schema_name = $schema
      AND t.table_id NOT IN (SELECT n.table_id FROM {metadata}.ducklake_table n WHERE n.end_snapshot IS NULL)
)
SELECT DISTINCT CASE WHEN NOT f.path_is_relative::BOOLEAN THEN f.path ELSE d.folder || f.path END
FROM (
    SELECT table_id, path, path_is_relative FROM {metadata}.ducklake_data_file
    UNION ALL
    SELECT table_id, path, path_is_relative FROM {metadata}.ducklake_delete_file
) f
JOIN dropped d ON d.table_id = f.table_id
UNION
SELECT path FROM {metadata}.ducklake_files_scheduled_for_deletion
WHERE path_is_relative::BOOLEAN AND starts_with(path, $schema || '/')
ORDER BY 1
