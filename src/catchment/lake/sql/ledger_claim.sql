UPDATE {lake}._catchment.producers
SET epoch = epoch + 1, updated_at = $at
WHERE row(producer) = row($producer)
