-- Named unlike any staging table, of which a file that is older than these may have one for every table of a user.
CREATE TABLE IF NOT EXISTS held_schemas (
    table_schema VARCHAR NOT NULL
);

CREATE TABLE IF NOT EXISTS table_lives (
    table_schema VARCHAR NOT NULL,
    table_name   VARCHAR NOT NULL,
    life         BIGINT NOT NULL,
    seq_begun    BIGINT
);

-- The name that a table's rows were acknowledged under, if another table has it by now.
ALTER TABLE table_lives ADD COLUMN IF NOT EXISTS origin_name VARCHAR;

CREATE TABLE IF NOT EXISTS unproven_tables (
    table_schema VARCHAR NOT NULL,
    table_name   VARCHAR NOT NULL,
    seq_opened   BIGINT NOT NULL
);
