-- The fence. In DuckLake two INSERTs never conflict, two UPDATEs of one row do. An UPDATE of no row
-- is not fenced, so the caller requires that exactly one row was affected.
UPDATE {lake}._catchment.producers
SET seq = $seq_to, updated_at = $at
WHERE row(producer, epoch, seq) = row($producer, $epoch, $seq_from)
