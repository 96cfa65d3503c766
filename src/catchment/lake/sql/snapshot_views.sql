SELECT v.view_name
FROM {metadata}.ducklake_view v
JOIN {metadata}.ducklake_schema s USING (schema_id)
WHERE s.schema_name = $schema
  AND v.begin_snapshot <= $snapshot AND coalesce(v.end_snapshot > $snapshot, true)
  AND s.begin_snapshot <= $snapshot AND coalesce(s.end_snapshot > $snapshot, true)
ORDER BY v.view_name
