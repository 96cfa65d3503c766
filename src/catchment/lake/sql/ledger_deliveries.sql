SELECT unit_id, producer, epoch, seq_first, seq_last, table_schema, table_name, table_uuid, mode, rows, bytes, digest, source, job_id,
       delivered_at, snapshot_id
FROM {lake}._catchment.deliveries
