-- Deliveries to the tables of a schema, up to a snapshot and since.
SELECT table_uuid, snapshot_id > $snapshot AS since, count(*), sum(rows)::BIGINT
FROM {lake}._catchment.deliveries
WHERE table_schema = $schema
GROUP BY ALL
