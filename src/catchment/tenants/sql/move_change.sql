-- Compare-and-swap: changes no row if it has changed since it was read.
UPDATE moves
SET state = ?, data = ?, version = version + 1, updated_at = ?, finished_at = ?, outcome = ?
WHERE id = ? AND version = ? AND finished_at IS NULL
