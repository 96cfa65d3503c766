-- Named unlike any staging table: an older file may have a staging table for each of a user's tables.
CREATE TABLE IF NOT EXISTS held_schemas (
    table_schema VARCHAR NOT NULL
);

CREATE TABLE IF NOT EXISTS table_lives (
    table_schema VARCHAR NOT NULL,
    table_name   VARCHAR NOT NULL,
    life         BIGINT NOT NULL,
    seq_begun    BIGINT
);

-- The name under which a table's rows were acknowledged, if another table has it now.
ALTER TABLE table_lives ADD COLUMN IF NOT EXISTS origin_name VARCHAR;

CREATE TABLE IF NOT EXISTS unproven_tables (
    table_schema VARCHAR NOT NULL,
    table_name   VARCHAR NOT NULL,
    seq_opened   BIGINT NOT NULL
);
