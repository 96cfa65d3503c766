SELECT id, unit_id, producer, seq, table_schema, table_name, reason, "row", buried_at
FROM {lake}._catchment.dead_letters
