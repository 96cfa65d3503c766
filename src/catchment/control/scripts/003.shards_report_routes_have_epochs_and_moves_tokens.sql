-- Shards have a folder and say how they are; a tenant's route has a number that grows; a move has a name of its own and a way it ended.

ALTER TABLE shards ADD COLUMN home TEXT NOT NULL DEFAULT '';
ALTER TABLE shards ADD COLUMN stats JSON NOT NULL DEFAULT '{}';
ALTER TABLE shards ADD COLUMN seen_at DATETIME;

ALTER TABLE tenants ADD COLUMN epoch INTEGER NOT NULL DEFAULT 1;

ALTER TABLE moves ADD COLUMN token TEXT NOT NULL DEFAULT '';
ALTER TABLE moves ADD COLUMN outcome TEXT;

-- Tokens of later moves are random, and of another form.
UPDATE moves SET token = 'move-' || id;
UPDATE moves SET outcome = 'aborted' WHERE finished_at IS NOT NULL;

CREATE UNIQUE INDEX moves_by_token ON moves (token);
