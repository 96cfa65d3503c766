-- The fence. Two INSERTs never conflict in DuckLake, two UPDATEs of one row do; and a zero-row UPDATE is not fenced,
-- so the caller requires that exactly one row was affected.
UPDATE {lake}._catchment.producers
SET seq = $seq_to, updated_at = $at
WHERE row(producer, epoch, seq) = row($producer, $epoch, $seq_from)
