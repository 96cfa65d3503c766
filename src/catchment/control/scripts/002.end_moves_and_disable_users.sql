-- A user can be kept out without being deleted; a move ends, well or with an error, and until then is the tenant's only one.

ALTER TABLE users ADD COLUMN disabled BOOL NOT NULL DEFAULT FALSE;

ALTER TABLE moves ADD COLUMN finished_at DATETIME;
ALTER TABLE moves ADD COLUMN error TEXT;

-- Of several that an earlier version may have left open, the newest goes on.
UPDATE moves SET finished_at = updated_at, error = 'superseded by a later move of the same tenant'
WHERE id < (SELECT max(later.id) FROM moves AS later WHERE later.tenant = moves.tenant);

CREATE UNIQUE INDEX moves_unfinished ON moves (tenant) WHERE finished_at IS NULL;
