-- One row per version of a table's columns. The newest takes new rows, the older ones drain.
CREATE TABLE IF NOT EXISTS dq_meta (
    table_schema     VARCHAR NOT NULL,
    table_name       VARCHAR NOT NULL,
    version          BIGINT NOT NULL,
    staging          VARCHAR NOT NULL,
    columns          JSON NOT NULL,
    seq_first        BIGINT NOT NULL,
    last_flushed_seq BIGINT NOT NULL
);

CREATE TABLE IF NOT EXISTS {identity} (
    incarnation VARCHAR NOT NULL,
    session     VARCHAR NOT NULL,
    created_at  TIMESTAMP NOT NULL
);
